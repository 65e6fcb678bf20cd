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
    return _poisson("diurnal", lambda at: peak_per_second * _daytime(at), peak_per_second, seed, 30)


def night_batch(seed: int = 2, peak_per_second: float = 4.0) -> Trace:
    """Two days with little work by day, and a batch from 02:00 that grows over 20 minutes."""

    def rate(at: float) -> float:
        minutes = at % DAY / 60 - 120
        if 0 <= minutes < 20:
            return 0.05 + (peak_per_second - 0.05) * minutes / 20
        return peak_per_second if 20 <= minutes < 110 else 0.05

    return _poisson("night-batch", rate, peak_per_second, seed, mean_seconds=60)


def spikes(seed: int = 3, peak_per_second: float = 2.5) -> Trace:
    """Two days of steady work with spikes of a few minutes at random times."""
    chance = random.Random(seed)  # noqa: S311
    begins = sorted(chance.uniform(0, 2 * DAY) for _ in range(40))

    def rate(at: float) -> float:
        # A minute and a half to rise, five minutes high.
        recent = begins[bisect_right(begins, at - 390) : bisect_right(begins, at)]
        heights = [min((at - begin) / 90, 1.0) for begin in recent]
        return 0.5 + (peak_per_second - 0.5) * max(heights, default=0.0)

    return _poisson("spikes", rate, peak_per_second, seed, mean_seconds=20)


def weekly(seed: int = 11) -> Trace:
    """Eight days with busy office hours, less at the weekend; all but the first are measured."""

    def rate(at: float) -> float:
        hour = at % DAY / 3600
        busy = math.sin((hour - 7) / 11 * math.pi) ** 2 if 7 <= hour <= 18 else 0.0
        return 0.03 + 0.97 * busy * (0.15 if int(at // DAY) % 7 >= 5 else 1.0)

    return _poisson("weekly", rate, 1.0, seed, mean_seconds=40, days=8)


def flash_crowd(seed: int = 12) -> Trace:
    """Twenty times the work from one second to the next, at 14:00, which fades within hours."""

    def rate(at: float) -> float:
        minutes = at % DAY / 60 - 14 * 60
        return 0.3 if minutes < 0 else 0.3 + 5.7 * math.exp(-minutes / 25)

    return _poisson("flash-crowd", rate, 6.0, seed, mean_seconds=30)


def slow_ramp(seed: int = 13) -> Trace:
    """Work that grows for twenty hours and falls within four."""

    def rate(at: float) -> float:
        hour = at % DAY / 3600
        return 0.1 + 2.4 * (hour / 20 if hour < 20 else (24 - hour) / 4)

    return _poisson("slow-ramp", rate, 2.5, seed, mean_seconds=30)


def hourly_batch(seed: int = 14) -> Trace:
    """Sixty jobs within twenty seconds at every full hour, and none between."""
    chance = random.Random(seed)  # noqa: S311
    jobs = [
        (hour * 3600 + chance.uniform(0, 20), _length(chance, 45))
        for hour in range(48)
        for _ in range(60)
    ]
    return _trace("hourly-batch", jobs, measure_from=DAY)


def trickle(seed: int = 15) -> Trace:
    """A job a minute: mostly no worker is needed."""
    return _poisson("trickle", lambda _: 0.02, 0.02, seed, mean_seconds=60)


def short_jobs(seed: int = 16) -> Trace:
    """A day's shape of jobs that take five seconds."""
    return _poisson("short-jobs", lambda at: 3 * _daytime(at), 3.0, seed, mean_seconds=5)


def long_jobs(seed: int = 17) -> Trace:
    """A day's shape of jobs that take ten minutes, some of them hours."""
    return _poisson("long-jobs", lambda at: 0.15 * _daytime(at), 0.15, seed, 600, sigma=1.2)


def on_off(seed: int = 19) -> Trace:
    """Ten minutes of much work, ten of little, over and over."""
    return _poisson("on-off", lambda at: 2.0 if at % 1200 < 600 else 0.1, 2.0, seed, 20)


SHAPES: dict[str, Callable[..., Trace]] = {
    "diurnal": diurnal,
    "night-batch": night_batch,
    "spikes": spikes,
    "weekly": weekly,
    "flash-crowd": flash_crowd,
    "slow-ramp": slow_ramp,
    "hourly-batch": hourly_batch,
    "trickle": trickle,
    "short-jobs": short_jobs,
    "long-jobs": long_jobs,
    "on-off": on_off,
}


def _daytime(at: float) -> float:
    """1 in the afternoon, a twentieth at night."""
    return 0.05 + 0.95 * max(0.0, math.sin((at % DAY / 3600 - 6) / 14 * math.pi)) ** 2


def _poisson(
    name: str,
    rate: Callable[[float], float],
    highest: float,
    seed: int,
    mean_seconds: float,
    *,
    sigma: float = 0.8,
    days: int = 2,
) -> Trace:
    """A Poisson process of this rate, thinned from one of the highest rate; from day 2 measured."""
    chance = random.Random(seed)  # noqa: S311
    jobs = []
    at = 0.0
    while (at := at + chance.expovariate(highest)) < days * DAY:
        if chance.random() * highest < rate(at):
            jobs.append((at, _length(chance, mean_seconds, sigma)))
    return _trace(name, jobs, measure_from=DAY)


def _length(chance: random.Random, mean_seconds: float, sigma: float = 0.8) -> float:
    """Most jobs are short, some are long: lognormal with this mean."""
    return chance.lognormvariate(math.log(mean_seconds) - sigma**2 / 2, sigma)


def _trace(name: str, jobs: list[tuple[float, float]], measure_from: float = 0.0) -> Trace:
    if not jobs:
        raise InvalidInput(Problem(name, "has no jobs"))
    jobs.sort()
    arrivals, seconds = zip(*jobs, strict=True)
    return Trace(name, arrivals, seconds, measure_from)
