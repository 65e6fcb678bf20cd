"""What a worker tells of itself: health, readiness, progress and metrics."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import generate_latest
from pydantic import SecretStr

from kalla.database import migrate
from kalla.settings import Database as DatabaseSettings
from kalla.work.handler import Context
from kalla.work.job import Job, NewJob, Outcome
from tests.worker_kit import Site, eventually


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


async def test_progress_is_seen_while_jobs_run_and_a_full_worker_is_ready(site: Site) -> None:
    end = threading.Event()

    def steady(job: Job, context: Context) -> Outcome:
        context.progress(rows=17)
        end.wait(30)
        return Outcome()

    site.handle("steady", steady)
    async with site.client() as client, site.worker() as worker:
        places = worker.slots.concurrency
        job_id, *_ = await client.submit(*(NewJob("steady") for _ in range(places)))

        async def reported() -> bool:
            return (await client.get(job_id)).progress == {"rows": 17}

        await eventually(reported)

        async def is_full() -> bool:
            return len(worker.slots) == places

        await eventually(is_full)
        # Kubernetes ends pods that are not ready first: a full worker stays ready.
        assert await worker.absences() == []
        end.set()
        await client.until(job_id, "completed")


async def test_health_fails_when_a_service_has_died(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.handle("noop", lambda *_: Outcome())
    async with site.worker() as worker:
        assert worker.problems() == []
        monkeypatch.setattr(worker._wake, "wait", _end)
        async with site.client() as client:
            await client.submit(NewJob("noop"))

        async def told() -> bool:
            return bool(worker.problems())

        await eventually(told)
        assert worker.problems() == ["claims died: Ended: as nothing that is foreseen does"]


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


async def test_a_worker_started_before_the_migration_works_after_it(
    empty_database_url: str,
) -> None:
    site = Site(empty_database_url)
    site.handle("noop", lambda *_: Outcome())
    polling = site.settings.wake.model_copy(update={"poll_seconds": 0.1})
    async with site.worker(wake=polling) as worker:

        async def troubled() -> bool:
            return "kalla migrate" in (worker._claims.error_message or "")

        await eventually(troubled)
        await migrate(site.settings.database)
        async with site.client() as client:
            (job_id,) = await client.submit(NewJob("noop"))
            await client.until(job_id, "completed")
        assert not worker.problems()


class Ended(BaseException):
    """Not an error of any row: only what ends a task."""


async def _end(*_: object) -> set[str]:
    raise Ended("as nothing that is foreseen does")
