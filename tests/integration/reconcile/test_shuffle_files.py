"""Rows on their way between tasks: they arrive as they were, each in its bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.reconcile.partitioned import shuffle, shuffle_files
from kalla.reconcile.plan import plan
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import SIDES, Recipe, Side
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.session.match_session import MatchSession
from kalla.storage import LOCAL

RECIPE = Recipe.model_validate(
    {
        "name": "test",
        "sources": {side: {"uri": "-", "primary_key": ["id"]} for side in SIDES},
        "rules": [{"name": "rule", "conditions": [{"left": "id", "op": "eq", "right": "id"}]}],
    }
)

VALUES = {
    "BOOLEAN": "true",
    "UTINYINT": "200",
    "BIGINT": "-5",
    "HUGEINT": "170141183460469231731687303715884105727",
    "UHUGEINT": "1",
    "DOUBLE": "1.5",
    "DECIMAL(4,2)": "-1.25",
    "DECIMAL(18,2)": "1234567890123456.78",
    "DECIMAL(38,9)": "12345678901234567890123456789.123456789",
    "VARCHAR": "'∅'",
    "BLOB": r"'\xAA\x00'",
    "BIT": "'0101'",
    "UUID": "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
    "JSON": """'{"a": 1}'""",
    "DATE": "'1582-10-15'",
    "TIME": "'10:11:12.123456'",
    "TIME WITH TIME ZONE": "'10:11:12+02:00'",
    "TIMESTAMP": "'0001-01-01 00:00:00'",
    "TIMESTAMP_S": "'2026-01-01 00:00:00'",
    "TIMESTAMP_NS": "'2026-01-01 00:00:00.123456789'",
    "TIMESTAMP WITH TIME ZONE": "'2026-01-01 00:00:00+05'",
    "INTERVAL": "'3 days 4 hours'",
    "INTEGER[]": "[1, NULL]",
    "STRUCT(a INTEGER, b VARCHAR)": "{'a': 1, 'b': 'x'}",
    "MAP(VARCHAR, INTEGER)": "MAP {'k': 1}",
}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[MatchSession]:
    inputs: dict[Side, Input] = {side: Input("parquet", ("-",), {"id": "BIGINT"}) for side in SIDES}
    found = MatchSession(plan.make(RECIPE, inputs), Resources("500MB", 1, tmp_path / "temp"))
    yield found
    found.close()


@pytest.mark.parametrize("left_out", [(), ("BLOB", "BIT")])
def test_values_of_every_type_arrive_as_they_were(
    left_out: tuple[str, ...], session: MatchSession, tmp_path: Path
) -> None:
    kinds = [kind for kind in VALUES if kind not in left_out]
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))
    session.run(f"CREATE TABLE sent (place INTEGER, {columns})")
    session.run(f"INSERT INTO sent VALUES (0, {', '.join(VALUES[kind] for kind in kinds)})")
    session.run(f"INSERT INTO sent VALUES (1, {', '.join('NULL' for _ in kinds)})")
    session.run("INSERT INTO sent SELECT place + 2, * EXCLUDE (place) FROM sent")
    rows = f"SELECT *, place % 2 AS {shuffle_files.BUCKET} FROM sent"
    shuffle_files.write(session, rows, 2, str(tmp_path / "rows"))
    for bucket in range(2):
        session.connection.register(
            "came", shuffle_files.read([str(tmp_path / "rows")], LOCAL, bucket)
        )
        session.run(f"CREATE TABLE got_{bucket} AS SELECT * FROM came")
        assert session.rows(f"DESCRIBE got_{bucket}") == session.rows("DESCRIBE sent")
        sent = f"SELECT CAST(sent AS VARCHAR) FROM sent WHERE place % 2 = {bucket}"
        got = f"SELECT CAST(got_{bucket} AS VARCHAR) FROM got_{bucket}"
        assert sorted(session.rows(got)) == sorted(session.rows(sent))


def test_rows_of_many_batches_and_tasks_are_found_by_their_bucket(
    session: MatchSession, tmp_path: Path
) -> None:
    folders = [str(tmp_path / name) for name in ("first", "second", "without rows")]
    for folder, rows in zip(folders, ("range(400_000)", "range(50, 90)", "range(0)"), strict=True):
        selected = (
            f"SELECT range AS n, repeat('x', range % 5) AS t, range % 7 AS {shuffle_files.BUCKET}"
            f" FROM {rows}"
        )
        shuffle_files.write(session, selected, 7, folder)
    for bucket in (0, 3, 6, None):
        session.connection.register("came", shuffle_files.read(folders, LOCAL, bucket))
        which = "true" if bucket is None else f"n % 7 = {bucket}"
        expected = f"SELECT range AS n FROM range(400_000) WHERE {which} UNION ALL"
        expected += f" SELECT range AS n FROM range(50, 90) WHERE {which}"
        told = "SELECT count(*), sum(n), count(*) FILTER (NOT n % 5 = length(t)) FROM came"
        assert session.row(told) == (*session.row(f"SELECT count(*), sum(n) FROM ({expected})"), 0)


def test_files_that_hold_a_column_in_different_types_are_spread_alike(tmp_path: Path) -> None:
    paths = []
    for number, kind in enumerate((pa.int32(), pa.int64())):
        paths.append(str(tmp_path / f"{number}.parquet"))
        pq.write_table(pa.table({"id": pa.array(range(10), kind)}), paths[-1])
    given = Input("parquet", tuple(paths), {"id": "BIGINT"})
    made = plan.make(RECIPE, {"left": given, "right": given})
    key, resources = shuffle.Key.of(made.rules[0]), Resources("500MB", 1, tmp_path / "temp")
    spread = [
        shuffle.spread(made, piece, key, 3, str(tmp_path / "spread"), resources)
        for piece in shuffle.pieces(made, 2, LOCAL)
        if piece.side == "left"
    ]
    assert len(spread) == 2
    found = [
        shuffle_files.read([each.place for each in spread], LOCAL, bucket) for bucket in range(3)
    ]
    assert sum(each.num_rows for each in found) == 20
    for each in found:
        held = each.column("=id").to_pylist()
        assert sorted(held) == sorted(2 * list(set(held)))
