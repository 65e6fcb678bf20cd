"""Kernels of the `anchored` and `smoothed` modifiers: windows that look beyond their own edges."""

from __future__ import annotations

from kalla.compiling import compiled, helper
from kalla.query.kernels.counters import counter_was_reset

CODES = {"rate": 0, "increase": 1, "delta": 2, "resets": 5, "changes": 6}


@helper
def _between(t1, v1, t2, v2, at, counter):  # type: ignore[no-untyped-def]
    """On the line through two samples; a counter that was reset rises from zero."""
    first = 0.0 if counter and v2 < v1 else v1
    return first + (v2 - first) * float(at - t1) / float(t2 - t1)


@compiled("int: int i1 f1 i1 i1 i1 int int flag F2 B2 flag")
def windows(  # type: ignore[no-untyped-def]
    code, times, values, starts, offsets, ends, range_ms, lookback, smooth, out, present, has_starts
):
    """A window takes the last sample at or before its start, a smoothed one the next as well."""
    fullest = 0
    counter = code == 0 or code == 1
    for i in range(len(offsets) - 1):
        start, stop = offsets[i], offsets[i + 1]
        low = start
        high = start
        for k in range(len(ends)):
            end = ends[k]
            begin = end - range_ms
            last_time = end + lookback if smooth else end
            while high < stop and times[high] <= last_time:
                high += 1
            while low < high and times[low] <= begin - lookback:
                low += 1
            present[i, k] = False
            fullest = max(fullest, high - low)
            if high == low:
                continue
            first = low
            while first + 1 < high - 1 and times[first + 1] <= begin:
                first += 1
            last = high - 1
            if smooth:
                last = low
                while last < high - 1 and times[last] < end:
                    last += 1
            if times[last] <= begin:
                continue
            if code >= 5:
                seen = 0
                for j in range(first + 1, high):
                    now, before = values[j], values[j - 1]
                    if code == 6:
                        if now != before and not (now != now and before != before):
                            seen += 1
                    elif now < before or (
                        has_starts
                        and counter_was_reset(starts[j - 1], times[j - 1], starts[j], times[j])
                    ):
                        seen += 1
                present[i, k] = True
                out[i, k] = seen
                continue
            left = values[first]
            if smooth and times[first] < begin:
                left = _between(
                    times[first], values[first], times[first + 1], values[first + 1], begin, counter
                )
            right = values[last]
            if smooth and last > low and times[last] > end:
                right = _between(
                    times[last - 1], values[last - 1], times[last], values[last], end, counter
                )
            change = right - left
            if counter:
                if times[first] <= begin:
                    first += 1
                if times[last] >= end:
                    last -= 1
                before = left
                correction = 0.0
                for j in range(first, last + 1):
                    if values[j] < before:
                        correction += before
                    before = values[j]
                if right < before:
                    correction += before
                change += correction
            if code == 0:
                change /= range_ms / 1000.0
            present[i, k] = True
            out[i, k] = change
    return fullest


@compiled("none: i1 f1 i1 i1 int F2 B2")
def instants(times, values, offsets, ends, lookback, out, present):  # type: ignore[no-untyped-def]
    """`smoothed` on an instant selector: on the line between its neighbours in time."""
    for i in range(len(offsets) - 1):
        start, stop = offsets[i], offsets[i + 1]
        low = start
        high = start
        at = start
        for k in range(len(ends)):
            end = ends[k]
            while high < stop and times[high] <= end + lookback:
                high += 1
            while low < high and times[low] <= end - lookback:
                low += 1
            at = max(at, low)
            while at < high and times[at] < end:
                at += 1
            present[i, k] = False
            if at < high and times[at] == end:
                present[i, k] = True
                out[i, k] = values[at]
            elif at > low and at < high:
                present[i, k] = True
                out[i, k] = _between(
                    times[at - 1], values[at - 1], times[at], values[at], end, False
                )
            elif at > low:
                present[i, k] = True
                out[i, k] = values[at - 1]
