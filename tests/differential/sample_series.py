"""Series that Prometheus and Kalla both hold: counters, gauges, buckets, gaps, markers, odd values.

Prometheus 2.42 closes its windows on the left. So that the edge cannot matter to functions that
compute with it, no time of an `off-grid` series ends in the millisecond 0 or 3: queries ask at
times that do, and their ranges, offsets and steps are whole seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kalla.query.array_types import Floats, Whole
from kalla.query.evaluate.sample_source import STALE, Samples
from kalla.query.labels.label_sets import Labels, labels_of
from tests.differential.queries import EXACT, WHOLE, Known

BASE = 1_699_999_200_000
LENGTH = 40 * 60_000
GRID = 15_000
_ENDINGS = np.array([1, 2, 4, 5, 6, 7, 8, 9])
_BOUNDS = ("0.1", "0.5", "1", "2.5", "10", "+Inf")


@dataclass(frozen=True)
class Metric:
    name: str
    known: Known


GAUGE = Metric("gauge", WHOLE)
# Counters far from zero that are never reset: their rates do not depend on how far zero is.
COUNTER = Metric("c_total", WHOLE)
BUCKETS = Metric("h_bucket", WHOLE)
# Every sample lies on the grid, where queries may ask.
GRIDDED = Metric("grid", WHOLE)
MIXED = Metric("mixed", EXACT)
ODD = Metric("odd", EXACT)
# Counters near zero, with resets.
YOUNG = Metric("young_total", WHOLE)
METRICS = (GAUGE, COUNTER, BUCKETS, GRIDDED, MIXED, ODD, YOUNG)


def sample_series(seed: int) -> dict[Labels, Samples]:
    rng = np.random.default_rng(seed)
    series: dict[Labels, Samples] = {}

    def add(metric: Metric, times: Whole, values: Floats, **labels: str) -> None:
        series[labels_of({"__name__": metric.name, **labels})] = _marked(rng, times, values)

    for number in range(6):
        labels = {"g": "abc"[number % 3], "i": str(number // 3), "pod": f"p{number}"}
        times = _times(rng)
        add(COUNTER, times, _counter(rng, len(times), 10_000_000), **labels)
        times = _times(rng)
        add(GAUGE, times, rng.integers(1, 80_000, len(times)) / 8.0, **labels)
        times = _times(rng)
        add(MIXED, times, rng.normal(size=len(times)) * 10.0 ** rng.integers(-3, 9), **labels)
        times = _times(rng)
        add(ODD, times, _odd(rng, len(times)), **labels)
        times = np.arange(BASE + GRID * (number % 2), BASE + LENGTH, GRID)
        times = times[rng.random(len(times)) > 0.2]
        # Longer than the lookback: there a sample is exactly as old as may be.
        gap = BASE + int(rng.integers(0, LENGTH))
        times = times[(times < gap) | (times > gap + 400_000)]
        add(GRIDDED, times, rng.integers(1, 40, len(times)) / 8.0, **labels)
        times = _times(rng)
        add(YOUNG, times, _counter(rng, len(times), 0), **labels)
    for number in range(3):
        times = _times(rng)
        counts = [_counter(rng, len(times), 1_000_000) for _ in _BOUNDS]
        for bound, cumulated in zip(_BOUNDS, np.cumsum(counts, axis=0), strict=True):
            labels = {"g": "abc"[number], "le": bound}
            series[labels_of({"__name__": BUCKETS.name, **labels})] = Samples(times, cumulated)
    for group, zone in (("a", "north"), ("b", "south"), ("c", "south")):
        times = _times(rng)
        labels = {"__name__": "owner", "g": group, "zone": zone}
        series[labels_of(labels)] = Samples(times, np.ones(len(times)))
    return series


def _times(rng: np.random.Generator) -> Whole:
    """Every 15 s or so, with a gap longer than the lookback in some, and an end before the end."""
    spacing = int(rng.choice([10_000, 15_000, 30_000]))
    wide = rng.integers(spacing // 2, spacing * 3 // 2, LENGTH // spacing)
    times = BASE + np.cumsum(wide) // 10 * 10
    times = times + rng.choice(_ENDINGS, len(times))
    if rng.random() < 0.5:
        begin = BASE + int(rng.integers(0, LENGTH))
        times = times[(times < begin) | (times > begin + int(rng.integers(30_000, 500_000)))]
    late, early = rng.integers(0, LENGTH // 4, 2)
    if rng.random() < 0.3:
        times = times[times > BASE + int(late)]
    return np.asarray(times[times < BASE + LENGTH - int(early)], np.int64)


def _counter(rng: np.random.Generator, count: int, base: int) -> Floats:
    """Whole numbers that grow; one that begins at zero is also reset to near zero."""
    values = np.cumsum(rng.integers(0, 9, count) * (rng.random(count) < 0.8)) + base
    for reset in sorted(rng.integers(1, count, int(rng.integers(0, 4)) if base == 0 else 0)):
        values[reset:] -= values[reset] - int(rng.integers(0, 3))
    return values.astype(np.float64)


def _odd(rng: np.random.Generator, count: int) -> Floats:
    values = rng.integers(-50, 50, count) / 4.0
    chance = rng.random(count)
    values[chance < 0.08] = np.nan
    values[(chance >= 0.08) & (chance < 0.11)] = np.inf
    values[(chance >= 0.11) & (chance < 0.14)] = -np.inf
    values[(chance >= 0.14) & (chance < 0.2)] = 0.0
    return values


def _marked(rng: np.random.Generator, times: Whole, values: Floats) -> Samples:
    marked = values.copy()
    marked[rng.random(len(values)) < 0.03] = STALE
    return Samples(times, marked)
