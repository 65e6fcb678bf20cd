"""Which segments are merged, and that a merge never changes which of two samples is right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.query.store.maintenance.compaction_plan import (
    HOUR,
    Bounds,
    Merge,
    keeps_order,
    plan,
    span,
    together,
)
from kalla.query.store.maintenance.upkeep import chosen
from kalla.query.store.segment_rows import BLOCK_MS
from kalla.query.store.segments import Segment

Sample = tuple[int, int]  # series and time


def a_segment(
    number: int,
    level: int = 0,
    low: int = 0,
    high: int | None = None,
    shard: int = 0,
    samples: int = 1000,
) -> Segment:
    return Segment(
        shard=shard,
        level=level,
        min_time=low,
        max_time=low + 60_000 if high is None else high,
        path=f"{level}/{number}.parquet",
        row_group=0,
        row_groups=1,
        rows=10,
        samples=samples,
        bytes=samples * 2,
        checksum="0" * 64,
        segment_id=number,
    )


def numbers(merge: Merge) -> list[int]:
    return [each.segment_id for each in merge.inputs]


def test_an_empty_store_and_a_few_fresh_segments_are_left_alone() -> None:
    assert plan([]) == []
    assert plan([a_segment(number) for number in range(7)]) == []


def test_eight_fresh_segments_of_a_shard_become_one_in_the_order_they_came() -> None:
    fresh = [a_segment(number, shard=number % 2) for number in range(15)]
    (merge,) = plan(reversed(fresh))
    assert (merge.shard, merge.level) == (0, 1)
    assert numbers(merge) == [0, 2, 4, 6, 8, 10, 12, 14]


def test_a_merge_takes_no_more_segments_samples_or_bytes_than_it_may() -> None:
    fresh = [a_segment(number) for number in range(20)]
    for bounds in (Bounds(segments=9), Bounds(samples=9_999), Bounds(bytes=19_999)):
        (merge,) = plan(fresh, bounds=bounds)
        assert numbers(merge) == list(range(9))


def test_one_segment_too_large_for_a_merge_does_not_hold_up_those_after_it() -> None:
    fresh = [a_segment(0, samples=10**9), *(a_segment(number) for number in range(1, 20))]
    live: dict[int, Segment] = {each.segment_id: each for each in fresh}
    assert len(live) > 8
    settle_down(live)
    assert len(live) < 8


def test_what_follows_a_segment_that_cannot_be_read_waits_where_it_shares_its_time() -> None:
    live = [
        *(a_segment(number) for number in range(8)),
        a_segment(8),  # the unreadable one
        *(a_segment(number) for number in range(9, 20)),
        *(a_segment(number, low=BLOCK_MS) for number in range(20, 30)),
    ]
    (merge,) = plan(live, busy={8})
    assert numbers(merge) == [*range(8), *range(20, 30)]


def test_a_block_is_closed_when_the_newest_sample_is_beyond_it() -> None:
    block = [a_segment(1, level=2), a_segment(2, level=1), a_segment(3, level=1)]
    beyond = a_segment(4, low=BLOCK_MS)
    assert plan([*block, beyond]) == []
    later = a_segment(4, low=BLOCK_MS + HOUR // 4)
    (merge,) = plan([*block, later])
    assert numbers(merge) == [1, 2, 3]
    assert merge.level == 10


def test_fresh_segments_of_a_closed_block_join_it_though_they_are_few() -> None:
    later = a_segment(4, low=BLOCK_MS + HOUR)
    (merge,) = plan([a_segment(1, level=1), a_segment(2), a_segment(3), later])
    assert numbers(merge) == [2, 3, 4]
    assert merge.level == 1


def test_a_few_late_samples_do_not_have_a_large_closed_block_written_again() -> None:
    later = a_segment(9, low=BLOCK_MS + HOUR)
    large = a_segment(1, level=10, samples=1_000_000)
    assert plan([large, a_segment(2, level=1), later]) == []
    assert plan([large, a_segment(2), later]) == []
    (merge,) = plan([large, a_segment(2, level=1, samples=200_000), later])
    assert numbers(merge) == [1, 2]
    assert merge.level == 11


def test_late_samples_of_a_time_that_was_merged_widely_gather_below_it() -> None:
    half_day = a_segment(1, level=20, high=11 * HOUR, samples=1_000_000)
    late = [a_segment(number, level=1, low=3 * HOUR) for number in range(2, 10)]
    (merge,) = plan([half_day, *late, a_segment(99, level=10, low=20 * HOUR)])
    assert numbers(merge) == list(range(2, 10))
    assert merge.level == 2


def test_a_segment_of_all_times_costs_no_more_to_plan_than_another() -> None:
    ends = 2**62 // BLOCK_MS * BLOCK_MS
    (merge,) = plan([a_segment(number, low=-ends, high=ends) for number in range(20)])
    assert len(merge.inputs) == 20


def test_closed_blocks_of_half_a_day_become_one_and_those_of_three_days() -> None:
    blocks = [a_segment(number, level=10, low=number * BLOCK_MS) for number in range(6)]
    later = a_segment(99, level=10, low=7 * BLOCK_MS)
    (merge,) = plan([*blocks, later])
    assert numbers(merge) == [0, 1, 2, 3, 4, 5]
    assert merge.level == 20
    assert plan([*blocks, later], bounds=Bounds(wide_samples=5_999)) == []
    halves = [a_segment(number, level=20, low=number * 12 * HOUR) for number in range(6)]
    (merge,) = plan([*halves, a_segment(99, level=10, low=73 * HOUR)])
    assert numbers(merge) == [0, 1, 2, 3, 4, 5]
    assert merge.level == 30


def test_a_merge_that_would_overtake_an_older_segment_is_not_made() -> None:
    older = a_segment(1, level=1)
    merge = Merge(0, 2, (a_segment(2, level=1), a_segment(3, level=1)))
    assert not keeps_order(merge, [older])
    assert keeps_order(merge, [replace(older, level=2), a_segment(9, level=1), a_segment(1)])
    assert keeps_order(merge, [replace(older, min_time=HOUR, max_time=HOUR)])


def test_small_merges_of_the_same_objects_are_one_task_and_large_ones_are_not() -> None:
    def shared(shard: int, level: int = 0) -> list[Segment]:
        return [
            replace(a_segment(100 * shard + number, level, shard=shard), path=f"0/{number}.parquet")
            for number in range(8)
        ]

    small = [Merge(shard, 1, tuple(shared(shard))) for shard in range(4)]
    alone = Merge(4, 1, tuple(a_segment(900 + number, shard=4) for number in range(8)))
    assert together([*small, alone]) == [tuple(small), (alone,)]
    assert together(small, Bounds(samples=16_000)) == [tuple(small[:2]), tuple(small[2:])]
    closing = [Merge(shard, 10, tuple(shared(shard, 1))) for shard in range(4)]
    assert together(closing) == [(merge,) for merge in closing]


def test_a_large_segment_goes_up_with_the_small_ones_after_it() -> None:
    small = [a_segment(number, level=1) for number in range(2, 10)]
    (merge,) = plan([a_segment(1, level=1, samples=9_000_000), *small])
    assert numbers(merge) == list(range(1, 10))
    (merge,) = plan([a_segment(1, level=1, samples=16_000_000), *small])
    assert (numbers(merge), merge.level) == ([1], 2)


def test_a_job_takes_the_largest_tasks_that_fit_and_cuts_one_that_never_would() -> None:
    def task(shards: int, inputs: int, level: int = 1) -> tuple[Merge, ...]:
        return tuple(
            Merge(shard, level, tuple(a_segment(number) for number in range(inputs)))
            for shard in range(shards)
        )

    assert chosen([task(1, 3), task(2, 4)], 12) == (task(2, 4), task(1, 3))
    assert chosen([task(1, 3), task(2, 4)], 10) == (task(2, 4),)
    assert chosen([task(3, 4)], 9) == tuple((merge,) for merge in task(2, 4))
    assert chosen([], 9) == ()


anything = st.lists(
    st.builds(
        lambda level, low, length, samples: (level, low, low + length, samples),
        st.sampled_from([0, 0, 1, 1, 2, 3, 10, 11, 20, 30]),
        st.integers(0, 30).map(lambda step: step * HOUR // 2),
        st.integers(0, 12).map(lambda step: step * HOUR // 2),
        st.integers(1, 20),
    ),
    max_size=40,
)


@given(found=anything, many=st.integers(2, 4))
@settings(max_examples=300, deadline=None)
def test_whatever_segments_there_are_no_merge_overtakes_another_segment(
    found: list[tuple[int, int, int, int]], many: int
) -> None:
    live = [
        a_segment(number, level, low, high, samples=samples)
        for number, (level, low, high, samples) in enumerate(found)
    ]
    for merge in plan(live, bounds=Bounds(many=many, samples=50)):
        taken = numbers(merge)
        assert keeps_order(merge, [each for each in live if each.segment_id not in taken])


# A store in a dict: what is right about each sample, whatever is merged when.


@dataclass(frozen=True)
class Kept:
    segment: Segment
    samples: Mapping[Sample, int]


def read(live: Iterable[Kept]) -> dict[Sample, int]:
    found: dict[Sample, int] = {}
    for each in sorted(live, key=lambda kept: kept.segment.seniority):
        for sample, value in each.samples.items():
            found.setdefault(sample, value)
    return found


def kept(number: int, level: int, samples: Mapping[Sample, int]) -> Kept:
    times = [time for _, time in samples]
    segment = a_segment(number, level, min(times), max(times), samples=len(times))
    return Kept(segment, samples)


def merged(live: dict[int, Kept], merge: Merge, number: int) -> int:
    """Swaps as a compaction does, a segment per window; returns the next free number."""
    parts: dict[int, dict[Sample, int]] = {}
    for sample, value in read(live.pop(each.segment_id) for each in merge.inputs).items():
        parts.setdefault(sample[1] // span(merge.level), {})[sample] = value
    for samples in parts.values():
        live[number] = kept(number, merge.level, samples)
        number += 1
    return number


def settle_down(live: dict[int, Segment]) -> None:
    """Carries plans out on bare segments, each merge within one window, until nothing is to do."""
    number = max(live) + 1
    for _ in range(100):
        merges = plan(live.values())
        if not merges:
            return
        for merge in merges:
            for each in merge.inputs:
                del live[each.segment_id]
            low = min(each.min_time for each in merge.inputs)
            high = max(each.max_time for each in merge.inputs)
            live[number] = a_segment(number, merge.level, low, high, merge.shard, merge.samples)
            number += 1
    raise AssertionError("it never settles")


batches = st.lists(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 100).map(lambda step: step * HOUR // 2)),
        min_size=1,
        max_size=6,
    ),
    min_size=1,
    max_size=60,
)


@given(batches=batches, data=st.data())
@settings(max_examples=150, deadline=None)
def test_the_first_acknowledged_sample_stays_right_whatever_is_merged_when(
    batches: list[list[Sample]], data: st.DataObject
) -> None:
    bounds = Bounds(many=data.draw(st.integers(2, 8)), segments=6, samples=40, wide_samples=100)
    live: dict[int, Kept] = {}
    right: dict[Sample, int] = {}
    number = 0

    def compact(*, partly: bool) -> bool:
        nonlocal number
        segments = [each.segment for each in live.values()]
        busy: set[int] = set()
        if partly:
            busy = data.draw(st.sets(st.sampled_from(sorted(live)), max_size=2))
        merges = plan(segments, busy, bounds)
        used = [each.segment_id for merge in merges for each in merge.inputs]
        assert len(used) == len(set(used))
        assert busy.isdisjoint(used)
        if partly and merges:
            merges = data.draw(st.permutations(merges))
            merges = merges[: data.draw(st.integers(0, len(merges)))]
        for merge in merges:
            number = merged(live, merge, number)
            assert read(live.values()) == right
        return bool(merges)

    for value, batch in enumerate(batches):
        samples = dict.fromkeys(batch, value)
        live[number] = kept(number, 0, samples)
        number += 1
        for sample in samples:
            right.setdefault(sample, value)
        if data.draw(st.booleans()):
            compact(partly=True)
    rounds = 0
    while compact(partly=False):
        rounds += 1
        assert rounds < 200, "it never settles"
    for block in {time // BLOCK_MS for _, time in right}:
        there = [each for each in live.values() if each.segment.min_time // BLOCK_MS == block]
        assert len(there) <= 40
