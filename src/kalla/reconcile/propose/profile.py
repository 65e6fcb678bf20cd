"""A profile of a source: its columns with their facts, examples and distribution, and its keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import duckdb

from kalla.reconcile.propose import side_tables
from kalla.reconcile.propose.column_roles import ColumnFacts, column_facts
from kalla.reconcile.propose.row_keys import row_key
from kalla.reconcile.propose.side_tables import SideTable
from kalla.reconcile.recipe.model import Source
from kalla.reconcile.sources.formats.csv_sniffing import Decided
from kalla.reconcile.sources.inspection import plain_value
from kalla.reconcile.sources.source_planning import Resolve, from_environment
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import LOCAL, Storage

MOST_ROWS = 5_000_000
_EXAMPLES = 3
_BINS = 10
_LONGEST = 60
_ESTIMATED = (
    "rows and empty values are counted, many distinct values are estimated, and extremes, examples"
    " and distributions are of"
)


@dataclass(frozen=True)
class Bin:
    """A part of a column's range, or one of its frequent values, and how many rows have it."""

    label: str
    rows: int


@dataclass(frozen=True)
class ProfiledColumn:
    name: str
    type: str
    role: str
    nulls: int
    distinct: int
    smallest: Any
    largest: Any
    examples: tuple[str, ...]
    histogram: tuple[Bin, ...]


@dataclass(frozen=True)
class Profile:
    """`total` is how many rows there are about, if only the first were read."""

    format: str
    rows: int
    total: int | None
    bytes: int
    columns: tuple[ProfiledColumn, ...]
    primary_key: tuple[str, ...]
    primary_key_note: str
    decisions: tuple[Decided, ...]
    notes: tuple[str, ...]


def profile(
    source: Source,
    *,
    storage: Storage = LOCAL,
    resolve: Resolve = from_environment,
    bounds: Bounds = side_tables.PROFILED,
) -> Profile:
    """Read up to 5 million rows of a source (200,000 of a database) and describe its columns."""
    with side_tables.opened(storage, bounds) as connection:
        table = side_tables.load(
            connection, "rows", source, storage=storage, resolve=resolve, most=MOST_ROWS
        )
        facts = column_facts(connection, table)
        columns = tuple(_columns(connection, table, facts)) if facts else ()
        key: tuple[str, ...] = ()
        note = "there are no rows"
        if table.rows:
            key, _, note = row_key(connection, table, facts, ())
    notes = table.notes
    if table.is_estimated:
        notes = (*notes, f"{_ESTIMATED} one row in {table.share}")
    return Profile(
        table.format, table.rows, table.total, table.bytes, columns, key, note,
        table.decisions, notes,
    )  # fmt: skip


def _columns(
    connection: duckdb.DuckDBPyConnection, table: SideTable, facts: list[ColumnFacts]
) -> Iterator[ProfiledColumn]:
    """The columns in the order of the source, with their extremes from one pass over it."""
    values = [_measured(table, each) or table.text(each.name) for each in facts]
    asked = ", ".join(f"min({value}), max({value})" for value in values)
    found = connection.execute(f"SELECT {asked} FROM {_rows(table)}").fetchone() or ()
    for place, (each, value) in enumerate(zip(facts, values, strict=True)):
        smallest, largest = found[2 * place : 2 * place + 2]
        yield _column(connection, table, each, value, smallest, largest)


def _column(
    connection: duckdb.DuckDBPyConnection,
    table: SideTable,
    facts: ColumnFacts,
    value: str,
    smallest: Any,
    largest: Any,
) -> ProfiledColumn:
    frequent = connection.execute(
        f"SELECT value, count(*) * {_scale(table)} FROM"
        f" (SELECT {table.text(facts.name)} AS value FROM {_rows(table)})"
        f" WHERE value IS NOT NULL GROUP BY value ORDER BY 2 DESC, 1 LIMIT {_BINS}"
    ).fetchall()
    histogram = [Bin(_short(label), rows) for label, rows in frequent]
    if _measured(table, facts) and smallest is not None and smallest != largest:
        histogram = _bins(connection, table, value, facts.role == "date")
    elif facts.distinct * 2 > facts.given:
        histogram = []  # nearly all values are distinct
    return ProfiledColumn(
        facts.name,
        facts.type,
        facts.role,
        facts.nulls,
        facts.distinct,
        _plain(smallest),
        _plain(largest),
        tuple(_short(label) for label, _ in frequent[:_EXAMPLES]),
        tuple(histogram),
    )


def _rows(table: SideTable) -> str:
    return table.sample if table.is_estimated else table.name


def _scale(table: SideTable) -> int:
    return table.share if table.is_estimated else 1


def _measured(table: SideTable, facts: ColumnFacts) -> str | None:
    """The column as a number or a day, if it holds such values."""
    if facts.role == "date":
        return table.day(facts.name)
    return table.number(facts.name) if facts.role in ("amount", "integer") else None


def _bins(
    connection: duckdb.DuckDBPyConnection, table: SideTable, value: str, are_days: bool
) -> list[Bin]:
    """Equal parts of the range between the smallest and the largest value."""
    days = f"date_diff('day', DATE '1970-01-01', {value})"
    number = f"CAST({days if are_days else value} AS DOUBLE)"
    found = connection.execute(
        f"""
        WITH numbers AS (SELECT {number} AS n FROM {_rows(table)} WHERE {value} IS NOT NULL),
             ends AS (SELECT min(n) AS low, max(n) AS high FROM numbers)
        SELECT least({_BINS - 1}, CAST((n - low) // ((high - low) / {_BINS}) AS INTEGER)) AS bin,
               count(*) * {_scale(table)}, any_value(low), any_value(high)
        FROM numbers, ends GROUP BY bin ORDER BY bin
        """
    ).fetchall()
    counts = {row[0]: row[1] for row in found}
    low, high = found[0][2], found[0][3]
    width = (high - low) / _BINS
    return [
        Bin(_label(low + width * place, are_days), counts.get(place, 0)) for place in range(_BINS)
    ]


def _label(start: float, are_days: bool) -> str:
    if not are_days:
        return f"{start:,.2f}"
    return (date(1970, 1, 1) + timedelta(days=int(start))).isoformat()


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        text = format(value, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    return plain_value(value)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
