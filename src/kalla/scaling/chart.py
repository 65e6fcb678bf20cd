"""The lines of the charts on the page Scaling: the last hour of each role, as points of an SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from kalla.scaling.store import KEEP_SAMPLES_SECONDS, Sample

WIDTH, HEIGHT = 240, 56
_MARGIN = 2.0


@dataclass(frozen=True)
class Chart:
    """One role. Workers share a scale; demand and saturation have one each."""

    role: str
    demand: str  # points, as a polyline has them
    desired: str
    current: str
    saturation: str
    most_demand: int
    most_workers: int


def charts(samples: Sequence[Sample], now: float) -> list[Chart]:
    """A chart for every role with samples; `samples` are ordered by role and time."""
    return [_chart(role, list(rows), now) for role, rows in groupby(samples, lambda s: s.role)]


def _chart(role: str, rows: Sequence[Sample], now: float) -> Chart:
    most_demand = max(row.demand for row in rows)
    most_workers = max(max(row.current, row.desired) for row in rows)
    return Chart(
        role,
        _points(((row.at, row.demand) for row in rows), now, most_demand),
        _points(((row.at, row.desired) for row in rows), now, most_workers),
        _points(((row.at, row.current) for row in rows), now, most_workers),
        _points(((row.at, row.saturation) for row in rows), now, 1.0),
        most_demand,
        most_workers,
    )


def _points(values: Iterable[tuple[float, float]], now: float, most: float) -> str:
    width, height = WIDTH - 2 * _MARGIN, HEIGHT - 2 * _MARGIN
    found = []
    for at, value in values:
        x = _MARGIN + width * max(0.0, 1 - (now - at) / KEEP_SAMPLES_SECONDS)
        y = _MARGIN + height * (1 - min(value / most, 1.0) if most else 1.0)
        found.append(f"{min(x, WIDTH - _MARGIN):.1f},{y:.1f}")
    return " ".join(found)
