"""The registered workers, for people to see."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from kalla.database import Connection
from kalla.statements import load

sql = load("kalla.work.state", "presence.sql")

_SILENT_SECONDS = 15


@dataclass(frozen=True)
class WorkerRecord:
    worker: str
    host: str
    pid: int
    address: str
    roles: list[str]
    concurrency: int
    active: int
    version: str
    started_at: datetime
    seen_at: datetime
    draining: bool
    silent_seconds: float

    @property
    def state(self) -> Literal["working", "idle", "draining", "silent"]:
        if self.silent_seconds > _SILENT_SECONDS:
            return "silent"
        if self.draining:
            return "draining"
        return "working" if self.active else "idle"


@dataclass(frozen=True)
class Announcement:
    """What a worker reports with every heartbeat."""

    worker: str
    host: str
    pid: int
    address: str
    roles: list[str]
    concurrency: int
    active: int
    version: str
    draining: bool


async def announce(connection: Connection, announcement: Announcement) -> None:
    await connection.execute(sql.announce, vars(announcement))


async def leave(connection: Connection, worker: str) -> None:
    await connection.execute(sql.leave, {"worker": worker})


async def workers(connection: Connection) -> list[WorkerRecord]:
    return [WorkerRecord(**row) for row in await (await connection.execute(sql.list)).fetchall()]


async def forget(connection: Connection, seconds: float) -> None:
    """Remove workers that were not seen for so long."""
    await connection.execute(sql.forget, {"seconds": seconds})
