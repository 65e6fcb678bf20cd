"""The jobs of a simulation: when each arrives and how long it runs; read from a file or made up."""

from __future__ import annotations

import csv
import math
import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kalla.errors import InvalidInput, Problem

DAY = 86_400.0


@dataclass(frozen=True)
class Trace:
    """Jobs in the order of their arrival. What comes before `measure_from` only sets the scene."""

    name: str
    arrivals: tuple[float, ...]  # seconds
    seconds: tuple[float, ...]  # how long each job runs
    measure_from: float = 0.0

    @property
    def end(self) -> float:
        return self.arrivals[-1] if self.arrivals else 0.0


def load(path: Path) -> Trace:
    """Read a CSV file with the columns `at` and `seconds`."""
    jobs: list[tuple[float, float]] = []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not {"at", "seconds"} <= set(reader.fieldnames or ()):
            raise InvalidInput(Problem(str(path), "needs the columns at and seconds"))
        for number, row in enumerate(reader, 2):
            try:
                at, seconds = float(row["at"]), float(row["seconds"])
            except (TypeError, ValueError):
                raise InvalidInput(Problem(f"{path}:{number}", "is not two numbers")) from None
            if not (math.isfinite(at) and math.isfinite(seconds) and at >= 0 and seconds > 0):
                raise InvalidInput(Problem(f"{path}:{number}", "at and seconds must be positive"))
            jobs.append((at, seconds))
    return _trace(path.stem, jobs)


def diurnal(seed: int = 1, peak_per_second: float = 2.0) -> Trace:
    """Two days with a busy afternoon and a quiet night; the second is measured."""

    def rate(at: float) -> float:
        hour = at % DAY / 3600
        return peak_per_second * (0.05 + 0.95 * max(0.0, math.sin((hour - 6) / 14 * math.pi)) ** 2)

    return _two_days("diurnal", rate, peak_per_second, seed, mean_seconds=30)


def night_batch(seed: int = 2, peak_per_second: float = 4.0) -> Trace:
    """Two days with little work by day, and a batch from 02:00 that grows over 20 minutes."""

    def rate(at: float) -> float:
        minutes = at % DAY / 60 - 120
        if 0 <= minutes < 20:
            return 0.05 + (peak_per_second - 0.05) * minutes / 20
        return peak_per_second if 20 <= minutes < 110 else 0.05

    return _two_days("night-batch", rate, peak_per_second, seed, mean_seconds=60)


def spikes(seed: int = 3, peak_per_second: float = 2.5) -> Trace:
    """Two days of steady work with spikes of a few minutes at random times."""
    chance = random.Random(seed)  # noqa: S311
    begins = sorted(chance.uniform(0, 2 * DAY) for _ in range(40))

    def rate(at: float) -> float:
        # A minute and a half to rise, five minutes high.
        recent = begins[bisect_right(begins, at - 390) : bisect_right(begins, at)]
        heights = [min((at - begin) / 90, 1.0) for begin in recent]
        return 0.5 + (peak_per_second - 0.5) * max(heights, default=0.0)

    return _two_days("spikes", rate, peak_per_second, seed, mean_seconds=20)


SHAPES: dict[str, Callable[[], Trace]] = {
    "diurnal": diurnal,
    "night-batch": night_batch,
    "spikes": spikes,
}


def _two_days(
    name: str, rate: Callable[[float], float], highest: float, seed: int, mean_seconds: float
) -> Trace:
    """A Poisson process of this rate, thinned from one of the highest rate."""
    chance = random.Random(seed)  # noqa: S311
    jobs = []
    at = 0.0
    while (at := at + chance.expovariate(highest)) < 2 * DAY:
        if chance.random() * highest < rate(at):
            # Most jobs are short, some are long: lognormal with this mean.
            sigma = 0.8
            mu = math.log(mean_seconds) - sigma**2 / 2
            jobs.append((at, chance.lognormvariate(mu, sigma)))
    return _trace(name, jobs, measure_from=DAY)


def _trace(name: str, jobs: list[tuple[float, float]], measure_from: float = 0.0) -> Trace:
    if not jobs:
        raise InvalidInput(Problem(name, "has no jobs"))
    jobs.sort()
    arrivals, seconds = zip(*jobs, strict=True)
    return Trace(name, arrivals, seconds, measure_from)
