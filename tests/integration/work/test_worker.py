"""The worker as a whole, on a real Postgres and both channels: claims, loses, drains, settles."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import structlog
from prometheus_client import generate_latest
from pydantic import SecretStr

from kalla import logs
from kalla.database import Connection, migrate
from kalla.errors import InvalidInput, InvalidSettings, KallaError, Permanent, Problem
from kalla.settings import Database as DatabaseSettings
from kalla.settings import JobPolicy
from kalla.work import jobs, queues, runs
from kalla.work.handler import Context
from kalla.work.job import Job, JobRecord, NewJob, Outcome
from tests.work_kit import Clock
from tests.worker_kit import NEVER, Site, eventually


@pytest.fixture
def site(database_url: str) -> Site:
    return Site(database_url)


@pytest.fixture(params=["postgres", "nats"])
def either_site(request: pytest.FixtureRequest, database_url: str) -> Site:
    nats_url = request.getfixturevalue("nats_url") if request.param == "nats" else None
    return Site(database_url, nats_url)


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
        assert not len(worker.hand), "its thread has ended: nothing is left behind"
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


async def test_the_result_of_a_lost_claim_is_dropped(store_url: str, clock: Clock) -> None:
    """Trap 2: a zombie wakes up after another worker completed its job."""
    site = Site(store_url)
    go, begun = threading.Event(), threading.Event()

    def zombie(job: Job, context: Context) -> Outcome:
        if job.fence == 1:
            begun.set()
            go.wait(30)
            return Outcome({"by": "zombie"})
        return Outcome({"by": "successor"})

    site.handle("slow", zombie)
    async with site.client() as client:
        async with site.worker():
            (job_id,) = await client.submit(NewJob("slow"))
            assert await asyncio.to_thread(begun.wait, 10)
            await clock.jump(10 * NEVER)  # past max_runtime_seconds, though it heartbeats
            record = await client.until(job_id, "completed")
            assert record.result == {"by": "successor"}
            go.set()
        record = await client.get(job_id)
    assert (record.result, record.fence) == ({"by": "successor"}, 2)


async def test_a_hung_job_is_taken_away_and_health_tells_of_its_thread(site: Site) -> None:
    end = threading.Event()

    def deaf(job: Job, context: Context) -> Outcome:
        if job.fence == 1:
            end.wait(30)
        return Outcome()

    site.handle("deaf", deaf)
    async with site.client() as client, site.worker() as worker:
        (job_id,) = await client.submit(NewJob("deaf", max_runtime_seconds=0.5))
        record = await client.until(job_id, "completed")
        assert [attempt.ending for attempt in record.attempts] == ["overran"]

        async def told() -> bool:
            return bool(worker.problems())

        await eventually(told)
        assert "has not stopped" in worker.problems()[0]
        end.set()

        async def well() -> bool:
            return not worker.problems()

        await eventually(well)


async def test_a_completion_survives_cut_connections(site: Site) -> None:
    """All connections die while the job runs: its outcome waits, and counts once."""
    url = site.url

    def cutter(job: Job, context: Context) -> Outcome:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        return Outcome({"cut": True})

    site.handle("cutter", cutter)
    async with site.client() as client, site.worker() as worker:
        (job_id,) = await client.submit(NewJob("cutter"))

        async def completed() -> JobRecord | None:
            try:
                record = await client.get(job_id)
            except psycopg.OperationalError:
                return None
            return record if record.status == "completed" else None

        record = await eventually(completed)
        assert not worker.problems()
    assert (record.result, record.fence) == ({"cut": True}, 1)


async def test_what_settle_raises_fails_the_job_and_nothing_is_half_done(site: Site) -> None:
    class Breaks:
        def run(self, job: Job, context: Context) -> Outcome:
            return Outcome({"n": 1}, (NewJob("noop"),))

        async def settle(self, connection: Connection, job: Job, outcome: Outcome) -> None:
            await connection.execute("CREATE TABLE half_done (n integer)")
            raise KeyError("no such column")

    site.handle("noop", lambda *_: Outcome())
    site.handlers["breaks"] = Breaks()
    async with site.client() as client, site.worker():
        (job_id,) = await client.submit(NewJob("breaks", max_attempts=1))
        record = await client.until(job_id, "failed")
        assert record.error == "KeyError: 'no such column'"
        assert record.result is None
        assert await client.act(lambda c: jobs.listing(c, job_type="noop")) == []
        (row,) = await client.act(
            lambda c: _fetch(c, "SELECT to_regclass('half_done') IS NULL AS absent")
        )
        assert row["absent"]


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"at": object()}, "not JSON serializable"),
        ({"text": "a\0b"}, "NUL"),
        ({"n": float("nan")}, "not JSON compliant"),
    ],
)
async def test_a_result_that_cannot_be_kept_fails_its_own_job_and_no_other(
    site: Site, result: dict[str, object], reason: str
) -> None:
    site.handle("odd", lambda *_: Outcome(result))
    site.handle("even", lambda *_: Outcome({"n": 1}))
    async with site.client() as client, site.worker() as worker:
        odd, *even = await client.submit(
            NewJob("odd", max_attempts=1), *[NewJob("even") for _ in range(20)]
        )
        record = await client.until(odd, "failed")
        for job_id in even:
            await client.until(job_id, "completed")
        assert not worker.problems()
    assert reason in (record.error or "")


async def test_progress_that_is_not_json_fails_the_job_and_not_the_worker(site: Site) -> None:
    def odd(job: Job, context: Context) -> Outcome:
        context.progress(at=object())
        return Outcome()

    site.handle("odd", odd)
    async with site.client() as client, site.worker() as worker:
        (job_id,) = await client.submit(NewJob("odd", max_attempts=1))
        record = await client.until(job_id, "failed")
        assert not worker.problems()
    assert "not JSON serializable" in (record.error or "")


async def test_a_run_goes_through_its_gate_and_the_opened_job_sees_what_came(site: Site) -> None:
    seen: list[object] = []
    site.handle("plan", lambda *_: Outcome({}, tuple(_chunk(n) for n in range(3))))
    site.handle("chunk", lambda job, _: Outcome({"path": f"part-{job.payload['n']}"}))
    site.handle("match", lambda _, context: seen.extend(context.inputs))
    async with site.client() as client, site.worker():

        async def start(connection: Connection) -> int:
            run_id, woken = await runs.create(
                connection,
                site.kinds,
                "reconcile",
                [NewJob("plan", gate="staged")],
                {"staged": [NewJob("match")]},
                60,
            )
            await client.wake.nudge(woken)
            return run_id

        run_id = await client.act(start)
        await client.wake.nudge({"exec": 1})

        async def completed() -> bool:
            record = await client.act(lambda c: runs.get(c, run_id))
            return bool(record.status == "completed")

        await eventually(completed)
    assert [each for each in seen if each] == [{"path": f"part-{n}"} for n in range(3)]


async def test_progress_is_seen_while_the_job_runs(site: Site) -> None:
    end = threading.Event()

    def steady(job: Job, context: Context) -> Outcome:
        context.progress(rows=17)
        end.wait(30)
        return Outcome()

    site.handle("steady", steady)
    async with site.client() as client, site.worker():
        (job_id,) = await client.submit(NewJob("steady"))

        async def reported() -> bool:
            return (await client.get(job_id)).progress == {"rows": 17}

        await eventually(reported)
        end.set()
        await client.until(job_id, "completed")


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


async def test_health_fails_when_a_duty_has_died(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.handle("noop", lambda *_: Outcome())
    async with site.worker() as worker:
        assert worker.problems() == []
        monkeypatch.setattr(worker._wake, "wait", _raise)
        async with site.client() as client:
            await client.submit(NewJob("noop"))

        async def told() -> bool:
            return bool(worker.problems())

        await eventually(told)
        assert worker.problems() == ["claims died: ZeroDivisionError: a bug"]


async def test_ready_names_what_is_away(site: Site) -> None:
    site.handle("noop", lambda *_: Outcome())
    async with site.worker() as worker:
        assert await worker.absences() == []
    away = DatabaseSettings(
        url=SecretStr("postgresql://bob:hunter2@127.0.0.1:1/x"), connect_timeout=1
    )
    async with site.worker(database=away) as worker:
        (reason, *_) = await worker.absences()
        assert "Postgres does not answer" in reason
        assert "hunter2" not in reason


async def test_the_metrics_have_their_fixed_names(site: Site) -> None:
    site.handle("noop", lambda *_: Outcome(rows=5))
    async with site.client() as client, site.worker() as worker:

        async def exposed() -> bool:
            return b"kalla_exec_queue_depth" in generate_latest(worker.metrics.registry)

        await eventually(exposed)
        (job_id,) = await client.submit(NewJob("noop"))
        await client.until(job_id, "completed")

        async def counted() -> str | None:
            text = generate_latest(worker.metrics.registry).decode()
            return text if 'completed_total{type="noop"}' in text else None

        text = await eventually(counted)
    for line in (
        'kalla_worker_jobs_completed_total{type="noop"} 1.0',
        "kalla_worker_rows_processed_total 5.0",
        "kalla_stage_queue_depth 0.0",
        "kalla_exec_queue_depth 0.0",
        'kalla_queue_oldest_wait_seconds{queue="exec"} 0.0',
        "kalla_worker_active_jobs 0.0",
        "kalla_worker_saturation 0.0",
        "kalla_worker_current_job_duration_seconds 0.0",
        "kalla_reaper_jobs_reclaimed_total 0.0",
        "kalla_reaper_jobs_failed_total 0.0",
        "pending_refresh_count 0.0",
        "refresh_duration_p95 0.0",
        "refresh_backlog_seconds 0.0",
    ):
        assert f"\n{line}\n" in text
    assert "kalla_worker_last_heartbeat_seconds_ago" in text
    assert "# TYPE kalla_worker_current_job_type gauge" in text


def _chunk(number: int) -> NewJob:
    return NewJob("chunk", {"n": number}, gate="staged")


async def _raise(*_: object) -> set[str]:
    raise ZeroDivisionError("a bug")


async def _fetch(connection: Connection, statement: str) -> list[dict[str, Any]]:
    return await (await connection.execute(statement.encode())).fetchall()


async def test_a_worker_started_before_the_migration_works_after_it(
    empty_database_url: str,
) -> None:
    site = Site(empty_database_url)
    site.handle("noop", lambda *_: Outcome())
    polling = site.settings.wake.model_copy(update={"poll_seconds": 0.1})
    async with site.worker(wake=polling) as worker:

        async def troubled() -> bool:
            return "kalla migrate" in (worker._claims.trouble or "")

        await eventually(troubled)
        await migrate(site.settings.database)
        async with site.client() as client:
            (job_id,) = await client.submit(NewJob("noop"))
            await client.until(job_id, "completed")
        assert not worker.problems()
