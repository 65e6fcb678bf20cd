"""How columns are held in hand: as narrow as their numbers allow, out of DuckDB's share."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import numpy as np
import pyarrow as pa
import pytest

from kalla.reconcile import plan
from kalla.reconcile.matching import hand
from kalla.reconcile.matching.engine import Resources
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.model import SIDES, Recipe, Side
from kalla.reconcile.plan import Input

BOUNDS = [-(2**63), -(2**31) - 1, -(2**31), -1, 0, 2**31 - 1, 2**31, 2**63 - 1]


@pytest.mark.parametrize("late", BOUNDS)
def test_a_number_that_half_a_word_does_not_hold_widens_its_column(late: int) -> None:
    """Whenever it comes: what is there already stays as it was, in more room."""
    given = [5, None, *range(90), late, 7]
    batches = pa.table({"n": pa.array(given, pa.int64())}).to_batches(max_chunksize=10)
    read = hand.gather(3, ["n"], batches, 10**6)
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
    bench = Workbench(plan.make(recipe, inputs), Resources("100MB", 1, tmp_path / "temp"))
    columns = {"p0": hand.Column(pa.int64(), np.zeros(2_500_000, np.int32), None)}  # 10 MB
    other = Thread(target=bench.beside()._held, args=("right", columns, 1))
    run = bench.run

    def interrupted(sql: str) -> None:
        """The other side comes just before the limit is set."""
        other.start()
        other.join(0.5)
        run(sql)

    monkeypatch.setattr(bench, "run", interrupted)
    bench._held("left", columns, 1)
    other.join()
    (limit,) = bench.row("SELECT current_setting('memory_limit')")
    bench.close()
    assert limit == "76.2 MiB"  # 80 MB
