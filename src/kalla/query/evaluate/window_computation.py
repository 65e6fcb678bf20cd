"""Computes the windows of many series, in parts small enough for a query to stop soon."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kalla.query.array_types import Floats, Mask, Whole
from kalla.query.evaluate.sample_source import SeriesBatch
from kalla.query.kernels import counters, extended_windows, order_statistics, over_time

if TYPE_CHECKING:
    from kalla.query.evaluate.leaf import BaseExpr, Guard

# Cells of the scratch a leaf computes in before it reduces: a few megabytes.
_BLOCK = 1 << 20
# Samples that windows read between two checks of the clock: some hundredths of a second.
_WORK = 1 << 24
# The cost of reading a sample, where it is more than an addition.
_COSTS = {
    "deriv": 8, "predict_linear": 8, "stddev_over_time": 8, "stdvar_over_time": 8,
    "double_exponential_smoothing": 4, "quantile_over_time": 16, "mad_over_time": 32,
}  # fmt: skip


def parts(leaf: BaseExpr, batch: SeriesBatch, guard: Guard) -> Iterator[SeriesBatch]:
    """Yields some series at a time, few enough for a query to stop soon."""
    height = max(1, _BLOCK // max(leaf.steps.count, 1))
    samples = _WORK // _cost(leaf)
    beyond = 0
    while beyond < len(batch):
        guard.check()
        first, most = beyond, batch.offsets[beyond] + samples
        fitting = int(np.searchsorted(batch.offsets, most, side="right")) - 1
        beyond = min(max(fitting, first + 1), first + height, len(batch))
        yield _part(batch, first, beyond)


def _windows_per_sample(leaf: BaseExpr) -> int:
    """How many windows contain a sample."""
    if leaf.at is not None:
        return 1 if _is_constant(leaf) else max(leaf.steps.count, 1)
    return max(1, min(leaf.steps.count, leaf.range // leaf.steps.step + 1))


def _cost(leaf: BaseExpr) -> int:
    """The cost of one sample in all windows that contain it."""
    return _windows_per_sample(leaf) * _COSTS.get(leaf.function, 1)


def _is_constant(leaf: BaseExpr) -> bool:
    """Whether all steps have the window and the parameters of the first."""
    timeless = leaf.at is not None and leaf.function != "predict_linear"
    return timeless and all(len(held) == 1 for held in leaf.parameters)


def in_slices(
    leaf: BaseExpr, part: SeriesBatch, values: Floats, present: Mask, guard: Guard
) -> int:
    """Yields some steps at a time, where one series is too much work for one part."""
    count = leaf.steps.count
    work = len(part.values) * _cost(leaf)
    width = max(1, count * _WORK // max(work, 1))
    if len(part) != 1 or width >= count or _is_constant(leaf):
        return compute(leaf, part, values, present)
    fullest = 0
    for first in range(0, count, width):
        guard.check()
        some = leaf.at_steps(first, min(first + width, count))
        columns = slice(first, first + some.steps.count)
        block, there = np.zeros((1, some.steps.count)), np.zeros((1, some.steps.count), bool)
        fullest = max(fullest, compute(some, _within(part, *some.bounds), block, there))
        values[:, columns], present[:, columns] = block, there
    return fullest


def compute_all(
    leaf: BaseExpr, batch: SeriesBatch, values: Floats, present: Mask, guard: Guard
) -> int:
    """The same for a batch of any size; calls the guard between its parts."""
    fullest = 0
    first = 0
    for part in parts(leaf, batch, guard):
        beyond = first + len(part)
        found = in_slices(leaf, part, values[first:beyond], present[first:beyond], guard)
        fullest = max(fullest, found)
        first = beyond
    return fullest


def compute(leaf: BaseExpr, batch: SeriesBatch, values: Floats, present: Mask) -> int:
    """Fills the window of every series at every step; returns how full the fullest was."""
    ends = leaf.ends
    if _is_constant(leaf) and len(ends) > 1:
        single = replace(leaf, steps=leaf.steps.first)
        first, there = np.zeros((len(batch), 1)), np.zeros((len(batch), 1), bool)
        fullest = compute(single, batch, first, there)
        values[:], present[:] = first, there
        return fullest
    times = np.ascontiguousarray(batch.times, np.int64)
    samples = np.ascontiguousarray(batch.values, np.float64)
    offsets = np.ascontiguousarray(batch.offsets, np.int64)
    if not leaf.range:
        _instants(leaf, batch, times, samples, offsets, values, present)
        return 0
    name = leaf.function
    held = [_spread(parameter, len(ends)) for parameter in leaf.parameters]
    none = np.empty(0, np.int64)
    started = leaf.start_timestamps and batch.starts is not None
    starts = batch.starts if started and batch.starts is not None else none
    if leaf.extension:
        return int(
            extended_windows.windows(
                extended_windows.CODES[name], times, samples, starts, offsets, ends, leaf.range,
                leaf.lookback, leaf.extension == "smoothed", values, present, started,
            )
        )  # fmt: skip
    if name in counters.RATES:
        code = counters.RATES[name]
        return int(
            counters.rates(
                code, times, samples, starts, offsets, ends, leaf.range, values, present, started
            )
        )
    if name in over_time.OVER_TIME:
        code = over_time.OVER_TIME[name]
        return int(
            over_time.over_time(code, times, samples, offsets, ends, leaf.range, values, present)
        )
    if name in over_time.TRENDS:
        held += [np.zeros(len(ends))] * (2 - len(held))
        return int(
            over_time.trends(
                over_time.TRENDS[name], times, samples, offsets, ends, leaf.steps.times, leaf.range,
                held[0], held[1], values, present,
            )
        )  # fmt: skip
    quantiles = held[0] if held else np.zeros(len(ends))
    return int(
        order_statistics.ranks(
            order_statistics.RANKS[name], times, samples, offsets, ends, leaf.range, quantiles,
            values, present,
        )
    )  # fmt: skip


def _instants(
    leaf: BaseExpr,
    batch: SeriesBatch,
    times: Whole,
    samples: Floats,
    offsets: Whole,
    values: Floats,
    present: Mask,
) -> None:
    if leaf.extension == "smoothed":
        extended_windows.instants(
            times, samples, offsets, leaf.ends, leaf.lookback, values, present
        )
        return
    stale = np.empty(0, bool) if batch.stale is None else np.ascontiguousarray(batch.stale)
    returns_time = leaf.function == "timestamp"
    if leaf.function == "start_timestamp":
        if not leaf.start_timestamps:
            return
        # Where it is not known, it is zero.
        samples = np.zeros(len(times)) if batch.starts is None else batch.starts / 1000.0
    counters.instants(
        times, samples, stale, offsets, leaf.ends, leaf.lookback, values, present,
        batch.stale is not None, returns_time,
    )  # fmt: skip


def _spread(parameter: tuple[float, ...], count: int) -> Floats:
    if len(parameter) == 1:
        return np.full(count, parameter[0])
    return np.asarray(parameter, np.float64)


def overlapping(leaf: BaseExpr, batch: SeriesBatch) -> Whole:
    """Rows with a window in which a sample starts before the previous one ended.

    Deltas start where the sample before ended, and cumulative samples where that one started.
    """
    starts, times = batch.starts, batch.times
    if starts is None or len(times) < 2:
        return np.empty(0, np.int64)
    row = np.repeat(np.arange(len(batch)), np.diff(batch.offsets))
    doubtful = (starts[1:] != 0) & (starts[1:] < times[:-1]) & (starts[1:] != starts[:-1])
    places = np.flatnonzero(doubtful & (row[1:] == row[:-1]))
    ends = np.sort(leaf.ends)
    # The first window that has the later sample reaches back the furthest.
    window = np.searchsorted(ends, times[places + 1])
    places, window = places[window < len(ends)], window[window < len(ends)]
    return np.unique(row[places[ends[window] - leaf.range < times[places]]])


def in_windows(leaf: BaseExpr, batch: SeriesBatch) -> Whole:
    """How many samples each step's windows hold, of all series together."""
    times, ends = np.sort(batch.times), leaf.ends
    high, low = (np.searchsorted(times, edge, side="right") for edge in (ends, ends - leaf.range))
    return np.asarray(high - low, np.int64)


def _part(batch: SeriesBatch, first: int, beyond: int) -> SeriesBatch:
    if first == 0 and beyond == len(batch):
        return batch
    low, high = int(batch.offsets[first]), int(batch.offsets[beyond])
    return replace(
        _samples(batch, low, high),
        labels=batch.labels[first:beyond],
        offsets=batch.offsets[first : beyond + 1] - low,
    )


def _within(single: SeriesBatch, after: int, until: int) -> SeriesBatch:
    """The samples of one series that windows between these times can see."""
    low, high = np.searchsorted(single.times, (after, until), side="right").tolist()
    return replace(_samples(single, low, high), offsets=np.array([0, high - low], np.int64))


def _samples(batch: SeriesBatch, low: int, high: int) -> SeriesBatch:
    return replace(
        batch,
        times=batch.times[low:high],
        values=batch.values[low:high],
        stale=None if batch.stale is None else batch.stale[low:high],
        starts=None if batch.starts is None else batch.starts[low:high],
    )
