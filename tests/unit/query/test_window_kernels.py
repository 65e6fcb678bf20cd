"""Kernels against the plainest way to compute the same: window by window, sample by sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.query.evaluate.frames import Steps
from kalla.query.evaluate.leaf import BaseExpr
from kalla.query.evaluate.sample_source import SeriesBatch
from kalla.query.evaluate.window_computation import compute
from kalla.query.kernels.exact_sums import ExactSums

Window = list[tuple[int, float]]


def _increase(window: Window, begin: int, end: int) -> float | None:
    if len(window) < 2:
        return None
    values = [value for _, value in window]
    change = values[-1] - values[0]
    change += sum(a for a, b in pairwise(values) if b < a)
    sampled = (window[-1][0] - window[0][0]) / 1000
    gap = sampled / (len(window) - 1)
    before, after = (window[0][0] - begin) / 1000, (end - window[-1][0]) / 1000
    before = gap / 2 if before >= gap * 1.1 else before
    after = gap / 2 if after >= gap * 1.1 else after
    if change > 0 and values[0] >= 0:
        before = min(before, sampled * (values[0] / change))
    return change * (sampled + before + after) / sampled


def _extreme(pick: Callable[[list[float]], float]) -> Callable[[Window, int, int], float | None]:
    def found(window: Window, begin: int, end: int) -> float | None:
        if not window:
            return None
        numbers = [value for _, value in window if not math.isnan(value)]
        return pick(numbers) if numbers else math.nan

    return found


def _counted(broken: Callable[[float, float], bool]) -> Callable[[Window, int, int], float | None]:
    def found(window: Window, begin: int, end: int) -> float | None:
        pairs = pairwise(window)
        return sum(broken(a, b) for (_, a), (_, b) in pairs) if window else None

    return found


PLAINLY: dict[str, Callable[[Window, int, int], float | None]] = {
    "increase": _increase,
    "max_over_time": _extreme(max),
    "min_over_time": _extreme(min),
    "count_over_time": lambda window, *_: len(window) or None,
    "resets": _counted(lambda a, b: b < a),
    "changes": _counted(lambda a, b: a != b and not (math.isnan(a) and math.isnan(b))),
    "sum_over_time": lambda window, *_: math.fsum(value for _, value in window) if window else None,
}


@pytest.mark.parametrize("function", sorted(PLAINLY))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_kernel_agrees_with_the_plain_way(function: str, data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=30))
    times = np.cumsum(gaps).astype(np.int64) * 1000
    values = np.array(
        data.draw(
            st.lists(
                st.integers(0, 50).map(float)
                if function in ("increase", "sum_over_time")
                else st.integers(0, 9).map(float) | st.just(math.nan),
                min_size=len(times),
                max_size=len(times),
            )
        )
    )
    steps = Steps(0, 400_000, data.draw(st.sampled_from((7_000, 30_000))))
    length = data.draw(st.sampled_from((5_000, 60_000, 200_000)))
    times.setflags(write=False)  # As the columns of a mapped file are.
    values.setflags(write=False)
    batch = SeriesBatch(((),), np.array([0, len(times)], np.int64), times, values)
    got, present = np.zeros((1, steps.count)), np.zeros((1, steps.count), bool)

    compute(BaseExpr((), steps, 300_000, function, length), batch, got, present)

    for index, end in enumerate(steps.times.tolist()):
        window = [
            (time, value)
            for time, value in zip(times.tolist(), values.tolist(), strict=True)
            if end - length < time <= end
        ]
        wanted = PLAINLY[function](window, end - length, end)
        assert present[0, index] == (wanted is not None)
        if wanted is not None:
            np.testing.assert_allclose(got[0, index], wanted, rtol=1e-12)


def go_on() -> None:
    """Nobody asks the sum to stop."""


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=25),
)
def test_exact_sums_are_those_of_fractions_in_any_order(numbers: list[float]) -> None:
    rows = np.array(numbers)[:, None]
    there, groups = np.ones(rows.shape, bool), np.zeros(len(rows), np.int64)
    whole = ExactSums.zero(1, 1)
    whole.add(rows, there, groups)
    parts = ExactSums.zero(1, 1)
    for index in np.random.default_rng(len(numbers)).permutation(len(rows)):
        one = ExactSums.zero(1, 1)
        one.add(rows[index : index + 1], there[:1], groups[:1])
        parts.absorb(one, np.zeros(1, np.int64), go_on)

    total = whole.sums(go_on)[0, 0]
    assert total == parts.sums(go_on)[0, 0]
    assert whole.means(go_on)[0, 0] == parts.means(go_on)[0, 0]
    exact = sum(map(Fraction, numbers), Fraction(0))
    try:
        assert total == float(exact)
    except OverflowError:
        assert total == (math.inf if exact > 0 else -math.inf)
    assert min(numbers) - 1e292 <= whole.means(go_on)[0, 0] <= max(numbers) + 1e292


def test_infinities_and_nan_decide_a_sum() -> None:
    rows = np.array([[math.inf, math.inf, 1.0, 1e308], [1.0, -math.inf, math.nan, 1e308]])
    sums = ExactSums.zero(1, 4)
    sums.add(rows, np.ones(rows.shape, bool), np.zeros(2, np.int64))

    np.testing.assert_equal(sums.sums(go_on), [[math.inf, math.nan, math.nan, math.inf]])
    np.testing.assert_equal(sums.means(go_on), [[math.inf, math.nan, math.nan, 1e308]])
