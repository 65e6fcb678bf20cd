"""Columns as arrays that are looked up by row_id: whole numbers for passes over all rows of a side,
other columns so that evidence takes the values of a pair without a join.

Either costs a fraction of the same in SQL. Used only for many rows with enough memory: DuckDB's
limit is reduced by the arrays' size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kalla.reconcile.arrays import compiled_loops
from kalla.reconcile.arrays.arrow_numbers import RowIds, numbers, words

Units = npt.NDArray[np.int64]
Held = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Chosen = npt.NDArray[np.bool_]

MANY = 100_000  # rows: with fewer, SQL is as fast
# The share of memory of a side: in addition to its table, and without one.
BESIDE, ALONE = 0.25, 0.4
IN_CACHE = 1 << 16
# Types that DuckDB reads back from Arrow as they were; of others the table alone knows the values.
_STORABLE = re.compile(
    r"VARCHAR|BOOLEAN|FLOAT|DOUBLE|DATE|TIMESTAMP( WITH TIME ZONE)?"
    r"|U?(TINY|SMALL|BIG)INT|U?INTEGER|DECIMAL\(\d+,\s*\d+\)"
)
PLACES = 8  # for each row of a side: numbers that need more lie too far apart to be looked up so
DIGITS = 18  # digits of a decimal that fits into a word


@dataclass(frozen=True)
class Column:
    """Of every row: whole numbers as they are, decimals in units of their last place, dates as
    days, points in time as microseconds. A null is zero. In half a word each where that is enough:
    use `units` for arithmetic."""

    kind: pa.DataType
    held: Held
    nulls: Chosen | None  # if there are any

    def __len__(self) -> int:
        return len(self.held)

    @property
    def is_whole(self) -> bool:
        """Whether its values are whole numbers."""
        return bool(pa.types.is_integer(self.kind))

    def units(self, row_ids: RowIds | slice) -> Units:
        """The numbers of some rows."""
        return taken(self.held, row_ids).astype(np.int64, copy=False)

    @property
    def narrowest(self) -> pa.DataType:
        """The stored type of whole numbers; the own type of other values."""
        return pa.from_numpy_dtype(self.held.dtype) if self.is_whole else self.kind

    def at(self, row_ids: RowIds | slice) -> pa.Array:
        """The values of some rows, as an Arrow array."""
        return self._typed(row_ids, self.kind)

    def narrow(self, row_ids: Held, into: Held) -> pa.Array:
        """The same, whole numbers of whatever width they are held in; they lie there."""
        return self._typed(row_ids, self.narrowest, into)

    def _typed(
        self, row_ids: Held | slice, kind: pa.DataType, into: Held | None = None
    ) -> pa.Array:
        missing = None if self.nulls is None else self.nulls[row_ids]
        return typed(taken(self.held, row_ids, into), kind, missing)


@dataclass(frozen=True)
class StoredColumn:
    """Of every row: its value as Arrow has it, whatever its type; texts most of all."""

    values: pa.Array
    places: npt.NDArray[np.int64]  # by row_id, for rows did not come in order

    def at(self, row_ids: RowIds | slice) -> pa.Array:
        """The values of some rows."""
        return self.values.take(pa.array(self.places[row_ids]))


@dataclass(frozen=True)
class ColumnArrays:
    """The columns of a side that are in arrays, by their internal names."""

    columns: Mapping[str, Column]
    has_all: bool  # there are no others, stored ones included
    keys: Mapping[str, str]  # what is held as part of the primary key: its SQL, and its name
    stored: Mapping[str, StoredColumn] = field(default_factory=dict)

    def column(self, sql: str) -> Column | None:
        """The numbers of an expression that is a column as it is."""
        return self.columns.get(self._name(sql))

    def values(self, sql: str) -> Column | StoredColumn | None:
        """The same, of whatever type."""
        name = self._name(sql)
        return self.columns[name] if name in self.columns else self.stored.get(name)

    def _name(self, sql: str) -> str:
        return self.keys.get(sql) or sql[1:-1].replace('""', '"')

    @property
    def bytes(self) -> int:
        held: int = sum(column.held.nbytes for column in self.columns.values())
        stored: int = sum(column.values.nbytes for column in self.stored.values())
        return held + stored

    def taken(self, row_ids: RowIds) -> pa.Table:
        """A table of some rows, with their row_id first."""
        every: dict[str, Column | StoredColumn] = {**self.columns, **self.stored}
        columns = {name: column.at(row_ids) for name, column in every.items()}
        return pa.table({"row_id": typed(row_ids, pa.int64()), **columns})


def storable_columns(schema: pa.Schema, rows: int, most: int) -> list[str]:
    """The columns that can be arrays; none if they would take more than the given bytes."""
    names = [field.name for field in schema if _is_word(field.type)]
    return names if size(rows, names) <= most else []


def is_storable(kind: str) -> bool:
    """Whether a column of this DuckDB type can be stored as Arrow has it."""
    return _STORABLE.fullmatch(kind) is not None


def read(
    rows: int,
    names: Sequence[str],
    others: Sequence[str],
    batches: Iterable[pa.RecordBatch],
    most: int,
) -> tuple[dict[str, Column], dict[str, StoredColumn]]:
    """From batches of row_id, the named columns of whole numbers, and others. A column with a
    number too large is left out; all others, where they take more than `most` bytes."""
    found, stored = _Reading(names, rows), _Storing(others, rows, most)
    for batch in batches:
        row_ids = _range(numbers(batch.column(0)))
        found.add(row_ids, batch.columns[1 : 1 + len(names)])
        stored.add(row_ids, batch.columns[1 + len(names) :])
    return found.columns(rows), stored.columns()


def gather(
    rows: int, names: Sequence[str], batches: Iterable[pa.RecordBatch], most: int
) -> tuple[int, dict[str, Column]] | None:
    """Reads batches of the named columns: returns the number of rows and each column.

    There may be more or fewer rows than expected. None if they take more than `most` bytes. A
    row_id is the position at which its row came.
    """
    found, count = _Reading(names, rows), 0
    for batch in batches:
        if size(count + len(batch), names) > most:
            return None
        found.grow(count + len(batch))
        found.add(slice(count, count := count + len(batch)), batch.columns)
    return count, found.columns(count)


def size(rows: int, names: Sequence[str]) -> int:
    """The largest number of bytes that the rows can take."""
    return rows * len(names) * np.dtype(np.int64).itemsize


class _Reading:
    """Reads columns into arrays."""

    def __init__(self, names: Sequence[str], rows: int) -> None:
        self._names, self._rows = names, rows
        self._units: dict[str, Held] = {name: np.empty(rows, np.int32) for name in names}
        self._nulls: dict[str, Chosen] = {}
        self._kinds: dict[str, pa.DataType] = {}

    def grow(self, rows: int) -> None:
        if rows > self._rows:
            self._rows = rows + rows // 2
            for name, units in self._units.items():
                self._units[name] = np.empty(self._rows, units.dtype)
                self._units[name][: len(units)] = units
            for name, held in self._nulls.items():
                self._nulls[name] = np.zeros(self._rows, np.bool_)
                self._nulls[name][: len(held)] = held

    def add(self, row_ids: RowIds | slice, columns: Sequence[pa.Array]) -> None:
        for name, column in zip(self._names, columns, strict=True):
            self._kinds[name] = _usual(column.type)
            if name not in self._units:
                continue
            found = words(column)
            if column.null_count:
                missing = column.is_null().to_numpy(zero_copy_only=False)
                self._nulls.setdefault(name, np.zeros(self._rows, np.bool_))[row_ids] = missing
                found = np.where(missing, found.dtype.type(0), found)
            if found.dtype == np.uint64 and found.max(initial=0) >= 2**63:
                del self._units[name]
                continue
            if self._units[name].dtype == np.int32 and not _is_narrow(found):
                self._units[name] = self._units[name].astype(np.int64)
            self._units[name][row_ids] = found

    def columns(self, rows: int) -> dict[str, Column]:
        """Those that fit, of so many rows."""
        return {
            name: Column(
                self._kinds[name],
                held[:rows],
                self._nulls[name][:rows] if name in self._nulls else None,
            )
            for name, held in self._units.items()
            if name in self._kinds
        }


class _Storing:
    """Reads columns as they come, as long as there is room for them."""

    def __init__(self, names: Sequence[str], rows: int, most: int) -> None:
        self._chunks: dict[str, list[pa.Array]] = {name: [] for name in names}
        self._places = np.empty(rows if names else 0, np.int64)
        self._count, self._room = 0, most - self._places.nbytes

    def add(self, row_ids: RowIds | slice, columns: Sequence[pa.Array]) -> None:
        if not self._chunks:
            return
        first, self._count = self._count, self._count + len(columns[0])
        self._places[row_ids] = np.arange(first, self._count)
        for chunks, column in zip(self._chunks.values(), columns, strict=True):
            chunks.append(column)
            self._room -= column.nbytes
        if self._room < 0:
            self._chunks = {}

    def columns(self) -> dict[str, StoredColumn]:
        return {
            name: StoredColumn(pa.concat_arrays(chunks), self._places)
            for name, chunks in self._chunks.items()
        }


def _is_narrow(found: npt.NDArray[Any]) -> bool:
    """Whether each number fits in half a word."""
    if found.dtype.itemsize <= np.dtype(np.int32).itemsize and found.dtype != np.uint32:
        return True
    return bool(found.min(initial=0) >= -(2**31) and found.max(initial=0) < 2**31)


def _usual(kind: pa.DataType) -> pa.DataType:
    """A decimal as everybody else has it, however many bytes it came in."""
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def _range(row_ids: RowIds) -> RowIds | slice:
    """Rows that follow each other, as most of a batch do, are copied as one."""
    first, last = int(row_ids[0]), int(row_ids[-1])
    if last - first == len(row_ids) - 1 and (np.diff(row_ids) == 1).all():
        return slice(first, last + 1)
    return row_ids


def taken(values: Held, places: Held | slice, into: Held | None = None) -> Held:
    """What lies at some places; of half a word each by a loop, for NumPy's own takes twice as
    long."""
    if isinstance(places, slice):
        return values[places]
    found = np.empty(len(places), values.dtype) if into is None else into
    if values.dtype == np.int32:
        compiled_loops.look_up(places, len(places), values, found)
    else:
        found[:] = values[places]
    return found


def typed(
    units: npt.NDArray[np.signedinteger], kind: pa.DataType, missing: Chosen | None = None
) -> pa.Array:
    """Whole numbers as values of a type that can be in hand."""
    bits = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    if pa.types.is_decimal128(kind):
        held = np.empty((len(units), 2), np.int64)
        held[:, 0], held[:, 1] = units, units >> (8 * units.dtype.itemsize - 1)
    else:
        width = "u" if pa.types.is_unsigned_integer(kind) else "i"
        wanted = f"{width}{kind.bit_width // 8}"
        held = np.ascontiguousarray(units).astype(wanted, copy=False)
    return pa.Array.from_buffers(kind, len(units), [bits, pa.py_buffer(held)])


def _is_word(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= DIGITS)
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
    )
