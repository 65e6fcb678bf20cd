"""`kalla autoscale` with real worker processes: up with the demand, down when idle."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil
import pytest
import pytest_asyncio
from pydantic import SecretStr

from kalla.app.job_types import job_types
from kalla.database import Database
from kalla.errors import StartFailed
from kalla.local.autoscaler import Autoscaler
from kalla.scaling import store
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Scaling, Settings, Wake, Worker
from kalla.spark.session import SparkSessions
from kalla.work.job import NewJob
from kalla.work.state import jobs, presence
from kalla.work.state.presence import Announcement
from tests.servers import PostgresServer

pytestmark = pytest.mark.timeout(240)


@pytest_asyncio.fixture
async def scaler(
    postgres_server: PostgresServer,
    migrated_template: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[Autoscaler, Database, Settings]]:
    name = postgres_server.create(migrated_template)
    url = postgres_server.url(name)
    for variable, value in {
        "KALLA_DATABASE_URL": url,
        "KALLA_WAKE_CHANNEL": "postgres",
        "KALLA_WORKER_CONCURRENCY": "1",
        "KALLA_WORKER_DRAIN_SECONDS": "5",
    }.items():
        monkeypatch.setenv(variable, value)
    settings = Settings(
        data_dir=tmp_path,
        database=DatabaseSettings(url=SecretStr(url)),
        wake=Wake(channel="postgres"),
        worker=Worker(concurrency=1, roles=("exec",), drain_seconds=5),
        scaling=Scaling(max_workers=2, scale_down_after_seconds=0.1, utilisation=1),
    )
    try:
        async with Database(settings.database) as database:
            autoscaler = Autoscaler(settings, database)
            try:
                yield autoscaler, database, settings
            finally:
                await autoscaler.stop()
    finally:
        postgres_server.drop(name)


async def test_workers_come_with_the_demand_and_go_when_idle_and_no_job_is_lost(
    scaler: tuple[Autoscaler, Database, Settings],
) -> None:
    autoscaler, database, settings = scaler
    assert (await autoscaler.step()).desired == 0
    known = job_types(settings, SparkSessions(settings.spark))
    async with database.transaction() as connection:
        new = [NewJob("probe", {"sleep": 1}, max_attempts=1) for _ in range(4)]
        job_ids = (await jobs.insert(connection, known, new)).job_ids
    await autoscaler.step()
    await eventually(lambda: len(autoscaler.pids) == 2, "two workers start")
    pids = autoscaler.pids

    async def statuses() -> list[str]:
        async with database.transaction() as connection:
            return [(await jobs.get(connection, job_id)).status for job_id in job_ids]

    deadline = asyncio.get_running_loop().time() + 60
    while set(found := await statuses()) != {"completed"}:
        assert asyncio.get_running_loop().time() < deadline, found
        assert set(pids) <= set(autoscaler.pids), "a busy worker was asked to stop"
        await asyncio.sleep(0.05)
    while autoscaler.pids:
        assert asyncio.get_running_loop().time() < deadline, "idle workers stay"
        await autoscaler.step()
        await asyncio.sleep(0.05)
    await autoscaler.stop()
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


async def test_a_killed_worker_is_replaced(
    scaler: tuple[Autoscaler, Database, Settings],
) -> None:
    autoscaler, database, settings = scaler
    known = job_types(settings, SparkSessions(settings.spark))
    async with database.transaction() as connection:
        await jobs.insert(connection, known, [NewJob("probe", {"sleep": 60})])
    await autoscaler.step()
    await eventually(lambda: autoscaler.pids, "a worker starts")
    (killed,) = autoscaler.pids
    os.kill(killed, 9)
    deadline = asyncio.get_running_loop().time() + 30
    while autoscaler.pids in ([killed], []):
        assert asyncio.get_running_loop().time() < deadline, "no other worker was started"
        await autoscaler.step()
        await asyncio.sleep(0.05)
    assert len(autoscaler.pids) == 1


class FakeWorker:
    """Stands in for a worker process: it starts at once unless the test holds it back, and ends
    when the test says so."""

    made: ClassVar[list[FakeWorker]] = []
    may_start: ClassVar[threading.Event] = threading.Event()

    def __init__(self, name: str, *_: object, **__: object) -> None:
        self.name = name
        self.process: SimpleNamespace | None = None
        self.running = self.is_healthy = True
        self.asked = False
        self.may_end = threading.Event()
        self.made.append(self)
        self._pid = 10_000_000 + len(self.made)

    def start(self, abandoned: Callable[[], bool]) -> None:
        while not self.may_start.wait(0.02):
            if abandoned():
                raise StartFailed("it was stopped before it was ready")
        self.process = SimpleNamespace(pid=self._pid)

    def ask_to_stop(self) -> None:
        self.asked = True

    def stop(self) -> None:
        self.may_end.wait(60)

    def probe(self) -> bool:
        return self.is_healthy

    def ending(self) -> str:
        return "ended (exit code 3)"


@dataclass
class FakeScene:
    """A scaler of fake workers on a real database. Worker number 0 is the oldest."""

    autoscaler: Autoscaler
    database: Database
    settings: Settings

    async def with_workers(self, number: int) -> list[FakeWorker]:
        """So many workers that have started, and announced themselves as idle."""
        await self.submit(number)
        await self.autoscaler.step()
        await eventually(lambda: len(self.autoscaler.pids) == number, "the workers start")
        await self.execute("DELETE FROM kalla.jobs")
        for index, pid in enumerate(self.autoscaler.pids):
            name, host = f"worker-{index}", self.autoscaler.pool
            one = Announcement(name, host, pid, "", ["exec"], 1, 0, "0", draining=False)
            async with self.database.transaction() as connection:
                await presence.announce(connection, one)
        return list(FakeWorker.made)

    async def submit(self, number: int, claimed_by: str | None = None) -> None:
        known = job_types(self.settings, SparkSessions(self.settings.spark))
        async with self.database.transaction() as connection:
            await jobs.insert(connection, known, [NewJob("probe") for _ in range(number)])
            if claimed_by:
                await jobs.claim(connection, "exec", ["probe"], claimed_by, number)

    async def execute(self, statement: str) -> None:
        async with self.database.transaction() as connection:
            await connection.execute(statement.encode())

    async def step_until(self, desired: int) -> None:
        deadline = asyncio.get_running_loop().time() + 30
        while (await self.autoscaler.step()).desired != desired:
            assert asyncio.get_running_loop().time() < deadline, f"{desired} workers are not wanted"
            await asyncio.sleep(0.02)

    async def step_until_asked(self, worker: FakeWorker) -> None:
        async def step() -> bool:
            await self.autoscaler.step()
            return worker.asked

        deadline = asyncio.get_running_loop().time() + 30
        while not await step():
            assert asyncio.get_running_loop().time() < deadline, "no worker was asked to stop"
            await asyncio.sleep(0.02)


async def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + 30
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0.01)


@pytest_asyncio.fixture
async def scene(
    scaler: tuple[Autoscaler, Database, Settings], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[FakeScene]:
    _, database, settings = scaler
    FakeWorker.made.clear()
    FakeWorker.may_start.set()
    monkeypatch.setattr("kalla.local.autoscaler.Program", FakeWorker)
    monkeypatch.setattr("kalla.local.machine_limits.cores", lambda _root: 16)
    monkeypatch.setattr("kalla.local.autoscaler.FIRST_PAUSE", 3600.0)
    many = settings.model_copy(
        update={"scaling": settings.scaling.model_copy(update={"max_workers": 30})}
    )
    autoscaler = Autoscaler(many, database)
    try:
        yield FakeScene(autoscaler, database, many)
    finally:
        for worker in FakeWorker.made:
            worker.may_end.set()
        await autoscaler.stop()


async def test_every_worker_is_asked_to_stop_at_once_however_long_each_takes(
    scene: FakeScene,
) -> None:
    workers = await scene.with_workers(12)
    stopping = asyncio.create_task(scene.autoscaler.stop())
    await eventually(lambda: all(worker.asked for worker in workers), "all are asked to stop")
    for worker in workers:
        worker.may_end.set()
    await stopping
    assert scene.autoscaler.pids == []


async def test_a_worker_that_has_just_claimed_a_job_is_not_drained_as_idle(
    scene: FakeScene,
) -> None:
    older, newer = await scene.with_workers(2)
    # It announces itself a few seconds later.
    await scene.submit(1, claimed_by="worker-1")
    await scene.step_until_asked(older)
    assert not newer.asked


async def test_a_worker_stays_until_the_one_that_is_still_starting_has_started(
    scene: FakeScene,
) -> None:
    (older,) = await scene.with_workers(1)
    FakeWorker.may_start.clear()
    await scene.submit(2)
    await scene.step_until(2)
    assert len(FakeWorker.made) == 2
    await scene.execute(
        "DELETE FROM kalla.jobs WHERE job_id = (SELECT min(job_id) FROM kalla.jobs)"
    )
    await scene.step_until(1)
    assert not older.asked, "the only worker that could take the job was drained"
    FakeWorker.may_start.set()
    await scene.step_until_asked(older)


async def test_of_idle_workers_the_one_without_slots_of_sinks_goes_first(scene: FakeScene) -> None:
    older, _ = await scene.with_workers(2)
    await scene.execute(
        "INSERT INTO kalla.leases (resource, slot, epoch, holder, until)"
        " VALUES ('sink/orders', 0, 1, 'worker-1', kalla.clock() + interval '1 minute')"
    )
    await scene.step_until_asked(older)


async def test_jobs_that_run_on_another_machine_need_no_worker_here(scene: FakeScene) -> None:
    await scene.submit(40, claimed_by="elsewhere")
    assert (await scene.autoscaler.step()).needed == 0
    await scene.submit(3)
    decision = await scene.autoscaler.step()
    assert (decision.inputs.waiting, decision.inputs.running, decision.needed) == (3, 0, 3)


async def test_a_worker_that_ends_soon_after_its_start_is_not_replaced_at_once(
    scene: FakeScene,
) -> None:
    (worker,) = await scene.with_workers(1)
    worker.running = False
    await scene.submit(1)
    await scene.autoscaler.step()
    assert FakeWorker.made == [worker]


async def test_a_worker_that_fails_its_health_checks_is_replaced(
    scene: FakeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kalla.local.autoscaler.HEALTH_SECONDS", 0.0)
    sick, well = await scene.with_workers(2)
    await scene.submit(1, claimed_by="worker-0")
    await scene.submit(1, claimed_by="worker-1")
    sick.is_healthy = False
    await scene.step_until_asked(sick)
    assert not well.asked


async def test_an_unexpected_error_does_not_end_the_scaler(
    scene: FakeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    (worker,) = await scene.with_workers(1)
    failures = iter([OSError("Cannot fork"), RuntimeError("new"), RuntimeError("new")])

    async def decide(*_: Any) -> None:
        raise next(failures)

    monkeypatch.setattr(store, "decide", decide)
    waits = 0

    async def wait(_seconds: float) -> bool:
        nonlocal waits
        waits += 1
        assert not worker.asked
        if waits == 3:
            worker.may_end.set()
        return waits == 3

    await scene.autoscaler.run(wait)
    assert worker.asked
