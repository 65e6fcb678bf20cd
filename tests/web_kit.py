"""A site for tests of the web rooms: the app on a real database, a token of every role."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from pydantic import SecretStr

from kalla.app.api import create_app
from kalla.app.job_types import job_types as all_job_types
from kalla.app.serving import address_of, bind, serving
from kalla.database import Database
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Query, Settings, Storage
from kalla.spark.session import SparkSessions
from kalla.web.tokens import tokens
from kalla.web.tokens.tokens import ROLES, Role
from kalla.work.job import Job, NewJob
from kalla.work.job_type import JobTypes
from kalla.work.state import jobs

PAGE = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@dataclass
class Bell:
    """A wake channel that only remembers who was woken."""

    nudges: Counter[str] = field(default_factory=Counter)
    alarms: int = 0
    error_message: str | None = None

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def nudge(self, waiting: Mapping[str, int]) -> None:
        self.nudges.update(waiting)

    async def wait(self, queues: Sequence[str], timeout: float) -> set[str]:
        await asyncio.sleep(timeout)
        return set()

    async def claimed(self, claims: Mapping[str, int]) -> None: ...

    async def alarm(self) -> None:
        self.alarms += 1

    async def alarmed(self) -> None:
        await asyncio.Event().wait()

    async def depth(self) -> Mapping[str, int]:
        return {}

    async def settle(self, waiting: Mapping[str, int]) -> None: ...


@dataclass
class Site:
    app: FastAPI
    settings: Settings
    job_types: JobTypes
    database: Database
    bell: Bell
    tokens: dict[Role, str]
    query_workers: list[Any] = field(default_factory=list)  # those that serve its queries

    def client(
        self, role: Role | None = None, base: str = "http://kalla.test"
    ) -> httpx.AsyncClient:
        """A caller of the app, in this process; None has no token."""
        headers = {"Authorization": f"Bearer {self.tokens[role]}"} if role else {}
        transport = httpx.ASGITransport(self.app)
        return httpx.AsyncClient(transport=transport, base_url=base, headers=headers)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """The app on a port, for what needs a real connection: its address."""
        listener = bind("127.0.0.1", 0, "api.port")
        address = address_of(listener)
        async with serving(self.app, listener):
            yield f"http://{address}"
            self.app.state.kalla.live.close()

    async def submit(self, *new: NewJob) -> list[int]:
        """Past the API, as a room does it."""
        async with self.database.transaction() as connection:
            return list((await jobs.insert(connection, self.job_types, new)).job_ids)

    async def claim(self, limit: int = 10) -> list[Job]:
        async with self.database.transaction() as connection:
            return await jobs.claim(connection, "exec", ["probe"], "worker-1", limit)

    async def count(self) -> int:
        return int((await self.one("SELECT count(*) AS n FROM kalla.jobs"))["n"])

    async def empty(self) -> None:
        work = ("jobs", "runs", "queues", "workers", "tokens", "idempotency", "login_links")
        mine = (
            "uploads",
            "secrets",
            "sources",
            "recipes",
            "destinations",
            "reconciliations",
            "schedules",
        )
        for table in (*work, *mine):
            await self.execute(f"DELETE FROM kalla.{table}")

    async def one(self, statement: str, *values: Any) -> dict[str, Any]:
        async with self.database.transaction() as connection:
            (row,) = await (await connection.execute(statement.encode(), values)).fetchall()
        return row

    async def execute(self, statement: str, *values: Any) -> None:
        async with self.database.transaction() as connection:
            await connection.execute(statement.encode(), values)


@asynccontextmanager
async def open_site(url: str, metrics: Path | None = None) -> AsyncIterator[Site]:
    """The app on a migrated database, which is emptied first; metrics are kept in that folder."""
    async with unready_site(url, patience=10, metrics=metrics) as site:
        await site.empty()
        async with site.database.transaction() as connection:
            for role in ROLES:
                site.tokens[role] = await tokens.create(connection, role, role)
        yield site


@asynccontextmanager
async def unready_site(
    url: str, patience: float = 1, metrics: Path | None = None
) -> AsyncIterator[Site]:
    """The app as it is started, whatever is at that address."""
    settings = Settings(
        database=DatabaseSettings(url=SecretStr(url), connect_timeout=patience),
        storage=Storage(metrics=str(metrics or "")),
        query=Query(workers=""),
    )
    job_types = all_job_types(settings, SparkSessions(settings.spark))
    database = Database(settings.database)
    bell = Bell()
    app = create_app(settings, job_types, database, bell)
    async with app.router.lifespan_context(app):
        yield Site(app, settings, job_types, database, bell, {})


async def until(condition: Any, what: str, seconds: float = 10) -> Any:
    """The first true answer of an async condition; fails with `what` was awaited in vain."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not (found := await condition()):
        assert asyncio.get_running_loop().time() < deadline, f"waited {seconds:g} s in vain: {what}"
        await asyncio.sleep(0.02)
    return found
