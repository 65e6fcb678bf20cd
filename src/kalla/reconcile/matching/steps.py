"""Which values lie nearest to wanted ones, found in memory: by whole numbers, else by doubles.

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

from kalla.reconcile.matching.fates import Rids, as_table, halves, numbers, words
from kalla.reconcile.matching.values import Kind
from kalla.reconcile.plan import RulePlan

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

# With more currencies than this, rows are not looked up currency by currency.
MOST_CURRENCIES = 20

_ODD = 0x9E3779B97F4A7C15
_MOST_BITS = 22  # of a hash: what is marked by it stays in a cache
_IN_CACHE = 1 << 16
_CELL_BITS = 21
_SAMPLE = 1 << 16
_MANY = 0.25
_WORD = 2.0**64
_EXACT = 2**52  # a double holds this and all whole numbers below


@dataclass(frozen=True)
class Measured:
    """Rows and what they are found by: a value each, and the number of its currency if it has one.

    Values are whole numbers of their last place, days or microseconds; doubles where some are too
    large.
    """

    rids: Rids | None  # None: all rows of a side
    values: npt.NDArray[np.int64] | Floats
    codes: npt.NDArray[np.int32] | None = None

    def at(self, places: Places) -> Rids:
        return places if self.rids is None else self.rids[places]


@dataclass(frozen=True)
class Steps:
    """Who wants which step, and who stands on it: tables of (seeker, step) and (rid, step); how
    many stand on one at most, and how many pairs of both there are."""

    seekers: pa.Table
    offers: pa.Table
    most: int
    pairs: int


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
    """At most so many rows of (rid, value), or (rid, value, code) if they are coded; all of them
    known."""
    rids, codes = np.empty(most, np.int64), np.empty(most, np.int32)
    values: npt.NDArray[Any] = np.empty(most, np.int64)
    count = 0
    for batch in batches:
        here = slice(count, count := count + len(batch))
        found = _units(batch.column(1))
        if found.dtype != np.int64 and values.dtype == np.int64:
            values = values.astype(np.float64)
        rids[here], values[here] = numbers(batch.column(0)), found
        if coded:
            codes[here] = numbers(batch.column(2))
    return Measured(rids[:count], values[:count], codes[:count] if coded else None)


def comparable(offered: Measured, wanted: Measured) -> bool:
    """Whether values can be told apart as they are, together with their currencies."""
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


def next_to(offered: Measured, wanted: Measured) -> Steps:
    """A step is a value of a currency; each wanted row has the nearest not above it, and the
    nearest above. Values are comparable.
    """
    low, span, codes = _extent(offered, wanted)
    values, sought = (_in_one_line(each, low, span, codes) for each in (offered, wanted))
    order = np.argsort(sought)
    sought, seekers = sought[order], wanted.at(order)
    rids = offered.rids
    if (among := _in_cells(values, sought, span * codes)) is not None:
        values, rids = values[among], offered.at(among)
    ordered = np.sort(values)
    above = np.searchsorted(ordered, sought, "right")
    below = above - 1
    near, who = [], []
    for at, there in ((below, below >= 0), (above, above < len(ordered))):
        found = ordered[at[there]]
        if offered.codes is None:
            same = np.ones(len(found), np.bool_)
        else:  # the end of the line of another currency is not near
            same = found // span == sought[there] // span
        near.append(found[same])
        who.append(seekers[there][same])
    nearest = np.concatenate(near)
    steps = _distinct(nearest)
    places, step = _among(values, steps)
    chosen = np.searchsorted(steps, nearest)
    crowds = np.bincount(step, minlength=len(steps))
    return Steps(
        as_table({"seeker": np.concatenate(who), "step": chosen}),
        as_table({"rid": places if rids is None else rids[places], "step": step}),
        int(crowds.max(initial=0)),
        int(crowds[chosen].sum()),
    )


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
    np.subtract(rows.values, low, out=line, casting="unsafe")
    if rows.codes is not None:
        line += rows.codes.astype(kind) * kind(span)
    return line


def _in_cells(values: npt.NDArray[Any], sought: npt.NDArray[Any], span: int) -> Places | None:
    """Where those lie that may be next to one that is sought, without sorting the others: all that
    share its cell, or the nearest cell below or above that is not empty. Cells are equally wide: of
    values that crowd together they leave too many, and nothing is said.
    """
    if span >= 2**63 or not len(values):
        return None
    shift = values.dtype.type(max(0, span.bit_length() - _CELL_BITS))
    near = np.zeros(1 << _CELL_BITS, np.bool_)
    near[sought >> shift] = True
    if near[values[:: 1 + len(values) // _SAMPLE] >> shift].mean() > _MANY:
        return None
    filled = np.zeros(len(near), np.bool_)
    for first in range(0, len(values), _IN_CACHE):
        filled[(values[first : first + _IN_CACHE] >> shift).astype(np.intp)] = True
    cells, wanted = np.flatnonzero(filled), np.flatnonzero(near)
    near[cells[np.maximum(np.searchsorted(cells, wanted) - 1, 0)]] = True
    near[cells[np.minimum(np.searchsorted(cells, wanted, "right"), len(cells) - 1)]] = True
    return _marked(values, near, lambda given: given >> shift)


def _marked(
    values: npt.NDArray[Any],
    marks: npt.NDArray[np.bool_],
    place: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
) -> Places:
    """Where those lie whose place is marked."""
    found = [np.empty(0, np.intp)]
    for first in range(0, len(values), _IN_CACHE):
        at = place(values[first : first + _IN_CACHE]).astype(np.intp, copy=False)
        # All are within bounds: to clip them is quicker than to ask.
        found.append(first + np.flatnonzero(np.take(marks, at, mode="clip")))
    return np.concatenate(found)


def _beside_some(values: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> Places:
    if values.dtype != wanted.dtype:  # of one side some are too large
        values, wanted = values.astype(np.float64), wanted.astype(np.float64)
    ordered, sought = np.sort(values), np.sort(wanted)
    below = np.searchsorted(ordered, sought) - 1
    above = np.searchsorted(ordered, sought, "right")
    near = (ordered[below[below >= 0]], sought, ordered[above[above < len(ordered)]])
    places, _ = _among(values, _distinct(np.concatenate(near)))
    return places


def _distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Sorted. NumPy's own way hashes whole numbers, which takes longer."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def _among(values: npt.NDArray[Any], some: npt.NDArray[Any]) -> tuple[Places, Places]:
    """Where those values lie that are among some (sorted) ones, and which of these each is.

    Most are passed over by a mark for the hash of each wanted one, without a search.
    """
    if not len(some):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    width = 8 * some.itemsize
    word: Any = np.uint64 if width == 64 else np.uint32
    odd, bits = word(_ODD >> 64 - width), min(_MOST_BITS, len(some).bit_length() + 4)

    def hashed(given: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray((np.ascontiguousarray(given).view(word) * odd) >> word(width - bits))

    marked = np.zeros(1 << bits, np.bool_)
    marked[hashed(some)] = True
    found = _marked(values, marked, hashed)
    if width == 32 and len(values) < 2**32:  # numbers of 64 bits are sorted faster than places are
        pairs = np.sort(values[found].astype(np.uint64) << np.uint64(32) | found.astype(np.uint64))
        found = (pairs & np.uint64(2**32 - 1)).astype(np.intp)
    else:
        found = found[np.argsort(values[found])]
    which = np.minimum(np.searchsorted(some, values[found]), len(some) - 1)
    same = some[which] == values[found]
    return found[same], which[same]


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
