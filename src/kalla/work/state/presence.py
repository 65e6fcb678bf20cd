"""The registered workers, for people to see."""

from __future__ import annotations

from collections.abc import Sequence
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
class Member:
    """A live worker of one machine, and what it has at this moment by Postgres, not by its last
    announcement, which may be seconds old.
    """

    pid: int
    concurrency: int
    jobs: int
    slots: int  # of sinks


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


async def members(connection: Connection, host: str, pids: Sequence[int]) -> list[Member]:
    """The live workers among these processes of a machine."""
    which = {"host": host, "pids": list(pids), "silent": _SILENT_SECONDS}
    return [
        Member(**row) for row in await (await connection.execute(sql.members, which)).fetchall()
    ]


async def forget(connection: Connection, seconds: float) -> None:
    """Removes workers without a heartbeat for this long."""
    await connection.execute(sql.forget, {"seconds": seconds})
