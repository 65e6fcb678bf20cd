"""Checks the schemas of Parquet files, by their footers: whether each file, and all together, can
be read exactly.

DuckDB finds a common type for each column of several files, and would round what does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import duckdb
import pyarrow.parquet as pq

from kalla.reconcile.sources.scanning.column_names import demand_names
from kalla.reconcile.sources.scanning.scan_sql import listed, parquet
from kalla.reconcile.sql.column_values import literal
from kalla.reconcile.sql.duckdb_errors import names
from kalla.storage import Storage
from kalla.threads import spread

_AT_ONCE = 16  # files
_MOST_DIGITS = 38
_NOTHING = '"NULL"'  # the type of a column that holds no value
_LARGEST = {
    "TINYINT": 2**7 - 1, "SMALLINT": 2**15 - 1, "INTEGER": 2**31 - 1, "BIGINT": 2**63 - 1,
    "UTINYINT": 2**8 - 1, "USMALLINT": 2**16 - 1, "UINTEGER": 2**32 - 1, "UBIGINT": 2**64 - 1,
}  # fmt: skip
_LARGEST_IN_FLOATS = {"FLOAT": 2**24, "DOUBLE": 2**53}
_INSTANT = "TIMESTAMP WITH TIME ZONE"
_TIMES = (
    {"TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"},
    {_INSTANT, "TIMESTAMPTZ_NS"},
)
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")

_Path: TypeAlias = tuple[str, ...]
_Node: TypeAlias = tuple[str, str, int, int]  # name, type, children, digits of a decimal


@dataclass(frozen=True)
class _Shape:
    """A schema, and the first file that has it."""

    file: str
    columns: tuple[str, ...]
    leaves: tuple[tuple[_Path, _Node], ...]  # the columns, or the parts of those that have parts


@dataclass(frozen=True)
class Schema:
    """The columns of all files with the types that all of them are read by; and those that would
    not be read as they were written, each with the reason, as the end of a sentence."""

    types: Mapping[str, str]
    unread: Mapping[str, str]


def footers(files: Sequence[str], storage: Storage) -> list[pq.FileMetaData]:
    """The footers of the files; from S3 several are read at once."""

    def footer(file: str) -> pq.FileMetaData:
        with storage.open(file) as opened:
            return pq.read_metadata(opened)

    return list(spread(footer, files, _AT_ONCE, "footers"))


def common_schema(connection: duckdb.DuckDBPyConnection, files: Sequence[str]) -> Schema:
    """Refuses names that cannot be distinguished. Unread are decimals of too many digits, and
    columns of types that have no exact one in common: recipes that do not use them still run.
    """
    shapes = _shapes(connection, files)
    types: dict[_Path, dict[str, str]] = {}  # of each leaf, each type with its first file
    unread: dict[str, str] = {}
    for shape in shapes:
        demand_names(shape.columns, shape.file)
        for path, (_, type_, _, digits) in shape.leaves:
            types.setdefault(path, {}).setdefault(type_, shape.file)
            if digits > _MOST_DIGITS:
                unread.setdefault(
                    path[0],
                    f"{'.'.join(path)} has decimals of {digits} digits in {shape.file}, which would"
                    f" be rounded: write them with {_MOST_DIGITS} at the most, or as text",
                )
    demand_names(list({name: None for each in shapes for name in each.columns}), names(files))
    for path, found in types.items():
        for (one, first), (other, second) in combinations(found.items(), 2):
            if not _agree(one, other) and not _agree(other, one):
                unread.setdefault(
                    path[0],
                    f"{'.'.join(path)} is {one.lower()} in {first} and {other.lower()} in {second},"
                    " which cannot be read as one without changing values: write both alike",
                )
    described = connection.execute(f"DESCRIBE FROM {parquet(files)}").fetchall()
    found_types = {
        str(name): _INSTANT if type_ == "TIMESTAMP" and _INSTANT in types[name,] else str(type_)
        for name, type_, *_ in described
    }
    kept = {name: type_ for name, type_ in found_types.items() if name not in unread}
    return Schema(kept, unread)


def _shapes(connection: duckdb.DuckDBPyConnection, files: Sequence[str]) -> list[_Shape]:
    """The different schemas: of many files most are alike.

    An INT96 is a point in time, as Spark and Hive write it; DuckDB takes it for what clocks show.
    """
    found = connection.execute(
        f"""
        SELECT min(file_name), shape
        FROM (SELECT file_name, list((name, if(type = 'INT96', {literal(_INSTANT)},
                                               coalesce(duckdb_type, '')),
                                      coalesce(num_children, 0), coalesce(precision, 0))
                                     ORDER BY column_id) AS shape
              FROM parquet_schema({listed(files)}) GROUP BY file_name)
        GROUP BY shape ORDER BY 1
        """
    ).fetchall()
    shapes = []
    for file, nodes in found:
        below = iter(nodes)
        _, _, columns, _ = next(below)  # the root
        parts = [_taken(below) for _ in range(columns)]
        leaves = tuple(leaf for _, each in parts for leaf in each)
        shapes.append(_Shape(file, tuple(name for name, _ in parts), leaves))
    return shapes


def _taken(below: Iterator[_Node]) -> tuple[str, list[tuple[_Path, _Node]]]:
    """The next column with its leaves; its parts follow it, and theirs them."""
    node = next(below)
    name, _, children, _ = node
    if not children:
        return name, [((name,), node)]
    parts = [_taken(below) for _ in range(children)]
    return name, [((name, *path), leaf) for _, leaves in parts for path, leaf in leaves]


def _agree(one: str, other: str) -> bool:
    """Whether every value of two types has its place in the one that DuckDB finds for both."""
    if one == _NOTHING or (one in _LARGEST and other in (*_LARGEST, "VARCHAR")):
        return True
    if one in _LARGEST and other in _LARGEST_IN_FLOATS:
        return _LARGEST[one] < _LARGEST_IN_FLOATS[other]
    if (some := _digits(one)) and (more := _digits(other)):
        return sum(map(max, some, more)) <= _MOST_DIGITS
    return any(one in alike and other in alike for alike in _TIMES)


def _digits(type_: str) -> tuple[int, int] | None:
    """Of an exact number: how many digits before the point and after it."""
    if type_ in _LARGEST:
        return len(str(_LARGEST[type_])), 0
    found = _DECIMAL.fullmatch(type_)
    return (int(found[1]) - int(found[2]), int(found[2])) if found else None
