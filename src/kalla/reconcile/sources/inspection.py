"""Inspects a source before there is a recipe for it: its columns, its possible primary key, its
first rows, and whether it can be reached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from itertools import combinations
from typing import Any

import duckdb
import pyarrow as pa

from kalla.errors import InvalidInput, KallaError, Problem
from kalla.plurals import counted
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import COMPRESSIONS, Source
from kalla.reconcile.recipe.validation import word_of
from kalla.reconcile.sources import native_files
from kalla.reconcile.sources.scanning.column_names import demand_names
from kalla.reconcile.sources.scanning.duckdb_files import opened
from kalla.reconcile.sources.scanning.scan_sql import scan
from kalla.reconcile.sources.source_columns import (
    SAMPLE_ROWS,
    columns_of,
    read_first,
    readable_rows,
    sampled,
)
from kalla.reconcile.sources.source_planning import (
    Resolve,
    from_environment,
    is_staged,
    password_of,
)
from kalla.reconcile.sql.column_values import quote
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.spark.connectors.connector import ColumnType, Slice
from kalla.spark.connectors.postgres_connector import PostgresConnector
from kalla.storage import LOCAL, Storage

LOOK = Bounds(seconds=20)
PREVIEW_ROWS = 50
_KEY_COLUMNS = 8  # of which combinations are tried
_COMPARED_COLUMNS = 50
_LONGEST_TEXT = 1_000
_HEAD_BYTES = 1 << 20
_SAFE_INTEGER = 2**53  # beyond it a browser rounds
_KEY_NAMES = ("id", "key", "no", "nr", "number", "code", "uuid", "reference")


@dataclass(frozen=True)
class Column:
    """`type` in a word (text, integer, decimal, …), `declared` as the source has it."""

    name: str
    type: str
    declared: str
    nullable: bool = True


@dataclass(frozen=True)
class Inspection:
    format: str
    columns: tuple[Column, ...]
    rows: int | None  # None: not known without reading all
    exact: bool  # whether the rows were counted
    bytes: int
    primary_key: tuple[str, ...]  # () if none was found
    primary_key_note: str  # whether it is declared or a guess, and by what
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Preview:
    """The first rows, each value as JSON: only small numbers are numbers, others are text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Reach:
    reachable: bool
    message: str


def inspect(
    source: Source,
    *,
    storage: Storage = LOCAL,
    resolve: Resolve = from_environment,
    bounds: Bounds = LOOK,
) -> Inspection:
    """Columns, size and a primary key; reads a table's catalogue, and of files a bounded sample."""
    if is_staged(source):
        return _inspect_table(_table(source, resolve, bounds))
    seen = native_files.inspect_files(source, storage=storage, lines=SAMPLE_ROWS, bounds=bounds)
    rows, exact = estimate(seen, storage), seen.rows is not None
    names = ", ".join(quote(name) for name in _comparable(seen)) or "1 AS nothing"
    with sampled(source, seen, names, storage, bounds, SAMPLE_ROWS) as connection:
        key, note = _guess(connection, seen)
    columns = tuple(Column(name, word_of(type_), type_) for name, type_ in seen.types.items())
    notes = seen.notes
    if seen.format == "json":
        notes = (*notes, f"the columns are those of the first {SAMPLE_ROWS:,} lines")
    return Inspection(seen.format, columns, rows, exact, seen.bytes, key, note, notes)


def columns(
    source: Source,
    *,
    storage: Storage = LOCAL,
    resolve: Resolve = from_environment,
    bounds: Bounds = LOOK,
) -> dict[str, str]:
    """The columns with their types in a word, and nothing else; of JSON by every line, for one may
    come late."""
    if is_staged(source):
        found = _schema(_table(source, resolve, bounds))
        return {each.name: _word_of_arrow(each) for each in found}
    return columns_of(source, storage=storage, bounds=bounds)


def preview(
    source: Source,
    rows: int = PREVIEW_ROWS,
    *,
    storage: Storage = LOCAL,
    resolve: Resolve = from_environment,
    bounds: Bounds = LOOK,
) -> Preview:
    """The first rows, unchanged; reads no more than it needs."""
    if is_staged(source):
        return _first_of_table(_table(source, resolve, bounds), rows)
    seen = native_files.inspect_files(source, storage=storage, lines=SAMPLE_ROWS, bounds=bounds)
    columns = ", ".join(f"CAST({quote(name)} AS {kind})" for name, kind in seen.types.items())
    with opened(storage, bounds) as connection, readable_rows(source, seen, storage):
        found = connection.execute(f"SELECT {columns} FROM {scan(seen)} LIMIT {int(rows)}")
        return Preview(tuple(seen.types), tuple(_plain_row(row) for row in found.fetchall()))


def reach(
    source: Source,
    *,
    storage: Storage = LOCAL,
    resolve: Resolve = from_environment,
    bounds: Bounds = LOOK,
) -> Reach:
    """Whether the source can be reached and its first rows be read, or the reason why not."""
    try:
        if is_staged(source):
            columns = _schema(_table(source, resolve, bounds))
            return Reach(
                True, f"{source.table} can be read: it has {counted(len(columns), 'column')}"
            )
        seen = native_files.inspect_files(source, storage=storage, lines=SAMPLE_ROWS, bounds=bounds)
        files = counted(len(seen.files), "file") if len(seen.files) != 1 else "one file"
        with read_first(source, seen, storage, bounds):
            return Reach(True, f"{source.uri} can be read: {files} of {seen.bytes:,} bytes")
    except KallaError as error:
        return Reach(False, str(error))


def estimate(seen: Input, storage: Storage) -> int | None:
    """The number of rows of files: from their metadata, else estimated by the first lines; unknown
    for compressed files.
    """
    if seen.rows is not None:
        return seen.rows
    first = seen.files[0]
    if first.lower().endswith(tuple(COMPRESSIONS)):
        return None
    with storage.open(first) as opened:
        head = opened.read(_HEAD_BYTES)
    if not head:
        return None
    lines = head.count(b"\n") or 1
    headers = len(seen.files) if seen.format == "csv" and seen.csv.header else 0
    return max(0, round(seen.bytes * lines / len(head)) - headers)


# A table


def _table(source: Source, resolve: Resolve, bounds: Bounds) -> PostgresConnector:
    if not source.table:
        raise InvalidInput(Problem("table", "is missing: a database holds many"))
    with native_files.problems_at("", "password"):
        password = password_of(source.password, resolve)
    return PostgresConnector(source.uri, source.table, password, seconds=bounds.seconds)


def _schema(table: PostgresConnector) -> tuple[ColumnType, ...]:
    found = table.schema()
    with native_files.problems_at("", "table"):
        demand_names([each.name for each in found], table.table)
    return found


def _inspect_table(table: PostgresConnector) -> Inspection:
    schema, estimate, key = _schema(table), table.estimate(), table.primary_key()
    note = "declared by the table" if key else "the table declares no key, and no unique index"
    return Inspection(
        "postgres",
        tuple(
            Column(each.name, _word_of_arrow(each), each.declared, each.nullable) for each in schema
        ),
        estimate.rows,
        estimate.exact,
        estimate.bytes,
        key,
        note,
        estimate.notes,
    )


def _first_of_table(table: PostgresConnector, rows: int) -> Preview:
    names = [each.name for each in _schema(table) if each.arrow is not None]
    found: list[tuple[Any, ...]] = []
    if names and rows > 0:
        for batch in table.read(Slice(0, 1), names):
            part = batch.slice(0, rows - len(found))
            found += zip(*(column.to_pylist() for column in part.columns), strict=True)
            if len(found) >= rows:
                break  # and the connection is closed: the rest is never sent
    return Preview(tuple(names), tuple(_plain_row(row) for row in found))


def _word_of_arrow(column: ColumnType) -> str:
    arrow = column.arrow
    for is_type, word in (
        (pa.types.is_string, "text"),
        (pa.types.is_integer, "integer"),
        (pa.types.is_decimal, "decimal"),
        (pa.types.is_floating, "float"),
        (pa.types.is_date, "date"),
        (pa.types.is_timestamp, "timestamp"),
        (pa.types.is_boolean, "boolean"),
    ):
        if arrow is not None and is_type(arrow):
            return word
    return "other"


# Files


def _comparable(seen: Input) -> list[str]:
    """Columns that may identify a row."""
    plain = [name for name, type_ in seen.types.items() if word_of(type_) not in ("other", "float")]
    return plain[:_COMPARED_COLUMNS]


def _guess(connection: duckdb.DuckDBPyConnection, seen: Input) -> tuple[tuple[str, ...], str]:
    """A column that is unique and never null, or else the first small combination."""
    names = _comparable(seen)
    counts = "".join(f", count({quote(name)}), {_distinct([name])}" for name in names)
    (found,) = connection.execute(f"SELECT count(*){counts} FROM sample").fetchall()
    rows, each = found[0], found[1:]
    whose = f"the first {rows:,} rows" if rows == SAMPLE_ROWS else f"all {rows:,} rows"
    if not rows:
        return (), "there are no rows to guess a key by"
    distinct = {
        name: each[2 * place + 1] for place, name in enumerate(names) if each[2 * place] == rows
    }
    alone = sorted((name for name in distinct if distinct[name] == rows), key=_unlike_a_key)
    if alone:
        return (alone[0],), f"a guess: unique and never null in {whose}"
    best = sorted(sorted(distinct, key=distinct.__getitem__, reverse=True)[:_KEY_COLUMNS])
    for width in (2, 3):
        groups = [list(group) for group in combinations(best, width)]
        if not groups:
            continue
        asked = ", ".join(_distinct(group) for group in groups)
        (numbers,) = connection.execute(f"SELECT {asked} FROM sample").fetchall()
        for group, number in zip(groups, numbers, strict=True):
            if number == rows:
                order = [name for name in names if name in group]
                return tuple(order), f"a guess: together unique and never null in {whose}"
    return (), f"no column and no small combination is unique and never null in {whose}"


def _distinct(names: Sequence[str]) -> str:
    return f"count(DISTINCT ({', '.join(quote(name) for name in names)}))"


def _unlike_a_key(name: str) -> bool:
    last = name.lower().replace("-", "_").rpartition("_")[2]
    return not (last in _KEY_NAMES or name.endswith(("Id", "ID", "No", "Key")))


# Values


def _plain_row(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(plain_value(value) for value in row)


def plain_fields(document: dict[str, Any]) -> dict[str, Any]:
    """A document of values as JSON can hold it."""
    return {name: plain_value(each) for name, each in document.items()}


def plain_value(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= _SAFE_INTEGER:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, dict):
        return {str(name): plain_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in value]
    if isinstance(value, bytes):
        text = value.hex()
    elif isinstance(value, date | datetime | time):
        text = value.isoformat()
    else:
        text = format(value, "f") if isinstance(value, Decimal) else str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
