"""A site for tests of runs: the API, a worker with every room's handlers, a real Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import SecretStr

from kalla.app.api import create_app
from kalla.app.job_types import job_types as all_job_types
from kalla.database import Database
from kalla.reconcile.runs.run_completion import Conclusions
from kalla.settings import Database as DatabaseSettings
from kalla.settings import JobPolicy, Matching, Reaper, Settings, Staging, Storage, Wake
from kalla.settings import Spark as SparkSettings
from kalla.settings import Worker as WorkerSettings
from kalla.spark.session import SparkSessions
from kalla.web.tokens import tokens
from kalla.work.job_type import JobTypes
from kalla.work.wake import open_channel
from kalla.work.worker import Worker
from tests.servers import SparkServer
from tests.worker_kit import eventually

ROWS = 1_000
SIGNING_KEY = "a key for tests"


@dataclass
class RunsSite:
    settings: Settings
    job_types: JobTypes
    database: Database
    client: httpx.AsyncClient  # of an admin

    async def post(self, path: str, body: Any = None, status: int = 201) -> Any:
        answer = await self.client.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self.client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def until(self, run_id: int, *statuses: str, seconds: float = 120) -> Any:
        """The run, once it is in one of these states and that is concluded."""

        async def look() -> Any:
            run = await self.get(f"/api/runs/{run_id}")
            (row,) = await self.rows(
                "SELECT status FROM kalla.reconciliations WHERE run_id = %s", run_id
            )
            return run if run["status"] in statuses and row["status"] in statuses else None

        return await eventually(look, seconds)

    async def rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        async with self.database.transaction() as connection:
            return await (await connection.execute(statement.encode(), values)).fetchall()

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Worker]:
        async with Database(self.settings.database) as database:
            wake = open_channel(self.settings, database, ["exec", "stage"])
            services = [Conclusions(database, self.job_types, wake)]
            worker = Worker(self.settings, self.job_types, database, wake, services=services)
            await worker.start()
            try:
                yield worker
            finally:
                await worker.drain()


def spark_settings(server: SparkServer) -> SparkSettings:
    return SparkSettings(remote=server.remote, token=SecretStr(server.token))


@asynccontextmanager
async def open_runs(
    url: str,
    server: SparkServer,
    spark: SparkSessions,
    folder: Path,
    storage: Storage | None = None,
) -> AsyncIterator[RunsSite]:
    """`spark` is a session to share: a new one has Python workers to start."""
    settings = Settings(
        data_dir=folder,
        database=DatabaseSettings(url=SecretStr(url)),
        wake=Wake(channel="postgres", poll_seconds=1),
        worker=WorkerSettings(concurrency=4, drain_seconds=0.2),
        jobs={
            "default": JobPolicy(timeout_seconds=20, heartbeat_interval=0.5, backoff_seconds=0.1)
        },
        reaper=Reaper(interval_seconds=0.5),
        spark=spark_settings(server),
        storage=storage or Storage(),
        staging=Staging(chunk_threshold_rows=300),
        matching=Matching(memory="500MB", threads=1),
    )
    job_types = all_job_types(settings, spark)
    database = Database(settings.database)
    wake = open_channel(settings, database, ["exec", "stage"])
    app = create_app(settings, job_types, database, wake)
    async with app.router.lifespan_context(app):
        async with database.transaction() as connection:
            token = await tokens.create(connection, "admin", "admin")
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://kalla.test",
            headers={"Authorization": f"Bearer {token}"},
        ) as client:
            yield RunsSite(settings, job_types, database, client)


async def furnish(site: RunsSite, bank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a table and a folder of files, and set the secrets they need."""
    lines = [f"{n},INV-{n},{n}.00" for n in range(1, ROWS + 1)]
    files = site.settings.data_dir.parent / "files"
    await asyncio.to_thread(files.mkdir)
    (files / "invoices.csv").write_text("\n".join(["id,ref,amount", *lines]) + "\n")
    parts = urlsplit(bank)
    monkeypatch.setenv("KALLA_SECRET_BANK", parts.password or "")
    monkeypatch.setenv("KALLA_SECRET_HOOK", SIGNING_KEY)
    table = {
        "uri": f"postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}",
        "table": "public.payments",
        "password": "secret://bank",
        "primary_key": ["id"],
    }
    await site.post("/api/sources", {"name": "payments", "source": table})
    await site.post("/api/sources", {"name": "files", "source": {"uri": str(files)}})


def recipe(site: RunsSite, **right: Any) -> dict[str, Any]:
    file = str(site.settings.data_dir.parent / "files" / "invoices.csv")
    return {
        "name": "invoices and payments",
        "parameters": {"slack": {"type": "number", "default": 0}},
        "sources": {
            "left": {"uri": file, "primary_key": ["id"], "amount": "amount"},
            "right": {"uri": "source://payments", "primary_key": ["id"], "amount": "amount"}
            | right,
        },
        "rules": [
            {
                "name": "by reference",
                "conditions": [
                    {"left": "ref", "op": "eq", "right": "ref"},
                    {
                        "left": "amount",
                        "op": "tolerance",
                        "right": "amount",
                        "absolute": "${slack}",
                    },
                ],
            }
        ],
    }
