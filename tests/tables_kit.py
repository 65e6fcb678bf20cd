"""A site for tests of dynamic tables: the API, a worker with the scheduler, a real Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kalla.database import Database
from kalla.tables.incremental.changes import placed
from kalla.tables.refresh.views import Views
from kalla.tables.schedule.scheduler import TableScheduler
from kalla.tables.sources.snapshots import Pin, frame
from kalla.work.wake import open_channel
from kalla.work.worker import Worker
from tests.runs_kit import RunsSite
from tests.worker_kit import eventually


def recomputed(spark: Any, query: str, inputs: Mapping[str, Pin]) -> pa.Table:
    """The rows of a query at the given versions."""
    views = Views(spark)
    names = {name: views.add(frame(spark, pin)) for name, pin in inputs.items()}
    return pa.table(views.sql(placed(query, names)).toArrow())


@dataclass
class TablesSite:
    runs: RunsSite

    async def apply(self, sql: str, status: int = 200) -> Any:
        return await self.runs.post("/api/tables/apply", {"sql": sql}, status)

    async def table(self, name: str) -> Any:
        return await self.runs.get(f"/api/tables/{name}")

    async def history(self, name: str) -> Any:
        return await self.runs.get(f"/api/tables/{name}/history")

    async def refreshed(self, name: str, seconds: float = 60) -> Any:
        """The table, once rows are newer than this call."""
        (row,) = await self.runs.rows("SELECT kalla.clock() AS now")

        async def look() -> Any:
            rows = await self.runs.rows(
                "SELECT 1 FROM kalla.dynamic_tables WHERE name = %s AND data_time > %s",
                name,
                row["now"],
            )
            return await self.table(name) if rows else None

        return await eventually(look, seconds)

    async def result(self, job_id: int) -> Any:
        async def look() -> Any:
            job = await self.runs.get(f"/api/jobs/{job_id}")
            assert job["status"] not in ("failed", "cancelled"), job["error"]
            return job["result"] if job["status"] == "completed" else None

        return await eventually(look, 60)

    async def audit(self, name: str) -> Any:
        answer = await self.runs.post(f"/api/tables/{name}/audit", status=202)
        return await self.result(answer["job_id"])

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Worker]:
        settings, job_types = self.runs.settings, self.runs.job_types
        async with Database(settings.database) as database:
            wake = open_channel(settings, database, ["refresh"])
            services = [TableScheduler(settings, database, job_types, wake)]
            worker = Worker(settings, job_types, database, wake, services=services)
            await worker.start()
            try:
                yield worker
            finally:
                await worker.drain()
