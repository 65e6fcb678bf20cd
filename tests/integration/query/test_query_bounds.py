"""What a query can see is known before it runs; what it has seen is counted step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kalla.query.engine import Engine, bounds
from kalla.query.evaluate.evaluation import Limits
from kalla.query.evaluate.frames import Steps
from kalla.query.evaluate.sample_source import MemorySource, SeriesBatch
from kalla.query.plan.planner import PlanSettings
from kalla.query.promql.features import Features
from kalla.query.promql.matchers import Matcher
from kalla.query.promql.query_errors import QueryError
from kalla.query.promql.type_checker import checked
from tests.integration.query.made_up import MINUTES, made_up
from tests.unit.query.expressions import expressions

SETTING = PlanSettings(features=Features.every(), counted=True)
SOURCE = MemorySource(made_up(1), shards=3)
STEPS = Steps(MINUTES, 7 * MINUTES, 90_000)


@dataclass
class Watched:
    """A source that notes from when to when it was asked."""

    asked: list[tuple[int, int]]
    shards: int = SOURCE.shards

    def select(
        self, shard: int, matchers: Sequence[Matcher], after: int, until: int
    ) -> SeriesBatch:
        self.asked.append((after, until))
        return SOURCE.select(shard, matchers, after, until)


def ask(text: str, steps: Steps, step_ms: int) -> tuple[Watched, tuple[int, ...] | None]:
    """The source as it was asked, and the samples of each step; None without an answer."""
    source = Watched([])
    engine = Engine(source, SETTING, Limits(seconds=60))
    try:
        return source, engine.run(
            checked(text, SETTING.features), text, steps, step_ms
        ).stats.samples_by_step
    except QueryError:
        return source, None


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(expressions(), st.booleans(), st.sampled_from(["", "[5m:1m]", "[3m:] offset 1m"]))
def test_no_query_looks_beyond_its_bounds(text: str, ranged: bool, subquery: str) -> None:
    steps, step_ms = (STEPS, STEPS.step) if ranged else (STEPS.first, 0)
    text = text if ranged else f"({text}){subquery}"
    try:
        known = bounds(checked(text, SETTING.features), steps, step_ms, SETTING)
    except QueryError:
        assert ask(text, steps, step_ms)[1] is None
        return

    source, _ = ask(text, steps, step_ms)

    for after, until in source.asked:
        assert known is not None
        assert known[0] <= after
        assert until <= known[1]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(expressions())
def test_each_step_of_a_range_sees_what_an_instant_query_sees(text: str) -> None:
    if "()" in text:
        return  # of the whole query: start(), end(), step(), range()
    _, samples_by_step = ask(text, STEPS, STEPS.step)
    if samples_by_step is None:
        return
    for time, count in zip(STEPS.times.tolist(), samples_by_step, strict=True):
        _, alone = ask(text, Steps(time, time, 1), 0)
        assert alone in ((count,), None)
