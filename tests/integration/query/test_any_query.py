"""Random queries on random series: an answer or a refusal, the same bits on any shards."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.query.array_types import Floats, Whole
from kalla.query.engine import Answer, Engine
from kalla.query.evaluate.evaluation import Budget, Limits, MergeSorted
from kalla.query.evaluate.frames import Steps
from kalla.query.evaluate.leaf import execute
from kalla.query.evaluate.result_series import Series, lines
from kalla.query.evaluate.sample_source import MemorySource, Samples
from kalla.query.labels.label_sets import labels_of, unnamed
from kalla.query.plan.planner import PlanSettings
from kalla.query.promql.features import Features
from kalla.query.promql.query_errors import QueryError
from tests.integration.query.made_up import MINUTES, made_up
from tests.numbered_source import NumberedSource
from tests.unit.query.expressions import expressions

SERIES = {seed: made_up(seed) for seed in range(4)}
EVERY = PlanSettings(features=Features.every())


def engine(seed: int, shards: int, setting: PlanSettings = EVERY, workers: int = 1) -> Engine:
    """Labels of one shard are as they are, those of several have numbers."""
    source = (MemorySource if shards == 1 else NumberedSource)(SERIES[seed], shards)
    return Engine(source, setting, Limits(seconds=60.0), workers)


def asked(one: Engine, text: str) -> Answer | str:
    """The answer of a range query, or why there is none."""
    try:
        return one.range(text, 0, 12 * MINUTES, 90_000)
    except QueryError as problem:
        return f"{problem.kind}: {problem}"


def same_bits(one: Sequence[Series], two: Sequence[Series]) -> bool:
    return len(one) == len(two) and all(
        a.labels == b.labels
        and np.array_equal(a.times, b.times)
        and np.array_equal(bits(a.values), bits(b.values))
        for a, b in zip(one, two, strict=True)
    )


def bits(values: Floats) -> Whole:
    """So that the two zeros differ; which NaN it is, nobody sees."""
    return np.where(np.isnan(values), np.nan, values).view(np.int64)


@settings(max_examples=80, deadline=None)
@given(expressions(), st.sampled_from(sorted(SERIES)), st.booleans())
def test_one_shard_and_many_give_the_same_bits(text: str, seed: int, delayed: bool) -> None:
    features = Features(experimental_functions=True, delayed_name_removal=delayed)
    setting = PlanSettings(features=features)
    alone = asked(engine(seed, 1, setting), text)

    for shards, workers in ((7, 2), (64, 1)):
        spread = asked(engine(seed, shards, setting, workers), text)
        if isinstance(alone, str) or isinstance(spread, str):
            # Which of two clashing series is named first may differ; that they clash may not.
            assert isinstance(alone, str)
            assert isinstance(spread, str)
            assert alone[:40] == spread[:40]
        else:
            assert same_bits(alone.series, spread.series)
            assert sorted(alone.warnings) == sorted(spread.warnings)
            assert sorted(alone.infos) == sorted(spread.infos)


@pytest.mark.parametrize(
    "text",
    [
        *(f"{operator}({sign}zero)" for operator in ("sum", "avg", "min", "max") for sign in "+-"),
        *("sum by (i) (zero)", "quantile(0.5, zero)", "stddev(zero)", "topk(1, zero)", "-zero"),
    ],
)
def test_a_zero_has_the_same_sign_on_any_shards(text: str) -> None:
    zeros = {
        labels_of({"__name__": "zero", "i": str(number)}): Samples(np.zeros(1, np.int64), value)
        for number, value in enumerate(np.array([[-0.0], [-0.0], [0.0], [-0.0], [0.0]]))
    }
    alone, *spread = (Engine(MemorySource(zeros, n)).instant(text, 0).series for n in (1, 2, 7, 64))

    assert not any(one.labels == () and np.signbit(one.values).any() for one in alone)
    assert all(same_bits(alone, other) for other in spread)


@settings(max_examples=80, deadline=None)
@given(
    expressions().filter(lambda text: "end()" not in text and "start()" not in text),
    st.sampled_from(sorted(SERIES)),
)
def test_each_step_of_a_range_query_is_an_instant_query(text: str, seed: int) -> None:
    one = engine(seed, 1)
    whole = asked(one, text)
    if isinstance(whole, str):
        return
    for time in range(0, 12 * MINUTES + 1, 90_000):
        answer = one.instant(text, time)
        there = {
            series.labels: series.values[series.times == time].tolist()
            for series in whole.series
            if time in series.times
        }
        if answer.type == "scalar":
            [values] = there.values()
            np.testing.assert_equal(values, [answer.scalar])
        else:
            got = {series.labels: series.values.tolist() for series in answer.series}
            assert got.keys() == there.keys()
            for labels, values in got.items():
                np.testing.assert_equal(there[labels], values)


@pytest.mark.parametrize(
    "text", ["sum by (g) (rate(m_total[5m]))", "topk(1, n)", "n", "quantile_over_time(0.5, n[5m])"]
)
def test_a_leaf_and_its_parts_can_travel(text: str) -> None:
    one = engine(1, 7)
    [leaf] = one.explained(text, Steps(0, 12 * MINUTES, 90_000), 90_000).leaves
    far = pickle.loads(pickle.dumps(leaf))  # noqa: S301 - our own
    parts = [
        pickle.loads(pickle.dumps(execute(far, one.source, shard, Budget(Limits()))))  # noqa: S301
        for shard in range(7)
    ]

    merged = MergeSorted(far).merge(parts, Budget(Limits()).check)

    here = one.range(text, 0, 12 * MINUTES, 90_000).series
    if leaf.drops_name and leaf.reduction is None:
        merged = merged.relabelled(unnamed)
    assert same_bits(lines(merged.sorted(), leaf.steps), here)


def test_a_query_that_nobody_waits_for_stops() -> None:
    stop = threading.Event()
    stop.set()

    with pytest.raises(QueryError) as problem:
        engine(0, 7).range("rate(m_total[5m])", 0, MINUTES, 1000, stop)

    assert (problem.value.kind, str(problem.value)) == (
        "canceled",
        "query was canceled in expression evaluation",
    )
