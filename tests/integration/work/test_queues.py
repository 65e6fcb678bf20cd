"""Queues and workers as people and scalers see them; and the clock all of it goes by."""

from __future__ import annotations

import pytest

from kalla.database import Connection
from kalla.work.job import NewJob
from kalla.work.state import jobs, presence, queues
from tests.work_kit import TIMEOUT, Clock, complete, connect, put, reap, take, take_one

ANNA = presence.Announcement("anna", "here", 42, "http://here:9090", ["exec"], 4, 0, "0.1", False)


async def test_a_queue_shows_how_much_waits_and_for_how_long(a: Connection, clock: Clock) -> None:
    await clock.freeze()
    await put(a, NewJob("task"))
    await clock.jump(50)
    await put(a, NewJob("task"), NewJob("task", delay_seconds=30), NewJob("refresh"))
    await take_one(a, "refresh")
    await clock.jump(10)
    found = {each.queue: each for each in await queues.depths(a, known=["sinks"])}
    assert found == {
        "exec": queues.QueueRecord("exec", depth=2, delayed=1, oldest_wait_seconds=60),
        "refresh": queues.QueueRecord("refresh", running=1),
        "sinks": queues.QueueRecord("sinks"),
    }
    assert await queues.waiting(a) == {"exec": 2}


async def test_a_job_that_came_back_waits_since_then(a: Connection, clock: Clock) -> None:
    await clock.freeze()
    await put(a)
    await take_one(a)
    await clock.jump(TIMEOUT + 1)
    await reap(a)
    await clock.jump(5)
    (record,) = await queues.depths(a)
    assert record.oldest_wait_seconds == 5


async def test_a_clock_that_jumps_back_shows_no_negative_wait(a: Connection, clock: Clock) -> None:
    await put(a)
    await clock.jump(-100)
    (record,) = await queues.depths(a)
    assert record.oldest_wait_seconds == 0


async def test_the_time_of_refreshes_counts_completed_ones_only(
    a: Connection, clock: Clock
) -> None:
    await clock.freeze()
    assert await queues.refresh_p95_seconds(a) == 0
    await put(a, NewJob("refresh"), NewJob("refresh"), NewJob("task"))
    for job in [*await take(a, limit=1, queue="refresh"), *await take(a)]:
        await clock.jump(8)
        await complete(a, job)
    await take_one(a, "refresh")
    assert await queues.refresh_p95_seconds(a) == 8


@pytest.mark.parametrize(
    ("active", "draining", "silent", "state"),
    [
        (0, False, 0, "idle"),
        (2, False, 0, "working"),
        (2, True, 0, "draining"),
        (2, True, 60, "silent"),
    ],
)
async def test_a_worker_shows_what_it_does(
    a: Connection, clock: Clock, active: int, draining: bool, silent: int, state: str
) -> None:
    await presence.announce(a, ANNA)
    await presence.announce(
        a, presence.Announcement(**{**vars(ANNA), "active": active, "draining": draining})
    )
    await clock.jump(silent)
    (record,) = await presence.workers(a)
    assert (record.worker, record.state) == ("anna", state)


async def test_a_worker_goes_when_it_leaves_or_was_not_seen_for_long(
    a: Connection, clock: Clock
) -> None:
    await presence.announce(a, ANNA)
    await presence.leave(a, "anna")
    assert await presence.workers(a) == []
    await presence.announce(a, ANNA)
    await clock.jump(100)
    await presence.forget(a, 101)
    assert len(await presence.workers(a)) == 1
    await presence.forget(a, 99)
    assert await presence.workers(a) == []


async def test_jobs_are_listed_newest_first_by_filter_and_page(a: Connection) -> None:
    ids = await put(a, NewJob("task"), NewJob("refresh"), NewJob("task"), NewJob("flaky"))
    await take_one(a)
    assert [each.job_id for each in await jobs.listing(a)] == ids[::-1]
    assert [each.job_id for each in await jobs.listing(a, status="claimed")] == [ids[0]]
    assert [each.job_id for each in await jobs.listing(a, queue="exec", limit=2)] == [
        ids[3],
        ids[2],
    ]
    assert [each.job_id for each in await jobs.listing(a, job_type="task", before=ids[2])] == [
        ids[0]
    ]


async def test_the_clock_goes_on_inside_a_transaction(database_url: str) -> None:
    """A transaction may wait long for a lock: what it writes then must not be dated back."""
    async with await connect(database_url) as connection, connection.transaction():
        moments = []
        for _ in range(2):
            cursor = await connection.execute("SELECT kalla.clock() AS now, now() AS began")
            (row,) = await cursor.fetchall()
            moments.append(row["now"])
        assert row["began"] < moments[0] < moments[1]
