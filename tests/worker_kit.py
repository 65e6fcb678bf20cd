"""A site for tests of the worker: a database, a wake channel, as many workers as wanted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pydantic import SecretStr

from kalla.database import Connection, Database
from kalla.settings import Database as DatabaseSettings
from kalla.settings import JobPolicy, Settings
from kalla.settings import Reaper as ReaperSettings
from kalla.settings import Wake as WakeSettings
from kalla.settings import Worker as WorkerSettings
from kalla.work.handler import Context, Handler, Stateless
from kalla.work.job import Job, JobRecord, NewJob, Outcome
from kalla.work.job_type import JobType, JobTypes
from kalla.work.state import jobs
from kalla.work.wake import open_channel
from kalla.work.wake.channel import Wake
from kalla.work.worker import Worker

Result = TypeVar("Result")
Run = Callable[[Job, Context], Outcome | None]

NEVER = 3600.0


class Calls(Stateless):
    """A handler that is one function."""

    def __init__(self, act: Run) -> None:
        self._act = act

    def run(self, job: Job, context: Context) -> Outcome:
        return self._act(job, context) or Outcome()


class Site:
    """A database, a channel, and as many workers as a test wants."""

    def __init__(self, url: str, nats_url: str | None = None) -> None:
        self.url = url
        self.settings = Settings(
            database=DatabaseSettings(url=SecretStr(url)),
            wake=WakeSettings(
                channel="nats" if nats_url else "postgres",
                nats_url=SecretStr(nats_url or "nats://127.0.0.1:1"),
                poll_seconds=NEVER,  # who is not woken, sleeps: a forgotten wake-up shows
            ),
            worker=WorkerSettings(concurrency=4, drain_seconds=0.2, stuck_seconds=0.3),
            jobs={
                "default": JobPolicy(
                    timeout_seconds=2, heartbeat_interval=0.2, backoff_seconds=0.05, max_attempts=3
                )
            },
            reaper=ReaperSettings(interval_seconds=0.2),
        )
        self.handlers: dict[str, Handler] = {}

    def handle(self, job_type: str, run: Run) -> None:
        self.handlers[job_type] = Calls(run)

    @property
    def job_types(self) -> JobTypes:
        return JobTypes(
            self.settings,
            [JobType(name, "exec", handler) for name, handler in self.handlers.items()],
        )

    @asynccontextmanager
    async def worker(self, **changes: Any) -> AsyncIterator[Worker]:
        settings = self.settings.model_copy(update=changes)
        async with Database(settings.database) as database:
            wake = open_channel(settings, database, ["exec", "stage"])
            worker = Worker(settings, self.job_types, database, wake)
            await worker.start()
            try:
                yield worker
            finally:
                await worker.drain()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with Database(self.settings.database) as database:
            wake = open_channel(self.settings, database, ["exec", "stage"])
            await wake.start()
            try:
                yield Client(self, database, wake)
            finally:
                await wake.stop()


class Client:
    def __init__(self, site: Site, database: Database, wake: Wake) -> None:
        self.site = site
        self.database = database
        self.wake = wake

    async def submit(self, *new: NewJob) -> list[int]:
        async with self.database.transaction() as connection:
            inserted = await jobs.insert(connection, self.site.job_types, new)
        await self.wake.nudge(inserted.woken)
        return list(inserted.job_ids)

    async def get(self, job_id: int) -> JobRecord:
        async with self.database.transaction() as connection:
            return await jobs.get(connection, job_id)

    async def until(self, job_id: int, *statuses: str, seconds: float = 15) -> JobRecord:
        async def ended() -> JobRecord | None:
            record = await self.get(job_id)
            return record if record.status in statuses else None

        return await eventually(ended, seconds)

    async def act(self, act: Callable[[Connection], Awaitable[Any]]) -> Any:
        async with self.database.transaction() as connection:
            return await act(connection)


async def eventually(look: Callable[[], Awaitable[Result | None]], seconds: float = 15) -> Result:
    deadline = time.monotonic() + seconds
    while not (found := await look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)
    return found
