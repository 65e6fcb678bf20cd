"""What Prometheus 2.42 does otherwise than 3.x, each by name: where it may differ, and by how much.

A test here allows one difference under one condition, and fails when it was never needed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
import pytest

from kalla.query.evaluate.sample_source import STALE_BITS
from kalla.query.labels.label_sets import Labels, name_of, only, unnamed
from tests.differential.both_engines import Both
from tests.differential.comparing import Outcome, difference, same
from tests.differential.queries import Times
from tests.differential.sample_series import BASE, GRID, LENGTH

OFF_GRID = Times(BASE + 3, BASE + LENGTH + 3, 10_000)
ON_GRID = Times(BASE, BASE + LENGTH, GRID)


def points(ours: Outcome, theirs: Outcome) -> Iterator[tuple[Labels, int, float, float]]:
    """Of answers that have the same series at the same times: both values of each point."""
    assert (ours.refusal, theirs.refusal) == ("", "")
    assert ours.rows.keys() == theirs.rows.keys()
    for labels, row in ours.rows.items():
        assert row.keys() == theirs.rows[labels].keys()
        for time, value in row.items():
            yield labels, time, value, theirs.rows[labels][time]


def test_windows_were_closed_on_the_left(both: Both) -> None:
    text = "count_over_time(grid[90s])"
    ours, theirs = both.ours(text, ON_GRID), both.theirs(text, ON_GRID)
    samples = {
        unnamed(labels): one for labels, one in both.series.items() if name_of(labels) == "grid"
    }

    needed = 0
    for labels in theirs.rows:
        one = samples[labels]
        real = one.times[one.values.view(np.uint64) != STALE_BITS]
        for time, counted in theirs.rows[labels].items():
            on_edge = int(np.isin(time - 90_000, real))
            assert counted - on_edge == ours.rows.get(labels, {}).get(time, 0)
            needed += on_edge
    assert needed
    # A millisecond less is the window of today: so the grammar asks.
    shorter = both.theirs("count_over_time(grid[89999ms])", ON_GRID)
    assert difference(ours, shorter) == ""


def test_steps_of_subqueries_were_closed_on_the_left(both: Both) -> None:
    text, shorter = "count_over_time(vector(1)[90s:15s])", "count_over_time(vector(1)[89999ms:15s])"

    ours, theirs = both.ours(text, ON_GRID), both.theirs(text, ON_GRID)

    assert {(mine, other) for _, _, mine, other in points(ours, theirs)} == {(6.0, 7.0)}
    assert difference(ours, both.theirs(shorter, ON_GRID)) == ""


@pytest.mark.parametrize("function", ["rate", "increase"])
@pytest.mark.parametrize("length", [150_000, 300_000])
def test_a_gap_at_the_start_was_measured_against_zero_first(
    both: Both, function: str, length: int
) -> None:
    """2.42 cut the way to the first sample down to the way to zero, and then asked whether it was
    too long to extrapolate over; 3.x asks first. It shows where zero lies between half a spacing
    and 1.1 spacings before the first sample, and the window begins before that."""
    text = f"{function}(young_total[{length}ms])"
    ours, theirs = both.ours(text, OFF_GRID), both.theirs(text, OFF_GRID)

    needed = 0
    for labels, time, mine, other in points(ours, theirs):
        old = _old_increase(both, labels, time, length)
        if old is None:
            assert same(mine, other)
            continue
        assert same(other, old / (length / 1000 if function == "rate" else 1.0))
        needed += not same(mine, other)
    assert needed


def _old_increase(both: Both, labels: Labels, end: int, length: int) -> float | None:
    """What 2.42 computes where its order of the two questions matters, else None."""
    one = both.series[tuple(sorted({**dict(labels), "__name__": "young_total"}.items()))]
    inside = (one.times > end - length) & (one.times <= end)
    inside &= one.values.view(np.uint64) != STALE_BITS
    times, values = one.times[inside], one.values[inside]
    drops = values[:-1][values[1:] < values[:-1]]
    change = values[-1] - values[0] + drops.sum()
    sampled = (times[-1] - times[0]) / 1000
    spacing = sampled / (len(times) - 1)
    to_start = (times[0] - (end - length)) / 1000
    to_end = (end - times[-1]) / 1000
    to_zero = sampled * (values[0] / change) if change > 0 else math.inf
    if not (to_start >= spacing * 1.1 and spacing / 2 < to_zero < spacing * 1.1):
        return None
    reach = sampled + to_zero + (to_end if to_end < spacing * 1.1 else spacing / 2)
    return float(change * (reach / sampled))


@pytest.mark.parametrize("operator", ["sum", "avg"])
def test_sums_across_series_were_naive(both: Both, operator: str) -> None:
    """Where terms cancel, the error of a naive sum is up to 2**-52 of their sizes for each."""
    terms = '(mixed or label_replace(mixed * -1.000000001, "pod", "less $1", "pod", "(.*)"))'
    text = f"{operator} by (g) ({terms})"
    ours, theirs = both.ours(text, OFF_GRID), both.theirs(text, OFF_GRID)
    inner = both.theirs(terms, OFF_GRID)
    groups: dict[tuple[Labels, int], list[float]] = defaultdict(list)
    for labels, row in inner.rows.items():
        for time, value in row.items():
            groups[only(labels, frozenset("g")), time].append(value)

    needed = 0
    for labels, time, mine, other in points(ours, theirs):
        values = groups[labels, time]
        exact = math.fsum(values) / (len(values) if operator == "avg" else 1)
        assert same(mine, exact)
        bound = len(values) * 2.0**-52 * math.fsum(map(abs, values))
        assert abs(mine - other) <= bound
        needed += not same(mine, other)
    assert needed


def test_a_sum_overflowed_on_the_way(both: Both) -> None:
    """Ours does not: what is beyond floats in the middle need not be so in the end."""
    huge = "1e308"
    text = (
        f'sum(label_replace(vector({huge}), "n", "1", "", "") or '
        f'label_replace(vector({huge}), "n", "2", "", "") or '
        f'label_replace(vector(-{huge}), "n", "3", "", ""))'
    )

    [(_, _, mine, other)] = points(
        both.ours(text, Times(BASE, BASE, 0)), both.theirs(text, Times(BASE, BASE, 0))
    )

    assert (mine, other) == (1e308, math.inf)


@pytest.mark.parametrize("operator", ["topk", "bottomk"])
def test_which_of_equal_values_is_chosen_depends_on_the_heap(both: Both, operator: str) -> None:
    """The values chosen are the same; the series differ only among those equal to the last one."""
    text = f"{operator} by (i) (2, floor(grid))"
    ours, theirs = both.ours(text, ON_GRID), both.theirs(text, ON_GRID)

    needed = 0
    for time in range(ON_GRID.start, ON_GRID.end + 1, ON_GRID.step):
        for group in "01":
            mine, other = (
                {
                    labels: row[time]
                    for labels, row in outcome.rows.items()
                    if time in row and ("i", group) in labels
                }
                for outcome in (ours, theirs)
            )
            assert Counter(mine.values()) == Counter(other.values())
            apart = mine.keys() ^ other.keys()
            if apart:
                last = (min if operator == "topk" else max)(mine.values())
                assert {{**mine, **other}[labels] for labels in apart} == {last}
                needed += 1
    assert needed


def test_a_pinned_window_moved_beside_what_is_not_constant(both: Both) -> None:
    """2.42 lets the window's begin move on with the steps; later samples it has not fetched."""
    at, length = BASE + 600_000, 300_000
    times = Times(BASE + 900_000, BASE + 1_260_000, 60_000)
    text = "predict_linear(gauge[{}ms] @ {}, 60)"
    theirs = both.theirs(text.format(length, at // 1000), times)
    ours = both.ours(text.format(length, at // 1000), times)

    needed = 0
    for moved in range(0, 360_001, 60_000):
        moment = Times(times.start + moved, times.start + moved, 0)
        left = length - moved
        expected = both.ours(text.format(left, at // 1000), moment).rows if left > 0 else {}
        seen = {
            labels: row[moment.start] for labels, row in theirs.rows.items() if moment.start in row
        }
        assert seen.keys() == expected.keys()
        for labels, value in seen.items():
            assert same(value, expected[labels][moment.start])
            needed += not same(value, ours.rows[labels][moment.start])
    assert needed


def test_an_infinity_in_a_line_was_nan(both: Both) -> None:
    """What is lost by rounding is not a number beside an infinite sum; 3.x has it be nothing."""
    window = "odd[1m] offset -20s"
    text = f"predict_linear({window}, 60)"
    ours, theirs = both.ours(text, OFF_GRID), both.theirs(text, OFF_GRID)
    reach = both.ours(f"max_over_time({window}) - min_over_time({window})", OFF_GRID)

    needed = 0
    for labels, time, mine, other in points(ours, theirs):
        if same(mine, other):
            continue
        assert math.isnan(other)
        assert math.isinf(reach.rows[labels][time])
        needed += 1
    assert needed


def test_series_alike_but_for_their_names_clashed_under_a_minus(both: Both) -> None:
    """At no step are both there: since then such series are one."""
    later = Times(BASE + 600_000, BASE + 1_200_000, 600_000)
    last = f"vector(time()) > {later.end // 1000 - 1}"
    text = f'-((gauge{{pod="p0"}} and on() ({last})) or on() grid{{pod="p0"}})'

    ours, theirs = both.ours(text, later), both.theirs(text, later)

    assert theirs.refusal == "vector cannot contain metrics with the same labelset"
    assert difference(ours, both.theirs(text.replace("-(", "-1 * ("), later)) == ""
    assert len(ours.rows) == 1


def test_atan2_kept_the_name_of_the_metric(both: Both) -> None:
    ours = both.ours("gauge atan2 3", OFF_GRID)
    theirs = both.theirs("gauge atan2 3", OFF_GRID)

    assert {name_of(labels) for labels in theirs.rows} == {"gauge"}
    renamed = Outcome(theirs.type, {unnamed(labels): row for labels, row in theirs.rows.items()})
    assert difference(ours, renamed) == ""


def test_series_that_a_comparison_drops_did_not_clash(both: Both) -> None:
    """Several series match one: 2.42 refuses only where more than one of them is kept."""
    for text in ("gauge == on(g) owner", "gauge > on(g) owner * 1e9"):
        ours, theirs = both.ours(text, OFF_GRID), both.theirs(text, OFF_GRID)
        assert "multiple matches for labels" in ours.refusal
        assert (theirs.refusal, theirs.rows) == ("", {})
        # With `bool` nothing is dropped.
        told = text.replace(" on", " bool on")
        assert difference(both.ours(told, OFF_GRID), both.theirs(told, OFF_GRID)) == ""
        assert both.theirs(told, OFF_GRID).refusal


@pytest.mark.parametrize("function", ["hour", "day_of_year", "days_in_month"])
def test_the_date_of_nan_depends_on_the_machine(both: Both, function: str) -> None:
    """Ours is NaN where there is no date; theirs is what the processor makes of it."""
    text = f"{function}(odd)"
    values = {unnamed(labels): row for labels, row in both.theirs("odd", OFF_GRID).rows.items()}

    needed = 0
    for labels, time, mine, other in points(both.ours(text, OFF_GRID), both.theirs(text, OFF_GRID)):
        if math.isfinite(values[labels][time]):
            assert mine == other
        else:
            assert math.isnan(mine)
            needed += 1
    assert needed


@pytest.mark.parametrize("operator", ["max", "min", "sum"])
def test_the_sign_of_a_zero_depends_on_the_order_of_series(both: Both, operator: str) -> None:
    """Ours has none after an aggregation: one more division shows it."""
    text = f"1 / {operator} by (pod) (grid * -0)"

    needed = 0
    for _, _, mine, other in points(both.ours(text, ON_GRID), both.theirs(text, ON_GRID)):
        assert mine == math.inf
        assert math.isinf(other)
        needed += other < 0
    assert needed


def test_smoothing_had_the_name_of_its_inventors(both: Both) -> None:
    ours = both.ours("double_exponential_smoothing(gauge[5m], 0.5, 0.1)", OFF_GRID)
    theirs = both.theirs("holt_winters(gauge[5m], 0.5, 0.1)", OFF_GRID)

    assert difference(ours, theirs) == ""
    assert both.ours("holt_winters(gauge[5m], 0.5, 0.1)", OFF_GRID).type == "bad_data"
