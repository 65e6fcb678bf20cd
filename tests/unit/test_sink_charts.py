"""Charts of a pipeline draw what did not happen, too: nothing is stored while nothing moves. Audits
are shown as they were stored.
"""

from __future__ import annotations

import datetime as dt
import re

from kalla.sinks.charts import Chart, charts
from kalla.sinks.store import Rate
from kalla.web.layout import Layout

START = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


def at(seconds: int) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


def lines(chart: Chart) -> list[list[tuple[float, float]]]:
    """Each line's points."""
    found = re.findall(r'points="([^"]*)"', chart.svg)
    return [
        [(float(x), float(y)) for x, y in (p.split(",") for p in each.split())] for each in found
    ]


def heights(chart: Chart) -> list[float]:
    """Of the only line's points: 0 at the axis, 1 at the top."""
    (line,) = lines(chart)
    return [round((126 - y) / 116, 3) for _, y in line]


def test_an_idle_time_is_drawn_as_zero_and_a_single_delivery_is_seen() -> None:
    rates = [Rate(0, at(0), 100, 0, 0), Rate(0, at(60), 50, 0, 0)]
    delivered, _ = charts(rates, {0: 0}, at(120))
    assert heights(delivered) == [0, 1, 0, 0, 0.5, 0, 0]


def test_what_waits_while_nothing_is_delivered_is_drawn_up_to_now() -> None:
    rates = [Rate(0, at(0), 100, 0, 0), Rate(0, at(10), 100, 0, 10)]
    _, waiting = charts(rates, {0: 500}, at(300))
    assert heights(waiting) == [0, 0.02, 1]
    (line,) = lines(waiting)
    assert line[-1][0] == 632  # the right edge is now


def test_every_partition_has_a_line_and_a_name() -> None:
    rates = [Rate(number, at(0), number, 0, 0) for number in range(3)]
    for chart in charts(rates, {}, at(60)):
        assert len(lines(chart)) == 3
        assert chart.partitions == [0, 1, 2]
    assert charts([], {0: 5}, at(0)) == []


def test_an_audit_of_an_earlier_version_is_shown() -> None:
    layout = Layout(["kalla.sinks"], [])
    audit = (START, {"agrees": True, "partitions": []})
    html = layout.fragment("sink_audit.html", audit=audit, now=None)
    assert "Every message was there once" in html
