"""Kernels: sums, extremes and lines over the windows of each series, as in Prometheus 3.x.

A window is (end - range, end]. Samples of series i are at offsets[i] to offsets[i + 1]; `ends`
never falls, so both edges of the window only move forward. Staleness markers were removed before.
"""

from __future__ import annotations

import numpy as np

from kalla.compiling import compiled, helper

OVER_TIME = {
    "count_over_time": 0,
    "sum_over_time": 1,
    "avg_over_time": 2,
    "min_over_time": 3,
    "max_over_time": 4,
    "last_over_time": 5,
    "first_over_time": 6,
    "stddev_over_time": 7,
    "stdvar_over_time": 8,
    "present_over_time": 9,
    "absent_over_time": 9,
    "ts_of_first_over_time": 10,
    "ts_of_last_over_time": 11,
    "ts_of_min_over_time": 12,
    "ts_of_max_over_time": 13,
}
TRENDS = {"deriv": 0, "predict_linear": 1, "double_exponential_smoothing": 2}


@helper
def _kahan(value, total, rest):  # type: ignore[no-untyped-def]
    """Neumaier's summation; an infinite total has no compensation."""
    new = total + value
    if abs(new) == np.inf:
        return new, 0.0
    if abs(total) >= abs(value):
        rest += (total - new) + value
    else:
        rest += (value - new) + total
    return new, rest


@helper
def _mean(values, low, high):  # type: ignore[no-untyped-def]
    """The sum is divided at the end, unless it overflows: then the mean is carried along."""
    total, rest = values[low], 0.0
    mean = 0.0
    carried = False
    count = 1.0
    for j in range(low + 1, high):
        count += 1.0
        if not carried:
            new, new_rest = _kahan(values[j], total, rest)
            if abs(new) != np.inf:
                total, rest = new, new_rest
                continue
            carried = True
            mean = total / (count - 1)
            rest /= count - 1
        share = (count - 1) / count
        mean, rest = _kahan(values[j] / count, share * mean, share * rest)
    if carried:
        return mean + rest
    return total / count + rest / count


@helper
def _variance(values, low, high):  # type: ignore[no-untyped-def]
    count = 0.0
    mean, mean_rest = 0.0, 0.0
    squares, squares_rest = 0.0, 0.0
    for j in range(low, high):
        count += 1.0
        delta = values[j] - (mean + mean_rest)
        mean, mean_rest = _kahan(delta / count, mean, mean_rest)
        squares, squares_rest = _kahan(
            delta * (values[j] - (mean + mean_rest)), squares, squares_rest
        )
    return (squares + squares_rest) / count


@helper
def _beats(now, best, code):  # type: ignore[no-untyped-def]
    """Whether a value takes the place of the best so far; anything replaces NaN."""
    if best != best:
        return True
    if code == 3:
        return now < best
    if code == 4:
        return now > best
    if code == 12:
        return now <= best
    return now >= best


@compiled("int: int i1 f1 i1 i1 int F2 B2")
def over_time(code, times, values, offsets, ends, range_ms, out, present):  # type: ignore[no-untyped-def]
    """The *_over_time functions that read each sample once; returns the fullest window."""
    fullest = 0
    longest = 1
    for i in range(len(offsets) - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    # Candidates for the extreme of a window, best first: each sample enters and leaves once.
    queue = np.empty(longest if code == 3 or code == 4 else 1, np.int64)
    for i in range(len(offsets) - 1):
        start, stop = offsets[i], offsets[i + 1]
        low = start
        high = start
        head = 0
        tail = 0
        for k in range(len(ends)):
            end = ends[k]
            begin = end - range_ms
            while high < stop and times[high] <= end:
                if code == 3 or code == 4:
                    now = values[high]
                    if now == now:
                        while tail > head and _beats(now, values[queue[tail - 1]], code):
                            tail -= 1
                        queue[tail] = high
                        tail += 1
                high += 1
            while low < high and times[low] <= begin:
                low += 1
            count = high - low
            fullest = max(fullest, count)
            present[i, k] = count > 0
            if count == 0:
                continue
            if code == 3 or code == 4:
                while head < tail and queue[head] < low:
                    head += 1
                out[i, k] = values[queue[head]] if head < tail else np.nan
            elif code == 0:
                out[i, k] = count
            elif code == 1:
                total, rest = 0.0, 0.0
                for j in range(low, high):
                    total, rest = _kahan(values[j], total, rest)
                out[i, k] = total if abs(total) == np.inf else total + rest
            elif code == 2:
                out[i, k] = _mean(values, low, high)
            elif code == 5:
                out[i, k] = values[high - 1]
            elif code == 6:
                out[i, k] = values[low]
            elif code == 7:
                out[i, k] = np.sqrt(_variance(values, low, high))
            elif code == 8:
                out[i, k] = _variance(values, low, high)
            elif code == 9:
                out[i, k] = 1.0
            elif code == 10:
                out[i, k] = times[low] / 1000.0
            elif code == 11:
                out[i, k] = times[high - 1] / 1000.0
            else:
                best = low
                for j in range(low, high):
                    if _beats(values[j], values[best], code):
                        best = j
                out[i, k] = times[best] / 1000.0
    return fullest


@helper
def _line(times, values, low, high, origin):  # type: ignore[no-untyped-def]
    """Least squares: slope, and the value at the origin."""
    n = 0.0
    x_sum, x_rest = 0.0, 0.0
    y_sum, y_rest = 0.0, 0.0
    xy_sum, xy_rest = 0.0, 0.0
    x2_sum, x2_rest = 0.0, 0.0
    flat = True
    for j in range(low, high):
        if flat and j > low and values[j] != values[low]:
            flat = False
        n += 1.0
        x = (times[j] - origin) / 1000.0
        x_sum, x_rest = _kahan(x, x_sum, x_rest)
        y_sum, y_rest = _kahan(values[j], y_sum, y_rest)
        xy_sum, xy_rest = _kahan(x * values[j], xy_sum, xy_rest)
        x2_sum, x2_rest = _kahan(x * x, x2_sum, x2_rest)
    if flat:
        if abs(values[low]) == np.inf:
            return np.nan, np.nan
        return 0.0, values[low]
    x_sum += x_rest
    y_sum += y_rest
    xy_sum += xy_rest
    x2_sum += x2_rest
    slope = (xy_sum - x_sum * y_sum / n) / (x2_sum - x_sum * x_sum / n)
    return slope, y_sum / n - slope * x_sum / n


@helper
def _smoothed(values, low, high, smoothing, trend):  # type: ignore[no-untyped-def]
    """Holt's double exponential smoothing."""
    before = 0.0
    now = values[low]
    slope = values[low + 1] - values[low]
    for j in range(low + 1, high):
        scaled = smoothing * values[j]
        if j > low + 1:
            slope = trend * (now - before) + (1 - trend) * slope
        carried = (1 - smoothing) * (now + slope)
        before = now
        now = scaled + carried
    return now


@compiled("int: int i1 f1 i1 i1 i1 int f1 f1 F2 B2")
def trends(code, times, values, offsets, ends, evaluated, range_ms, one, two, out, present):  # type: ignore[no-untyped-def]
    """deriv, predict_linear (`one`: seconds ahead), double_exponential_smoothing."""
    fullest = 0
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
            fullest = max(fullest, high - low)
            present[i, k] = high - low >= 2
            if high - low < 2:
                continue
            if code == 0:
                slope, _ = _line(times, values, low, high, times[low])
                out[i, k] = slope
            elif code == 1:
                slope, here = _line(times, values, low, high, evaluated[k])
                out[i, k] = slope * one[k] + here
            else:
                out[i, k] = _smoothed(values, low, high, one[k], two[k])
    return fullest
