"""Fences: every write carries its number, a stale one changes nothing, none is issued twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalla.database import Connection, Database
from kalla.errors import Conflict, Lost
from kalla.work.job import Job, NewJob, Outcome
from kalla.work.state import jobs, leases, runs
from tests.work_kit import (
    TIMEOUT,
    Clock,
    Settling,
    Waiting,
    beats,
    complete,
    effort,
    empty,
    fail,
    is_lost,
    put,
    reap,
    rows,
    start_run,
    take,
    take_one,
)

Write = Callable[[Connection, Job], Awaitable[object]]


async def _complete(connection: Connection, job: Job) -> bool:
    return not await is_lost(complete(connection, job))


async def _complete_plain(connection: Connection, job: Job) -> bool:
    return job.job_id in await jobs.complete_plain(connection, [(job, Outcome())])


async def _fail(connection: Connection, job: Job) -> bool:
    return not await is_lost(fail(connection, job))


async def _fail_for_good(connection: Connection, job: Job) -> bool:
    return not await is_lost(fail(connection, job, permanent=True))


async def _put_off(connection: Connection, job: Job) -> bool:
    async with connection.transaction():
        return await jobs.put_off(connection, job, "it is away", "", 3600) is not None


async def _hand_back(connection: Connection, job: Job) -> bool:
    return bool(await jobs.hand_back(connection, [job]))


async def _end_exhausted(connection: Connection, job: Job) -> bool:
    ended = await jobs.end_exhausted(connection, job.job_id, job.fence, job.run_id)
    return ended is not None


WRITES: dict[str, Write] = {
    "complete": _complete,
    "complete plainly": _complete_plain,
    "fail": _fail,
    "fail for good": _fail_for_good,
    "put off": _put_off,
    "hand back": _hand_back,
    "heartbeat": beats,
    "end as exhausted": _end_exhausted,
}


@pytest.mark.parametrize("write", WRITES)
async def test_a_write_under_an_old_fence_changes_nothing(
    a: Connection, b: Connection, clock: Clock, write: str
) -> None:
    """Trap 2, trap 9: the first worker was taken for dead and its job given to a second one."""
    await put(a, NewJob("task", max_attempts=2))
    old = await take_one(a)
    await clock.jump(16)
    assert await reap(b) == [old.job_id]
    new = await take_one(b, worker="ben")
    if write == "end as exhausted":
        await clock.jump(16)
    before = await _row(b, new)
    assert not await WRITES[write](a, old)
    assert await _row(b, new) == before
    assert await beats(b, new)
    await complete(b, new)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled", "waiting again"])
async def test_a_write_about_a_job_that_is_not_claimed_changes_nothing(
    a: Connection, clock: Clock, write: str, ending: str
) -> None:
    """Trap 2, trap 3: a completion that is delivered twice is one completion."""
    await put(a, NewJob("task"))
    job = await take_one(a)
    if ending == "completed":
        await complete(a, job)
    elif ending == "failed":
        await fail(a, job, permanent=True)
    elif ending == "cancelled":
        await jobs.cancel(a, job.job_id, "olga")
    else:
        await jobs.hand_back(a, [job])
    await clock.jump(16)
    before = await _row(a, job)
    assert not await WRITES[write](a, job)
    assert await _row(a, job) == before


async def test_a_stale_batch_touches_only_what_is_still_held(a: Connection, clock: Clock) -> None:
    """Trap 9: in a batch each claim is judged by its own fence."""
    await put(a, *[NewJob("task")] * 3)
    first, second, third = await take(a, limit=3)
    await fail(a, second)
    again = await take_one(a, worker="ben")
    assert again.job_id == second.job_id
    assert await jobs.heartbeat(a, [first, second, third], [None, {"stale": 1}, {"rows": 5}]) == {
        second.job_id
    }
    assert (await jobs.get(a, second.job_id)).progress is None
    assert (await jobs.get(a, third.job_id)).progress == {"rows": 5}
    assert await jobs.complete_plain(a, [(first, Outcome()), (second, Outcome())]) == {first.job_id}
    assert await jobs.hand_back(a, [first, second, third]) == {"exec": 1}
    assert [each.status for each in await jobs.listing(a)] == ["pending", "claimed", "completed"]


async def test_a_heartbeat_keeps_the_progress_it_does_not_replace(a: Connection) -> None:
    await put(a)
    job = await take_one(a)
    await jobs.heartbeat(a, [job], [{"rows": 5}])
    await jobs.heartbeat(a, [job], [None])
    assert (await jobs.get(a, job.job_id)).progress == {"rows": 5}


async def test_of_two_completions_at_once_one_counts(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    """Trap 2: the second one waits for the row and then finds it completed."""
    await put(a)
    job = await take_one(a)
    async with a.transaction():
        assert await jobs.complete_plain(a, [(job, Outcome({"by": "a"}))]) == {job.job_id}
        second = await waiting(jobs.complete_plain(b, [(job, Outcome({"by": "b"}))]))
    assert await second == set()
    assert (await jobs.get(b, job.job_id)).result == {"by": "a"}


async def test_of_a_completion_and_a_failure_at_once_the_first_counts(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    await put(a)
    job = await take_one(a)
    async with a.transaction():
        await jobs.complete_plain(a, [(job, Outcome())])
        second = await waiting(fail(b, job, permanent=True))
    with pytest.raises(Lost):
        await second
    record = await jobs.get(a, job.job_id)
    assert (record.status, record.failures, record.attempts) == ("completed", 0, ())


async def test_what_settle_wrote_is_gone_when_the_claim_was_lost(a: Connection) -> None:
    """Trap 2: settle runs only after the fenced completion changed a row."""
    await a.execute("CREATE TEMPORARY TABLE settled (job_id bigint)")
    await put(a)
    old = await take_one(a)
    await fail(a, old)
    new = await take_one(a)

    async def settle(connection: Connection) -> None:
        await connection.execute("INSERT INTO settled VALUES (1)")

    assert await is_lost(complete(a, old, handler=Settling(settle)))
    assert await rows(a, "SELECT * FROM settled") == []
    await complete(a, new, handler=Settling(settle))
    assert len(await rows(a, "SELECT * FROM settled")) == 1


async def test_a_completion_whose_settling_fails_is_no_completion(a: Connection) -> None:
    """Trap 5: completion, settling and follow-ups are one transaction."""
    await put(a)
    job = await take_one(a)

    async def settle(connection: Connection) -> None:
        raise RuntimeError("the room's own table is full")

    with pytest.raises(RuntimeError):
        await complete(a, job, NewJob("task"), handler=Settling(settle))
    assert [each.status for each in await jobs.listing(a)] == ["claimed"]
    assert await beats(a, job)
    assert await complete(a, job, NewJob("task"), NewJob("refresh")) == {"exec": 1, "refresh": 1}


async def test_a_worker_learns_whether_its_own_completion_arrived(
    a: Connection, clock: Clock
) -> None:
    """The commit's answer may be lost on the way; the fence tells whose completion it was."""
    await put(a)
    old = await take_one(a)
    await fail(a, old)
    new = await take_one(a)
    assert not await jobs.completed_already(a, new)
    await complete(a, new)
    assert await jobs.completed_already(a, new)
    assert not await jobs.completed_already(a, old)


# The number itself.


async def test_retry_by_hand_keeps_counting_fences(a: Connection) -> None:
    await put(a)
    job = await take_one(a)
    await fail(a, job, permanent=True)
    assert await jobs.retry(a, job.job_id, 60) == {"exec": 1}
    again = await take_one(a)
    assert (again.fence, again.failures) == (job.fence + 1, 0)
    assert await is_lost(complete(a, job))


async def test_a_drain_keeps_counting_fences_and_is_no_failure(a: Connection) -> None:
    """Trap 6: a job handed back names the queue to wake."""
    await put(a, NewJob("task", max_attempts=1))
    for number in range(1, 5):
        job = await take_one(a)
        assert (job.fence, job.failures) == (number, 0)
        assert await jobs.hand_back(a, [job]) == {"exec": 1}
    record = await jobs.get(a, job.job_id)
    assert [(each.fence, each.ending) for each in record.attempts] == [
        (number, "handed back") for number in range(1, 5)
    ]


async def test_retry_is_refused_for_a_job_that_is_alive_or_done(a: Connection) -> None:
    (job_id,) = await put(a)
    with pytest.raises(Conflict, match="is pending"):
        await jobs.retry(a, job_id, 60)
    job = await take_one(a)
    with pytest.raises(Conflict, match="is claimed"):
        await jobs.retry(a, job_id, 60)
    await complete(a, job)
    with pytest.raises(Conflict, match="is completed"):
        await jobs.retry(a, job_id, 60)


async def test_of_two_retries_at_once_one_counts(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    (job_id,) = await put(a)
    await jobs.cancel(a, job_id, "olga")
    async with a.transaction():
        await jobs.retry(a, job_id, 60)
        second = await waiting(jobs.retry(b, job_id, 60))
    with pytest.raises(Conflict, match="it is pending now"):
        await second


ENDED = ("failed", "cancelled")
ACTS = ["claim", "reap", "retry", "cancel", "cancel the run"]
JOB_STEPS = [*ACTS, "complete", "fail", "fail for good", "hand back"]


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(JOB_STEPS), st.integers(0, 9)), min_size=20, max_size=50
    )
)
@effort(examples=60, long_examples=2000)
async def test_no_fence_is_ever_issued_twice(
    a: Connection, clock: Clock, steps: list[tuple[str, int]]
) -> None:
    """After any sequence of claims, returns, losses, cancels, retries by hand and revivals."""
    await empty(a)
    await put(a, NewJob("task", max_attempts=2))
    run_id = await start_run(a, [NewJob("task"), NewJob("task", max_attempts=1)])
    held: list[Job] = []
    for step, pick in steps:
        if step == "claim":
            held += await take(a, limit=2)
        elif step == "reap":
            await clock.jump(TIMEOUT + 1)
            await reap(a)
        elif step == "retry":
            ended = [each for each in await jobs.listing(a) if each.status in ENDED]
            for record in ended[pick % max(len(ended), 1) :][:1]:
                await jobs.retry(a, record.job_id, 1e6)
        elif step == "cancel":
            for record in await jobs.listing(a, status="pending", limit=1):
                await jobs.cancel(a, record.job_id, "olga")
        elif step == "cancel the run":
            if (await runs.get(a, run_id)).status == "running":
                await runs.cancel(a, run_id, "by olga")
        elif held:
            await WRITES[step](a, held[pick % len(held)])
    issued = [(job.job_id, job.fence) for job in held]
    assert len(issued) == len(set(issued))


@given(steps=st.lists(st.tuples(st.sampled_from(["take", "leave", "expire"]), st.integers(0, 9))))
@effort(examples=60, long_examples=2000)
async def test_no_epoch_is_ever_issued_twice(
    a: Connection, clock: Clock, steps: list[tuple[str, int]]
) -> None:
    """After any sequence of acquisitions, releases by anybody, expiries and scale-downs."""
    await empty(a)
    held: list[leases.Lease] = []
    for step, pick in steps:
        worker = f"worker {pick % 2}"
        if step == "take":
            lease = await leases.acquire(a, "orders", worker, 1 + pick % 3, 15)
            held += [lease] if lease else []
        elif step == "leave" and held:
            await leases.release(a, worker, held[pick % len(held)])
        else:
            await clock.jump(pick * 2)
    assert len(held) == len(set(held))


async def test_many_workers_that_lose_and_claim_anew_never_share_a_fence(
    pool: Database, clock: Clock
) -> None:
    """The same property with real concurrency: every worker hands back half of what it takes."""
    ids = await pool.retrying(lambda each: put(each, *[NewJob("task")] * 20))
    issued: list[tuple[int, int]] = []
    completed: list[int] = []

    async def work(worker: int) -> None:
        for turn in range(15):
            async with pool.transaction() as connection:
                held = await take(connection, limit=4, worker=f"w{worker}")
            issued.extend((job.job_id, job.fence) for job in held)
            for number, job in enumerate(held):
                async with pool.transaction() as connection:
                    if (number + turn + worker) % 3 == 0:
                        completed.extend(await jobs.complete_plain(connection, [(job, Outcome())]))
                    else:
                        await jobs.hand_back(connection, [job])

    await asyncio.gather(*[work(number) for number in range(6)])
    assert len(issued) == len(set(issued))
    assert len(completed) == len(set(completed))
    async with pool.transaction() as connection:
        found = await jobs.listing(connection, status="completed", limit=100)
    assert sorted(record.job_id for record in found) == sorted(completed)
    assert set(completed) <= set(ids)


async def test_a_fence_cannot_fall_below_an_attempt_that_was_noted(a: Connection) -> None:
    """The table of attempts would refuse a number that comes a second time."""
    await put(a)
    job = await take_one(a)
    await jobs.hand_back(a, [job])
    await rows(a, "UPDATE kalla.jobs SET fence = 0 RETURNING job_id")
    again = await take_one(a)
    assert again == replace(job)
    with pytest.raises(psycopg.errors.UniqueViolation):
        await jobs.hand_back(a, [again])


async def _row(connection: Connection, job: Job) -> dict[str, object]:
    (row,) = await rows(connection, "SELECT * FROM kalla.jobs WHERE job_id = %s", job.job_id)
    attempts = await rows(
        connection, "SELECT * FROM kalla.attempts WHERE job_id = %s ORDER BY fence", job.job_id
    )
    return row | {"attempts": attempts}
