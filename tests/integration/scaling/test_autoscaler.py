"""`kalla autoscale` with real worker processes: up with the demand, down when idle."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from pydantic import SecretStr

from kalla.app.job_types import job_types
from kalla.database import Database
from kalla.local.autoscaler import Autoscaler
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Scaling, Settings, Wake, Worker
from kalla.spark.session import SparkSessions
from kalla.work.job import NewJob
from kalla.work.state import jobs
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
    pids = autoscaler.pids
    assert len(pids) == 2

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
    (killed,) = autoscaler.pids
    os.kill(killed, 9)
    deadline = asyncio.get_running_loop().time() + 30
    while autoscaler.pids in ([killed], []):
        assert asyncio.get_running_loop().time() < deadline, "no other worker was started"
        await autoscaler.step()
        await asyncio.sleep(0.05)
    assert len(autoscaler.pids) == 1
