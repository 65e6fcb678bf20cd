"""Limits say which of them was reached; names, native histograms and shapes of answers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from kalla.query.engine import Answer, Engine
from kalla.query.evaluate.evaluation import Limits
from kalla.query.evaluate.frames import Steps
from kalla.query.evaluate.sample_source import MemorySource, Samples
from kalla.query.labels.label_sets import labels_of
from kalla.query.plan.planner import PlanSettings
from kalla.query.promql.features import Features
from kalla.query.promql.parser import HIGHEST
from kalla.query.promql.query_errors import (
    BadRequest,
    LimitReached,
    NativeHistograms,
    QueryError,
    TimedOut,
)
from kalla.query.promql.token_reader import DEEPEST

TIMES = np.arange(0, 600_001, 10_000)
SERIES = {
    labels_of({"__name__": name, "i": str(number)}): Samples(TIMES, TIMES / 1000.0 * number)
    for name in ("a_total", "b_total")
    for number in range(5)
}
SOURCE = MemorySource(SERIES, shards=3)
ENGINE = Engine(SOURCE)


@pytest.mark.parametrize(
    ("limits", "text", "message"),
    [
        (
            Limits(samples=100),
            "a_total",
            "query processing would load too many samples into memory in query execution",
        ),
        (
            Limits(samples=1000),
            "sum_over_time(vector(1)[1y:1ms])",
            "query processing would load too many samples into memory in query execution",
        ),
        (
            Limits(series=4),
            "a_total",
            "query would touch 5 series, more than the limit of 4 series per query",
        ),
        (
            Limits(memory_bytes=2000),
            "sum(a_total)",
            "bytes for samples of one shard, more than the limit of 2000 bytes of memory",
        ),
        (
            Limits(memory_bytes=20_000),
            "sum_over_time(a_total[1m:10ms])",
            "bytes for one intermediate result, more than the limit of 20000 bytes of memory",
        ),
        (
            Limits(memory_bytes=100_000),
            f'label_replace(a_total, "i", "{"$0" * 9000}", "i", ".*")',
            "bytes for label values, more than the limit of 100000 bytes of memory",
        ),
        (
            Limits(memory_bytes=100_000),
            'label_join(a_total, "i", "' + "-" * 200 + '"' + ', "i"' * 1000 + ")",
            "bytes for label values, more than the limit of 100000 bytes of memory",
        ),
        (Limits(seconds=0), "a_total", "query timed out in expression evaluation"),
    ],
)
def test_a_limit_names_itself(limits: Limits, text: str, message: str) -> None:
    with pytest.raises(QueryError) as problem:
        replace(ENGINE, limits=limits).range(text, 0, 600_000, 10_000)
    assert message in str(problem.value)


@pytest.mark.parametrize("text", ["a_total", "max by (i) (a_total)", "topk(5, a_total)"])
def test_series_are_counted_over_all_shards(text: str) -> None:
    spread = MemorySource(SERIES, shards=64)

    with pytest.raises(LimitReached, match="query would touch 5 series"):
        Engine(spread, limits=Limits(series=4)).instant(text, 600_000)


STEPS = 201
LEAF_BYTES = 5 * STEPS * 9


def asked_within(text: str, leaves: float, workers: int) -> Answer:
    """Asks 201 steps of five series, with memory for so many results of that size."""
    limits = Limits(memory_bytes=int(leaves * LEAF_BYTES))
    engine = Engine(SOURCE, limits=limits, workers=workers)
    return engine.range(text, 0, 600_000, 3_000)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "text",
    [
        # All on the left of something that is still to be computed.
        "(".join(f"a_total offset {k}ms + " for k in range(30)) + "a_total" + ")" * 29,
        # All to be used once more.
        " + ".join(f"a_total offset {k}ms" for k in (*range(30), *range(29, -1, -1))),
    ],
)
def test_memory_is_counted_of_all_that_a_query_holds(text: str, workers: int) -> None:
    with pytest.raises(LimitReached, match=r"bytes for all that it holds at once, .* of memory"):
        asked_within(text, 20, workers)

    assert len(asked_within(text, 200, workers).series) == 5


@pytest.mark.parametrize("workers", [1, 2])
def test_a_leaf_is_let_go_after_its_last_use(workers: int) -> None:
    text = " + ".join(f"a_total offset {k}ms" for k in range(60))

    assert len(asked_within(text, 20, workers).series) == 5
    assert len(asked_within("a_total + a_total * a_total - a_total", 20, workers).series) == 5


def test_the_samples_of_a_range_selector_are_counted_over_all_shards() -> None:
    assert len(ENGINE.instant("a_total[10m]", 600_000).series) == 5
    with pytest.raises(LimitReached, match="bytes of memory per query"):
        replace(ENGINE, limits=Limits(memory_bytes=4000)).instant("a_total[10m]", 600_000)


def test_an_answer_that_comes_too_late_is_none() -> None:
    with pytest.raises(TimedOut):
        replace(ENGINE, limits=Limits(seconds=-1)).instant("'text'", 0)


def in_a_thread(query: Callable[[], Answer]) -> Answer:
    """As the API asks: on a stack of its own, of the usual size."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(query).result()


@pytest.mark.parametrize(
    "text",
    [
        " or ".join(f'a_total{{i!="{k}"}}' for k in range(HIGHEST)),
        "+".join(["a_total"] * HIGHEST),
        "+".join(["1"] * HIGHEST),
        "a_total" + "+1" * (HIGHEST - 1),
        "abs(" * 98 + "a_total" + "+1" * (HIGHEST - 99) + ")" * 98,
        "quantile(0.5," * 98 + "a_total" + "+1" * (HIGHEST - 99) + ")" * 98,
        "histogram_quantile(0.5," * 98 + "a_total" + "+1" * (HIGHEST - 99) + ")" * 98,
        "sum(" * 49 + "a_total" + ("+1)" + "+1" * 2) * 49 + "+1" * (HIGHEST - 197),
        "absent_over_time(" * (DEEPEST - 1) + "a_total" + "[2m:1m] @ 0)" * (DEEPEST - 1),
        "quantile_over_time(scalar(a_total)," * 98 + "a_total" + "[2m:1m] @ 0)" * 98,
    ],
)
def test_what_is_nested_as_deep_as_allowed_is_answered(text: str) -> None:
    assert in_a_thread(lambda: ENGINE.instant(text, 600_000)).type in ("vector", "scalar")
    assert in_a_thread(lambda: ENGINE.range(text, 0, 60_000, 30_000)).type == "matrix"
    assert in_a_thread(lambda: replace(ENGINE, workers=2).instant(text, 600_000)) is not None


def test_a_sum_over_many_series_needs_no_room_for_all_of_them() -> None:
    frugal = replace(ENGINE, limits=Limits(series=4))

    [total] = frugal.instant("sum(a_total)", 600_000).series

    assert total.values.tolist() == [6000.0]


@pytest.mark.parametrize(
    ("start", "end", "step", "message"),
    [
        (10, 0, 1, "end timestamp must not be before start time"),
        (0, 10, 0, "zero or negative query resolution step widths are not accepted"),
        (0, 11_001_000, 1000, "exceeded maximum resolution of 11,000 points per timeseries"),
    ],
)
def test_times_that_make_no_sense_are_refused(
    start: int, end: int, step: int, message: str
) -> None:
    with pytest.raises(BadRequest, match=message):
        ENGINE.range("a_total", start, end, step)
    assert ENGINE.range("1", 0, 11_000_000, 1000).series[0].times.size == 11_001


def test_a_time_beyond_64_bits_is_refused_before_anything_is_read() -> None:
    with pytest.raises(BadRequest, match="out of range"):
        ENGINE.instant("a_total", 2**63)
    with pytest.raises(QueryError, match="timestamp out of bounds for @ modifier"):
        ENGINE.instant("a_total @ 1e18", 0)


def test_without_delayed_removal_names_go_at_once() -> None:
    with pytest.raises(QueryError, match="vector cannot contain metrics with the same labelset"):
        ENGINE.instant('sum(rate({i="1"}[5m]))', 600_000)
    delayed = PlanSettings(features=Features(delayed_name_removal=True))

    [total] = replace(ENGINE, setting=delayed).instant('sum(rate({i="1"}[5m]))', 600_000).series

    assert total.values.tolist() == pytest.approx([2.0], rel=1e-12)


@pytest.mark.parametrize("text", ['{i="1"}[5m]', '({i="1"} offset 1s)[5m:1m]'])
def test_series_that_are_only_told_to_be_there_need_no_names_of_their_own(text: str) -> None:
    assert ENGINE.instant(f"absent_over_time({text})", 600_000).series == ()


def test_native_histograms_are_refused_by_name() -> None:
    source = MemorySource(
        {
            labels_of({"__name__": "h"}): Samples(
                np.empty(0, np.int64), np.empty(0), None, np.array([1000])
            )
        }
    )
    engine = Engine(source)

    with pytest.raises(NativeHistograms, match="native histograms are not supported"):
        engine.instant("sum(h)", 1000)
    with pytest.raises(NativeHistograms, match="histogram_count"):
        engine.instant("histogram_count(x)", 1000)
    assert engine.instant("sum(h)", 999).series == ()


def test_an_aggregation_is_finished_on_the_shards() -> None:
    plan = ENGINE.explained("sum by (i) (rate(a_total[5m]))", Steps(0, 60_000, 15_000), 15_000)

    [leaf] = plan.leaves
    assert leaf.function == "rate"
    assert leaf.range == 300_000
    assert leaf.reduction is not None
    assert leaf.reduction.operator == "sum"
    assert leaf.bounds == (-300_000, 60_000)


def test_one_selector_read_twice_is_read_once() -> None:
    answer = ENGINE.instant("a_total / a_total", 600_000)

    assert len(answer.stats.leaves) == SOURCE.shards
    assert answer.stats.samples_read == 5 * 30


def test_too_much_is_an_execution_error_and_a_bad_step_a_request_error() -> None:
    assert LimitReached("").kind == "execution"
    assert BadRequest("").kind == "bad_data"
    assert (BadRequest.status, LimitReached.status) == (400, 422)
