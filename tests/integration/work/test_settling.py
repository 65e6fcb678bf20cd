"""What a worker's jobs come to: settled whole, once, or not at all."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from kalla.database import Connection
from kalla.work.handler import Context
from kalla.work.job import Job, JobRecord, NewJob, Outcome
from kalla.work.state import jobs, runs
from tests.work_kit import Clock
from tests.worker_kit import NEVER, Site, eventually


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
                site.job_types,
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


def _chunk(number: int) -> NewJob:
    return NewJob("chunk", {"n": number}, gate="staged")


async def _fetch(connection: Connection, statement: str) -> list[dict[str, Any]]:
    return await (await connection.execute(statement.encode())).fetchall()
