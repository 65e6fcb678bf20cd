"""The kernel of a compaction alone: any segments merged, the same samples to the bit."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.query.evaluate.sample_source import STALE
from kalla.query.store import segments
from kalla.query.store.maintenance import compaction
from kalla.query.store.maintenance.compaction import Merged, Refused, carry_out
from kalla.query.store.maintenance.compaction_plan import Bounds, Merge, plan, together
from kalla.query.store.segment_cache import SegmentCache
from kalla.query.store.segment_source import SegmentSource
from kalla.query.store.segments import Segment
from kalla.storage import LOCAL, Storage
from tests.compaction_kit import (
    HOUR,
    START,
    everything,
    series,
    ticks,
)
from tests.metrics_kit import spread

written = st.lists(
    st.dictionaries(
        st.integers(0, 4).map(series),
        st.dictionaries(
            st.one_of(st.integers(0, 40).map(lambda n: START + n * HOUR // 2), st.integers(0, 3)),
            st.sampled_from([0.0, 1.5, -0.0, float("inf"), float("nan"), STALE, 1e300]),
            min_size=1,
            max_size=6,
        ).map(lambda points: list(points.items())),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=15,
)


@given(batches=written, data=st.data())
@settings(max_examples=20, deadline=None)
def test_any_samples_read_the_same_before_and_after_any_merge(
    tmp_path_factory: pytest.TempPathFactory, batches: list[dict[Any, Any]], data: st.DataObject
) -> None:
    url = str(tmp_path_factory.mktemp("any"))
    segment_cache = SegmentCache(LOCAL, url, 1 << 26)
    live: dict[int, Segment] = {}
    number = 0

    def add(new: segments.NewSegment) -> None:
        nonlocal number
        live[number] = Segment(**asdict(new), segment_id=number)
        number += 1

    def read() -> list[Any]:
        return everything(SegmentSource(segment_cache, list(live.values()), 2))

    bounds = Bounds(many=3, segments=5, samples=30, wide_samples=60)
    for batch in batches:
        for new in segments.write(LOCAL, url, 0, spread(batch, 2)):
            add(new)
        if not data.draw(st.booleans()):
            continue
        before = read()
        tasks = together(plan(live.values(), bounds=bounds), bounds)
        for task in data.draw(st.permutations(tasks)):
            merged = carry_out(LOCAL, url, "compacted/1-1", task)
            assert isinstance(merged, list)
            for each in merged:
                assert isinstance(each, Merged)
                for old in each.merge.inputs:
                    del live[old.segment_id]
                for new in each.news:
                    add(new)
            assert read() == before


def test_a_segment_too_large_for_a_task_is_taken_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three metrics, each enough for a row group of its own.
    (large,) = segments.write(
        LOCAL, str(tmp_path), 0, spread(ticks(START, 70_000, step=100, of=3), 1)
    )
    assert large.row_groups == 3
    old = Segment(**asdict(large), segment_id=0)
    monkeypatch.setattr(
        "kalla.query.store.maintenance.compaction.Bounds", lambda: Bounds(samples=140_000)
    )
    (merged,) = carried_out(LOCAL, str(tmp_path), (Merge(0, 1, (old,)),))
    assert [new.samples for new in merged.news] == [70_000] * 3
    news = [Segment(**asdict(new), segment_id=place) for place, new in enumerate(merged.news)]

    def read(held: list[Segment]) -> list[Any]:
        return everything(SegmentSource(SegmentCache(LOCAL, str(tmp_path), 1 << 26), held, 1))

    assert read(news) == read([old])


@pytest.fixture
def two_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Merge, ...]:
    """One for each shard of an object; shard 0 has more row groups than a task takes at once."""
    monkeypatch.setattr("kalla.query.store.segment_rows._GROUP_SAMPLES", 4)
    monkeypatch.setattr("kalla.query.store.segment_rows._GROUP_LEAST", 4)
    monkeypatch.setattr(
        "kalla.query.store.maintenance.compaction.Bounds", lambda: Bounds(samples=16)
    )
    samples = spread(ticks(START, 2, step=2 * HOUR, of=6), 1) | {
        1: spread(ticks(START, 2, step=2 * HOUR, of=1), 1)[0]
    }
    found = segments.write(LOCAL, str(tmp_path), 0, samples)
    assert [(new.samples, new.row_groups > 1) for new in found] == [(12, True), (2, False)]
    olds = [Segment(**asdict(new), segment_id=place) for place, new in enumerate(found)]
    merges = [Merge(old.shard, 1, (old,)) for old in olds]
    (task,) = together(merges, Bounds(samples=16))
    return task


def test_a_segment_too_large_for_a_task_keeps_its_samples_beside_another_shard(
    tmp_path: Path, two_merges: tuple[Merge, ...]
) -> None:
    news = [new for each in carried_out(LOCAL, str(tmp_path), two_merges) for new in each.news]

    def read(held: list[Segment]) -> list[Any]:
        return everything(SegmentSource(SegmentCache(LOCAL, str(tmp_path), 1 << 26), held, 2))

    written = [Segment(**asdict(new), segment_id=place) for place, new in enumerate(news)]
    assert read(written) == read([old for merge in two_merges for old in merge.inputs])


def test_a_merge_that_would_lose_samples_is_refused(
    tmp_path: Path, two_merges: tuple[Merge, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = compaction._cut
    monkeypatch.setattr(
        compaction, "_cut", lambda batch, window: dict(list(cut(batch, window).items())[:1])
    )
    found = carry_out(LOCAL, str(tmp_path), "compacted/1-1", two_merges)
    assert isinstance(found, Refused)
    assert "a merge of shard 0 wrote 6 of 12 samples" in str(found.reason)


def carried_out(storage: Storage, url: str, merges: tuple[Merge, ...]) -> list[Merged]:
    found = carry_out(storage, url, "compacted/1-1", merges)
    assert isinstance(found, list)
    return found
