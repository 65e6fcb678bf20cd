"""Runs: jobs that stand and fall together; total timeout, cancel, retry by hand, retention."""

from __future__ import annotations

import math

import pytest

from kalla.database import AWAY, Connection, Database
from kalla.errors import Conflict, InvalidInput, Lost, NotFound
from kalla.work.job import NewJob, Outcome
from kalla.work.state import jobs, runs
from tests.work_kit import (
    ATTEMPTS,
    JOB_TYPES,
    NOTHING,
    TIMEOUT,
    TOTAL_TIMEOUT,
    Clock,
    Settling,
    Waiting,
    beats,
    complete,
    fail,
    is_lost,
    members,
    put,
    reap,
    rows,
    start_run,
    take,
    take_one,
)

TASK = NewJob("task")


async def test_a_run_completes_when_all_its_jobs_have(a: Connection) -> None:
    run_id = await start_run(a, [TASK, TASK])
    first, second = await take(a, limit=5)
    await complete(a, first)
    assert (await runs.get(a, run_id)).status == "running"
    await complete(a, second, TASK)
    assert (await runs.get(a, run_id)).status == "running"
    await complete(a, await take_one(a))
    record = await runs.get(a, run_id)
    assert (record.status, record.jobs, record.completed) == ("completed", 3, 3)
    assert record.finished_at is not None


async def test_a_run_completes_once_though_its_last_jobs_end_together(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    run_id = await start_run(a, [TASK, TASK])
    first, second = await take(a, limit=5)
    async with a.transaction():
        await jobs.complete(a, JOB_TYPES, NOTHING, first, Outcome())
        later = await waiting(complete(b, second))
    await later
    record = await runs.get(a, run_id)
    assert (record.status, record.completed) == ("completed", 2)


@pytest.mark.parametrize("way", ["permanent", "attempts used up", "silent to the end"])
async def test_a_failed_job_ends_its_run_and_the_others(
    a: Connection, clock: Clock, way: str
) -> None:
    """Trap 8: waiting jobs are not started any more, running ones lose their claim."""
    run_id = await start_run(
        a,
        [NewJob("task", max_attempts=1 if way == "silent to the end" else None)]
        + [NewJob("refresh")] * 2
        + [NewJob("task", delay_seconds=3600)],
    )
    bystander = (await put(a, NewJob("refresh")))[0]
    running = await take_one(a, "refresh")
    poison = await take_one(a)
    if way == "permanent":
        await fail(a, poison, permanent=True)
    elif way == "attempts used up":
        for _ in range(ATTEMPTS - 1):
            await fail(a, poison)
            poison = await take_one(a)
        assert await fail(a, poison) == "failed"
    else:
        await clock.jump(TIMEOUT - 1)
        assert await beats(a, running)
        await clock.jump(2)
        assert await reap(a) == [poison.job_id]
    record = await runs.get(a, run_id)
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.startswith(f"job {poison.job_id} failed: ")
    assert [each.status for each in await members(a, run_id)] == ["failed"] + ["cancelled"] * 3
    assert not await beats(a, running)
    assert await is_lost(complete(a, running, TASK))
    assert [job.job_id for job in await take(a, limit=9, queue="refresh")] == [bystander]


async def test_a_failure_with_attempts_left_leaves_the_run_alone(a: Connection) -> None:
    run_id = await start_run(a, [TASK, TASK])
    await fail(a, await take_one(a))
    assert (await runs.get(a, run_id)).status == "running"
    assert [each.status for each in await members(a, run_id)] == ["pending", "pending"]


async def test_what_a_failed_run_started_is_stopped_once_confirmed(a: Connection) -> None:
    """Trap 8: waiting jobs have no process; running ones are confirmed by their worker."""
    run_id = await start_run(a, [TASK, TASK, TASK])
    poison, running = await take(a, limit=2)
    await fail(a, poison, permanent=True)
    _, stopping, waited = await members(a, run_id)
    assert stopping.stopped_at is None
    assert waited.stopped_at is not None
    await jobs.stopped(a, running)
    assert (await jobs.get(a, running.job_id)).stopped_at is not None


async def test_cancelling_a_run_or_one_of_its_jobs_ends_all_of_it(a: Connection) -> None:
    """Trap 8."""
    for whole in (True, False):
        run_id = await start_run(a, [TASK, TASK])
        job = await take_one(a)
        if whole:
            assert await runs.cancel(a, run_id, "cancelled by olga") == [job.job_id]
        else:
            await jobs.cancel(a, job.job_id + 1, "olga")
        record = await runs.get(a, run_id)
        assert (record.status, record.error) == ("cancelled", "cancelled by olga")
        assert {each.status for each in await members(a, run_id)} == {"cancelled"}
        assert await is_lost(complete(a, job))
        with pytest.raises(Conflict, match="is cancelled already"):
            await runs.cancel(a, run_id, "again")


async def test_a_cancel_waits_for_a_completion_under_way_and_they_never_deadlock(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    """Both lock the run's row first, whatever they touch later."""
    run_id = await start_run(a, [TASK, TASK])
    job = await take_one(a)

    async def settle(_: Connection) -> None:
        cancels.append(await waiting(runs.cancel(b, run_id, "cancelled by olga")))

    cancels: list[object] = []
    await complete(a, job, NewJob("refresh"), handler=Settling(settle))
    (cancel,) = cancels
    assert await cancel == []  # type: ignore[misc]
    assert [each.status for each in await members(a, run_id)] == [
        "completed",
        "cancelled",
        "cancelled",
    ]


async def test_a_cancel_that_meets_the_completion_of_its_job_leaves_the_run_alone(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    """The job is looked at again once the run is locked: what was running may be done by now."""
    run_id = await start_run(a, [TASK, TASK])
    job = await take_one(a)
    async with a.transaction():
        await jobs.complete(a, JOB_TYPES, NOTHING, job, Outcome())
        cancel = await waiting(jobs.cancel(b, job.job_id, "olga"))
    with pytest.raises(Conflict, match="is completed already"):
        await cancel
    assert (await runs.get(a, run_id)).status == "running"


async def test_a_failure_and_a_completion_at_once_never_deadlock(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    """Trap 8: the failure waits for the run's row, and then ends what the completion fanned out."""
    run_id = await start_run(a, [TASK, TASK])
    first, second = await take(a, limit=2)

    async def settle(_: Connection) -> None:
        failures.append(await waiting(fail(b, second, permanent=True)))

    failures: list[object] = []
    await complete(a, first, TASK, handler=Settling(settle))
    (failure,) = failures
    assert await failure == "failed"  # type: ignore[misc]
    assert (await runs.get(a, run_id)).status == "failed"
    assert [each.status for each in await members(a, run_id)] == [
        "completed",
        "failed",
        "cancelled",
    ]


async def test_a_completion_that_meets_the_cancel_of_its_run_is_lost(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    run_id = await start_run(a, [TASK])
    job = await take_one(a)
    async with b.transaction():
        await runs.cancel(b, run_id, "cancelled by olga")
        late = await waiting(complete(a, job, TASK))
    with pytest.raises(Lost):
        await late
    record = await runs.get(a, run_id)
    assert (record.status, record.jobs, record.completed) == ("cancelled", 1, 0)


async def test_a_claim_under_way_does_not_escape_the_end_of_its_run(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    """Trap 8: the cancel waits for the claim and then takes it away."""
    run_id = await start_run(a, [TASK])
    async with a.transaction():
        job = await take_one(a)
        cancel = await waiting(runs.cancel(b, run_id, "cancelled by olga"))
    assert await cancel == [job.job_id]
    assert not await beats(a, job)


async def test_a_run_past_its_total_timeout_fails_with_all_its_jobs(
    a: Connection, clock: Clock
) -> None:
    """Trap 8."""
    run_id = await start_run(a, [TASK, TASK], total_timeout=100)
    job = await take_one(a)
    await clock.jump(99)
    assert await runs.late(a) == []
    await clock.jump(2)
    assert await runs.late(a) == [run_id]
    async with a.transaction():
        assert await runs.end_late(a, run_id)
    assert await runs.late(a) == []
    record = await runs.get(a, run_id)
    assert (record.status, record.error) == (
        "failed",
        "the run took longer than its total timeout",
    )
    assert {each.status for each in await members(a, run_id)} == {"cancelled"}
    assert await is_lost(complete(a, job))


async def test_a_run_that_completed_in_the_meantime_is_not_late(
    a: Connection, b: Connection, clock: Clock, waiting: Waiting
) -> None:
    run_id = await start_run(a, [TASK], total_timeout=100)
    job = await take_one(a)
    await clock.jump(101)
    assert await runs.late(b) == [run_id]
    async with a.transaction():
        await jobs.complete(a, JOB_TYPES, NOTHING, job, Outcome())
        ending = await waiting(_end_late(b, run_id))
    assert not await ending
    assert (await runs.get(a, run_id)).status == "completed"


async def test_a_run_revived_in_the_meantime_is_not_late(a: Connection, clock: Clock) -> None:
    """Every worker looks for late runs: one may act on a look from before the retry by hand."""
    run_id = await start_run(a, [TASK], total_timeout=100)
    await clock.jump(101)
    (seen_by_another,) = await runs.late(a)
    assert await _end_late(a, run_id)
    await runs.revive(a, run_id, 100)
    assert not await _end_late(a, seen_by_another)
    assert (await runs.get(a, run_id)).status == "running"


async def test_retry_by_hand_revives_the_run_and_keeps_what_was_done(
    a: Connection, clock: Clock
) -> None:
    """What completed stays completed and counted; fences go on counting."""
    chunk = NewJob("chunk", gate="staged")
    run_id = await start_run(
        a, [NewJob("plan", gate="staged")], {"staged": [NewJob("match")]}, total_timeout=100
    )
    await complete(a, await take_one(a, "stage"), chunk, chunk, chunk)
    done, poison, running = await take(a, limit=3, queue="stage")
    await complete(a, done)
    await fail(a, poison, permanent=True)
    await clock.jump(1000)
    assert await jobs.retry(a, poison.job_id, 100) == {"stage": 2}
    record = await runs.get(a, run_id)
    assert (record.status, record.jobs, record.completed, record.error) == ("running", 4, 2, None)
    assert record.finished_at is None
    assert await runs.late(a) == []
    assert await is_lost(complete(a, running))
    again = await take(a, limit=5, queue="stage")
    assert [(job.job_id, job.fence, job.failures) for job in again] == [
        (poison.job_id, 2, 0),
        (running.job_id, 2, 0),
    ]
    assert await is_lost(complete(a, running))
    assert await is_lost(complete(a, done))
    assert await complete(a, again[0]) == {}
    assert await complete(a, again[1]) == {"exec": 1}
    await complete(a, await take_one(a))
    record = await runs.get(a, run_id)
    assert (record.status, record.jobs, record.completed) == ("completed", 5, 5)


async def test_only_a_run_that_ended_badly_is_revived(a: Connection) -> None:
    run_id = await start_run(a, [TASK])
    with pytest.raises(Conflict, match="is running: nothing to retry"):
        await runs.revive(a, run_id, 100)
    await complete(a, await take_one(a))
    with pytest.raises(Conflict, match="is completed: nothing to retry"):
        await runs.revive(a, run_id, 100)
    with pytest.raises(NotFound, match="there is no run"):
        await runs.revive(a, run_id + 1, 100)


async def test_of_two_revivals_at_once_one_counts(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    run_id = await start_run(a, [TASK])
    await runs.cancel(a, run_id, "cancelled by olga")
    async with a.transaction():
        await runs.revive(a, run_id, 100)
        second = await waiting(runs.revive(b, run_id, 100))
    with pytest.raises(Conflict, match="is running"):
        await second


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
async def test_a_total_timeout_that_makes_no_sense_is_refused(
    a: Connection, seconds: float
) -> None:
    with pytest.raises(InvalidInput, match="total_timeout_seconds: must be"):
        await start_run(a, [TASK], total_timeout=seconds)
    assert await rows(a, "SELECT FROM kalla.runs") == []
    run_id = await start_run(a, [TASK])
    await runs.cancel(a, run_id, "cancelled by olga")
    with pytest.raises(InvalidInput, match="total_timeout_seconds: must be"):
        await runs.revive(a, run_id, seconds)
    assert (await runs.get(a, run_id)).status == "cancelled"


# Retention


async def test_finished_jobs_are_kept_for_a_time_and_then_removed(
    a: Connection, clock: Clock
) -> None:
    old, waits, claimed = await put(a, TASK, NewJob("refresh"), TASK)
    await complete(a, await take_one(a))
    await take_one(a)
    await clock.jump(1000)
    assert await jobs.sweep(a, 1001) == 0
    assert await jobs.sweep(a, 999) == 1
    assert sorted(each.job_id for each in await jobs.listing(a)) == [waits, claimed]
    with pytest.raises(NotFound):
        await jobs.get(a, old)


async def test_a_job_goes_with_its_run_and_not_before(a: Connection, clock: Clock) -> None:
    done = await start_run(a, [TASK])
    await complete(a, await take_one(a))
    going_on = await start_run(a, [TASK, TASK], {})
    await complete(a, await take_one(a))
    await clock.jump(TOTAL_TIMEOUT - 1)
    assert await jobs.sweep(a, 10) == 0
    assert await runs.sweep(a, TOTAL_TIMEOUT) == 0
    assert await runs.sweep(a, 10) == 1
    with pytest.raises(NotFound):
        await runs.get(a, done)
    assert {each.run_id for each in await jobs.listing(a)} == {going_on}
    assert len(await members(a, going_on)) == 2


async def test_a_sweep_leaves_what_is_being_retried(
    a: Connection, b: Connection, clock: Clock
) -> None:
    (job_id,) = await put(a)
    await jobs.cancel(a, job_id, "olga")
    run_id = await start_run(a, [TASK])
    await runs.cancel(a, run_id, "cancelled by olga")
    await clock.jump(1000)
    async with a.transaction():
        await jobs.retry(a, job_id, 100)
        await runs.revive(a, run_id, TOTAL_TIMEOUT)
        assert (await jobs.sweep(b, 10), await runs.sweep(b, 10)) == (0, 0)
    assert (await jobs.sweep(b, 10), await runs.sweep(b, 10)) == (0, 0)
    assert len(await take(a, limit=5)) == 2


async def _end_late(connection: Connection, run_id: int) -> bool:
    async with connection.transaction():
        return await runs.end_late(connection, run_id)


@pytest.mark.timeout(60)
async def test_a_process_frozen_inside_a_transaction_loses_its_locks(
    a: Connection, pool: Database
) -> None:
    """A stopped worker that was just completing a job of the run must not hold up the others."""
    run_id = await start_run(a, [NewJob("task")])
    job = await take_one(a)

    async def freeze() -> None:
        async with pool.transaction() as frozen:
            await runs.lock(frozen, run_id)
            # Waits until Postgres has ended the frozen transaction.
            await pool.retrying(
                lambda each: jobs.complete(each, JOB_TYPES, NOTHING, job, Outcome())
            )

    with pytest.raises(AWAY):
        await freeze()
    assert (await runs.get(a, run_id)).status == "completed"


async def test_cancelling_a_completed_job_leaves_its_run_alone(a: Connection) -> None:
    run_id = await start_run(a, [TASK, TASK])
    done, _ = await take(a, 2)
    await complete(a, done)
    with pytest.raises(Conflict, match="is completed already"):
        await jobs.cancel(a, done.job_id, "a test")
    assert (await runs.get(a, run_id)).status == "running"
