"""Kernels: instant lookups, and windows of counters, exactly as Prometheus 3.x computes them.

A window is (end - range, end]. Samples of series i are at offsets[i] to offsets[i + 1]; `ends`
never falls, so both edges of the window only move forward. Staleness markers were removed before.
"""

from __future__ import annotations

import numpy as np

from kalla.compiling import compiled, helper

RATES = {"rate": 0, "increase": 1, "delta": 2, "irate": 3, "idelta": 4, "resets": 5, "changes": 6}


@helper
def counter_was_reset(previous_start, previous_time, start, time):  # type: ignore[no-untyped-def]
    """Whether a start timestamp says that the counter was reset between two samples."""
    if start == 0 or start >= time or start < previous_time:
        return False
    if start > previous_time:
        return True
    # It names the sample before: one of a chain of deltas, unless where that began is unknown.
    return previous_start != 0 and previous_start < previous_time


@compiled("none: i1 f1 b1 i1 i1 int F2 B2 flag flag")
def instants(times, values, stale, offsets, ends, lookback, out, present, has_stale, returns_time):  # type: ignore[no-untyped-def]
    """The last sample of (end - lookback, end]; none where it is a staleness marker."""
    for i in range(len(offsets) - 1):
        stop = offsets[i + 1]
        at = offsets[i]
        for k in range(len(ends)):
            end = ends[k]
            while at < stop and times[at] <= end:
                at += 1
            found = at > offsets[i] and times[at - 1] > end - lookback
            if found and has_stale and stale[at - 1]:
                found = False
            present[i, k] = found
            if found:
                out[i, k] = times[at - 1] / 1000.0 if returns_time else values[at - 1]


@helper
def _reaches(to_start, to_end, sampled, gaps):  # type: ignore[no-untyped-def]
    """How far a line is drawn beyond the first and the last sample."""
    average = sampled / max(gaps, 1)
    threshold = average * 1.1
    if to_start >= threshold:
        to_start = average / 2
    if to_end >= threshold:
        to_end = average / 2
    return to_start, to_end


@helper
def _to_zero(first, change, sampled, to_start):  # type: ignore[no-untyped-def]
    """A counter starts at zero: the line is not drawn further back than that."""
    if not (change > 0 and first >= 0):
        return to_start
    # Well beyond the reach, which spares a division.
    height = first * sampled
    if height > 1e-290 and height > to_start * change * 1.0000001:
        return to_start
    to_zero = sampled * (first / change)
    return to_zero if to_zero < to_start else to_start


@compiled("int: int i1 f1 i1 i1 i1 int F2 B2 flag")
def rates(code, times, values, starts, offsets, ends, range_ms, out, present, has_starts):  # type: ignore[no-untyped-def]
    """rate, increase, delta, irate, idelta, resets, changes; returns the fullest window."""
    fullest = 0
    longest = 0
    for i in range(len(offsets) - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    # breaks[j]: resets (or changes) up to sample j, so that a window without any costs nothing.
    breaks = np.zeros(longest + 1, np.int64)
    counter = code == 0 or code == 1 or code == 5
    seconds = range_ms / 1000.0
    for i in range(len(offsets) - 1):
        start, stop = offsets[i], offsets[i + 1]
        if counter or code == 6:
            seen = 0
            for j in range(start, stop):
                if j > start:
                    now, before = values[j], values[j - 1]
                    if code == 6:
                        broken = now != before and not (now != now and before != before)
                    else:
                        broken = now < before
                        if not broken and has_starts:
                            broken = counter_was_reset(
                                starts[j - 1], times[j - 1], starts[j], times[j]
                            )
                    if broken:
                        seen += 1
                breaks[j - start] = seen
        low = start
        high = start
        # Samples at regular intervals have the same positions in every window.
        before_first, after_last, span, held = -1, -1, -1, -1
        sampled, to_start, to_end, usual = 0.0, 0.0, 0.0, 0.0
        for k in range(len(ends)):
            end = ends[k]
            begin = end - range_ms
            while high < stop and times[high] <= end:
                high += 1
            while low < high and times[low] <= begin:
                low += 1
            count = high - low
            fullest = max(fullest, count)
            present[i, k] = False
            if code >= 5:
                if count > 0:
                    present[i, k] = True
                    out[i, k] = breaks[high - 1 - start] - breaks[low - start]
                continue
            since = 0
            if code < 2 and has_starts and count > 0 and begin < starts[low] < times[low]:
                since = starts[low]
            if count < 2 and since == 0:
                continue
            if code >= 3:
                now, before = values[high - 1], values[high - 2]
                interval = times[high - 1] - times[high - 2]
                if interval == 0:
                    continue
                reset = code == 3 and (
                    now < before
                    or (
                        has_starts
                        and counter_was_reset(
                            starts[high - 2], times[high - 2], starts[high - 1], times[high - 1]
                        )
                    )
                )
                change = now if reset else now - before
                if code == 3:
                    change /= interval / 1000.0
                present[i, k] = True
                out[i, k] = change
                continue
            change = values[high - 1] - values[low]
            if counter and breaks[high - 1 - start] != breaks[low - start]:
                for j in range(low + 1, high):
                    if breaks[j - start] != breaks[j - 1 - start]:
                        change += values[j - 1]
            present[i, k] = True
            first, last = times[low], times[high - 1]
            if since != 0:
                # It was zero then: nothing is left to guess on that side.
                change += values[low]
                reach = (last - first) / 1000.0
                _, beyond = _reaches(0.0, (end - last) / 1000.0, reach, count - 1)
                reach = (last - since) / 1000.0
                factor = (reach + 0.0 + beyond) / reach
                out[i, k] = change * (factor / seconds if code == 0 else factor)
                continue
            if (
                first - begin != before_first
                or end - last != after_last
                or last - first != span
                or count != held
            ):
                before_first, after_last, span, held = (
                    first - begin,
                    end - last,
                    last - first,
                    count,
                )
                sampled = span / 1000.0
                to_start, to_end = _reaches(
                    before_first / 1000.0, after_last / 1000.0, sampled, count - 1
                )
                usual = (sampled + to_start + to_end) / sampled
                if code == 0:
                    usual /= seconds
            factor = usual
            if counter:
                to_zero = _to_zero(values[low], change, sampled, to_start)
                if to_zero < to_start:
                    factor = (sampled + to_zero + to_end) / sampled
                    if code == 0:
                        factor /= seconds
            out[i, k] = change * factor
    return fullest
