"""Group commit: who travels together, what a failure frees, and when senders must come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.errors import InvalidInput, Problem, Unavailable
from kalla.query.evaluate.sample_source import SeriesBatch, shard_of
from kalla.query.labels.label_sets import Labels
from kalla.query.store.catalogue import Metadata
from kalla.query.store.ingest import intake as intake_module
from kalla.query.store.ingest.intake import Batch, Intake, merged
from kalla.query.store.ingest.series_index import SeriesIndex
from kalla.settings import Metrics
from tests.metrics_kit import contents, named

SHARDS = 3


class Slow:
    """A store whose commits wait until they are let go, and fail if told so."""

    def __init__(self) -> None:
        self.commits: list[tuple[Mapping[int, SeriesBatch], Mapping[str, Metadata]]] = []
        self.begun = 0
        self.go = asyncio.Event()
        self.failure: Exception | None = None

    async def shards(self) -> int:
        return SHARDS

    async def newest(self) -> int | None:
        return None

    async def commit(
        self, shards: Mapping[int, SeriesBatch], metadata: Mapping[str, Metadata]
    ) -> None:
        self.begun += 1
        await self.go.wait()
        if self.failure is not None:
            raise self.failure
        self.commits.append((shards, metadata))


@asynccontextmanager
async def an_intake(kind: type[Slow] = Slow) -> AsyncIterator[tuple[Intake, Slow, SeriesIndex]]:
    store = kind()
    intake = Intake(store, Metrics(commit_seconds=0.001))
    try:
        yield intake, store, SeriesIndex(SHARDS, 1 << 30)
    finally:
        await intake.close()


def a_batch(known: SeriesIndex, name: str, times: list[int], **told: Any) -> Batch:
    number = known.add(named(name))
    values = np.array(times, np.float64)
    return Batch(known, np.full(len(times), number), np.array(times, np.int64), values, **told)


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def test_writes_during_a_commit_travel_in_the_next_one_together() -> None:
    async with an_intake() as (intake, store, known):
        first = asyncio.create_task(intake.write(a_batch(known, "a", [1])))
        await until(lambda: store.begun == 1)
        others = [asyncio.create_task(intake.write(a_batch(known, "b", [n]))) for n in range(9)]
        await asyncio.sleep(0)
        assert not first.done()
        store.go.set()
        await asyncio.gather(first, *others)
        assert [
            sum(len(batch.times) for batch in shards.values()) for shards, _ in store.commits
        ] == [
            1,
            9,
        ]


async def test_a_commit_waits_for_bodies_that_are_on_their_way() -> None:
    store = Slow()
    store.go.set()
    known = SeriesIndex(SHARDS, 1 << 30)
    # So long that it would be noticed: what ends the wait is that nobody is on the way any more.
    intake = Intake(store, Metrics(commit_seconds=60))
    try:
        with intake.room(1):
            first = asyncio.create_task(intake.write(a_batch(known, "a", [1])))
            with intake.room(1):
                await asyncio.sleep(0.01)
                assert not store.begun
                second = asyncio.create_task(intake.write(a_batch(known, "a", [2])))
                await asyncio.gather(first, second)
        assert len(store.commits) == 1
    finally:
        await intake.close()


async def test_a_body_that_does_not_end_keeps_nobody_waiting_for_long() -> None:
    async with an_intake() as (intake, store, known):
        store.go.set()
        with intake.room(1), intake.room(1):
            await intake.write(a_batch(known, "a", [1]))
        assert len(store.commits) == 1


async def test_a_commit_that_fails_is_told_to_all_in_it_and_leaves_nothing_behind() -> None:
    async with an_intake() as (intake, store, known):
        store.go.set()
        for failure in (
            OSError(28, "No space left on device"),
            InvalidInput(Problem("", "S3 denies access")),
            Unavailable("S3 does not answer"),
        ):
            store.failure = failure
            writes = [intake.write(a_batch(known, "a", [n])) for n in range(5)]
            for outcome in await asyncio.gather(*writes, return_exceptions=True):
                assert isinstance(outcome, Unavailable)
        store.failure = ValueError("a bug")
        with pytest.raises(ValueError, match="a bug"):
            await intake.write(a_batch(known, "a", [1]))
        store.failure = None
        await intake.write(a_batch(known, "a", [1]))
        assert len(store.commits) == 1
        assert intake.held_samples == 0


async def test_what_nobody_foresaw_in_one_write_does_not_keep_the_others_out() -> None:
    class Choosy(Slow):
        async def commit(
            self, shards: Mapping[int, SeriesBatch], metadata: Mapping[str, Metadata]
        ) -> None:
            await super().commit(shards, metadata)
            if any(named("poison") in batch.labels for batch in shards.values()):
                del self.commits[-1]
                raise ZeroDivisionError

    async with an_intake(Choosy) as (intake, store, known):
        first = asyncio.create_task(intake.write(a_batch(known, "a", [1])))
        await until(lambda: store.begun == 1)
        names = ["b", "poison", "c"]
        writes = [asyncio.ensure_future(intake.write(a_batch(known, n, [2]))) for n in names]
        await asyncio.sleep(0)
        store.go.set()
        outcomes = await asyncio.gather(first, *writes, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [
            type(None),
            type(None),
            ZeroDivisionError,
            type(None),
        ]
        assert len(store.commits) == 3
        assert intake.held_samples == 0


async def test_more_than_fits_into_memory_has_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake_module, "MOST_SAMPLES", 10)
    async with an_intake() as (intake, store, known):
        held = asyncio.create_task(intake.write(a_batch(known, "a", [*range(10)])))
        await until(lambda: store.begun == 1)
        with pytest.raises(Unavailable, match="too many samples wait"):
            await intake.write(a_batch(known, "a", [11]))
        store.go.set()
        await held
        await intake.write(a_batch(known, "a", [*range(50)]))  # alone it is let in


async def test_bodies_hold_their_room_while_they_are_read() -> None:
    async with an_intake() as (intake, _, _):
        size = Metrics().write_bytes
        with (
            intake.room(2 * size),
            intake.room(2 * size),
            pytest.raises(Unavailable, match="too many writes"),
            intake.room(1),
        ):
            pass
        with intake.room(4 * size):
            pass


async def test_of_metadata_that_travel_together_the_last_word_is_committed() -> None:
    async with an_intake() as (intake, store, known):
        first = asyncio.create_task(intake.write(a_batch(known, "a", [1])))
        await until(lambda: store.begun == 1)
        words = [{"a": Metadata("gauge", word)} for word in "xyz"]
        others = [
            asyncio.ensure_future(intake.write(a_batch(known, "a", [], metadata=told)))
            for told in words
        ]
        await asyncio.sleep(0)
        store.go.set()
        await asyncio.gather(first, *others)
        assert [metadata for _, metadata in store.commits] == [{}, words[-1]]


async def test_whoever_waits_when_it_closes_is_told_to_come_back() -> None:
    async with an_intake() as (intake, store, known):
        writes = [asyncio.create_task(intake.write(a_batch(known, "a", [1])))]
        await until(lambda: store.begun == 1)
        writes.append(asyncio.create_task(intake.write(a_batch(known, "a", [2]))))
        await asyncio.sleep(0)
        await intake.close()
        for outcome in await asyncio.gather(*writes, return_exceptions=True):
            assert isinstance(outcome, Unavailable)


async def test_batches_of_two_tables_of_series_are_not_mixed() -> None:
    async with an_intake() as (intake, store, known):
        other = SeriesIndex(SHARDS, 1 << 30)
        other.add(named("z"))
        first = asyncio.create_task(intake.write(a_batch(known, "a", [1])))
        await until(lambda: store.begun == 1)
        rest = [intake.write(a_batch(known, "b", [2])), intake.write(a_batch(other, "c", [3]))]
        waiting = [asyncio.ensure_future(each) for each in rest]
        store.go.set()
        await asyncio.gather(first, *waiting)
        found: dict[Labels, list[tuple[int, float]]] = {}
        for shards, _ in store.commits:
            for batch in shards.values():
                found |= contents(batch)
        assert found == {
            named(name): [(time, float(time))] for name, time in (("a", 1), ("b", 2), ("c", 3))
        }


samples = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(0, 6), st.integers(0, 100)), max_size=40
)


@settings(deadline=None)
@given(st.lists(samples, min_size=1, max_size=4), st.booleans())
def test_merging_keeps_the_first_of_each_series_and_time(
    parts: list[list[tuple[str, int, int]]], started: bool
) -> None:
    known = SeriesIndex(SHARDS, 1 << 30)
    batches = []
    expected: dict[Labels, dict[int, float]] = {}
    for part in parts:
        numbers = np.array([known.add(named(name)) for name, _, _ in part], np.int64)
        values = np.array([float(value) for _, _, value in part])
        starts = values.astype(np.int64) + 1 if started else None
        batches.append(
            Batch(known, numbers, np.array([time for _, time, _ in part], np.int64), values, starts)
        )
        for name, time, value in part:
            expected.setdefault(named(name), {}).setdefault(time, float(value))
    found: dict[Labels, list[tuple[int, float]]] = {}
    for shard, batch in merged(batches).items():
        assert all(shard_of(labels, SHARDS) == shard for labels in batch.labels)
        assert list(batch.labels) == sorted(batch.labels)
        found |= contents(batch)
        if batch.starts is not None:
            assert (batch.starts == batch.values + 1).all()
    assert found == {labels: sorted(points.items()) for labels, points in expected.items()}
