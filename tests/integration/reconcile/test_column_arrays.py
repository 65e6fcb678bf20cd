"""How columns are held in hand: as narrow as their numbers allow, out of DuckDB's share."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import numpy as np
import pyarrow as pa
import pytest

from kalla.reconcile.arrays import column_arrays
from kalla.reconcile.plan import plan
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import SIDES, Recipe, Side
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.session.match_session import MatchSession

BOUNDS = [-(2**63), -(2**31) - 1, -(2**31), -1, 0, 2**31 - 1, 2**31, 2**63 - 1]


@pytest.mark.parametrize("late", BOUNDS)
def test_a_number_that_half_a_word_does_not_hold_widens_its_column(late: int) -> None:
    """Whenever it comes: what is there already stays as it was, in more room."""
    given = [5, None, *range(90), late, 7]
    batches = pa.table({"n": pa.array(given, pa.int64())}).to_batches(max_chunksize=10)
    read = column_arrays.gather(3, ["n"], batches, 10**6)
    assert read is not None
    count, columns = read
    assert count == len(given)
    assert columns["n"].at(slice(0, count)).to_pylist() == given
    is_narrow = -(2**31) <= late < 2**31
    assert columns["n"].held.dtype == (np.int32 if is_narrow else np.int64)


def test_what_duckdb_may_use_is_less_by_both_sides_whichever_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = {side: {"uri": "x.parquet", "primary_key": ["id"]} for side in SIDES}
    rule = {"name": "x", "conditions": [{"left": "id", "op": "eq", "right": "id"}]}
    recipe = Recipe.model_validate({"name": "x", "sources": sides, "rules": [rule]})
    inputs: dict[Side, Input] = {side: Input("parquet", ("-",), {"id": "BIGINT"}) for side in SIDES}
    session = MatchSession(plan.make(recipe, inputs), Resources("100MB", 1, tmp_path / "temp"))
    columns = {"p0": column_arrays.Column(pa.int64(), np.zeros(2_500_000, np.int32), None)}  # 10 MB
    other = Thread(target=session.fork()._held, args=("right", columns, 1))
    run = session.run

    def interrupted(sql: str) -> None:
        """The other side comes just before the limit is set."""
        other.start()
        other.join(0.5)
        run(sql)

    monkeypatch.setattr(session, "run", interrupted)
    session._held("left", columns, 1)
    other.join()
    (limit,) = session.row("SELECT current_setting('memory_limit')")
    session.close()
    assert limit == "76.2 MiB"  # 80 MB
