"""The worker as a whole, on a real Postgres and both channels: claims, wakes, drains."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from kalla import logs
from kalla.errors import InvalidInput, InvalidSettings, KallaError, Permanent, Problem
from kalla.settings import JobPolicy
from kalla.work.handler import Context
from kalla.work.job import Job, NewJob, Outcome
from kalla.work.state import jobs, queues
from tests.worker_kit import Site, eventually


async def test_a_submitted_job_is_run_and_its_result_kept(either_site: Site) -> None:
    either_site.handle("double", lambda job, _: Outcome({"twice": job.payload["n"] * 2}))
    async with either_site.client() as client, either_site.worker() as worker:
        (job_id,) = await client.submit(NewJob("double", {"n": 21}))
        record = await client.until(job_id, "completed")
    assert record.result == {"twice": 42}
    assert (record.fence, record.failures, record.worker) == (1, 0, worker.name)


async def test_two_workers_share_many_jobs_and_none_runs_twice(either_site: Site) -> None:
    seen: list[int] = []
    either_site.handle("noop", lambda job, _: seen.append(job.job_id))
    async with either_site.client() as client, either_site.worker(), either_site.worker():
        submitted = await client.submit(*[NewJob("noop")] * 300)
        for job_id in submitted:
            await client.until(job_id, "completed")
    assert sorted(seen) == submitted


async def test_a_failing_job_is_tried_again_and_fails_after_its_last_attempt(site: Site) -> None:
    """Trap 7: a poison job is not retried for ever."""

    def broken(job: Job, context: Context) -> Outcome:
        raise ValueError(f"attempt {job.failures + 1}")

    site.handle("broken", broken)
    async with site.client() as client, site.worker():
        (job_id,) = await client.submit(NewJob("broken"))
        record = await client.until(job_id, "failed")
    assert (record.failures, record.fence) == (3, 3)
    assert record.error == "ValueError: attempt 3"
    assert "in broken" in (record.traceback or "")
    assert [attempt.error for attempt in record.attempts] == [
        f"ValueError: attempt {number}" for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (Permanent("the recipe names no column"), 1),
        (InvalidInput(Problem("rules[0]", "names no column")), 1),
        # Another worker may have other settings.
        (InvalidSettings(Problem("secrets.key", "is needed")), 3),
    ],
    ids=["permanent", "invalid input", "invalid settings"],
)
async def test_what_would_fail_in_the_same_way_is_not_tried_again(
    site: Site, error: KallaError, attempts: int
) -> None:
    def hopeless(job: Job, context: Context) -> Outcome:
        raise error

    site.handle("hopeless", hopeless)
    async with site.client() as client, site.worker():
        (job_id,) = await client.submit(NewJob("hopeless"))
        record = await client.until(job_id, "failed")
    assert (record.failures, record.error) == (attempts, str(error))


@pytest.fixture
def json_logs() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Reads the log lines written so far, as a log collector would."""
    root, written = logging.getLogger(), io.StringIO()
    before, level = list(root.handlers), root.level
    logs.configure("info", "json", written)
    yield lambda: [json.loads(line) for line in written.getvalue().splitlines()]
    root.handlers = before
    root.setLevel(level)
    structlog.reset_defaults()


async def test_a_password_in_an_error_reaches_neither_the_row_nor_the_log(
    site: Site, json_logs: Callable[[], list[dict[str, Any]]]
) -> None:
    """Trap 17; and every line about a job names the job, its run and the worker."""

    def leaky(job: Job, context: Context) -> Outcome:
        raise RuntimeError("cannot connect to postgresql://bob:hunter2@db/x, password=hunter2")

    site.handle("leaky", leaky)
    async with site.client() as client, site.worker() as worker:
        (job_id,) = await client.submit(NewJob("leaky", max_attempts=1))
        record = await client.until(job_id, "failed")
    assert "hunter2" not in repr(record)
    assert "***" in (record.error or "")
    lines = json_logs()
    assert "hunter2" not in repr(lines)
    (line,) = [line for line in lines if line["event"] == "job attempt failed"]
    assert (line["job"], line["run"], line["worker"]) == (job_id, None, worker.name)
    assert "***" in line["error"]


async def test_a_cancelled_job_hears_of_it_at_once_and_the_cancel_is_confirmed(
    either_site: Site,
) -> None:
    heard = threading.Event()

    def patient(job: Job, context: Context) -> Outcome:
        try:
            context.wait(60)
        finally:
            heard.set()
        return Outcome()

    either_site.handle("patient", patient)
    slow = {"default": JobPolicy(timeout_seconds=100, heartbeat_interval=30)}
    async with either_site.client() as client, either_site.worker(jobs=slow):
        (job_id,) = await client.submit(NewJob("patient", timeout_seconds=100))
        await client.until(job_id, "claimed")
        await client.act(lambda connection: jobs.cancel(connection, job_id, "a test"))
        await client.wake.alarm()
        assert await asyncio.to_thread(heard.wait, 5), "only the next heartbeat would have told"

        async def confirmed() -> bool:
            return (await client.get(job_id)).stopped_at is not None

        await eventually(confirmed)
        assert (await client.get(job_id)).status == "cancelled"


async def test_a_drain_hands_the_job_back_without_counting_a_failure(site: Site) -> None:
    site.handle("long", lambda _, context: context.wait(60))
    async with site.client() as client:
        async with site.worker() as worker:
            (job_id,) = await client.submit(NewJob("long"))
            await client.until(job_id, "claimed")
        assert not len(worker.slots), "its thread has ended: nothing is left behind"
        record = await client.get(job_id)
        assert (record.status, record.failures, record.fence) == ("pending", 0, 1)
        assert [attempt.ending for attempt in record.attempts] == ["handed back"]
        site.handle("long", lambda *_: Outcome())
        async with site.worker():
            record = await client.until(job_id, "completed")
        assert record.fence == 2


async def test_a_drain_lets_a_short_job_finish(site: Site) -> None:
    begun = threading.Event()

    def short(job: Job, context: Context) -> Outcome:
        begun.set()
        context.wait(0.5)
        return Outcome()

    site.handle("short", short)
    patient = site.settings.worker.model_copy(update={"drain_seconds": 20.0})
    async with site.client() as client:
        async with site.worker(worker=patient):
            (job_id,) = await client.submit(NewJob("short"))
            assert await asyncio.to_thread(begun.wait, 10)
        assert (await client.get(job_id)).status == "completed"


async def test_a_reclaimed_job_wakes_an_idle_worker(either_site: Site) -> None:
    """Trap 6: the worker sleeps for an hour unless somebody tells it of the reclaimed job."""
    either_site.handle("noop", lambda *_: Outcome())
    async with either_site.client() as client:
        (job_id,) = await client.submit(NewJob("noop"))
        # A worker that claimed it and died.
        (job,) = await client.act(
            lambda connection: jobs.claim(connection, "exec", ["noop"], "the dead", 1)
        )
        await client.wake.claimed({"exec": 1})
        async with either_site.worker():
            record = await client.until(job_id, "completed")
    assert (record.fence, record.failures) == (job.fence + 1, 1)
    assert [attempt.ending for attempt in record.attempts] == ["lost"]


async def test_a_delayed_job_wakes_an_idle_worker_when_it_comes_due(either_site: Site) -> None:
    either_site.handle("noop", lambda *_: Outcome())
    async with either_site.client() as client, either_site.worker():
        (job_id,) = await client.submit(NewJob("noop", delay_seconds=0.5))
        record = await client.until(job_id, "completed")
    assert record.claimed_at is not None
    assert record.claimed_at >= record.run_after


async def test_a_follow_up_wakes_an_idle_worker(either_site: Site) -> None:
    either_site.handle("last", lambda *_: Outcome())

    def first(job: Job, context: Context) -> Outcome:
        context.wait(0.5)  # until the worker has looked at every queue again, and sleeps
        return Outcome(follow_ups=(NewJob("last", dedupe_key="k"),))

    either_site.handle("first", first)
    async with either_site.client() as client, either_site.worker():
        await client.submit(NewJob("first"))

        async def followed() -> bool:
            records = await client.act(lambda c: jobs.listing(c, job_type="last"))
            return [record.status for record in records] == ["completed"]

        await eventually(followed)


async def test_a_paused_queue_keeps_its_jobs_until_it_is_resumed(either_site: Site) -> None:
    either_site.handle("noop", lambda *_: Outcome())
    async with either_site.client() as client, either_site.worker() as worker:
        await client.act(lambda c: queues.pause(c, "exec", "a test"))
        (job_id,) = await client.submit(NewJob("noop"))
        (probe,) = await client.submit(NewJob("noop", queue="stage"))
        await client.until(probe, "completed")
        assert (await client.get(job_id)).status == "pending"
        assert not worker.problems()
        await client.act(lambda c: queues.resume(c, "exec"))
        await client.wake.nudge({"exec": 1})
        await client.until(job_id, "completed")


async def test_jobs_with_one_running_key_never_run_side_by_side(site: Site) -> None:
    inside, most = 0, 0
    lock = threading.Lock()

    def alone(job: Job, context: Context) -> Outcome:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        context.wait(0.02)
        with lock:
            inside -= 1
        return Outcome()

    site.handle("alone", alone)
    polling = site.settings.wake.model_copy(update={"poll_seconds": 0.05})
    async with site.client() as client, site.worker(wake=polling), site.worker(wake=polling):
        submitted = await client.submit(*[NewJob("alone", running_key="table-1")] * 12)
        for job_id in submitted:
            await client.until(job_id, "completed")
    assert most == 1
