"""What goes from the metric store, when, and what never does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from pydantic import SecretStr

from kalla.query.store import segments
from kalla.query.store.maintenance.compaction import attempt_of
from kalla.settings import Spark as SparkSettings
from kalla.spark.session import SparkSessions
from kalla.storage import LOCAL, join
from kalla.work.handler import Context
from kalla.work.job import Job
from tests.compaction_kit import EVER, HOUR, MINUTE, START, Kept, kept_settings, open_store, ticks
from tests.metrics_kit import spread
from tests.servers import SparkServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark(spark_server: SparkServer) -> Iterator[SparkSessions]:
    sessions = SparkSessions(
        SparkSettings(remote=spark_server.remote, token=SecretStr(spark_server.token))
    )
    yield sessions
    sessions.close()


async def replaced(kept: Kept) -> set[str]:
    """A store whose small segments were just merged; the files they were in."""
    for minute in range(9):
        await kept.write(ticks(START + minute * MINUTE, 4))
    olds = kept.files
    await kept.look()
    await kept.carry_out()
    return olds


async def test_files_of_replaced_segments_stay_for_the_grace_and_are_gone_after_it(
    database_url: str, tmp_path: Path, spark: SparkSessions
) -> None:
    async with open_store(kept_settings(database_url, tmp_path), spark) as kept:
        olds = await replaced(kept)
        before = await kept.read()
        await kept.later(590)
        assert await kept.look() == []
        assert olds < kept.files
        await kept.later(20)
        (job,) = await kept.look()
        assert job.type == "retain"
        assert set(job.payload["files"]) == olds
        await kept.carry_out()
        assert kept.done[-1].payload == {"sweep": False}, "what is done is not listed for days"
        assert kept.files == {each.path for each in await kept.live()}
        assert await kept.rows("SELECT FROM kalla.segments WHERE replaced_at IS NOT NULL") == []
        assert await kept.read() == before
        assert await kept.look() == []


async def test_the_grace_is_longer_than_the_longest_query(
    database_url: str, tmp_path: Path, spark: SparkSessions
) -> None:
    configured = kept_settings(database_url, tmp_path, grace_seconds=1, query_seconds=300)
    async with open_store(configured, spark) as kept:
        await replaced(kept)
        await kept.later(350)
        assert await kept.look() == []
        await kept.later(15)
        assert len(await kept.look()) == 1


async def test_a_file_that_another_shard_still_uses_stays(
    database_url: str, tmp_path: Path, spark: SparkSessions
) -> None:
    async with open_store(kept_settings(database_url, tmp_path), spark) as kept:
        await kept.write(ticks(START, 4))
        (one, _) = await kept.live()
        await kept.rows(
            "UPDATE kalla.segments SET replaced_at = kalla.clock() WHERE segment_id = %s"
            " RETURNING 1",
            one.segment_id,
        )
        await kept.later(3000)
        assert await kept.look() == []
        assert kept.files == {one.path}


async def test_samples_past_the_retention_go_by_whole_segments(
    database_url: str, tmp_path: Path, spark: SparkSessions
) -> None:
    configured = kept_settings(database_url, tmp_path, shards=1, retention_seconds=4 * 3600)
    async with open_store(configured, spark) as kept:
        await kept.write(ticks(START, 4))
        await kept.write(ticks(START + HOUR, 60, step=MINUTE))
        assert await kept.look() == []
        await kept.write(ticks(START + 5 * HOUR + 10 * MINUTE, 1))
        (job,) = [each for each in await kept.look() if each.type == "retain"]
        async with kept.database.transaction() as connection:
            handler = kept.job_types.handler("retain")
            claimed = Job.from_row(asdict(job) | {"opened_by": None})
            await handler.settle(connection, claimed, handler.run(claimed, Context()))
        # The second write is partly out of time: it stays as long as any of it is wanted.
        starts = [each.min_time - START for each in await kept.live()]
        assert sorted(starts) == [HOUR, 5 * HOUR + 10 * MINUTE]
        gone = await kept.rows("SELECT path FROM kalla.segments WHERE replaced_at IS NOT NULL")
        assert {row["path"] for row in gone} < kept.files, "queries may still read it"
        await kept.carry_out()
        await kept.later(1000)
        await kept.settle_down()
        assert kept.files == {each.path for each in await kept.live()}


async def test_nothing_expires_where_no_retention_is_set(
    database_url: str, tmp_path: Path, spark: SparkSessions
) -> None:
    async with open_store(kept_settings(database_url, tmp_path, shards=1), spark) as kept:
        await kept.write(ticks(0, 4))
        await kept.write(ticks(START, 4))
        assert await kept.look() == []
        assert len(await kept.live()) == 2


async def test_a_sample_of_the_future_does_not_make_all_others_old(
    database_url: str, tmp_path: Path, spark: SparkSessions
) -> None:
    configured = kept_settings(database_url, tmp_path, shards=1, retention_seconds=4 * 3600)
    async with open_store(configured, spark) as kept:
        await kept.write(ticks(int(time.time() * 1000) - HOUR, 4))
        await kept.write(ticks(int(time.time() * 1000) + 10**12, 4))
        assert await kept.look() == []


async def test_objects_nobody_lists_are_swept_but_not_those_that_may_still_be_listed(
    database_url: str, tmp_path: Path, spark: SparkSessions
) -> None:
    async with open_store(kept_settings(database_url, tmp_path), spark) as kept:
        for minute in range(9):
            await kept.write(ticks(START + minute * MINUTE, 4))
        before = await kept.read()
        url = kept.settings.metrics_url
        theirs = {"notes.txt", "0/notes.parquet", f"backup/{'0' * 32}.parquet"}
        for name in theirs:
            LOCAL.keep(join(url, name), b"not ours")
        # A commit that did not reach the catalogue, a lost attempt's work, and one still at work.
        (orphan, *_) = segments.write(LOCAL, url, 0, spread(ticks(START, 1), 2))
        (lost, *_) = segments.write(
            LOCAL, join(url, "compacted/77-1"), 1, spread(ticks(START, 1), 2)
        )
        await kept.look()
        job = await kept.claim()
        outcome = kept.run(job)
        await kept.later(7000)
        (fresh, *_) = segments.write(LOCAL, url, 0, spread(ticks(START, 1), 2))
        (sweep,) = [each for each in await kept.look() if each.type == "retain"]
        assert sweep.payload["sweep"]
        await kept.carry_out()
        await kept.later(7000)
        await kept.look()
        await kept.carry_out()
        left = kept.files
        assert orphan.path not in left
        assert not any(name.startswith("compacted/77-1/") for name in left)
        assert "77-1" not in LOCAL.folders(join(url, "compacted")), lost
        assert theirs < left
        assert fresh.path in left, "not old enough when it was looked for"
        assert any(name.startswith(attempt_of(job)) for name in left)
        await kept.settle(job, outcome)
        assert await kept.read() == before
        snapshot = await kept.store.snapshot(-EVER, EVER)
        assert snapshot.shards == 2


async def test_a_removal_that_was_cut_off_is_done_again(
    database_url: str, tmp_path: Path, spark: SparkSessions
) -> None:
    async with open_store(kept_settings(database_url, tmp_path), spark) as kept:
        await replaced(kept)
        await kept.later(1000)
        await kept.look()
        kept.run(await kept.claim())  # the files are gone, and so is the worker
        await kept.rows(
            "UPDATE kalla.jobs SET status = 'pending', heartbeat_at = NULL"
            " WHERE status = 'claimed' RETURNING 1"
        )
        before = await kept.read()
        await kept.carry_out()
        assert kept.done[-1].status == "completed"
        assert kept.files == {each.path for each in await kept.live()}
        assert await kept.read() == before
