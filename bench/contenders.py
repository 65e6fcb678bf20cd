"""Who runs in bench/jobs.py: Kalla woken by Postgres and by NATS, and procrastinate at its best."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import procrastinate
import psycopg
import uvloop
from pydantic import SecretStr

from kalla import logs
from kalla.database import Database, migrate
from kalla.local.servers.nats import Nats
from kalla.local.servers.postgres import Postgres
from kalla.settings import ROLES, Settings
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Log as LogSettings
from kalla.settings import Wake as WakeSettings
from kalla.settings import Worker as WorkerSettings
from kalla.work.handler import Context, Stateless
from kalla.work.job import Job, NewJob, Outcome
from kalla.work.job_type import JobType, JobTypes
from kalla.work.state import jobs as job_store
from kalla.work.wake import open_channel
from kalla.work.worker import Worker

_DEADLINE = 600.0
_BETWEEN = 0.02  # the pause before each latency sample: long enough for workers to fall idle


class Contender(ABC):
    """One way to run jobs: its worker processes, and a client that inserts."""

    name: str

    def __init__(self, url: str, nats_url: str = "") -> None:
        self.url = url
        self.nats_url = nats_url

    @abstractmethod
    async def open(self) -> None:
        """Make the tables and connect the client."""

    @abstractmethod
    async def close(self) -> None:
        """Let the client go."""

    @abstractmethod
    async def insert(self, count: int) -> None:
        """No-op jobs, in one batch."""

    @abstractmethod
    async def insert_stamped(self) -> None:
        """One job that carries the time just before its insert."""

    ready: str  # how many workers are there
    busy: str  # whether a job is open
    delays: str  # seconds from insert to start of the stamped jobs

    @asynccontextmanager
    async def workers(self, count: int) -> AsyncIterator[None]:
        """Worker processes, ended by pid."""
        environment = os.environ | {"BENCH_URL": self.url, "BENCH_NATS": self.nats_url}
        command = [sys.executable, "-m", "bench.contenders", self.name]
        started = [subprocess.Popen(command, env=environment) for _ in range(count)]
        try:
            await self._until(self.ready, count)
            yield
        finally:
            for process in started:
                process.send_signal(signal.SIGTERM)
            for process in started:
                process.wait(30)
            await self._until(self.ready, 0)

    async def until_idle(self) -> None:
        await self._until(self.busy, False)

    async def latencies(self, samples: int) -> list[float]:
        for _ in range(samples):
            await asyncio.sleep(_BETWEEN)
            await self.insert_stamped()
        await self.until_idle()
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            rows = await (await connection.execute(self.delays.encode())).fetchall()
        return [float(row[0]) for row in rows]

    async def _until(self, statement: str, wanted: object) -> None:
        deadline = time.monotonic() + _DEADLINE
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            while time.monotonic() < deadline:
                row = await (await connection.execute(statement.encode())).fetchone()
                if row is not None and row[0] == wanted:
                    return
                await asyncio.sleep(0.01)
        raise TimeoutError(f"{self.name}: {statement} did not become {wanted}")


class NoOp(Stateless):
    """Says when it began, for the latency; does nothing else."""

    def run(self, job: Job, context: Context) -> Outcome:
        return Outcome({"at": time.time()} if job.payload else None)


class Kalla(Contender):
    name = "kalla"
    ready = "SELECT count(*) FROM kalla.workers"
    busy = (
        "SELECT EXISTS (SELECT FROM kalla.jobs WHERE status = 'pending' AND due)"
        " OR EXISTS (SELECT FROM kalla.jobs WHERE status = 'claimed')"
    )
    delays = (
        "SELECT (result->>'at')::float8 - (payload->>'at')::float8"
        " FROM kalla.jobs WHERE result IS NOT NULL"
    )

    async def open(self) -> None:
        settings = self.settings()
        await migrate(settings.database)
        self._job_types = JobTypes(settings, [JobType("noop", "exec", NoOp())])
        self._database = Database(settings.database)
        await self._database.open()
        self._wake = open_channel(settings, self._database, ROLES)
        await self._wake.start()

    async def close(self) -> None:
        await self._wake.stop()
        await self._database.close()

    async def insert(self, count: int) -> None:
        await self._insert([NewJob("noop")] * count)

    async def insert_stamped(self) -> None:
        await self._insert([NewJob("noop", {"at": time.time()})])

    async def _insert(self, new: Sequence[NewJob]) -> None:
        async with self._database.transaction() as connection:
            inserted = await job_store.insert(connection, self._job_types, new)
        await self._wake.nudge(inserted.woken)

    def settings(self) -> Settings:
        return Settings(
            database=DatabaseSettings(url=SecretStr(self.url)),
            wake=WakeSettings(
                channel="nats" if self.nats_url else "postgres", nats_url=SecretStr(self.nats_url)
            ),
            worker=WorkerSettings(concurrency=200),
            log=LogSettings(level="warning"),
        )

    async def work(self) -> None:
        settings = self.settings()
        job_types = JobTypes(settings, [JobType("noop", "exec", NoOp())])
        async with Database(settings.database) as database:
            worker = Worker(settings, job_types, database, open_channel(settings, database, ROLES))
            await worker.start()
            await until_terminated()
            await worker.drain()


class KallaNats(Kalla):
    name = "kalla_nats"


class Procrastinate(Contender):
    """Async no-op tasks, batches by batch_defer, notifications on: its quickest way.

    Of a concurrency of 1, 5, 20 and 200 a worker, 20 was the fastest with four workers.
    """

    name = "procrastinate"
    ready = "SELECT count(*) FROM procrastinate_workers"
    busy = "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))"
    delays = "SELECT started - inserted FROM stamps"

    async def open(self) -> None:
        self._app = self.app()
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            await connection.execute("CREATE TABLE stamps (inserted float8, started float8)")

    async def close(self) -> None:
        await self._app.close_async()

    async def insert(self, count: int) -> None:
        await self._app.tasks["noop"].batch_defer_async(*[{} for _ in range(count)])

    async def insert_stamped(self) -> None:
        await self._app.tasks["stamped"].defer_async(at=time.time())

    def app(self) -> procrastinate.App:
        app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=self.url, max_size=20)
        )

        @app.task(name="noop")
        async def noop() -> None:
            """Nothing."""

        @app.task(name="stamped")
        async def stamped(at: float) -> None:
            started = time.time()
            await app.connector.execute_query_async(
                "INSERT INTO stamps VALUES (%(inserted)s, %(started)s)",
                inserted=at,
                started=started,
            )

        return app

    async def work(self) -> None:
        app = self.app()
        async with app.open_async():
            await app.run_worker_async(concurrency=20, install_signal_handlers=True)


async def until_terminated() -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await stopping.wait()


JOB_TYPES: tuple[type[Kalla | Procrastinate], ...] = (Kalla, KallaNats, Procrastinate)


def contenders(postgres: Postgres, nats: Nats) -> list[Contender]:
    """Each in a database of its own, on the one server."""
    made: list[Contender] = []
    for kind in JOB_TYPES:
        with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE bench_{kind.name}".encode())
        url = postgres.url(f"bench_{kind.name}")
        made.append(kind(url, nats.url if kind is KallaNats else ""))
    return made


if __name__ == "__main__":
    wanted = {kind.name: kind for kind in JOB_TYPES}[sys.argv[1]]
    contender = wanted(os.environ["BENCH_URL"], os.environ["BENCH_NATS"])
    logs.configure("warning", "text")
    uvloop.run(contender.work())
