"""Charts of a pipeline as SVG: rates and lag, a line for each partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from markupsafe import Markup

from kalla.sinks.store import Rate

WIDTH, HEIGHT = 640, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 10, 24
_SAMPLE = timedelta(seconds=10)
_LEAST_SPAN, _MOST_SPAN = 300, 1800  # seconds of a chart
_COLOURS = 6
_MOST_LINES = 24

Points = list[tuple[datetime, float]]


@dataclass(frozen=True)
class Chart:
    title: str
    svg: Markup
    partitions: list[int]  # in the order of their lines


def charts(rates: Sequence[Rate], waiting: Mapping[int, int], now: datetime) -> list[Chart]:
    """None where nothing was delivered in the last half hour; `waiting` is each partition's now."""
    if not rates:
        return []
    partitions = sorted({each.partition for each in rates})[:_MOST_LINES]
    samples = {
        partition: [each for each in rates if each.partition == partition]
        for partition in partitions
    }
    delivered = {partition: _delivered(samples[partition], now) for partition in partitions}
    left = {
        partition: [
            *((each.at, float(each.waiting)) for each in samples[partition]),
            (now, float(waiting.get(partition, samples[partition][-1].waiting))),
        ]
        for partition in partitions
    }
    return [
        Chart(title, _svg(lines, now, title), partitions)
        for title, lines in (("Rows per second", delivered), ("Messages waiting", left))
    ]


def _delivered(samples: Sequence[Rate], now: datetime) -> Points:
    """With zeros in between: ten seconds without a delivery are not stored."""
    points: Points = []
    for each in samples:
        if points and each.at - points[-1][0] > _SAMPLE:
            points.append((points[-1][0] + _SAMPLE, 0.0))
        if not points or each.at - points[-1][0] > _SAMPLE:
            points.append((each.at - _SAMPLE, 0.0))
        points.append((each.at, each.rows / _SAMPLE.total_seconds()))
    if now - points[-1][0] > 2 * _SAMPLE:
        points += [(points[-1][0] + _SAMPLE, 0.0), (now, 0.0)]
    return points


def _svg(drawn: Mapping[int, Points], end: datetime, title: str) -> Markup:
    every = [point for points in drawn.values() for point in points]
    most = max(value for _, value in every) or 1.0
    oldest = (end - min(at for at, _ in every)).total_seconds()
    span = min(max(oldest, _LEAST_SPAN), _MOST_SPAN)
    lines = Markup("").join(
        _line(partition, points, end, most, span, number)
        for number, (partition, points) in enumerate(drawn.items())
    )
    floor = HEIGHT - _BOTTOM
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-label="{title}, at most {most}">'
        '<line class="axis" x1="{left}" y1="{floor}" x2="{right}" y2="{floor}"/>'
        '<line class="grid" x1="{left}" y1="{top}" x2="{right}" y2="{top}"/>'
        '<text x="{edge}" y="{mosty}" text-anchor="end">{most}</text>'
        '<text x="{edge}" y="{floor}" text-anchor="end">0</text>'
        '<text x="{left}" y="{below}">{minutes} min ago</text>'
        '<text x="{right}" y="{below}" text-anchor="end">now</text>{lines}</svg>'
    ).format(
        w=WIDTH,
        h=HEIGHT,
        title=title,
        most=_short(most),
        left=_LEFT,
        right=WIDTH - _RIGHT,
        edge=_LEFT - 6,
        top=_TOP,
        mosty=_TOP + 4,
        floor=floor,
        lines=lines,
        below=HEIGHT - 5,
        minutes=round(span / 60),
    )


def _line(
    partition: int, points: Points, end: datetime, most: float, span: float, number: int
) -> Markup:
    drawn = []
    for at, value in points:
        age = min(max((end - at).total_seconds(), 0.0), span)
        x = WIDTH - _RIGHT - (WIDTH - _LEFT - _RIGHT) * age / span
        y = HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / most
        drawn.append(f"{x:.1f},{y:.1f}")
    return Markup(
        '<polyline class="line-{}" points="{}"><title>partition {}</title></polyline>'
    ).format(number % _COLOURS, " ".join(drawn), partition)


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
