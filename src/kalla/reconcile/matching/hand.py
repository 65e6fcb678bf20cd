"""Columns of whole numbers in hand: arrays by rid, for what goes through all rows of a side.

A pass over an array costs a fraction of one by SQL. Only where rows are many, and memory suffices:
what the arrays take, DuckDB may not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kalla.reconcile import loops
from kalla.reconcile.matching.fates import Rids, numbers, words

Units = npt.NDArray[np.int64]
Held = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Chosen = npt.NDArray[np.bool_]

MANY = 100_000  # rows: of fewer, SQL goes through all as soon
# Of the memory, what a side may take: beside its table, and where it has none.
BESIDE, ALONE = 0.25, 0.4
IN_CACHE = 1 << 16
PLACES = 8  # for each row of a side: numbers that need more lie too far apart to be looked up so
_SHORT = 18  # digits of a decimal that fits into a word


@dataclass(frozen=True)
class Column:
    """Of every row: whole numbers as they are, decimals in units of their last place, dates as
    days, points in time as microseconds. A null is zero. In half a word each where that is enough:
    to reckon with them, ask for the `units` of some rows."""

    kind: pa.DataType
    held: Held
    nulls: Chosen | None  # if there are any

    def __len__(self) -> int:
        return len(self.held)

    @property
    def is_whole(self) -> bool:
        """Whether its values are whole numbers."""
        return bool(pa.types.is_integer(self.kind))

    def units(self, rids: Rids | slice) -> Units:
        """The numbers of some rows."""
        return taken(self.held, rids).astype(np.int64, copy=False)

    @property
    def narrowest(self) -> pa.DataType:
        """The type of whole numbers as they are held; of other values their own."""
        return pa.from_numpy_dtype(self.held.dtype) if self.is_whole else self.kind

    def at(self, rids: Rids | slice) -> pa.Array:
        """The values of some rows, as Arrow has them."""
        return self._typed(rids, self.kind)

    def narrow(self, rids: Held, into: Held) -> pa.Array:
        """The same, whole numbers of whatever width they are held in; they lie there."""
        return self._typed(rids, self.narrowest, into)

    def _typed(self, rids: Held | slice, kind: pa.DataType, into: Held | None = None) -> pa.Array:
        missing = None if self.nulls is None else self.nulls[rids]
        return typed(taken(self.held, rids, into), kind, missing)


@dataclass(frozen=True)
class Hand:
    """The columns of a side that are in hand, by the names they are held by."""

    columns: Mapping[str, Column]
    has_all: bool  # there are no others
    keys: Mapping[str, str]  # what is held as part of the primary key: its SQL, and its name

    def column(self, sql: str) -> Column | None:
        """Of an expression that is a column as it is."""
        name = self.keys.get(sql) or sql[1:-1].replace('""', '"')
        return self.columns.get(name)

    @property
    def bytes(self) -> int:
        return sum(column.held.nbytes for column in self.columns.values())

    def taken(self, rids: Rids) -> pa.Table:
        """Some rows, with their rid first."""
        columns = {name: column.at(rids) for name, column in self.columns.items()}
        return pa.table({"rid": typed(rids, pa.int64()), **columns})


def fitting(schema: pa.Schema, rows: int, most: int) -> list[str]:
    """The columns that can be in hand; none where that would take more than so many bytes."""
    names = [field.name for field in schema if _is_word(field.type)]
    return names if size(rows, names) <= most else []


def read(rows: int, names: Sequence[str], batches: Iterable[pa.RecordBatch]) -> dict[str, Column]:
    """From batches of rid and the named columns; one with a number too large is left out."""
    found = _Reading(names, rows)
    for batch in batches:
        found.add(_range(numbers(batch.column(0))), batch.columns[1:])
    return found.columns(rows)


def gather(
    rows: int, names: Sequence[str], batches: Iterable[pa.RecordBatch], most: int
) -> tuple[int, dict[str, Column]] | None:
    """From batches of the named columns, some rows more or less than are expected: how many there
    are, and each column; nothing if they take more than so many bytes. A rid is where a row came.
    """
    found, count = _Reading(names, rows), 0
    for batch in batches:
        if size(count + len(batch), names) > most:
            return None
        found.grow(count + len(batch))
        found.add(slice(count, count := count + len(batch)), batch.columns)
    return count, found.columns(count)


def size(rows: int, names: Sequence[str]) -> int:
    """How many bytes so many rows take at the most."""
    return rows * len(names) * np.dtype(np.int64).itemsize


class _Reading:
    """Columns on their way into hand."""

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

    def add(self, rids: Rids | slice, columns: Sequence[pa.Array]) -> None:
        for name, column in zip(self._names, columns, strict=True):
            self._kinds[name] = _usual(column.type)
            if name not in self._units:
                continue
            found = words(column)
            if column.null_count:
                missing = column.is_null().to_numpy(zero_copy_only=False)
                self._nulls.setdefault(name, np.zeros(self._rows, np.bool_))[rids] = missing
                found = np.where(missing, found.dtype.type(0), found)
            if found.dtype == np.uint64 and found.max(initial=0) >= 2**63:
                del self._units[name]
                continue
            if self._units[name].dtype == np.int32 and not _is_narrow(found):
                self._units[name] = self._units[name].astype(np.int64)
            self._units[name][rids] = found

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


def _is_narrow(found: npt.NDArray[Any]) -> bool:
    """Whether half a word holds each of these."""
    if found.dtype.itemsize <= np.dtype(np.int32).itemsize and found.dtype != np.uint32:
        return True
    return bool(found.min(initial=0) >= -(2**31) and found.max(initial=0) < 2**31)


def _usual(kind: pa.DataType) -> pa.DataType:
    """A decimal as everybody else has it, however many bytes it came in."""
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def _range(rids: Rids) -> Rids | slice:
    """Rows that follow each other, as most of a batch do, are copied as one."""
    first, last = int(rids[0]), int(rids[-1])
    if last - first == len(rids) - 1 and (np.diff(rids) == 1).all():
        return slice(first, last + 1)
    return rids


def taken(values: Held, places: Held | slice, into: Held | None = None) -> Held:
    """What lies at some places; of half a word each by a loop, for NumPy's own takes twice as
    long."""
    if isinstance(places, slice):
        return values[places]
    found = np.empty(len(places), values.dtype) if into is None else into
    if values.dtype == np.int32:
        loops.look_up(places, len(places), values, found)
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
        return bool(kind.precision <= _SHORT)
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
    )
