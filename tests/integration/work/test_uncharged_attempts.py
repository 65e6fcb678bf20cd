"""No attempt is charged that no job caused: a claim's answer is lost, time jumps, all freeze."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from kalla.database import Connection, Database
from kalla.settings import JobPolicy
from kalla.work.handler import Context
from kalla.work.job import Job, NewJob, Outcome
from kalla.work.metrics import Metrics
from kalla.work.services.reaper import Reaper
from kalla.work.state import jobs
from kalla.work.state.job_insertion import Woken
from tests.work_kit import Clock, Silence, install_clock, put, take, take_one
from tests.worker_kit import Site


async def test_claims_that_their_worker_does_not_hold_wait_again_and_no_failure_counts(
    a: Connection,
) -> None:
    held, stray = (await put(a, NewJob("task"), NewJob("task", max_attempts=1)))[:2]
    taken = await take(a, 2)
    others = await put(a)
    other = await take_one(a, worker="bert")
    returned, woken = await jobs.hand_back_strays(a, "anna", [taken[0]])
    assert (returned, woken.total()) == ([stray], 1)
    assert [(await jobs.get(a, each)).status for each in (held, *others)] == ["claimed"] * 2
    record = await jobs.get(a, stray)
    assert (record.status, record.failures, other.job_id) == ("pending", 0, others[0])


async def test_a_claim_of_an_older_fence_in_hand_is_not_taken_for_the_new_one(
    a: Connection,
) -> None:
    await put(a)
    old = await take_one(a)
    await jobs.hand_back(a, [old])
    new = await take_one(a)
    assert (await jobs.hand_back_strays(a, "anna", [old]))[0] == [new.job_id]


async def test_a_claim_whose_answer_is_lost_costs_no_attempt(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed a job of one attempt that was never executed."""
    site.handle("once", lambda *_: None)
    lost = _lose_an_answer(monkeypatch)
    async with site.client() as client, site.worker():
        (job_id,) = await client.submit(NewJob("once", max_attempts=1))
        record = await client.until(job_id, "completed", "failed")
    assert lost.is_set()
    assert (record.status, record.failures, record.fence) == ("completed", 0, 2)


async def test_a_claim_whose_answer_is_lost_before_a_drain_costs_no_attempt(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker ended without a look at what it had claimed, and the job waited for the reaper."""
    site.handle("once", lambda *_: None)
    lost = _lose_an_answer(monkeypatch)
    seldom = {"default": JobPolicy(timeout_seconds=60, heartbeat_interval=20)}
    async with site.client() as client:
        async with site.worker(jobs=seldom):
            (job_id,) = await client.submit(NewJob("once", max_attempts=1))
            await asyncio.wait_for(lost.wait(), 15)
        record = await client.get(job_id)
    assert (record.status, record.failures) == ("pending", 0)


async def test_a_drain_hands_back_though_a_connection_breaks(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gave up at once, and the reaper charged jobs that a living worker had stopped."""
    running, breaks, returning = threading.Event(), [True, True], jobs.hand_back

    def act(job: Job, context: Context) -> None:
        running.set()
        context.wait(60)

    async def breaking(connection: Connection, claims: Sequence[Job]) -> Woken:
        if breaks:
            breaks.pop()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return await returning(connection, claims)

    site.handle("long", act)
    monkeypatch.setattr(jobs, "hand_back", breaking)
    async with site.client() as client:
        async with site.worker():
            (job_id,) = await client.submit(NewJob("long", max_attempts=1))
            assert await asyncio.to_thread(running.wait, 10)
        record = await client.get(job_id)
    assert not breaks
    assert (record.status, record.failures) == ("pending", 0)


def _lose_an_answer(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The first claim is committed, and its connection breaks before the worker hears of it."""
    retrying, lost = Database.retrying, asyncio.Event()

    async def losing(self: Database, act: Any, tries: int = 5) -> Any:
        found = await retrying(self, act, tries)
        if isinstance(found, list) and found and not lost.is_set() and hasattr(found[0], "job"):
            lost.set()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return found

    monkeypatch.setattr(Database, "retrying", losing)
    return lost


async def test_a_step_of_the_databases_clock_costs_no_attempt(site: Site) -> None:
    await install_clock(site.url)
    running, go = threading.Event(), threading.Event()

    def act(job: Job, context: Context) -> Outcome:
        running.set()
        assert go.wait(20)
        return Outcome()

    site.handle("long", act)
    async with site.client() as client, site.worker(), site.worker():
        (job_id,) = await client.submit(NewJob("long", max_attempts=1))
        assert await asyncio.to_thread(running.wait, 10)
        await _reaped_once(client.database)
        async with client.database.transaction() as connection:
            await Clock(connection).jump(20)
        await _reaped_once(client.database)
        go.set()
        record = await client.until(job_id, "completed", "failed")
    assert (record.status, record.failures) == ("completed", 0)


async def test_a_step_of_the_clock_after_the_reaper_looked_at_it_costs_no_attempt(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await install_clock(site.url)
    async with site.client() as client:
        database, looked = client.database, list[float]()
        async with database.transaction() as connection:
            await put(connection, NewJob("task"), NewJob("task", max_attempts=1))
            held = await take(connection, 2)
        reaper = Reaper(database, Silence(), Metrics(), 1.0, 0.0, 5.0)  # type: ignore[arg-type]
        look = reaper._read_database_time

        async def looking() -> float:
            looked.append(await look())
            async with database.transaction() as connection:
                await Clock(connection).jump(3600)
            return looked[-1]

        monkeypatch.setattr(reaper, "_read_database_time", looking)
        await reaper.tick()
        async with database.transaction() as connection:
            states = [(await jobs.get(connection, each.job_id)).status for each in held]
    assert (states, len(looked)) == (["claimed", "claimed"], 1)


async def _reaped_once(database: Database) -> None:
    """Returns when reapers surely looked: past the timeout, a job of nobody has been ended."""
    async with database.transaction() as connection:
        await connection.execute(
            "INSERT INTO kalla.jobs (payload, type, queue, status, fence, worker, claimed_at,"
            " heartbeat_at, due, run_after, failures, max_attempts, timeout_seconds,"
            " max_runtime_seconds, backoff_seconds, backoff_limit_seconds)"
            " VALUES ('{}', 'ghost', 'exec', 'claimed', 1, 'nobody', kalla.clock(),"
            " kalla.clock() - interval '1 h', true, kalla.clock(), 0, 1, 2, 3600, 0, 0)"
        )
    async with asyncio.timeout(20):
        while True:
            async with database.transaction() as connection:
                cursor = await connection.execute(
                    "SELECT FROM kalla.jobs WHERE type = 'ghost' AND status = 'claimed'"
                )
                if not await cursor.fetchall():
                    return
            await asyncio.sleep(0.05)
