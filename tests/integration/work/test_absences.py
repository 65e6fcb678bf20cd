"""What a job needs is away: it waits for it without counting a failure, but not for ever."""

from __future__ import annotations

import pytest

from kalla.database import Connection
from kalla.errors import BrokeOff, Unavailable
from kalla.settings import JobPolicy
from kalla.work.handler import Context
from kalla.work.job import Job, NewJob, Outcome
from kalla.work.job_type import JobType, JobTypes
from kalla.work.state import jobs, runs
from tests.work_kit import (
    ATTEMPTS,
    BACKOFF,
    NOTHING,
    SETTINGS,
    TIMEOUT,
    Clock,
    fail,
    put,
    reap,
    start_run,
    take,
    take_one,
)
from tests.worker_kit import Site

PATIENCE = 100.0


async def put_off(
    connection: Connection, job: Job, patience: float = PATIENCE, broke_off: bool = False
) -> bool:
    async with connection.transaction():
        woken = await jobs.put_off(
            connection, job, "it is away", "Traceback ...", patience, broke_off=broke_off
        )
        return woken is not None


async def come_due(connection: Connection, clock: Clock) -> float:
    """Let the next pause pass; returns how long it was."""
    seconds = await jobs.next_due_seconds(connection)
    assert seconds is not None
    await clock.jump(max(seconds, 0))
    await jobs.promote(connection)
    return seconds


async def test_a_worker_tries_again_until_what_was_away_is_back(database_url: str) -> None:
    """An outage of more answers than a job has attempts."""
    site, answers = Site(database_url), 4

    def needy(job: Job, context: Context) -> Outcome:
        if job.fence <= answers:
            raise Unavailable("Spark at sc://nowhere does not answer")
        return Outcome({"done": True})

    site.handle("needy", needy)
    async with site.client() as client, site.worker():
        (job_id,) = await client.submit(NewJob("needy"))
        record = await client.until(job_id, "completed", seconds=30)
    assert (record.failures, record.fence) == (0, answers + 1)
    assert [each.ending for each in record.attempts] == ["put off"] * answers
    assert {each.error for each in record.attempts} == {"Spark at sc://nowhere does not answer"}


async def test_what_stays_away_fails_the_job_with_its_last_sentence(database_url: str) -> None:
    """Trap 7."""
    site = Site(database_url)

    def needy(job: Job, context: Context) -> Outcome:
        raise Unavailable(f"nobody answered attempt {job.fence}")

    site.handle("needy", needy)
    brief = JobPolicy(backoff_seconds=0.05, unavailable_seconds=0.1)
    site.settings = site.settings.model_copy(update={"jobs": {"default": brief}})
    async with site.client() as client, site.worker():
        (job_id,) = await client.submit(NewJob("needy"))
        record = await client.until(job_id, "failed", seconds=30)
    assert record.failures == record.max_attempts
    assert record.error == f"nobody answered attempt {record.fence}"


def test_a_type_whose_attempts_are_its_patience_has_no_other() -> None:
    known = JobTypes(
        SETTINGS,
        [JobType("task", "exec", NOTHING), JobType("call", "exec", NOTHING, patient=False)],
    )
    assert known.patience("task") == SETTINGS.policy("task").unavailable_seconds
    assert known.patience("call") == 0


async def test_a_job_that_is_put_off_counts_no_failure_and_keeps_counting_fences(
    a: Connection, clock: Clock
) -> None:
    (job_id,) = await put(a, NewJob("task", max_attempts=1))
    for fence in (1, 2, 3):
        job = await take_one(a)
        assert job.fence == fence
        assert await put_off(a, job)
        assert await take(a) == [], "it waits"
        await come_due(a, clock)
    record = await jobs.get(a, job_id)
    assert (record.status, record.failures, record.error) == ("pending", 0, "it is away")
    assert [(each.fence, each.ending) for each in record.attempts] == [
        (fence, "put off") for fence in (1, 2, 3)
    ]


async def test_pauses_grow_with_the_absence_up_to_half_a_minute_and_with_jitter(
    a: Connection, clock: Clock
) -> None:
    await clock.freeze()
    await put(a, NewJob("flaky"))
    await a.execute("UPDATE kalla.jobs SET backoff_limit_seconds = 3600")
    elapsed, waits = 0.0, []
    for _ in range(12):
        assert await put_off(a, await take_one(a), patience=3600)
        waits.append(await come_due(a, clock))
        whole = min(max(BACKOFF, elapsed), jobs.LONGEST_PAUSE)
        assert whole / 2 <= waits[-1] <= whole
        elapsed += waits[-1]
    assert elapsed > 2 * jobs.LONGEST_PAUSE
    assert len({seconds % 1 for seconds in waits}) > 1


async def test_an_absence_that_lasts_counts_as_a_failure_and_the_attempts_end_it(
    a: Connection, clock: Clock
) -> None:
    """Trap 7: a job that breaks what it needs looks the same, and is not tried for ever."""
    (job_id,) = await put(a)
    for failures in range(ATTEMPTS):
        job = await take_one(a)
        assert job.failures == failures
        for _ in range(2):
            assert await put_off(a, job)
            await clock.jump(PATIENCE / 2 + 1)
            await jobs.promote(a)
            job = await take_one(a)
        assert not await put_off(a, job)
        assert await fail(a, job) == ("failed" if failures + 1 == ATTEMPTS else "pending")
    record = await jobs.get(a, job_id)
    assert (record.status, record.failures) == ("failed", ATTEMPTS)


async def test_what_breaks_off_under_a_job_again_and_again_counts_every_second_time(
    a: Connection, clock: Clock
) -> None:
    """Trap 7: the job may be what kills it."""
    (job_id,) = await put(a)
    for failures in range(ATTEMPTS):
        assert await put_off(a, await take_one(a), broke_off=True), "anybody may restart it once"
        await come_due(a, clock)
        job = await take_one(a)
        assert not await put_off(a, job, broke_off=True)
        assert await fail(a, job) == ("failed" if failures + 1 == ATTEMPTS else "pending")
    assert (await jobs.get(a, job_id)).failures == ATTEMPTS


async def test_what_does_not_come_back_between_is_one_absence(a: Connection, clock: Clock) -> None:
    await put(a)
    assert await put_off(a, await take_one(a), broke_off=True)
    for _ in range(3):
        await come_due(a, clock)
        assert await put_off(a, await take_one(a)), "nobody was there"


async def test_a_job_that_kills_what_it_needs_fails_after_a_few_tries(database_url: str) -> None:
    site = Site(database_url)

    def deadly(job: Job, context: Context) -> Outcome:
        raise BrokeOff("Spark does not answer")

    site.handle("deadly", deadly)
    async with site.client() as client, site.worker():
        (job_id,) = await client.submit(NewJob("deadly"))
        record = await client.until(job_id, "failed", seconds=30)
    endings = [each.ending for each in record.attempts]
    assert endings == ["put off", "failed"] * record.max_attempts


@pytest.mark.parametrize("between", ["a loss", "a retry by hand", "a retry of its run"])
async def test_an_absence_begins_anew_after(a: Connection, clock: Clock, between: str) -> None:
    if between == "a retry of its run":
        await start_run(a, [NewJob("task")])
    else:
        await put(a)
    assert await put_off(a, await take_one(a))
    await clock.jump(PATIENCE + 1)
    await jobs.promote(a)
    job = await take_one(a)
    if between == "a loss":
        await clock.jump(TIMEOUT + 1)
        await reap(a)
    else:
        async with a.transaction():
            await jobs.cancel(a, job.job_id, "olga")
            await jobs.retry(a, job.job_id, 3600)
    assert await put_off(a, await take_one(a))


async def test_a_drain_does_not_prolong_an_absence(a: Connection, clock: Clock) -> None:
    """Trap 7: what does not count as a failure does not begin anew either."""
    await put(a)
    assert await put_off(a, await take_one(a))
    await clock.jump(PATIENCE + 1)
    await jobs.promote(a)
    await jobs.hand_back(a, [await take_one(a)])
    assert not await put_off(a, await take_one(a))


async def test_a_run_ends_with_its_total_timeout_though_its_job_is_put_off(
    a: Connection, clock: Clock
) -> None:
    run_id = await start_run(a, [NewJob("task")], total_timeout=50)
    assert await put_off(a, await take_one(a))
    await clock.jump(51)
    async with a.transaction():
        assert await runs.end_late(a, run_id)
    assert (await runs.get(a, run_id)).status == "failed"
    assert await jobs.next_due_seconds(a) is None


async def test_a_job_that_is_put_off_while_its_like_waits_gives_its_key_up(a: Connection) -> None:
    first, second = NewJob("task", dedupe_key="k"), NewJob("task", dedupe_key="k")
    (job_id,) = await put(a, first)
    job = await take_one(a)
    (other,) = await put(a, second)
    assert await put_off(a, job)
    assert (await jobs.get(a, job_id)).dedupe_key is None
    assert (await jobs.get(a, other)).dedupe_key == "k"
