"""Lost jobs: silence, overrunning, poison; and heartbeats that come just in time."""

from __future__ import annotations

import pytest

from kalla.database import Connection
from kalla.errors import Conflict, Lost
from kalla.work.job import NewJob, Outcome
from kalla.work.state import jobs, presence
from tests.work_kit import (
    ATTEMPTS,
    BACKOFF,
    BACKOFF_LIMIT,
    JOB_TYPES,
    MAX_RUNTIME,
    TIMEOUT,
    Clock,
    Waiting,
    beats,
    complete,
    fail,
    is_lost,
    put,
    reap,
    rows,
    take,
    take_one,
)


async def test_a_silent_job_waits_again_and_its_queue_is_woken(a: Connection, clock: Clock) -> None:
    """Trap 6: whoever reaps learns which queues to wake, for a job they do not know yet."""
    await put(a, NewJob("task"), NewJob("refresh"))
    job = await take_one(a)
    await take_one(a, "refresh")
    await clock.jump(TIMEOUT - 1)
    assert await jobs.reap(a) == []
    await clock.jump(2)
    reaped = await jobs.reap(a)
    assert jobs.waiting_in(reaped) == {"exec": 1, "refresh": 1}
    assert await jobs.reap(a) == []
    record = await jobs.get(a, job.job_id)
    assert (record.status, record.failures, record.heartbeat_at) == ("pending", 1, None)
    assert record.error == "no heartbeat from worker anna for 15 s"
    assert [(each.fence, each.ending, each.worker) for each in record.attempts] == [
        (1, "lost", "anna")
    ]
    assert (await take_one(a, worker="ben")).fence == 2


async def test_a_heartbeat_keeps_a_job(a: Connection, clock: Clock) -> None:
    await put(a)
    job = await take_one(a)
    for _ in range(3):
        await clock.jump(TIMEOUT - 1)
        assert await beats(a, job)
    assert await reap(a) == []


async def test_a_job_that_runs_too_long_is_taken_away_though_it_heartbeats(
    a: Connection, clock: Clock
) -> None:
    await put(a)
    job = await take_one(a)
    for _ in range(5):
        await clock.jump(MAX_RUNTIME / 5 + 0.1)
        assert await beats(a, job)
    assert await reap(a) == [job.job_id]
    record = await jobs.get(a, job.job_id)
    assert [each.ending for each in record.attempts] == ["overran"]
    assert record.error == "ran longer than 60 s on worker anna"
    assert not await beats(a, job)


async def test_the_last_attempt_of_an_overrunning_job_is_noted_as_such(
    a: Connection, clock: Clock
) -> None:
    await put(a, NewJob("task", max_attempts=1))
    job = await take_one(a)
    for _ in range(5):
        await clock.jump(MAX_RUNTIME / 5 + 0.1)
        assert await beats(a, job)
    assert await reap(a) == [job.job_id]
    record = await jobs.get(a, job.job_id)
    assert (record.status, [each.ending for each in record.attempts]) == ("failed", ["overran"])


async def test_a_heartbeat_that_comes_before_the_reaper_wins(a: Connection, b: Connection) -> None:
    """The reaper looks at the locked row: what it saw before may be old."""
    await put(a)
    job = await take_one(a)
    await rows(a, "UPDATE kalla.jobs SET heartbeat_at = heartbeat_at - interval '20 s' RETURNING 1")
    async with a.transaction():
        assert await beats(a, job)
        assert await jobs.reap(b) == []
    assert await jobs.reap(b) == []
    assert await beats(a, job)


async def test_a_heartbeat_does_not_wait_for_the_reaper_and_learns_of_it_later(
    a: Connection, b: Connection, clock: Clock
) -> None:
    await put(a, NewJob("task"), NewJob("task"))
    silent, lively = await take(a, limit=2)
    await clock.jump(TIMEOUT - 1)
    await beats(a, lively)
    await clock.jump(2)
    async with b.transaction():
        assert [row["job_id"] for row in await jobs.reap(b)] == [silent.job_id]
        assert await jobs.heartbeat(a, [silent, lively], [None, None]) == set()
    assert await jobs.heartbeat(a, [silent, lively], [None, None]) == {silent.job_id}


async def test_a_heartbeat_that_comes_while_a_job_is_ended_as_exhausted_wins_if_it_is_first(
    a: Connection, b: Connection, clock: Clock, waiting: Waiting
) -> None:
    """Trap 7: a job found exhausted is looked at again before it is ended."""
    await put(a, NewJob("task", max_attempts=1))
    job = await take_one(a)
    await clock.jump(TIMEOUT + 1)
    (found,) = await jobs.exhausted(b)
    async with a.transaction():
        assert await beats(a, job)
        ending = await waiting(jobs.end_exhausted(b, **found))
    assert await ending is None
    await complete(a, job)


async def test_two_reapers_at_once_share_the_lost_jobs(
    a: Connection, b: Connection, clock: Clock
) -> None:
    """Trap 7: a loss is counted once, however many look for it."""
    ids = await put(a, *[NewJob("task")] * 4)
    await take(a, limit=4)
    await clock.jump(TIMEOUT + 1)
    async with a.transaction():
        first = await jobs.reap(a, limit=2)
        second = await jobs.reap(b)
    assert sorted(row["job_id"] for row in [*first, *second]) == ids
    assert {record.failures for record in await jobs.listing(a)} == {1}


async def test_a_completion_that_meets_the_reaper_is_lost(
    a: Connection, b: Connection, clock: Clock, waiting: Waiting
) -> None:
    """Trap 2."""
    await put(a)
    job = await take_one(a)
    await clock.jump(TIMEOUT + 1)
    async with b.transaction():
        await jobs.reap(b)
        late = await waiting(complete(a, job))
    with pytest.raises(Lost):
        await late
    assert (await jobs.get(a, job.job_id)).status == "pending"


async def test_the_reaper_leaves_a_completion_under_way_alone(
    a: Connection, b: Connection, clock: Clock
) -> None:
    await put(a)
    job = await take_one(a)
    await clock.jump(TIMEOUT + 1)
    async with a.transaction():
        await jobs.complete(a, JOB_TYPES, JOB_TYPES.handler("task"), job, Outcome())
        assert await reap(b) == []
    assert (await jobs.get(b, job.job_id)).status == "completed"


@pytest.mark.parametrize("way", ["fails", "falls silent"])
async def test_a_poison_job_ends(a: Connection, clock: Clock, way: str) -> None:
    """Trap 7: every failure counts, whoever notices it, and the last one ends the job."""
    (job_id,) = await put(a)
    for attempt in range(1, ATTEMPTS + 1):
        job = await take_one(a)
        assert job.failures == attempt - 1
        if way == "fails":
            await fail(a, job)
        else:
            await clock.jump(TIMEOUT + 1)
            assert await reap(a) == [job_id]
    record = await jobs.get(a, job_id)
    assert (record.status, record.failures) == ("failed", ATTEMPTS)
    assert len(record.attempts) == ATTEMPTS
    assert record.finished_at is not None
    assert await take(a) == []
    assert await reap(a) == []


async def test_failures_and_losses_count_together(a: Connection, clock: Clock) -> None:
    """Trap 7."""
    (job_id,) = await put(a)
    await fail(a, await take_one(a))
    await take_one(a)
    await clock.jump(TIMEOUT + 1)
    await reap(a)
    assert await fail(a, await take_one(a)) == "failed"
    assert [each.ending for each in (await jobs.get(a, job_id)).attempts] == [
        "failed",
        "lost",
        "failed",
    ]


async def test_a_permanent_failure_is_not_tried_again(a: Connection) -> None:
    await put(a)
    assert await fail(a, await take_one(a), permanent=True) == "failed"


async def test_a_failed_attempt_backs_off_with_jitter_up_to_a_limit(
    a: Connection, clock: Clock
) -> None:
    await clock.freeze()
    await put(a, NewJob("flaky", max_attempts=1000))
    waits: list[float] = []
    for _ in range(6):
        job = await take_one(a)
        async with a.transaction():
            status, woken = await jobs.fail(a, job, "it broke")
        assert (status, woken) == ("pending", {})
        assert await take(a) == []
        seconds = await jobs.next_due_seconds(a)
        assert seconds is not None
        waits.append(seconds)
        await clock.jump(seconds)
        await jobs.promote(a)
    for number, seconds in enumerate(waits):
        whole = min(BACKOFF * 2**number, BACKOFF_LIMIT)
        assert whole / 2 <= seconds <= whole
    assert (
        len({seconds / min(BACKOFF * 2**n, BACKOFF_LIMIT) for n, seconds in enumerate(waits)}) > 1
    )


async def test_a_failure_that_waits_again_at_once_names_the_queue_to_wake(a: Connection) -> None:
    """Trap 6."""
    await put(a)
    job = await take_one(a)
    async with a.transaction():
        assert await jobs.fail(a, job, "it broke") == ("pending", {"exec": 1})


async def test_a_clock_that_jumps_back_reaps_nothing_and_loses_nothing(
    a: Connection, clock: Clock
) -> None:
    await put(a)
    job = await take_one(a)
    await clock.jump(-3600)
    assert await reap(a) == []
    assert await beats(a, job)
    await clock.jump(TIMEOUT + 1)
    assert await reap(a) == [job.job_id]


async def test_a_clock_that_jumps_forward_costs_an_attempt_and_nothing_else(
    a: Connection, clock: Clock
) -> None:
    await put(a)
    job = await take_one(a)
    await clock.jump(10 * 365 * 24 * 3600)
    assert await reap(a) == [job.job_id]
    assert await is_lost(complete(a, job))
    await complete(a, await take_one(a))


async def test_an_error_is_kept_with_its_traceback_and_without_its_secrets(a: Connection) -> None:
    """Trap 17."""
    await put(a)
    job = await take_one(a)
    async with a.transaction():
        await jobs.fail(
            a,
            job,
            "postgres://kalla:hunter2@db/orders does not answer",
            "Traceback ...\nconnect(password='hunter2')",
        )
    record = await jobs.get(a, job.job_id)
    assert record.error == "postgres://kalla:***@db/orders does not answer"
    assert record.traceback is not None
    assert "hunter2" not in record.traceback
    assert [each.error for each in record.attempts] == [record.error]


@pytest.mark.parametrize("text", ["a\0b", "file \udcff.csv", "x" * 100_000])
async def test_any_error_text_can_be_kept(a: Connection, text: str) -> None:
    """Else the failure could never be written, and the job would hang in its worker's hands."""
    await put(a)
    job = await take_one(a)
    async with a.transaction():
        await jobs.fail(a, job, text, text)
    record = await jobs.get(a, job.job_id)
    assert record.error is not None
    assert record.traceback is not None
    assert len(record.error) < 10_000
    assert len(record.traceback) < 10_000


# Cancelling


async def test_a_cancelled_job_is_confirmed_when_its_process_is_gone(a: Connection) -> None:
    (job_id,) = await put(a)
    job = await take_one(a)
    record = await jobs.cancel(a, job_id, "olga")
    assert (record.status, record.error, record.stopped_at) == (
        "cancelled",
        "cancelled by olga",
        None,
    )
    assert not await beats(a, job)
    assert await is_lost(complete(a, job))
    await jobs.stopped(a, job)
    assert (await jobs.get(a, job_id)).stopped_at is not None


async def test_a_waiting_job_is_cancelled_and_stopped_at_once(a: Connection) -> None:
    (job_id,) = await put(a)
    record = await jobs.cancel(a, job_id, "olga")
    assert (record.status, record.attempts) == ("cancelled", ())
    assert record.stopped_at is not None


async def test_a_cancelled_job_has_stopped_when_its_worker_has(a: Connection, clock: Clock) -> None:
    await presence.announce(
        a, presence.Announcement("anna", "here", 1, "", ["exec"], 4, 1, "0", False)
    )
    (job_id,) = await put(a)
    await take_one(a)
    await jobs.cancel(a, job_id, "olga")
    await jobs.stopped_with_worker(a)
    assert (await jobs.get(a, job_id)).stopped_at is None
    await clock.jump(TIMEOUT + 1)
    await jobs.stopped_with_worker(a)
    assert (await jobs.get(a, job_id)).stopped_at is not None


async def test_a_cancel_that_meets_a_completion_under_way_comes_too_late(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    (job_id,) = await put(a)
    job = await take_one(a)
    async with a.transaction():
        await jobs.complete_plain(a, [(job, Outcome())])
        cancel = await waiting(jobs.cancel(b, job_id, "olga"))
    with pytest.raises(Conflict, match="is completed already"):
        await cancel
    assert (await jobs.get(a, job_id)).status == "completed"


async def test_a_completion_that_meets_a_cancel_under_way_is_lost(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    (job_id,) = await put(a)
    job = await take_one(a)
    async with b.transaction():
        await jobs.cancel(b, job_id, "olga")
        late = await waiting(complete(a, job))
    with pytest.raises(Lost):
        await late
    assert (await jobs.get(a, job_id)).status == "cancelled"
