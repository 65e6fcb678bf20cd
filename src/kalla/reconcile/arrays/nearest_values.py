"""Finds the values nearest to given ones in memory: by whole numbers, else by doubles.

A whole number is the value itself. A double may be a little off what it stands for: it only says
among which rows the exact search goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kalla.reconcile.arrays import compiled_loops
from kalla.reconcile.arrays.arrow_numbers import RowIds, as_table, halves, numbers, words
from kalla.reconcile.arrays.column_arrays import Held
from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.sql.column_values import Kind

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

# With more currencies than this, rows are not looked up currency by currency.
MOST_CURRENCIES = 20

_IN_CACHE = 1 << 16
_CELL_BITS = 21
_SAMPLE = 1 << 16
_MANY = 0.25
_WORD = 2.0**64
_HALF, _BITS = np.uint64(2**32 - 1), np.uint64(32)
_EXACT = 2**52  # a double holds this and all whole numbers below


@dataclass(frozen=True)
class Measured:
    """Rows and what they are found by: a value each, and the number of its currency if it has one.

    Values are whole numbers of their last place, days or microseconds; doubles where some are too
    large.
    """

    row_ids: RowIds | None  # None: all rows of a side
    values: Held | Floats
    codes: npt.NDArray[np.int32] | None = None

    def at(self, places: Places) -> RowIds:
        return places if self.row_ids is None else self.row_ids[places]


@dataclass(frozen=True)
class NearestValues:
    """For each row the two nearest values of its currency, not above and above, with the candidates
    that have them; candidates of equal value lie together. A value that does not exist has none."""

    row_ids: RowIds  # each twice
    first: Places  # where the candidates of its value begin
    counts: Places  # how many have its value
    candidates: RowIds

    @property
    def most(self) -> int:
        """The most candidates of one value."""
        return int(self.counts.max(initial=0))

    @property
    def pairs(self) -> int:
        return int(self.counts.sum())

    def wanted(self) -> pa.Table:
        """As a table: row_id, value_number."""
        there = self.counts > 0
        return as_table({"row_id": self.row_ids[there], "value_number": self.first[there]})

    def offers(self) -> pa.Table:
        """As a table: row_id, value_number."""
        there = self.counts > 0
        first, one = np.unique(self.first[there], return_index=True)
        at, places = ranges(first, self.counts[there][one])
        return as_table({"row_id": self.candidates[at], "value_number": first[places]})


def ranges(first: Places, counts: Places) -> tuple[Places, Places]:
    """So many places from each first one on, and which of the ranges each is of."""
    ends = np.cumsum(counts)
    which = np.repeat(np.arange(len(counts)), counts)
    return np.arange(len(which)) + (first - ends + counts)[which], which


def searched(rule: RulePlan) -> int | None:
    """The check that the nearest rows are looked for by: an amount, else a date."""
    amounts = (place for place, check in enumerate(rule.checks) if check.bound)
    bands = (place for place, check in enumerate(rule.checks) if check.band)
    return next(amounts, next(bands, None))


def as_double(kind: Kind, sql: str) -> str:
    return {
        "number": f"CAST({sql} AS DOUBLE)",
        "date": f"CAST({sql} - DATE '1970-01-01' AS DOUBLE)",
        "timestamp": f"CAST(epoch_us({sql}) AS DOUBLE)",
        "moment": f"CAST({sql} AS DOUBLE)",
    }[kind]


def beside(offered: Floats, wanted: Floats) -> Floats:
    """Of what is offered, the two values below and above each wanted one, and its own; sorted."""
    values = _distinct(offered)
    at = np.searchsorted(values, np.sort(wanted))
    near = np.zeros(len(values) + 5, np.bool_)  # two places more on each side
    for offset in range(5):
        near[at + offset] = True
    return values[near[2 : len(values) + 2]]


def read(batches: Iterable[pa.RecordBatch], most: int, *, coded: bool) -> Measured:
    """At most so many rows of (row_id, value), or (row_id, value, code) if they are coded; all of
    them known."""
    row_ids, codes = np.empty(most, np.int64), np.empty(most, np.int32)
    values: npt.NDArray[Any] = np.empty(most, np.int64)
    count = 0
    for batch in batches:
        here = slice(count, count := count + len(batch))
        found = _units(batch.column(1))
        if found.dtype != np.int64 and values.dtype == np.int64:
            values = values.astype(np.float64)
        row_ids[here], values[here] = numbers(batch.column(0)), found
        if coded:
            codes[here] = numbers(batch.column(2))
    return Measured(row_ids[:count], values[:count], codes[:count] if coded else None)


def comparable(offered: Measured, wanted: Measured) -> bool:
    """Whether values can be distinguished as they are, together with their currencies."""
    if not offered.values.dtype == wanted.values.dtype == np.int64:
        return False
    _, span, codes = _extent(offered, wanted)
    return offered.codes is None or span * codes < 2**63


def in_sight(offered: Measured, wanted: Measured) -> Places:
    """Where those lie that may be nearest to a wanted one: of values that are told roughly, with
    the same, the next one below or the next above."""
    if offered.codes is None or wanted.codes is None:
        return _beside_some(offered.values, wanted.values)
    if len(currencies := np.unique(wanted.codes)) > MOST_CURRENCIES:
        return np.arange(len(offered.values))
    found = [np.empty(0, np.intp)]
    for code in currencies:
        among = np.flatnonzero(offered.codes == code)
        sought = wanted.values[wanted.codes == code]
        found.append(among[_beside_some(offered.values[among], sought)])
    return np.concatenate(found)


def next_to(offered: Measured, wanted: Measured) -> NearestValues:
    """Each wanted row has the nearest value of its currency not above its own, and the nearest
    above. Values are comparable.
    """
    low, span, codes = _extent(offered, wanted)
    sought, order = _in_order(_in_one_line(wanted, low, span, codes))
    values, lowest = offered.values, low
    if offered.codes is not None:
        values, lowest = _in_one_line(offered, low, span, codes), 0
    among = _in_cells(values, lowest, sought, span * codes)
    if not len(values):
        return NearestValues(*(np.empty(0, np.int64) for _ in range(4)))
    some = values if among is None else values[among]
    values, standing = _in_order(_in_one_line(Measured(None, some), lowest, span * codes, 1))
    if among is not None:
        standing = among[standing]
    above = np.searchsorted(values, sought, "right")
    # The last one stands in for what is not there: it is not counted.
    below, next_one = np.maximum(above - 1, 0), np.minimum(above, len(values) - 1)
    first = np.stack([np.searchsorted(values, values[below]), above], axis=1)
    last = np.stack([above, np.searchsorted(values, values[next_one], "right")], axis=1)
    there = np.stack([above > 0, above < len(values)], axis=1)
    if offered.codes is not None:  # the end of the line of another currency is not near
        for way, near in enumerate((below, next_one)):
            there[:, way] &= values[near] // span == sought // span
    return NearestValues(
        np.repeat(wanted.at(order), 2),
        first.ravel(),
        np.where(there, last - first, 0).ravel(),
        offered.at(standing),
    )


def _in_order(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Places]:
    """Sorted, and where each was."""
    if values.dtype != np.uint32:
        order = np.argsort(values)
        return values[order], order
    both = values.astype(np.uint64) << _BITS
    both |= np.arange(len(values), dtype=np.uint64)
    spare = np.empty_like(both)
    # Digit by digit, the last one first: NumPy's own sort takes several times as long.
    for shift in range(32, 32 + int(values.max(initial=0)).bit_length(), compiled_loops.DIGIT_BITS):
        places = np.zeros(compiled_loops.DIGIT_PLACES, np.int64)
        compiled_loops.sort_by_digit(both, len(both), shift, places, spare)
        both, spare = spare, both
    return (both >> _BITS).astype(np.uint32), (both & _HALF).astype(np.int64)


def in_order(numbers: npt.NDArray[np.int64]) -> Places:
    """Where whole numbers lie, from the least to the largest."""
    low, high = (int(each) for each in (numbers.min(), numbers.max())) if len(numbers) else (0, 0)
    if high - low >= 2**32:
        return np.argsort(numbers)
    _, order = _in_order((numbers - low).astype(np.uint32))
    return order


def _extent(offered: Measured, wanted: Measured) -> tuple[int, int, int]:
    """The lowest value, how many there may be from it to the highest, and how many currencies."""
    both = [each.values for each in (offered, wanted) if len(each.values)]
    low = min((int(each.min()) for each in both), default=0)
    high = max((int(each.max()) for each in both), default=0)
    if offered.codes is None or wanted.codes is None:
        return low, high - low + 1, 1
    last = max(int(each.max(initial=0)) for each in (offered.codes, wanted.codes))
    return low, high - low + 1, last + 1


def _in_one_line(rows: Measured, low: int, span: int, codes: int) -> npt.NDArray[Any]:
    """One currency after the other; in 32 bits if they are enough, which takes half the time."""
    if span * codes >= 2**63:  # there is but one
        return rows.values
    kind: Any = np.uint32 if span * codes < 2**32 else np.int64
    line: npt.NDArray[Any] = np.empty(len(rows.values), kind)
    np.subtract(rows.values, low, out=line, casting="unsafe", dtype=np.int64)
    if rows.codes is not None:
        line += rows.codes.astype(kind) * kind(span)
    return line


def _in_cells(
    values: npt.NDArray[Any], low: int, sought: npt.NDArray[Any], span: int
) -> Places | None:
    """Where those lie that may be next to one that is sought, without sorting the others: all that
    share its cell, or the nearest cell below or above that is not empty. Cells are equally wide: of
    values that crowd together they leave too many, and nothing is said. What is sought is told from
    the lowest value on.
    """
    if span >= 2**63 or not len(values):
        return None
    shift = max(0, span.bit_length() - _CELL_BITS)
    near, filled = (np.zeros(1 << _CELL_BITS, np.bool_) for _ in range(2))
    compiled_loops.fill(sought, len(sought), 0, shift, near)
    sample = values[:: 1 + len(values) // _SAMPLE].astype(np.int64)
    if near[(sample - low) >> shift].mean() > _MANY:
        return None
    compiled_loops.fill(values, len(values), low, shift, filled)
    cells, wanted = np.flatnonzero(filled), np.flatnonzero(near)
    near[cells[np.maximum(np.searchsorted(cells, wanted) - 1, 0)]] = True
    near[cells[np.minimum(np.searchsorted(cells, wanted, "right"), len(cells) - 1)]] = True
    return in_parts(
        lambda first, part, found: compiled_loops.in_cells(
            part, len(part), low, shift, near, first, found
        ),
        values,
    )


def in_parts(
    find: Callable[[int, npt.NDArray[Any], Places], int], values: npt.NDArray[Any]
) -> Places:
    """What a loop finds of some values at a time, the first of which is at a place: it writes down
    where they are, and tells how many."""
    found, here = [np.empty(0, np.int64)], np.empty(_IN_CACHE, np.int64)
    for first in range(0, len(values), _IN_CACHE):
        count = find(first, values[first : first + _IN_CACHE], here)
        found.append(here[:count].copy())
    return np.concatenate(found)


def _beside_some(values: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> Places:
    if values.dtype != wanted.dtype:  # of one side some are too large
        values, wanted = values.astype(np.float64), wanted.astype(np.float64)
    ordered, places = _in_order(values)
    if not len(ordered):
        return places
    below = np.maximum(np.searchsorted(ordered, wanted) - 1, 0)
    above = np.minimum(np.searchsorted(ordered, wanted, "right"), len(ordered) - 1)
    # From all that share the one value to all that share the other.
    covered = np.zeros(len(ordered) + 1, np.int64)
    np.add.at(covered, np.searchsorted(ordered, ordered[below]), 1)
    np.add.at(covered, np.searchsorted(ordered, ordered[above], "right"), -1)
    return places[np.cumsum(covered)[:-1] > 0]


def _distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Sorted. NumPy's own way hashes whole numbers, which takes longer."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def _units(column: pa.Array) -> npt.NDArray[Any]:
    """Numbers as whole ones of their last place; as doubles, which never fall as the number rises,
    where 64 bits do not hold them."""
    if not pa.types.is_decimal128(column.type) or column.type.precision <= 18:
        return words(column).astype(np.int64, copy=False)
    both: npt.NDArray[np.int64] = halves(column).view(np.int64)
    low, high = both[:, 0], both[:, 1]
    fits = high == low >> 63
    if fits.all():
        return low
    rest = np.where(abs(high) < _EXACT, low.view(np.uint64), np.uint64(0))
    return np.where(fits, low, high * _WORD + rest)
