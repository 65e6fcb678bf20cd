"""A query evaluated by some steps at a time: the same bits, in the order of time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.query.array_types import Whole
from kalla.query.engine import Answer, Engine
from kalla.query.evaluate.evaluation import Limits
from kalla.query.evaluate.frames import Frame, Steps
from kalla.query.evaluate.result_series import Series
from kalla.query.evaluate.sample_source import MemorySource, Samples
from kalla.query.labels.label_sets import Labels, labels_of
from kalla.query.plan.planner import PlanSettings
from kalla.query.promql.features import Features
from kalla.query.promql.query_errors import LimitReached, QueryError
from kalla.query.promql.type_checker import checked
from tests.integration.query.made_up import MINUTES, made_up
from tests.promqltest.comparing import same_answers
from tests.unit.query.expressions import expressions

STEPS = Steps(0, 12 * MINUTES, 30_000)
FEATURES = Features(experimental_functions=True)
SOURCES = {seed: MemorySource(made_up(seed), shards=3) for seed in range(4)}


def by(steps: int, seed: int = 1) -> Engine:
    """An engine that evaluates so many steps at a time."""
    setting = PlanSettings(features=FEATURES)
    return Engine(SOURCES[seed], setting, Limits(seconds=60.0), width=lambda _: steps)


def outcome(ask: Callable[[], Answer]) -> Answer | str:
    """The answer, or why there is none: which of several reasons depends on what is met first."""
    try:
        return ask()
    except QueryError as problem:
        return problem.kind


def streamed(engine: Engine, text: str) -> Answer:
    """The answer put together from what was taken."""
    taken: dict[Labels, list[tuple[Whole, Whole]]] = {}
    last = STEPS.start - 1

    def take(steps: Steps, frame: Frame) -> None:
        nonlocal last
        assert last < steps.start <= steps.end
        last = steps.end
        for labels, values, there in zip(frame.labels, frame.values, frame.present, strict=True):
            assert there.any()
            part = steps.times[there], values[there].view(np.int64)
            taken.setdefault(labels, []).append(part)

    answer = engine.run(checked(text, FEATURES), text, STEPS, STEPS.step, on_block=take)
    assert (answer.type, answer.series) == ("matrix", ())
    series = (
        Series(
            labels,
            np.concatenate([times for times, _ in parts]),
            np.concatenate([bits for _, bits in parts]).view(np.float64),
        )
        for labels, parts in sorted(taken.items())
    )
    return Answer("matrix", tuple(series), warnings=answer.warnings, infos=answer.infos)


def same(one: Answer | str, two: Answer | str) -> bool:
    if isinstance(one, str) or isinstance(two, str):
        return one == two
    return same_answers(one, two)


@settings(max_examples=50, deadline=None)
@given(expressions(), st.sampled_from(sorted(SOURCES)))
def test_blocks_of_1_of_7_and_of_all_steps_give_the_same_bits(text: str, seed: int) -> None:
    def asked(steps: int) -> Answer | str:
        return outcome(lambda: by(steps, seed).range(text, STEPS.start, STEPS.end, STEPS.step))

    whole = asked(STEPS.count)

    assert same(whole, asked(1))
    assert same(whole, asked(7))
    assert same(whole, outcome(lambda: streamed(by(7, seed), text)))


@pytest.mark.parametrize(
    "text",
    [
        # Judged by all steps: a parameter that is out of range at some of them.
        "quantile(time() / 300 - 0.5, n)",
        "limit_ratio(time() / 300 - 1.2, n)",
        "topk(time() / 100 - 3, n)",
        "topk(time() / 100 - 1e30, n)",
        "histogram_quantile(time() / 300 - 0.5, h_bucket)",
        'histogram_quantiles(h_bucket, "q", time() / 300 - 0.5, 0.5)',
        'histogram_quantile(0.5, label_replace(n, "le", "$1x", "i", "(.*)"))',
        # Series that are there at some steps only.
        "n > 0 or m_total unless n < 10",
        'count_values without (i) ("v", round(n, 100))',
        "absent(n > 1e6)",
        "scalar(n > 1e6) + count(n > 0)",
        "sum by (g) (n > 0) / on (g) group_left () m_total",
        # What never changes, beside what does.
        "n - n @ 120 + scalar(sum(m_total @ end()))",
        "max_over_time((n > 0)[3m:20s]) + quantile_over_time(time() / 720, n[5m])",
        "stddev(n) > 0 and on () vector(time() % 2)",
        "sort_desc(n) + day_of_week() * time()",
        "info(n)",
    ],
)
def test_what_looks_at_all_steps_does_so_in_blocks_too(text: str) -> None:
    whole, *others = (
        outcome(lambda steps=steps: by(steps).range(text, STEPS.start, STEPS.end, STEPS.step))  # type: ignore[misc]
        for steps in (STEPS.count, 1, 7)
    )
    assert all(same(whole, other) for other in others)
    assert same(whole, outcome(lambda: streamed(by(2), text)))


def test_points_are_there_before_the_last_are_computed() -> None:
    stop = threading.Event()
    taken = []

    def take(steps: Steps, _: Frame) -> None:
        taken.append(steps)
        stop.set()

    with pytest.raises(QueryError, match="query was canceled"):
        by(5).run(checked("n * 2", FEATURES), "n * 2", STEPS, STEPS.step, stop, take)

    assert taken == [STEPS.part(0, 5)]


def test_series_that_clash_later_end_what_has_begun() -> None:
    clashing = {
        labels_of({"__name__": name, "i": "1"}): Samples(
            np.array(since) * MINUTES, np.ones(len(since))
        )
        for name, since in (("a", (0, 4, 8, 12)), ("b", (10,)))
    }
    engine = Engine(MemorySource(clashing), width=lambda _: 4)
    taken = []

    with pytest.raises(QueryError, match="same labelset"):
        engine.run(
            checked(text := '{i="1"} * 2'), text, Steps(0, 12 * MINUTES, MINUTES), MINUTES,
            on_block=lambda steps, _: taken.append(steps.start),
        )  # fmt: skip

    assert taken == [0, 4 * MINUTES]


def test_leaves_are_put_together_early_where_there_is_little_room() -> None:
    text = " + ".join(f"m_total offset {number}ms" for number in range(60))
    wide = by(7).range(text, STEPS.start, STEPS.end, STEPS.step)
    [size] = {len(wide.series)}
    limits = Limits(samples=size * STEPS.count * 9, seconds=60.0)

    narrow = Engine(SOURCES[1], limits=limits, width=lambda _: 7)

    assert same_answers(wide, narrow.range(text, STEPS.start, STEPS.end, STEPS.step))


def test_series_are_counted_over_all_blocks() -> None:
    few = Engine(SOURCES[1], limits=Limits(series=8), width=lambda _: 1)
    text = 'count_values("v", n)'

    with pytest.raises(LimitReached, match="more than the limit of 8 series"):
        few.range(text, STEPS.start, STEPS.end, STEPS.step)
    with pytest.raises(LimitReached, match="more than the limit of 8 series"):
        streamed(few, text)
