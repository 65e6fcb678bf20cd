"""Whatever is asked, and whatever happens meanwhile: the whole answer, or why there is none."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.query.engine import Answer, Engine
from kalla.query.evaluate import leaf, window_computation
from kalla.query.evaluate.evaluation import Limits
from kalla.query.evaluate.frames import Steps
from kalla.query.evaluate.sample_source import MemorySource, SeriesBatch
from kalla.query.kernels import order_statistics
from kalla.query.kernels.counters import RATES
from kalla.query.kernels.over_time import OVER_TIME
from kalla.query.plan.planner import PlanSettings
from kalla.query.promql.features import Features
from kalla.query.promql.function_signatures import ANCHORED, SMOOTHED
from kalla.query.promql.matchers import Matcher
from kalla.query.promql.query_errors import BadRequest, ParseFailed, QueryError
from kalla.query.promql.type_checker import checked, type_of
from tests.integration.query.made_up import MINUTES, made_up
from tests.integration.query.test_any_query import same_bits
from tests.unit.query.expressions import expressions
from tests.unit.query.test_promql_parsing import PIECES

EVERY = PlanSettings(features=Features.every())
SOURCE = MemorySource(made_up(2), shards=3)
# A hostile query must not take long to be refused: these bounds are all it gets.
BOUNDS = Limits(samples=20_000, series=50, memory_bytes=4 << 20, seconds=30.0)
STATUSES = {"bad_data": 400, "execution": 422, "timeout": 503, "canceled": 499}
WORDS = {
    "samples": "query processing would load too many samples into memory in query execution",
    "series": "series per query",
    "memory_bytes": "bytes of memory per query",
    "seconds": "query timed out in expression evaluation",
}

hostile = st.sampled_from(
    (
        "sum_over_time(({})[10y:1ms])",
        "max_over_time(({})[1000y:1000y] offset -1000y)",
        "quantile_over_time(scalar({0}), ({0})[100y])",
        "stddev_over_time((sum_over_time(({})[1h:1s]))[1h:1s])",
        "topk(1e300, {})",
        "count_values('é', {0} / {0})",
        "({0}) ^ ({0}) ^ ({0}) ^ 1e300",
        "({}) @ 1e300",
        "({}) @ -9e15",
        "label_replace({}, 'le', '${{1}}${{name}}$$$', 'i', '(?P<name>.*)(.*?)|')",
        "label_replace({}, 'i', 'same', '', '')",
        "histogram_quantile(scalar({0}), label_replace({0}, 'le', '$1', 'i', '(.*)'))",
        "vector(1) or on() ({0}) unless ignoring(g, i, le) ({0})",
        "predict_linear(({0})[5m:], 1e308 * time())",
        "days_in_month(({}) * 1e18)",
        "round({0}, scalar({0}))",
        "limit_ratio(-1.5, {})",
        "sum without (__name__, g, i, le) ({})",
    )
)
moments = st.sampled_from((0, 1, -1, 90_000, 600_000, -(2**40), 2**40, 2**60, -(2**60)))
steps = st.sampled_from((1, 999, 15_000, 60_000, 10**9, 2**59))


def outcome(
    engine: Engine,
    text: str,
    start: int,
    length: int,
    step: int,
    stop: threading.Event | None = None,
) -> Answer | QueryError:
    """An instant query has no step. Anything but an answer or a refusal is an error."""
    try:
        if step:
            return engine.range(text, start, start + length, step, stop)
        return engine.instant(text, start, stop)
    except QueryError as problem:
        return problem


def is_in_order(found: Answer | QueryError) -> bool:
    if isinstance(found, QueryError):
        return bool(str(found)) and found.status == STATUSES[found.kind]
    rows = [one.labels for one in found.series]
    return len(set(rows)) == len(rows) and all(
        len(one.times) == len(one.values) > 0 and bool((one.times[1:] > one.times[:-1]).all())
        for one in found.series
    )


def is_alike(found: Answer | QueryError, whole: Answer | QueryError) -> bool:
    """Of two refusals the beginning counts: which series is named first may differ."""
    if isinstance(found, Answer) and isinstance(whole, Answer):
        return found.type == whole.type and same_bits(found.series, whole.series)
    return str(found)[:40] == str(whole)[:40]


@settings(max_examples=150, deadline=None)
@given(st.data(), moments, st.integers(0, 100), steps, st.booleans())
def test_any_expression_has_an_answer_or_a_refusal(
    data: st.DataObject, start: int, count: int, step: int, instant: bool
) -> None:
    inner = data.draw(expressions())
    text = data.draw(st.one_of(st.just(inner), hostile.map(lambda form: form.format(inner))))
    engine = Engine(SOURCE, EVERY, BOUNDS)

    assert is_in_order(outcome(engine, text, start, count * step, 0 if instant else step))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from((*PIECES, "m_total", "n", "h_bucket", "(", ")")), max_size=10))
def test_any_text_has_an_answer_or_a_refusal(pieces: Sequence[str]) -> None:
    text = "".join(pieces)
    engine = Engine(SOURCE, EVERY, BOUNDS)
    found = outcome(engine, text, 5 * MINUTES, 0, 0)

    assert is_in_order(found)
    try:
        kind = type_of(checked(text, EVERY.features))
    except QueryError:
        assert isinstance(found, QueryError)
        return
    assert not isinstance(found, ParseFailed)
    ranged = outcome(engine, text, 0, 5 * MINUTES, 30_000)
    assert is_in_order(ranged)
    assert isinstance(ranged, BadRequest) == (kind in ("matrix", "string"))


@settings(max_examples=100, deadline=None)
@given(
    expressions(),
    st.sampled_from(
        (
            Limits(samples=0), Limits(samples=30), Limits(samples=500), Limits(series=1),
            Limits(series=3), Limits(memory_bytes=900), Limits(memory_bytes=20_000),
            Limits(seconds=0.0), Limits(seconds=0.002),
        )
    ),
    st.sampled_from((1, 2)),
)  # fmt: skip
def test_a_limit_gives_the_whole_answer_or_says_that_it_was_reached(
    text: str, limits: Limits, workers: int
) -> None:
    free = Engine(SOURCE, EVERY)
    whole = outcome(free, text, 0, 10 * MINUTES, 60_000)
    bound = outcome(replace(free, limits=limits, workers=workers), text, 0, 10 * MINUTES, 60_000)

    assert is_in_order(bound)
    [reached] = [name for name in WORDS if getattr(limits, name) != getattr(Limits(), name)]
    says_so = isinstance(bound, QueryError) and WORDS[reached] in str(bound)
    assert says_so or is_alike(bound, whole)


@dataclass
class Troubled:
    """A source where something happens at one of its reads: the last one that works is `good`."""

    inner: MemorySource
    good: int
    trouble: threading.Event | OSError
    reads: int = field(default=0)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def shards(self) -> int:
        return self.inner.shards

    def select(
        self, shard: int, matchers: Sequence[Matcher], after: int, until: int
    ) -> SeriesBatch:
        with self.lock:
            self.reads += 1
            troubled = self.reads > self.good
        if troubled:
            if isinstance(self.trouble, OSError):
                raise self.trouble
            self.trouble.set()
        return self.inner.select(shard, matchers, after, until)


@settings(max_examples=80, deadline=None)
@given(expressions(), st.integers(0, 8), st.sampled_from((1, 2)))
def test_an_answer_that_lacks_a_shard_is_no_answer(text: str, good: int, workers: int) -> None:
    source = Troubled(SOURCE, good, OSError("the segment is gone"))
    whole = outcome(Engine(SOURCE, EVERY), text, 0, 10 * MINUTES, 60_000)
    found: Answer | QueryError | None = None
    with suppress(OSError):
        found = outcome(Engine(source, EVERY, workers=workers), text, 0, 10 * MINUTES, 60_000)

    if source.reads > good:
        # A refusal may come before the trouble, an answer may not.
        assert not isinstance(found, Answer)
        return
    assert found is not None
    assert is_alike(found, whole)


@settings(max_examples=80, deadline=None)
@given(expressions(), st.integers(0, 8), st.sampled_from((1, 2)))
def test_a_query_stopped_on_the_way_has_the_whole_answer_or_none(
    text: str, good: int, workers: int
) -> None:
    stop = threading.Event()
    engine = Engine(Troubled(SOURCE, good, stop), EVERY, workers=workers)
    whole = outcome(Engine(SOURCE, EVERY), text, 0, 10 * MINUTES, 60_000)
    found = outcome(engine, text, 0, 10 * MINUTES, 60_000, stop)

    if isinstance(found, QueryError) and found.kind == "canceled":
        assert stop.is_set()
    else:
        assert is_alike(found, whole)


class Counting:
    """A guard that lets everything pass, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def check(self) -> None:
        self.asked += 1

    def loaded(self, samples: int) -> None:
        pass

    def cells(self, rows: int, steps: int) -> None:
        pass


def test_a_leaf_looks_up_more_often_the_more_its_windows_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(SOURCE, EVERY)
    monkeypatch.setattr(window_computation, "_WORK", 5000)
    asked = []
    for text in ("sum_over_time(n[15s])", "sum_over_time(n[10m])", "mad_over_time(n[10m])"):
        plan = engine.explained(text, Steps(0, 10 * MINUTES, 1000), 1000)
        guard = Counting()
        for shard in range(SOURCE.shards):
            leaf.execute(plan.leaves[0], SOURCE, shard, guard)
        asked.append(guard.asked)

    assert asked[0] < asked[1] < asked[2]


ONE_SERIES = MemorySource(dict([next(iter(made_up(2).items()))]))


def test_a_leaf_looks_up_also_within_the_windows_of_one_series(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Engine(ONE_SERIES, EVERY).explained(
        'stddev_over_time({__name__!=""}[10m])', Steps(0, 10 * MINUTES, 1000), 1000
    )
    whole, sliced = Counting(), Counting()
    leaf.execute(plan.leaves[0], ONE_SERIES, 0, whole)
    monkeypatch.setattr(window_computation, "_WORK", 500)
    leaf.execute(plan.leaves[0], ONE_SERIES, 0, sliced)

    assert sliced.asked > whole.asked + 10


@pytest.mark.parametrize(
    "text",
    [
        "quantile_over_time(0.5, (vector(time()) % 977)[10m:1s])",
        "quantile by (g) (0.5, n)",
    ],
)
def test_a_query_can_be_stopped_within_a_single_series(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_computation, "_WORK", 1000)
    stop = threading.Event()
    kernel = order_statistics.quantiles_across if "by" in text else order_statistics.ranks
    calls = []

    def stopping(*arguments: object) -> object:
        calls.append(1)
        stop.set()
        return kernel(*arguments)

    monkeypatch.setattr(order_statistics, kernel.__name__, stopping)
    engine = Engine(SOURCE, EVERY, width=lambda _: 7)
    found = outcome(engine, text, 0, 10 * MINUTES, 10_000, stop)

    assert isinstance(found, QueryError)
    assert found.kind == "canceled"
    assert len(calls) == 1


@settings(max_examples=150, deadline=None)
@given(expressions(), st.sampled_from((1, 40, 500)), st.booleans())
def test_the_answer_in_slices_is_the_same(text: str, work: int, counted: bool) -> None:
    engine = Engine(SOURCE, replace(EVERY, counted=counted))
    whole = outcome(engine, text, 0, 10 * MINUTES, 20_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_computation, "_WORK", work)
        found = outcome(engine, text, 0, 10 * MINUTES, 20_000)

    assert is_alike(found, whole)
    if isinstance(found, Answer) and isinstance(whole, Answer):
        assert found.warnings == whole.warnings
        assert found.infos == whole.infos
        assert found.stats.samples_by_step == whole.stats.samples_by_step
        assert found.stats.samples_held == whole.stats.samples_held


@pytest.mark.parametrize(
    "text",
    [
        *(f"{name}(m_total[2m])" for name in (*RATES, *OVER_TIME) if name != "absent_over_time"),
        *(f"{name}(m_total[2m] anchored)" for name in sorted(ANCHORED)),
        *(f"{name}(m_total[2m] smoothed)" for name in sorted(SMOOTHED)),
        "mad_over_time(n[2m])",
        "quantile_over_time(scalar(vector(time() / 600)), n[2m])",
        "quantile_over_time(scalar(vector(time() / 600)), n[2m] @ 300)",
        "predict_linear(n[2m], 60)",
        "predict_linear(n[2m] @ 300, time())",
        "predict_linear(n[2m:10s] @ 300, time())",
        "double_exponential_smoothing(n[2m], 0.5, 0.3)",
        "deriv(n[2m] offset 30s)",
        "sum_over_time(n[2m] @ 300)",
        "n offset -1m",
        "n smoothed",
        "timestamp(n)",
    ],
)
def test_every_function_is_the_same_in_slices(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(SOURCE, EVERY)
    whole = outcome(engine, text, 0, 10 * MINUTES, 7_000)
    monkeypatch.setattr(window_computation, "_WORK", 30)

    assert isinstance(whole, Answer)
    assert len(whole.series) > 0
    assert is_alike(outcome(engine, text, 0, 10 * MINUTES, 7_000), whole)
