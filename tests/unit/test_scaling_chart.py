"""The charts of the page Scaling, as points."""

from __future__ import annotations

from kalla.scaling.chart import HEIGHT, WIDTH, charts
from kalla.scaling.store import KEEP_SAMPLES_SECONDS, Sample

NOW = 10_000.0


def coordinates(points: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (point.split(",") for point in points.split())]


def test_each_role_has_a_chart_of_its_own() -> None:
    samples = [Sample(role, NOW, 1, 1, 1, 0.5) for role in ("exec", "stage")]
    assert [chart.role for chart in charts(samples, NOW)] == ["exec", "stage"]
    assert charts([], NOW) == []


def test_the_newest_is_on_the_right_and_the_highest_on_top() -> None:
    samples = [
        Sample("exec", NOW - KEEP_SAMPLES_SECONDS, 10, 0, 4, 0.0),
        Sample("exec", NOW, 5, 2, 2, 1.0),
    ]
    (chart,) = charts(samples, NOW)
    (left, top), (right, middle) = coordinates(chart.demand)
    assert left < WIDTH / 10 < WIDTH * 0.9 < right
    assert top < middle < HEIGHT
    # Workers share a scale: two of four is half the height in both lines.
    assert coordinates(chart.current)[1] == coordinates(chart.desired)[1]
    assert (chart.most_demand, chart.most_workers) == (10, 4)


def test_a_role_without_work_is_a_flat_line() -> None:
    (chart,) = charts([Sample("exec", NOW - n, 0, 0, 0, 0.0) for n in (60, 30, 0)], NOW)
    assert len({y for _, y in coordinates(chart.demand)}) == 1
