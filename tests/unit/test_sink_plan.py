"""What is delivered next: full batches at once, small ones by age, within the rate."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalla.sinks import plan
from kalla.sinks.ledger import Partition
from kalla.sinks.plan import BatchSize, Limits, Poison, RateLimit
from kalla.sinks.servers.message_ranges import OffsetRange


def partition(number: int, next_offset: int = 0, **changes: object) -> Partition:
    fields: dict[str, object] = {
        "topic": "t", "partition": number, "topic_id": "x", "epoch": 1, "generation": 0,
        "next_offset": next_offset, "stopped": None, "intent_id": None, "intent_end": None,
        "intent_part": None, "intent_mapping": None, "intent_table": None, "intent_deadline": None,
    }  # fmt: skip
    return Partition(**fields | changes)  # type: ignore[arg-type]


def test_a_full_batch_goes_at_once_and_a_small_one_when_it_is_old_enough() -> None:
    held = [partition(0), partition(1)]
    limits = Limits(100, flush_seconds=1.0, now=50.0, waiting_since={0: 49.5, 1: 49.5})
    assert plan.next_ranges(held, {0: 100, 1: 99}, limits) == [OffsetRange("t", 0, 0, 100)]
    later = Limits(100, flush_seconds=1.0, now=50.5, waiting_since={1: 49.5})
    assert plan.next_ranges(held, {0: 0, 1: 99}, later) == [OffsetRange("t", 1, 0, 99)]


def test_nothing_is_read_where_a_range_is_on_its_way_or_the_partition_is_stopped() -> None:
    held = [partition(0, intent_id=7), partition(1, stopped="gap"), partition(2, 5)]
    assert plan.next_ranges(held, {0: 9, 1: 9, 2: 5}, Limits(10)) == []


@given(st.lists(st.integers(0, 300), max_size=6), st.integers(0, 500))
def test_ranges_stay_within_the_budget_and_none_is_empty(ends: list[int], budget: int) -> None:
    held = [partition(number) for number in range(len(ends))]
    found = plan.next_ranges(held, dict(enumerate(ends)), Limits(100, budget=budget))
    sizes = [each.end - each.start for each in found]
    assert sum(sizes) <= budget
    assert all(0 < size <= 100 for size in sizes)


@given(st.lists(st.integers(1, 300), max_size=8))
def test_short_ranges_are_grouped_and_a_long_one_is_alone(sizes: list[int]) -> None:
    ranges = [OffsetRange("t", number, 7, 7 + size) for number, size in enumerate(sizes)]
    groups = plan.groups(ranges, 100)
    assert [each for group in groups for each in group] == ranges
    lengths = [[each.end - each.start for each in group] for group in groups]
    assert all(len(group) == 1 or sum(group) <= 100 for group in lengths)
    # No two neighbours would fit into one.
    assert all(sum(one) + two[0] > 100 for one, two in pairwise(lengths))


def test_spark_places_where_much_waits() -> None:
    assert [plan.on_spark("auto", each) for each in (99_999, 100_000)] == [False, True]
    assert plan.on_spark("spark", 1)
    assert not plan.on_spark("local", 1_000_000)


def test_a_rate_is_held_over_time_and_idle_time_is_not_saved_up() -> None:
    rate = RateLimit(100, now=0.0)
    assert rate.budget(0.0) == 100
    rate.spend(100)
    assert rate.budget(0.0) == 0
    assert rate.budget(0.5) == 50
    assert rate.budget(100.0) == 100
    assert RateLimit(None, 0.0).budget(1.0) is None


@pytest.mark.parametrize(("dead", "stops"), [(50, False), (51, True)])
def test_a_poisoned_topic_is_judged_by_a_hundred_messages(dead: int, stops: bool) -> None:
    poison = Poison(50)
    assert poison.verdict(60, dead) is None  # too few to judge by
    sentence = poison.verdict(40, 0)
    assert (sentence is not None) == stops
    assert Poison(None).verdict(1000, 1000) is None


def test_a_batch_is_smaller_for_a_while_after_one_had_not_enough_time() -> None:
    batch = BatchSize(1000)
    batch.note_too_slow(1000)
    assert batch.rows == 500
    batch.note_too_slow(10)
    assert batch.rows == 5
    for _ in range(60):
        batch.note(100, 100)
    assert batch.rows == 1000


def test_a_batch_is_bounded_by_bytes_once_the_size_of_messages_is_known() -> None:
    batch = BatchSize(100_000)
    assert batch.rows == 100_000  # the kernel stops reading where they do not fit in memory
    batch.note(200, 200 * 170)
    assert batch.rows == 100_000
    batch.note(10, 10 * 5_000_000)
    assert batch.rows == 10
    for _ in range(50):
        batch.note(1000, 1000 * 170)
    assert batch.rows == 100_000
    assert BatchSize(10).rows == 10
