"""Series made up at random: counters that reset, gauges, buckets, gaps, markers and odd values."""

from __future__ import annotations

import numpy as np

from kalla.query.evaluate.sample_source import STALE, Samples
from kalla.query.labels.label_sets import Labels, labels_of

MINUTES = 60_000


def made_up(seed: int) -> dict[Labels, Samples]:
    rng = np.random.default_rng(seed)
    series: dict[Labels, Samples] = {}
    for number in range(12):
        name = ("m_total", "n", "h_bucket")[number % 3]
        labels = {"__name__": name, "g": "ab"[number % 2], "i": str(number // 4)}
        if name == "h_bucket":
            labels |= {"i": "0", "le": ("0.5", "1", "5", "+Inf")[number // 3]}
        series[labels_of(labels)] = _samples(rng, name)
    return series


def _samples(rng: np.random.Generator, name: str) -> Samples:
    count = int(rng.integers(10, 60))
    times = np.cumsum(rng.integers(5_000, 45_000, count)).astype(np.int64) - 60_000
    if name == "n":
        values = rng.normal(size=count) * 10.0 ** rng.integers(-3, 8, count)
        odd = rng.random(count)
        values[odd < 0.05] = np.nan
        values[(odd >= 0.05) & (odd < 0.08)] = np.inf
        values[(odd >= 0.08) & (odd < 0.1)] = -np.inf
    else:
        values = np.cumsum(rng.integers(0, 9, count)).astype(np.float64)
        reset = int(rng.integers(1, count))
        values[reset:] -= values[reset] * (rng.random() < 0.5)
    values[rng.random(count) < 0.05] = STALE
    return Samples(times, values)
