"""A filter means the same on a table of Postgres as on files, also where clocks are put back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import duckdb
import psycopg
import pytest

from kalla.reconcile.recipe.model import Csv, Filter
from kalla.reconcile.sql.column_values import Columns
from kalla.reconcile.sql.row_filters import conjunction
from kalla.spark.connectors.connector import Operator, Predicate
from kalla.spark.connectors.postgres_text import predicate_condition
from kalla.spark.connectors.postgres_types import PostgresColumn
from tests.integration.connectors.postgres_shelf import PostgresShelf

HALF = timedelta(minutes=30)
# Back by night, forth, back at midnight, and nothing.
CHANGES = [
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("America/Havana", datetime(2026, 11, 1, 5, tzinfo=UTC)),
    ("UTC", datetime(2026, 10, 25, 1, tzinfo=UTC)),
]
TYPES = {"timestamptz": "TIMESTAMP WITH TIME ZONE", "timestamp": "TIMESTAMP"}
Rows = Sequence[tuple[int, datetime]]


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "lte", "gt", "gte"])
@pytest.mark.parametrize("base", TYPES)
@pytest.mark.parametrize(("zone", "change"), CHANGES, ids=str)
def test_around_a_change_of_clocks_a_filter_means_the_same_as_on_files(
    shared: PostgresShelf, zone: str, change: datetime, base: str, op: Operator
) -> None:
    instants = [change + step * HALF for step in range(-8, 9)]
    clocks = sorted({_shown(each, zone) for each in instants})
    days = sorted({each.date() for each in clocks})
    rows = list(enumerate(instants if base == "timestamptz" else clocks))
    values: list[date] = [*instants, *clocks, *days]
    assert _by_postgres(shared, rows, base, op, values, zone) == _by_duckdb(
        rows, base, op, values, zone
    )


def _shown(instant: datetime, zone: str) -> datetime:
    """What clocks show then, which does not tell the first time from the second."""
    return instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)


def _by_postgres(
    shelf: PostgresShelf, rows: Rows, base: str, op: Operator, values: Sequence[date], zone: str
) -> dict[str, list[int]]:
    column = PostgresColumn("at", base, base, "b", -1, array=False, not_null=False)
    with psycopg.connect(shelf.url) as connection:
        connection.execute(f"CREATE TEMP TABLE t (place int, at {base})".encode())
        connection.cursor().executemany("INSERT INTO t VALUES (%s, %s)", rows)
        found = {}
        for value in values:
            condition = predicate_condition(Predicate("at", op, value, zone), {"at": column})
            asked = f"SELECT place FROM t WHERE {condition} ORDER BY 1"
            found[str(value)] = [place for (place,) in connection.execute(asked.encode())]
    return found


def _by_duckdb(
    rows: Rows, base: str, op: Operator, values: Sequence[date], zone: str
) -> dict[str, list[int]]:
    columns = Columns({"at": TYPES[base]}, Csv(), zone)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f'CREATE TABLE t (place INTEGER, "=at" {TYPES[base]})')
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
        found = {}
        for value in values:
            given = Filter.model_validate({"column": "at", "op": op, "value": value})
            asked = f"SELECT place FROM t WHERE {conjunction([given], columns)} ORDER BY 1"
            found[str(value)] = [place for (place,) in connection.execute(asked).fetchall()]
    return found
