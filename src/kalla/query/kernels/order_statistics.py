"""Kernels that sort: quantiles over windows and across series, and deviations across series."""

from __future__ import annotations

import numpy as np

from kalla.compiling import compiled, helper

RANKS = {"quantile_over_time": 0, "mad_over_time": 1}


@helper
def _quantile(ordered, count, q):  # type: ignore[no-untyped-def]
    """Of values in order, NaN first."""
    if count == 0 or q != q:
        return np.nan
    if q < 0:
        return -np.inf
    if q > 1:
        return np.inf
    rank = q * (count - 1.0)
    below = max(0.0, np.floor(rank))
    above = min(count - 1.0, below + 1.0)
    weight = rank - np.floor(rank)
    return ordered[int(below)] * (1 - weight) + ordered[int(above)] * weight


@helper
def _order(scratch, count):  # type: ignore[no-untyped-def]
    """Sorts in place, NaN first."""
    nans = 0
    for j in range(count):
        if scratch[j] != scratch[j]:
            scratch[j] = scratch[nans]
            scratch[nans] = np.nan
            nans += 1
    scratch[nans:count].sort()


@compiled("int: int i1 f1 i1 i1 int f1 F2 B2")
def ranks(code, times, values, offsets, ends, range_ms, quantiles, out, present):  # type: ignore[no-untyped-def]
    """quantile_over_time and mad_over_time: functions that sort the window."""
    fullest = 0
    longest = 1
    for i in range(len(offsets) - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    scratch = np.empty(longest)
    for i in range(len(offsets) - 1):
        start, stop = offsets[i], offsets[i + 1]
        low = start
        high = start
        for k in range(len(ends)):
            end = ends[k]
            while high < stop and times[high] <= end:
                high += 1
            while low < high and times[low] <= end - range_ms:
                low += 1
            count = high - low
            fullest = max(fullest, count)
            present[i, k] = count > 0
            if count == 0:
                continue
            scratch[:count] = values[low:high]
            _order(scratch, count)
            if code == 0:
                out[i, k] = _quantile(scratch, count, quantiles[k])
            else:
                # NaN stands first; one is enough to leave nothing known about deviations.
                median = np.nan if scratch[0] != scratch[0] else _quantile(scratch, count, 0.5)
                for j in range(count):
                    scratch[j] = abs(values[low + j] - median)
                _order(scratch, count)
                out[i, k] = _quantile(scratch, count, 0.5)
    return fullest


@compiled("none: f2 b2 i1 i1 f1 F2 B2")
def quantiles_across(values, present, order, bounds, quantiles, out, there):  # type: ignore[no-untyped-def]
    """The quantile across a group's rows at each step; those of group g: order[bounds[g]...]."""
    steps = values.shape[1]
    scratch = np.empty(len(order) + 1)
    for group in range(len(bounds) - 1):
        for k in range(steps):
            count = 0
            for j in range(bounds[group], bounds[group + 1]):
                row = order[j]
                if present[row, k]:
                    scratch[count] = values[row, k]
                    count += 1
            there[group, k] = count > 0
            if count > 0:
                _order(scratch, count)
                out[group, k] = _quantile(scratch, count, quantiles[k])


@compiled("none: f2 b2 i1 i1 flag F2 B2")
def deviations_across(values, present, order, bounds, root, out, there):  # type: ignore[no-untyped-def]
    """Variance or its root across the rows of a group at each step, in row order."""
    steps = values.shape[1]
    for group in range(len(bounds) - 1):
        for k in range(steps):
            count = 0.0
            mean = 0.0
            squares = 0.0
            for j in range(bounds[group], bounds[group + 1]):
                row = order[j]
                if not present[row, k]:
                    continue
                value = values[row, k]
                count += 1.0
                if count == 1.0:
                    mean = value
                    squares = np.nan if value != value or abs(value) == np.inf else 0.0
                else:
                    delta = value - mean
                    mean += delta / count
                    squares += delta * (value - mean)
            there[group, k] = count > 0
            if count > 0:
                variance = squares / count
                out[group, k] = np.sqrt(variance) if root else variance
