"""Filters of files: what a value is depends on the column, and not on how the recipe is written."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pytest

from kalla.errors import InvalidInput
from kalla.reconcile.recipe.model import Csv, Filter
from kalla.reconcile.sql.column_values import Columns
from kalla.reconcile.sql.row_filters import conjunction, leniently
from kalla.spark.connectors.connector import Predicate
from kalla.spark.connectors.postgres_text import predicate_condition
from kalla.spark.connectors.postgres_types import PostgresColumn

PARIS = "Europe/Paris"
# The last evening of January, midnight in Paris, the first night of February, and its second day.
TIMES = ["2026-01-31 22:00", "2026-01-31 23:00", "2026-01-31 23:30", "2026-02-01 23:00"]
LOCAL = ["2026-01-31 23:00", "2026-02-01 00:00", "2026-02-01 00:30", "2026-02-02 00:00"]
KINDS: dict[str, tuple[list[str], Csv]] = {
    "TIMESTAMP WITH TIME ZONE": (TIMES, Csv()),
    "TIMESTAMP": (LOCAL, Csv()),
    "VARCHAR": (
        [f"{each[8:10]}.{each[5:7]}.{each[:4]} {each[11:]}" for each in LOCAL],
        Csv(date_format="%d.%m.%Y %H:%M"),
    ),
}


def kept(rows: list[str], type_: str, given: dict[str, Any], csv: Csv, zone: str) -> list[int]:
    """The places of the rows that a filter lets through."""
    condition = conjunction([Filter(column="at", **given)], Columns({"at": type_}, csv, zone))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f'CREATE TABLE t (place INTEGER, "=at" {type_})')
        connection.executemany("INSERT INTO t VALUES (?, ?)", list(enumerate(rows)))
        found = connection.execute(f"SELECT place FROM t WHERE {condition} ORDER BY 1").fetchall()
    return [place for (place,) in found]


@pytest.mark.parametrize("type_", KINDS)
@pytest.mark.parametrize(
    ("op", "value", "places"),
    [
        ("lte", date(2026, 2, 1), [0, 1, 2]),
        ("lte", "2026-02-01", [0, 1, 2]),
        ("eq", "2026-02-01", [1, 2]),
        ("gt", " 2026-02-01", [3]),
        ("gte", datetime(2026, 2, 1), [1, 2, 3]),  # noqa: DTZ001 - it is of the recipe's zone
        ("gte", "2026-02-01T00:00:00", [1, 2, 3]),
        ("gte", datetime(2026, 1, 31, 23, 30, tzinfo=UTC), [2, 3]),
        ("gte", "2026-01-31T23:30:00Z", [2, 3]),
        ("in", ("2026-01-31", datetime(2026, 1, 31, 23, 30, tzinfo=UTC)), [0, 2]),
        ("not_in", ("2026-01-31", datetime(2026, 1, 31, 23, 30, tzinfo=UTC)), [1, 3]),
    ],
)
def test_a_day_is_a_day_and_a_time_an_instant_of_whatever_column(
    type_: str, op: str, value: object, places: list[int]
) -> None:
    rows, csv = KINDS[type_]
    assert kept(rows, type_, {"op": op, "value": value}, csv, PARIS) == places


def test_an_hour_that_comes_twice_is_the_same_one_in_a_column_and_in_a_filter() -> None:
    twice = {"op": "eq", "value": "2026-10-25T02:30:00"}
    assert kept(["2026-10-25 02:30"], "TIMESTAMP", twice, Csv(), PARIS) == [0]
    instants = ["2026-10-25 00:30+00", "2026-10-25 01:30+00"]
    assert kept(instants, "TIMESTAMP WITH TIME ZONE", twice, Csv(), PARIS) == [0]


@pytest.mark.parametrize("value", [date(2026, 2, 1), "2026-02-01"])
def test_a_text_that_is_a_date_is_one_for_dates_in_a_format_of_their_own(value: object) -> None:
    csv = Csv(date_format="%d.%m.%Y")
    rows = ["31.01.2026", "01.02.2026", "02.02.2026"]
    assert kept(rows, "VARCHAR", {"op": "gte", "value": value}, csv, "UTC") == [1, 2]
    days = ["2026-01-31", "2026-02-01", "2026-02-02"]
    assert kept(days, "DATE", {"op": "gte", "value": value}, Csv(), "UTC") == [1, 2]


def test_values_of_a_list_are_each_what_they_are() -> None:
    rows = ["1.0", "a", "2026-01-31", "b"]
    given = {"op": "in", "value": (1, "a", date(2026, 1, 31))}
    assert kept(rows, "VARCHAR", given, Csv(), "UTC") == [0, 1, 2]
    assert kept(rows, "VARCHAR", {"op": "in", "value": (Decimal(1), "b")}, Csv(), "UTC") == [0, 3]


@pytest.mark.parametrize(
    ("type_", "value"),
    [("DATE", datetime(2026, 1, 31, tzinfo=UTC)), ("DATE", "2026-01-31T10:00:00"),
     ("TIMESTAMP", "soon"), ("BIGINT", "a")],
)  # fmt: skip
def test_what_a_column_has_not_is_refused(type_: str, value: object) -> None:
    with pytest.raises(InvalidInput):
        kept([], type_, {"op": "eq", "value": value}, Csv(), "UTC")


@pytest.mark.parametrize("value", [datetime(2026, 1, 31, tzinfo=UTC), "2026-01-31T10:00:00"])
def test_a_time_is_refused_for_dates_of_postgres_as_well(value: Any) -> None:
    columns = {"at": PostgresColumn("at", "date", "date", "b", -1, array=False, not_null=False)}
    with pytest.raises(InvalidInput):
        predicate_condition(Predicate("at", "eq", value), columns)


@pytest.mark.parametrize(
    ("op", "amount", "hidden"),
    [("eq", None, False), ("in", None, False), ("ne", None, True), ("eq", "at", True)],
    ids=["another text", "none of these", "left out as well", "an amount that is not known"],
)
def test_a_text_is_in_doubt_where_it_may_be_the_number_that_is_asked_for(
    op: Any, amount: str | None, hidden: bool
) -> None:
    """K-1 is not the account 4711; but what an amount says that cannot be read, nobody knows."""
    value = (4711,) if op == "in" else 4711
    columns = Columns({"at": "VARCHAR"}, amount=amount)
    found = leniently([Filter(column="at", op=op, value=value)], columns)
    assert (found is not None) == hidden


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "value", ["1E-999999999", "1E+999999999", "0E-999999999", "1E-999999999999999"]
)
def test_a_number_that_nobody_could_write_out_is_refused_and_not_written_out(value: str) -> None:
    asked = Filter(column="amount", op="eq", value=value)
    with pytest.raises(InvalidInput, match="too many digits to compare with"):
        conjunction([asked], Columns({"amount": "DECIMAL(12, 2)"}, Csv(), PARIS))
