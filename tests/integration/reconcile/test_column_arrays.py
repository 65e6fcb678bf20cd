"""How columns are held in hand: as narrow as their numbers allow, out of DuckDB's share."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from threading import Thread

import numpy as np
import pyarrow as pa
import pytest

from kalla.reconcile.arrays import column_arrays
from kalla.reconcile.plan import plan
from kalla.reconcile.plan.plan import Input, Plan
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


TEXTS = pa.table({"row_id": [3, 4, 0, 1, 2], "n": [13, 14, 10, 11, 12], "t": [*"d", None, *"abc"]})


def test_texts_are_found_by_row_id_in_whatever_order_they_came() -> None:
    batches = TEXTS.to_batches(max_chunksize=2)
    columns, stored = column_arrays.read(5, ["n"], ["t"], batches, 10**6)
    some = np.array([4, 0, 3, 0])
    assert stored["t"].at(some).to_pylist() == [None, "a", "d", "a"]
    assert columns["n"].at(some).to_pylist() == [14, 10, 13, 10]


def test_texts_that_have_no_room_are_not_stored_and_numbers_are() -> None:
    batches = TEXTS.to_batches(max_chunksize=2)
    columns, stored = column_arrays.read(5, ["n"], ["t"], batches, 50)
    assert not stored
    assert columns["n"].at(slice(0, 5)).to_pylist() == [10, 11, 12, 13, 14]


VALUES = {
    "text": "'é' || i",
    "none": "CASE WHEN i % 2 = 0 THEN 'x' || i END",
    "flag": "i % 3 = 0",
    "double": "i / 7",
    "small": "(i / 7)::FLOAT",
    "long": "(i * 10000000000000000000::HUGEINT)::DECIMAL(38, 2)",
    "moment": "TIMESTAMPTZ '2026-03-01 12:00:00.5+02' + i * INTERVAL 1 hour",
    "time": "TIMESTAMP '2026-03-01 12:00:00.5' + i * INTERVAL 1 hour",
    "day": "DATE '2026-03-01' + i::INTEGER",
}
NUMBERS = {"moment", "time", "day"}  # of a word each
UNKNOWN = {
    "uuid": "uuid()",
    "list": "[i]",
    "huge": "i::HUGEINT",
    "json": "'[1]'::JSON",
    "large": "(18446744073709551615 - i)::UBIGINT",
}


@pytest.mark.parametrize("others", [{}, *({name: sql} for name, sql in UNKNOWN.items())])
def test_rows_from_arrays_are_those_of_the_table(
    others: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every type; where the type of a column does not come back from Arrow, from the table."""
    monkeypatch.setattr(column_arrays, "MANY", 1)
    listed = "".join(f', {sql} AS "={name}"' for name, sql in (VALUES | others).items())
    with closing(MatchSession(by_id(), Resources("100MB", 2, tmp_path / "temp"))) as session:
        session.read("left", f"SELECT i AS p0 {listed} FROM range(1000) AS r(i)")
        arrays = session.column_arrays("left")
        assert arrays is not None
        assert arrays.has_all is not bool(others)
        assert set(arrays.stored) == {f"={name}" for name in VALUES.keys() - NUMBERS}
        name = session.rows_at("left", np.array([700, 3, 999]), "some_rows")
        rows = session.arrow(f"SELECT * FROM {name} ORDER BY row_id")
        due = session.arrow("SELECT * FROM left_rows WHERE row_id IN (3, 700, 999) ORDER BY row_id")
    assert rows == due.select(rows.column_names)


def by_id() -> Plan:
    sides = {side: {"uri": "x.parquet", "primary_key": ["id"]} for side in SIDES}
    rule = {"name": "x", "conditions": [{"left": "id", "op": "eq", "right": "id"}]}
    recipe = Recipe.model_validate({"name": "x", "sources": sides, "rules": [rule]})
    inputs: dict[Side, Input] = {side: Input("parquet", ("-",), {"id": "BIGINT"}) for side in SIDES}
    return plan.make(recipe, inputs)


def test_what_duckdb_may_use_is_less_by_both_sides_whichever_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = MatchSession(by_id(), Resources("100MB", 1, tmp_path / "temp"))
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
