"""Queues as a whole: depth and age for people and scalers, pause and resume."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from kalla.database import Connection
from kalla.statements import load
from kalla.work.state.job_insertion import Woken

sql = load("kalla.work.state", "queues.sql")


@dataclass(frozen=True)
class QueueRecord:
    """`depth` counts the jobs a worker could claim now."""

    queue: str
    depth: int = 0
    delayed: int = 0
    running: int = 0
    oldest_wait_seconds: float = 0.0
    paused_at: datetime | None = None
    paused_by: str | None = None


async def depths(connection: Connection, known: Iterable[str] = ()) -> list[QueueRecord]:
    """Every queue that has jobs or is `known`, by name."""
    found = {
        row["queue"]: QueueRecord(**row)
        for row in await (await connection.execute(sql.depths)).fetchall()
    }
    return [found.get(queue, QueueRecord(queue)) for queue in sorted({*found, *known})]


async def waiting(connection: Connection) -> Woken:
    """The number of waiting jobs of each queue that has any and is not paused."""
    rows = await (await connection.execute(sql.waiting)).fetchall()
    return Woken({row["queue"]: row["depth"] for row in rows})


async def pause(connection: Connection, queue: str, by: str) -> None:
    """Nothing of this queue is claimed until it is resumed; running jobs go on."""
    await connection.execute(sql.pause, {"queue": queue, "by": by})


async def resume(connection: Connection, queue: str) -> None:
    """Claims go on. The caller wakes the workers."""
    await connection.execute(sql.resume, {"queue": queue})


async def refresh_p95_seconds(connection: Connection) -> float:
    """How long the refreshes of the last hour took, 95th percentile."""
    (row,) = await (await connection.execute(sql.refresh_p95)).fetchall()
    return float(row["seconds"])
