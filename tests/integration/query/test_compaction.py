"""Compaction on a real Spark and catalogue: fewer segments, the same samples to the bit."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from kalla.errors import Unavailable
from kalla.local import ports
from kalla.query.evaluate.sample_source import STALE
from kalla.query.store.maintenance.compaction import carry_out
from kalla.query.store.maintenance.compaction_plan import Merge, plan, together
from kalla.query.store.segments import Segment
from kalla.settings import Spark as SparkSettings
from kalla.spark.session import SparkSessions
from kalla.storage import LOCAL
from kalla.work.wake import open_channel
from kalla.work.worker import Worker
from tests.compaction_kit import (
    EVER,
    HOUR,
    MINUTE,
    START,
    Kept,
    everything,
    kept_settings,
    levels,
    open_store,
    series,
    ticks,
)
from tests.metrics_kit import spread
from tests.servers import S3Server, SparkServer
from tests.worker_kit import eventually

pytestmark = pytest.mark.timeout(600)  # Spark starts its Python anew after each kernel that broke


@pytest.fixture(scope="module")
def spark(spark_server: SparkServer) -> Iterator[SparkSessions]:
    sessions = SparkSessions(
        SparkSettings(remote=spark_server.remote, token=SecretStr(spark_server.token))
    )
    yield sessions
    sessions.close()


async def a_busy_hour(kept: Kept, first: int = START) -> None:
    """Nine writes one after another, with a repeated, a contradicting and a late one among them."""
    for minute in range(9):
        await kept.write(ticks(first + minute * MINUTE, 4))
    await kept.write(ticks(first + 3 * MINUTE, 4))
    await kept.write({series(1): [(first, -1.0), (first + 1, 5.0), (first + 2, STALE)]})


@pytest.mark.spark
async def test_many_small_segments_become_one_per_shard_and_read_the_same(
    database_url: str, tmp_path: Path, spark: SparkSessions
) -> None:
    async with open_store(kept_settings(database_url, tmp_path), spark) as kept:
        await a_busy_hour(kept)
        before = await kept.read()
        snapshot = await kept.store.snapshot(-EVER, EVER)
        (job,) = await kept.look()
        assert job.type == "compact"
        assert await kept.look() == [job], "one at a time"
        await kept.carry_out()
        after = await kept.live()
        assert levels(after) == [1, 1]
        assert len({each.path for each in after}) == 1, "both shards read the same objects"
        assert await kept.read() == before
        assert everything(snapshot) == before, "a query that began before reads on"
        (done,) = kept.done
        assert done.status == "completed"
        assert done.result is not None
        assert (done.result["merged"], done.result["into"]) == (21, 2)
        assert "tasks" not in done.payload, "what is done is not listed for days"
        assert await kept.look() == [], "a quiet store does nothing"


@pytest.mark.spark
async def test_a_worker_merges_while_samples_are_written_and_queries_see_all_of_them(
    database_url: str, tmp_path: Path, spark: SparkSessions
) -> None:
    configured = kept_settings(database_url, tmp_path)
    async with open_store(configured, spark) as kept:
        wake = open_channel(configured, kept.database, ["compact"])
        worker = Worker(configured, kept.job_types, kept.database, wake, services=[kept.upkeep])
        await worker.start()
        try:
            for turn in range(2):
                for minute in range(turn * 8, turn * 8 + 8):
                    await kept.write(ticks(START + minute * MINUTE, 4))
                    assert {len(times) for _, times, *_ in await kept.read()} == {4 * minute + 4}

                async def merged(turn: int = turn) -> bool:
                    found = await asyncio.to_thread(
                        everything, await kept.store.snapshot(-EVER, EVER)
                    )
                    assert [len(times) for _, times, *_ in found] == [32 * (turn + 1)] * 8
                    return levels(await kept.live()) == [1] * 2 * (turn + 1)

                await eventually(merged, 120)
        finally:
            await worker.drain()
        assert await kept.rows("SELECT FROM kalla.jobs WHERE status = 'failed'") == []


@pytest.mark.spark
async def test_closed_blocks_are_one_segment_each_and_half_days_are_one(
    database_url: str, tmp_path: Path, spark: SparkSessions
) -> None:
    async with open_store(kept_settings(database_url, tmp_path, shards=1), spark) as kept:
        # Each write reaches over the end of a block.
        for hour in range(1, 15, 2):
            await kept.write(ticks(START + hour * HOUR, 8, step=HOUR // 4))
            await kept.write({series(0): [(START + hour * HOUR + 7, STALE)]})
        before = await kept.read()
        await kept.settle_down()
        after = sorted(await kept.live(), key=lambda each: each.min_time)
        assert await kept.read() == before
        assert after[0].level >= 20
        assert after[0].max_time < START + 12 * HOUR <= after[1].min_time
        assert sum(each.samples for each in after) == sum(len(times) for _, times, *_ in before)
        assert len(after) <= 4


@pytest.mark.spark
async def test_of_two_compactions_of_the_same_segments_one_counts_and_the_other_is_swept(
    database_url: str, tmp_path: Path, spark: SparkSessions
) -> None:
    async with open_store(kept_settings(database_url, tmp_path), spark) as kept:
        await a_busy_hour(kept)
        before = await kept.read()
        await kept.look()
        lost = await kept.claim()
        late = kept.run(lost)
        # The worker was silent for too long: another one does the same work.
        await kept.rows(
            "UPDATE kalla.jobs SET status = 'pending', heartbeat_at = NULL RETURNING job_id"
        )
        await kept.carry_out()
        after = await kept.live()
        with pytest.raises(Exception, match="no longer held"):
            await kept.settle(lost, late)
        assert await kept.live() == after
        written = {new.path for each in late.facts for new in each.news}
        assert written <= kept.files
        await swept(kept)
        assert written.isdisjoint(kept.files)
        assert kept.files == {each.path for each in after}
        assert await kept.read() == before


@pytest.mark.spark
async def test_segments_that_were_replaced_meanwhile_are_not_replaced_again(
    database_url: str, tmp_path: Path, spark: SparkSessions
) -> None:
    async with open_store(kept_settings(database_url, tmp_path), spark) as kept:
        await a_busy_hour(kept)
        before = await kept.read()
        (first,) = await kept.look()
        async with kept.database.transaction() as connection:
            # What nobody does: the same work twice under two numbers.
            again = (await kept.claim()).payload
            await connection.execute(
                "INSERT INTO kalla.jobs (max_attempts, due, timeout_seconds, max_runtime_seconds,"
                " backoff_seconds, backoff_limit_seconds, run_after, queue, type, payload)"
                " SELECT max_attempts, due, timeout_seconds, max_runtime_seconds,"
                " backoff_seconds, backoff_limit_seconds, run_after, queue, type, payload"
                " FROM kalla.jobs WHERE job_id = %s",
                [first.job_id],
            )
        second = await kept.claim()
        assert second.payload == again
        outcomes = [kept.run(second), kept.run(second)]
        await kept.settle(second, outcomes[0])
        after = await kept.live()
        assert levels(after) == [1, 1]
        async with kept.database.transaction() as connection:
            await kept.job_types.handler("compact").settle(connection, second, outcomes[1])
        assert await kept.live() == after
        assert await kept.read() == before


@pytest.mark.spark
async def test_a_damaged_segment_fails_a_job_that_names_it_and_other_shards_go_on(
    database_url: str, tmp_path: Path, spark: SparkSessions
) -> None:
    async with open_store(kept_settings(database_url, tmp_path), spark) as kept:
        damaged = await nine_of_each_shard(kept, START)
        place, whole = kept.damage(damaged)
        await kept.look()
        await kept.carry_out()
        assert sorted((each.shard, each.level) for each in await kept.live()) == [
            *[(0, 0)] * 9,
            (1, 1),
        ]
        assert [record.status for record in kept.done] == ["completed", "failed"]
        assert str(place) in str(kept.done[1].error)
        assert "damaged" in str(kept.done[1].error)
        assert await kept.look() == [], "not tried again at once"
        # What comes after the damaged one in time is not held up by it.
        await nine_of_each_shard(kept, START + 2 * HOUR)
        await kept.look()
        await kept.carry_out()
        assert sorted((each.shard, each.level) for each in await kept.live()) == [
            *[(0, 0)] * 9,
            (0, 1),
            (1, 1),
            (1, 1),
        ]
        place.write_bytes(whole)
        await kept.later(3600)
        await kept.look()
        await kept.carry_out()
        assert kept.done[-1].status == "completed"
        assert 0 not in levels(await kept.live())


async def test_merges_among_which_a_kernel_breaks_down_are_tried_one_by_one(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(_: object, kernel: Callable[[Any], Any], tasks: Sequence[tuple[Merge, ...]]) -> Any:
        """As Spark does when a kernel is killed, but in seconds: it tries four times."""
        if any(merge.shard == 0 for task in tasks for merge in task):
            raise RuntimeError("Python worker exited unexpectedly (crashed)")
        return [kernel(task) for task in tasks]

    monkeypatch.setattr("kalla.query.store.maintenance.compaction.place", place)
    monkeypatch.setattr(SparkSessions, "session", lambda *_: nullcontext())
    here = SparkSessions(SparkSettings())
    async with open_store(kept_settings(database_url, tmp_path, attempts=1), here) as kept:
        await nine_of_each_shard(kept, START)
        await kept.look()
        await kept.carry_out()
        assert sorted((each.shard, each.level) for each in await kept.live()) == [
            *[(0, 0)] * 9,
            (1, 1),
        ]
        first, *others = kept.done
        assert (first.status, first.result) == ("completed", {"merged": 0})
        assert sorted(record.status for record in others) == ["completed", "failed"]
        assert await kept.look() == []


async def nine_of_each_shard(kept: Kept, first: int) -> Segment:
    """Writes of one shard each, so that an object is of one; the first segment of shard 0."""
    shards = await kept.store.shards()
    one = {
        shard: labels
        for labels in map(series, range(9))
        for shard in spread({labels: [(0, 0.0)]}, shards)
    }
    assert len(one) == shards
    for minute in range(9):
        for labels in one.values():
            await kept.write({labels: [(first + minute * MINUTE, float(minute))]})
    return next(each for each in await kept.live() if each.shard == 0)


async def test_without_spark_the_job_fails_with_a_sentence_and_is_tried_again(
    database_url: str, tmp_path: Path
) -> None:
    nobody = SparkSessions(SparkSettings(remote=f"sc://127.0.0.1:{ports.choose_free()}"))
    async with open_store(kept_settings(database_url, tmp_path), nobody) as kept:
        await a_busy_hour(kept)
        before = await kept.read()
        await kept.look()
        await kept.carry_out()
        assert [record.status for record in kept.done] == ["pending", "pending", "failed"]
        assert all("does not answer" in str(record.error) for record in kept.done)
        assert await kept.look() == []
        await kept.later(120)
        assert [each.type for each in await kept.look()] == ["compact"]
        assert await kept.read() == before


async def test_a_full_disk_fails_the_merge_with_a_sentence_and_loses_nothing(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = SparkSessions(SparkSettings())
    async with open_store(kept_settings(database_url, tmp_path), nobody) as kept:
        await a_busy_hour(kept)
        before = await kept.read()
        (task,) = together(plan(await kept.live()))

        def full(_: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        with monkeypatch.context() as patched:
            patched.setattr("kalla.storage.storage.os.fsync", full)
            with pytest.raises(Unavailable, match="No space left"):
                carry_out(LOCAL, kept.settings.metrics_url, "compacted/1-1", task)
        assert await kept.read() == before


@pytest.mark.spark
async def test_segments_on_s3_are_merged_and_removed_there(
    database_url: str, tmp_path: Path, spark: SparkSessions, s3_server: S3Server, bucket: str
) -> None:
    place = f"{bucket}/below/metrics"
    storage = s3_server.settings.model_copy(update={"metrics": place})
    configured = kept_settings(database_url, tmp_path, storage)
    async with open_store(configured, spark) as kept:
        await a_busy_hour(kept)
        before = await kept.read()
        await kept.settle_down()
        after = await kept.live()
        assert levels(after) == [1, 1]
        await kept.later(7200)
        await kept.settle_down()
        assert await kept.read() == before
        left = {file.url for file in s3_server.storage.files(place)}
        assert left == {f"{place}/{each.path}" for each in after}


# Any samples, any merges: without servers, for there are many.


async def swept(kept: Kept) -> None:
    """Long after: replaced segments are removed, and what nobody lists is found and removed."""
    for _ in range(2):
        await kept.later(7200)
        await kept.settle_down()
