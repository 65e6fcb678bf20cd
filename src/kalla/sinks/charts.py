"""Charts of a pipeline as SVG: rates and lag, a line for each partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from kalla.sinks.store import Rate

WIDTH, HEIGHT = 640, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 10, 24
_SECONDS = 10  # of a sample
_LEAST_SPAN, _MOST_SPAN = 300, 1800  # seconds of a chart
_COLOURS = 6
_MOST_LINES = 24


@dataclass(frozen=True)
class Chart:
    title: str
    svg: Markup


def charts(rates: Sequence[Rate]) -> list[Chart]:
    """None where nothing was delivered in the last half hour."""
    if not rates:
        return []
    return [
        Chart("Rows a second", _svg(rates, lambda each: each.rows / _SECONDS, "Rows a second")),
        Chart("Messages waiting", _svg(rates, lambda each: each.waiting, "Messages waiting")),
    ]


def _svg(rates: Sequence[Rate], value: Callable[[Rate], float], title: str) -> Markup:
    end = max(each.at for each in rates)
    most = max(value(each) for each in rates) or 1.0
    oldest = (end - min(each.at for each in rates)).total_seconds()
    span = min(max(oldest, _LEAST_SPAN), _MOST_SPAN)
    partitions = sorted({each.partition for each in rates})[:_MOST_LINES]
    lines = Markup("").join(
        _line(
            [each for each in rates if each.partition == partition], value, end, most, span, number
        )
        for number, partition in enumerate(partitions)
    )
    floor = HEIGHT - _BOTTOM
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-label="{title}, at most {most}">'
        '<line class="axis" x1="{left}" y1="{floor}" x2="{right}" y2="{floor}"/>'
        '<line class="grid" x1="{left}" y1="{top}" x2="{right}" y2="{top}"/>'
        '<text x="{edge}" y="{mosty}" text-anchor="end">{most}</text>'
        '<text x="{edge}" y="{floor}" text-anchor="end">0</text>'
        '<text x="{left}" y="{below}">{minutes} min ago</text>'
        '<text x="{right}" y="{below}" text-anchor="end">{end}</text>{lines}</svg>'
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
        end=f"{end:%H:%M:%S}",
        lines=lines,
        below=HEIGHT - 5,
        minutes=round(span / 60),
    )


def _line(
    rates: Sequence[Rate],
    value: Callable[[Rate], float],
    end: datetime,
    most: float,
    span: float,
    number: int,
) -> Markup:
    points = []
    for each in rates:
        age = (end - each.at).total_seconds()
        x = WIDTH - _RIGHT - (WIDTH - _LEFT - _RIGHT) * age / span
        y = HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value(each) / most
        points.append(f"{x:.1f},{y:.1f}")
    if len(points) == 1:  # a single sample would be a point
        across, _, up = points[0].partition(",")
        points.append(f"{float(across) - 2:.1f},{up}")
    return Markup(
        '<polyline class="line-{}" points="{}"><title>partition {}</title></polyline>'
    ).format(number % _COLOURS, " ".join(points), rates[0].partition)


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
