"""Merges pieces of series in the order of labels and times; duplicate samples are dropped.

Kernels copy without Python's lock. Only what overlaps is sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kalla.compiling import compiled
from kalla.query.array_types import Floats, Mask, Whole
from kalla.query.store.segment_rows import SampleColumns


@dataclass(frozen=True)
class Piece:
    """Some rows of a body: the place of each row's series, and its samples from low to high."""

    body: SampleColumns
    series: Whole
    lows: Whole
    highs: Whole

    @property
    def samples(self) -> int:
        return int((self.highs - self.lows).sum())

    @property
    def nbytes(self) -> int:
        return self.body.nbytes

    def alone(self) -> Piece:
        """With a body that has no other samples."""
        offsets = np.zeros(len(self.lows) + 1, np.int64)
        np.cumsum(self.highs - self.lows, out=offsets[1:])
        columns = _placed([self], offsets[:-1], int(offsets[-1]))
        return Piece(SampleColumns(offsets, *columns), self.series, offsets[:-1], offsets[1:])


@dataclass(frozen=True)
class Merged:
    """The samples of every series that has some: `series` are their places, in order."""

    series: Whole
    offsets: Whole
    times: Whole
    values: Floats
    stale: Mask | None
    starts: Whole | None


def piece(body: SampleColumns, series: Whole, rows: Whole, after: int, until: int) -> Piece:
    """The samples of (after, until] of some rows; `series` are their places."""
    lows, highs = body.offsets[rows], body.offsets[rows + 1]
    _cut(body.times, lows, highs, after, until)
    some = highs > lows
    found = Piece(body, series[some], lows[some], highs[some])
    # A few rows of many are copied, so that they do not keep the others in memory.
    return found.alone() if found.samples * 4 < len(body.times) else found


def merge(pieces: Sequence[Piece]) -> Merged:
    """Where two have the same series and time, the earlier piece wins, then the earlier row."""
    pieces = [one for one in pieces if len(one.series)]
    if not pieces:
        none = np.empty(0, np.int64)
        return Merged(none, np.zeros(1, np.int64), none, np.empty(0), None, None)
    series = np.concatenate([one.series for one in pieces])
    counts = np.concatenate([one.highs - one.lows for one in pieces])
    firsts = np.concatenate([one.body.times[one.lows] for one in pieces])
    lasts = np.concatenate([one.body.times[one.highs - 1] for one in pieces])
    order = _order(series, firsts)
    ends = np.cumsum(counts[order])
    dests = np.empty(len(order), np.int64)
    dests[order] = ends - counts[order]
    total = int(ends[-1])
    out = _placed(pieces, dests, total)
    same = np.diff(series[order]) == 0
    starts_series = np.flatnonzero(np.concatenate([[True], ~same]))
    offsets = np.append(dests[order][starts_series], total)
    merged = Merged(series[order][starts_series], offsets, *out)
    overlaps = same & (firsts[order][1:] <= lasts[order][:-1])
    if not overlaps.any():
        return merged
    tangled = np.zeros(len(starts_series), bool)
    tangled[(np.cumsum(~same))[overlaps]] = True
    runs = np.append(dests[order], total)
    bounds = np.append(starts_series, len(order))
    owners = np.repeat(order, counts[order])
    return _untangled(merged, owners, runs, bounds[:-1][tangled], bounds[1:][tangled])


def _order(series: Whole, firsts: Whole) -> Whole:
    """By series, then by first time; rows of the same keep their order."""
    # Sixteen bits are sorted by counting.
    small = int(series.max()) < 1 << 16
    order = np.argsort(series.astype(np.uint16) if small else series, kind="stable")
    later = firsts[order]
    same = series[order]
    if ((same[1:] == same[:-1]) & (later[1:] < later[:-1])).any():
        return np.lexsort((firsts, series))
    return order


def _placed(
    pieces: Sequence[Piece], dests: Whole, total: int
) -> tuple[Whole, Floats, Mask | None, Whole | None]:
    times, values = np.empty(total, np.int64), np.empty(total, np.float64)
    stale = None if all(one.body.stale is None for one in pieces) else np.zeros(total, bool)
    starts = None if all(one.body.starts is None for one in pieces) else np.zeros(total, np.int64)
    first = 0
    for one in pieces:
        body, lows, highs = one.body, one.lows, one.highs
        places = dests[first : first + len(lows)]
        first += len(lows)
        _copy(body.times, lows, highs, places, times)
        _copy(body.values.view(np.int64), lows, highs, places, values.view(np.int64))
        if stale is not None and body.stale is not None:
            _copy_flags(body.stale, lows, highs, places, stale)
        if starts is not None and body.starts is not None:
            _copy(body.starts, lows, highs, places, starts)
    return times, values, stale, starts


def _untangled(merged: Merged, owners: Whole, runs: Whole, firsts: Whole, beyonds: Whole) -> Merged:
    """Series whose rows overlap, sorted by time; of equal times the earliest row's stays.

    A series' rows are the runs from its first to before its beyond, each of them in order.
    """
    index = np.arange(len(merged.times))
    kept = np.ones(len(index), bool)
    _merge_runs(merged.times, owners, runs, firsts, beyonds, index, np.empty_like(index), kept)
    index = index[kept]
    reached = np.zeros(len(kept) + 1, np.int64)
    np.cumsum(kept, out=reached[1:])
    return Merged(
        merged.series,
        reached[merged.offsets],
        merged.times[index],
        merged.values[index],
        None if merged.stale is None else merged.stale[index],
        None if merged.starts is None else merged.starts[index],
    )


@compiled("none:i1 I1 I1 int int")
def _cut(times, lows, highs, after, until):  # type: ignore[no-untyped-def]
    for row in range(len(lows)):
        low, high = lows[row], highs[row]
        if low < high and times[low] <= after:
            left, right = low, high
            while left < right:
                middle = (left + right) >> 1
                if times[middle] <= after:
                    left = middle + 1
                else:
                    right = middle
            lows[row] = low = left
        if low < high and times[high - 1] > until:
            left, right = low, high
            while left < right:
                middle = (left + right) >> 1
                if times[middle] <= until:
                    left = middle + 1
                else:
                    right = middle
            highs[row] = left


@compiled("none:i1 i1 i1 i1 I1")
def _copy(source, lows, highs, places, target):  # type: ignore[no-untyped-def]
    for row in range(len(lows)):
        shift = places[row] - lows[row]
        for at in range(lows[row], highs[row]):
            target[at + shift] = source[at]


@compiled("none:b1 i1 i1 i1 B1")
def _copy_flags(source, lows, highs, places, target):  # type: ignore[no-untyped-def]
    for row in range(len(lows)):
        shift = places[row] - lows[row]
        for at in range(lows[row], highs[row]):
            target[at + shift] = source[at]


@compiled("none:i1 i1 i1 i1 i1 I1 I1 B1")
def _merge_runs(times, owners, runs, firsts, beyonds, index, spare, kept):  # type: ignore[no-untyped-def]
    for series in range(len(firsts)):
        first, beyond = firsts[series], beyonds[series]
        source, target = index, spare
        width = 1
        while width < beyond - first:
            run = first
            while run < beyond:
                middle, end = min(run + width, beyond), min(run + 2 * width, beyond)
                left, right = runs[run], runs[middle]
                for at in range(runs[run], runs[end]):
                    takes_right = left == runs[middle]
                    if not takes_right and right < runs[end]:
                        one, other = source[left], source[right]
                        takes_right = times[other] < times[one] or (
                            times[other] == times[one] and owners[other] < owners[one]
                        )
                    if takes_right:
                        target[at] = source[right]
                        right += 1
                    else:
                        target[at] = source[left]
                        left += 1
                run = end
            source, target = target, source
            width *= 2
        low, high = runs[first], runs[beyond]
        for at in range(low, high):
            index[at] = source[at]
        for at in range(low + 1, high):
            kept[at] = times[index[at]] != times[index[at - 1]]
