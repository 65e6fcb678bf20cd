"""Claims: who gets a job, in what order, and what keys keep apart."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import psycopg
import pytest

from kalla.database import Connection, Database
from kalla.work.job import Job, NewJob
from kalla.work.services.delayed_jobs import Scheduler
from kalla.work.state import jobs, queues
from kalla.work.wake.postgres_channel import PostgresWake
from tests.work_kit import (
    JOB_TYPES,
    Clock,
    Waiting,
    complete,
    fail,
    is_lost,
    put,
    reap,
    rows,
    take,
    take_one,
)


async def test_a_claimed_job_is_not_claimed_again(a: Connection, b: Connection) -> None:
    """Trap 1."""
    await put(a)
    job = await take_one(a)
    assert await take(b, limit=10) == []
    assert (job.fence, (await jobs.get(b, job.job_id)).status) == (1, "claimed")


async def test_a_claimed_job_does_not_hide_the_waiting_ones(a: Connection, b: Connection) -> None:
    """Trap 1: the status is part of the search, not only of the update."""
    first, second = await put(a, NewJob("task"), NewJob("task"))
    assert (await take_one(a)).job_id == first
    assert [job.job_id for job in await take(b, limit=1)] == [second]


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled"])
async def test_a_job_that_ended_is_never_claimed(a: Connection, ending: str) -> None:
    """Trap 1."""
    (job_id,) = await put(a)
    if ending == "cancelled":
        await jobs.cancel(a, job_id, "anna")
    else:
        job = await take_one(a)
        await (complete(a, job) if ending == "completed" else fail(a, job, permanent=True))
    assert (await jobs.get(a, job_id)).status == ending
    assert await take(a, limit=10) == []


async def test_two_claims_at_once_share_the_jobs_without_waiting(
    a: Connection, b: Connection
) -> None:
    """Trap 1: a claim passes over what another holds, and takes what is left."""
    ids = await put(a, *[NewJob("task")] * 4)
    async with a.transaction():
        mine = await take(a, limit=2)
        async with b.transaction():
            others = await take(b, limit=4)
    assert [job.job_id for job in mine] == ids[:2]
    assert [job.job_id for job in others] == ids[2:]


async def test_many_claims_at_once_give_every_job_to_one_worker(pool: Database) -> None:
    """Trap 1."""

    async def claim_all(worker: str) -> list[Job]:
        found: list[Job] = []
        while batch := await pool.retrying(lambda each: take(each, limit=7, worker=worker)):
            found += batch
        return found

    ids = await pool.retrying(lambda each: put(each, *[NewJob("task")] * 200))
    hands = await asyncio.gather(*[claim_all(f"worker {number}") for number in range(6)])
    claimed = [job for hand in hands for job in hand]
    assert sorted(job.job_id for job in claimed) == ids
    assert {job.fence for job in claimed} == {1}


async def test_a_claim_that_is_rolled_back_leaves_the_job_waiting(
    a: Connection, b: Connection
) -> None:
    (job_id,) = await put(a)
    async with a.transaction(force_rollback=True):
        assert (await take_one(a)).job_id == job_id
        assert await take(b) == []
    assert (await take_one(b)).fence == 1


async def test_higher_priority_goes_first_and_then_the_older(a: Connection) -> None:
    low, high, older, newer = await put(
        a,
        NewJob("task", priority=-1),
        NewJob("task", priority=5),
        NewJob("task"),
        NewJob("task"),
    )
    assert (await take_one(a)).job_id == high
    assert (await take_one(a)).job_id == older
    assert [job.job_id for job in await take(a, limit=3)] == [newer, low]


async def test_a_worker_takes_only_types_it_knows_and_queues_it_serves(a: Connection) -> None:
    await put(a, NewJob("task"), NewJob("refresh"))
    assert await jobs.claim(a, "exec", ["refresh"], "anna", 10) == []
    assert [job.type for job in await jobs.claim(a, "refresh", ["refresh"], "anna", 10)] == [
        "refresh"
    ]


async def test_a_delayed_job_waits_for_its_time(a: Connection, clock: Clock) -> None:
    inserted = await jobs.insert(a, JOB_TYPES, [NewJob("task", delay_seconds=100)])
    assert inserted.woken == {}
    assert await take(a) == []
    assert await jobs.promote(a) == {}
    seconds = await jobs.next_due_seconds(a)
    assert seconds is not None
    assert 90 < seconds <= 100
    await clock.jump(100)
    assert await jobs.promote(a) == {"exec": 1}
    assert await jobs.promote(a) == {}
    assert await jobs.next_due_seconds(a) is None
    assert len(await take(a)) == 1


async def test_the_scheduler_does_not_spin_on_a_due_job_that_somebody_holds(
    a: Connection, pool: Database, clock: Clock
) -> None:
    (job_id,) = await put(a, NewJob("task", delay_seconds=100))
    await clock.jump(200)
    scheduler = Scheduler(pool, PostgresWake(pool), 5.0)
    async with a.transaction():
        await a.execute("SELECT FROM kalla.jobs WHERE job_id = %s FOR UPDATE", [job_id])
        pause = await scheduler.tick()
    assert pause is not None
    assert 0 < pause < 1, "soon, but not at once"
    assert await scheduler.tick() is None
    assert len(await take(a)) == 1


async def test_a_clock_that_jumps_back_takes_no_waiting_job_away(
    a: Connection, clock: Clock
) -> None:
    await put(a, NewJob("task"), NewJob("task", delay_seconds=50))
    await clock.jump(60)
    await jobs.promote(a)
    await clock.jump(-3600)
    assert len(await take(a, limit=5)) == 2


async def test_a_paused_queue_gives_nothing_and_its_running_jobs_go_on(
    a: Connection, b: Connection
) -> None:
    await put(a, NewJob("task"), NewJob("task"), NewJob("refresh"))
    running = await take_one(a)
    await queues.pause(b, "exec", "olga")
    await queues.pause(b, "exec", "ivan")
    assert await take(a, limit=5) == []
    assert len(await take(a, queue="refresh")) == 1
    await complete(a, running)
    (record,) = [each for each in await queues.depths(a) if each.queue == "exec"]
    assert (record.depth, record.paused_by) == (1, "olga")
    await queues.resume(b, "exec")
    assert len(await take(a, limit=5)) == 1


# Dedupe keys: unique among pending jobs.


async def test_a_job_whose_dedupe_key_waits_is_not_inserted_again(a: Connection) -> None:
    (first,) = await put(a, NewJob("refresh", dedupe_key="orders"))
    again = await jobs.insert(a, JOB_TYPES, [NewJob("refresh", dedupe_key="orders")])
    assert (again.job_ids, again.repeated) == ((first,), (True,))
    assert len(await jobs.listing(a)) == 1


async def test_one_batch_may_repeat_its_own_dedupe_key(a: Connection) -> None:
    (waits,) = await put(a, NewJob("refresh", dedupe_key="old"))
    inserted = await jobs.insert(
        a,
        JOB_TYPES,
        [
            NewJob("refresh", dedupe_key="new"),
            NewJob("refresh", dedupe_key="old"),
            NewJob("refresh", dedupe_key="new"),
            NewJob("refresh"),
        ],
    )
    assert inserted.repeated == (False, True, True, False)
    assert inserted.job_ids[0] == inserted.job_ids[2]
    assert inserted.job_ids[1] == waits
    assert len(await jobs.listing(a)) == 3


async def test_a_dedupe_key_is_free_again_once_its_job_is_claimed(a: Connection) -> None:
    """A table that changes while it is refreshed gets its next refresh."""
    (first,) = await put(a, NewJob("refresh", dedupe_key="orders"))
    await take_one(a, "refresh")
    again = await jobs.insert(a, JOB_TYPES, [NewJob("refresh", dedupe_key="orders")])
    assert again.repeated == (False,)
    assert again.job_ids != (first,)


async def test_a_repeated_job_starts_only_after_the_transaction_that_asked_for_it(
    a: Connection, b: Connection
) -> None:
    """Else it would not see what that transaction wrote, and nobody would come back for it."""
    (first,) = await put(a, NewJob("refresh", dedupe_key="orders"))
    async with b.transaction():
        again = await jobs.insert(b, JOB_TYPES, [NewJob("refresh", dedupe_key="orders")])
        assert again.job_ids == (first,)
        assert await take(a, queue="refresh") == []
    # Whoever was woken for it meanwhile found it locked: somebody must be woken once more.
    assert again.woken == {"refresh": 1}
    assert (await take_one(a, "refresh")).job_id == first


async def test_two_inserts_of_one_key_at_once_give_one_job(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    new = NewJob("refresh", dedupe_key="orders")
    async with a.transaction():
        (first,) = await put(a, new)
        second = await waiting(jobs.insert(b, JOB_TYPES, [new]))
    again = await second
    assert (again.job_ids, again.repeated) == ((first,), (True,))


async def test_an_insert_that_meets_a_claim_under_way_inserts_anew(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    new = NewJob("refresh", dedupe_key="orders")
    (first,) = await put(a, new)
    async with a.transaction():
        await take_one(a, "refresh")
        second = await waiting(jobs.insert(b, JOB_TYPES, [new]))
    again = await second
    assert again.repeated == (False,)
    assert again.job_ids != (first,)


@pytest.mark.parametrize("way", ["fail", "hand back", "reap", "retry"])
async def test_a_job_that_comes_back_while_its_key_waits_gives_the_key_up(
    a: Connection, clock: Clock, way: str
) -> None:
    new = NewJob("refresh", dedupe_key="orders")
    (first,) = await put(a, new)
    job = await take_one(a, "refresh")
    if way == "retry":
        await fail(a, job, permanent=True)
    (second,) = await put(a, new)
    await _come_back(a, clock, job, way)
    found = {each.job_id: (each.status, each.dedupe_key) for each in await jobs.listing(a)}
    assert found == {first: ("pending", None), second: ("pending", "orders")}


@pytest.mark.parametrize("way", ["fail", "hand back", "reap", "retry"])
async def test_a_job_that_comes_back_alone_keeps_its_key(
    a: Connection, clock: Clock, way: str
) -> None:
    new = NewJob("refresh", dedupe_key="orders")
    (first,) = await put(a, new)
    job = await take_one(a, "refresh")
    if way == "retry":
        await fail(a, job, permanent=True)
    await _come_back(a, clock, job, way)
    assert (await jobs.insert(a, JOB_TYPES, [new])).job_ids == (first,)


@pytest.mark.parametrize("way", ["hand back", "reap"])
async def test_two_jobs_of_one_key_that_come_back_together_keep_it_once(
    a: Connection, clock: Clock, way: str
) -> None:
    held = []
    for _ in range(2):
        await put(a, NewJob("refresh", dedupe_key="orders"))
        held.append(await take_one(a, "refresh"))
    if way == "reap":
        await clock.jump(16)
        assert len(await reap(a)) == 2
    else:
        assert await jobs.hand_back(a, held) == {"refresh": 2}
    assert sorted(each.dedupe_key or "" for each in await jobs.listing(a)) == ["", "orders"]


async def test_a_return_that_meets_an_insert_of_its_key_is_tried_again(
    a: Connection, pool: Database, waiting: Waiting
) -> None:
    """The dedupe index holds where two transactions race, and the second try gives the key up."""
    new = NewJob("refresh", dedupe_key="orders")
    await put(a, new)
    job = await take_one(a, "refresh")
    seen: list[BaseException | None] = []

    async def hand_back(connection: Connection) -> None:
        try:
            await jobs.hand_back(connection, [job])
        except psycopg.errors.UniqueViolation as error:
            seen.append(error)
            raise
        seen.append(None)

    async with a.transaction():
        (second,) = await put(a, new)
        task = await waiting(pool.retrying(hand_back))
    await task
    assert [type(each) for each in seen] == [psycopg.errors.UniqueViolation, type(None)]
    found = {each.job_id: (each.status, each.dedupe_key) for each in await jobs.listing(a)}
    assert found == {job.job_id: ("pending", None), second: ("pending", "orders")}


# Running keys: unique among claimed jobs.


async def test_of_jobs_with_one_running_key_one_runs_at_a_time(a: Connection) -> None:
    first, second, other = await put(
        a,
        NewJob("refresh", running_key="orders"),
        NewJob("refresh", running_key="orders"),
        NewJob("refresh", running_key="payments"),
    )
    claimed = await take(a, limit=5, queue="refresh")
    assert [job.job_id for job in claimed] == [first, other]
    assert await take(a, limit=5, queue="refresh") == []
    await complete(a, claimed[0])
    assert [job.job_id for job in await take(a, limit=5, queue="refresh")] == [second]


async def test_claims_that_race_for_a_running_key_are_tried_again(
    a: Connection, pool: Database, waiting: Waiting
) -> None:
    await put(a, *[NewJob("refresh", running_key="orders")] * 2, NewJob("refresh"))
    seen: list[bool] = []

    async def claim(connection: Connection) -> list[Job]:
        try:
            found = await take(connection, limit=5, queue="refresh", worker="ben")
        except psycopg.errors.UniqueViolation:
            seen.append(False)
            raise
        seen.append(True)
        return found

    async with a.transaction():
        (mine,) = await take(a, limit=1, queue="refresh")
        task = await waiting(pool.retrying(claim))
    others = await task
    assert seen == [False, True]
    assert [job.job_id for job in others] == [mine.job_id + 2]


async def test_a_running_key_is_free_when_its_job_is_lost(
    a: Connection, b: Connection, clock: Clock
) -> None:
    await put(a, NewJob("refresh", running_key="orders"))
    job = await take_one(a, "refresh")
    await clock.jump(16)
    await reap(b)
    again = await take_one(b, "refresh")
    assert (again.job_id, again.fence) == (job.job_id, job.fence + 1)
    assert await is_lost(complete(a, job))


async def test_keys_are_unique_in_the_table_itself(a: Connection) -> None:
    """What the statements promise, the indexes hold, whoever writes."""
    await put(a, NewJob("refresh", dedupe_key="orders", running_key="orders"))
    first = await take_one(a, "refresh")
    await put(a, NewJob("refresh", dedupe_key="orders", running_key="orders"))
    with pytest.raises(psycopg.errors.UniqueViolation, match="jobs_running"):
        await rows(
            a,
            "UPDATE kalla.jobs SET status = 'claimed', heartbeat_at = kalla.clock()"
            " WHERE job_id <> %s RETURNING job_id",
            first.job_id,
        )
    with pytest.raises(psycopg.errors.UniqueViolation, match="jobs_dedupe"):
        await rows(
            a,
            "UPDATE kalla.jobs SET status = 'pending', heartbeat_at = NULL"
            " WHERE job_id = %s RETURNING job_id",
            first.job_id,
        )


async def _come_back(connection: Connection, clock: Clock, job: Job, way: str) -> None:
    if way == "fail":
        assert await fail(connection, job) == "pending"
    elif way == "hand back":
        await jobs.hand_back(connection, [job, replace(job, fence=job.fence + 1)])
    elif way == "reap":
        await clock.jump(16)
        assert await reap(connection) == [job.job_id]
    else:
        await jobs.retry(connection, job.job_id, 60)
