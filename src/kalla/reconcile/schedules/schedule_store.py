"""Stores schedules: create, list, pause, find due ones, and record each time once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from kalla.database import Connection
from kalla.errors import NotFound
from kalla.reconcile.schedules import cron_times
from kalla.settings import Retention
from kalla.statements import load

sql = load("kalla.reconcile.schedules", "schedule_store.sql")

_KEPT_SECONDS = 90 * 86400.0

Missed = Literal["once", "skip"]


@dataclass(frozen=True)
class NewSchedule:
    recipe_id: str
    cron: str
    time_zone: str
    missed: Missed
    notify_url: str | None
    notify_above: int | None


@dataclass(frozen=True)
class Schedule(NewSchedule):
    """A recipe that runs at certain times, with the result of the last one."""

    schedule_id: int
    is_paused: bool
    next_at: datetime
    created_at: datetime
    created_by: str
    last_due_at: datetime | None
    last_run_id: int | None
    last_note: str | None


@dataclass(frozen=True)
class Due(NewSchedule):
    """A schedule whose time has come; `now` is the database's clock."""

    schedule_id: int
    next_at: datetime
    created_by: str
    now: datetime


async def create(connection: Connection, new: NewSchedule, by: str) -> Schedule:
    cron_times.checked(new.cron, new.time_zone)
    next_at = cron_times.next_time(new.cron, new.time_zone, await _now(connection))
    found = await connection.execute(sql.create, vars(new) | {"next_at": next_at, "by": by})
    row = await found.fetchone()
    assert row is not None  # noqa: S101 - RETURNING
    return await get(connection, row["schedule_id"])


async def listing(connection: Connection, recipe_id: str | None) -> list[Schedule]:
    given = {"recipe_id": recipe_id, "schedule_id": None}
    return [Schedule(**row) async for row in await connection.execute(sql.listing, given)]


async def get(connection: Connection, schedule_id: int) -> Schedule:
    given = {"recipe_id": None, "schedule_id": schedule_id}
    row = await (await connection.execute(sql.listing, given)).fetchone()
    if row is None:
        raise NotFound(f"there is no schedule {schedule_id}")
    return Schedule(**row)


async def pause(connection: Connection, schedule_id: int, is_paused: bool) -> Schedule:
    """Times that come while it is paused are not missed: it goes on with the next one."""
    found = await get(connection, schedule_id)
    next_at = None
    if not is_paused and found.is_paused:
        next_at = cron_times.next_time(found.cron, found.time_zone, await _now(connection))
    given = {"schedule_id": schedule_id, "is_paused": is_paused, "next_at": next_at}
    await connection.execute(sql.pause, given)
    return await get(connection, schedule_id)


async def remove(connection: Connection, schedule_id: int) -> None:
    await get(connection, schedule_id)
    await connection.execute(sql.remove, {"schedule_id": schedule_id})


async def due(connection: Connection, without: Collection[int]) -> Due | None:
    row = await (await connection.execute(sql.due, {"without": list(without)})).fetchone()
    return None if row is None else Due(**row)


async def running(connection: Connection, schedule_id: int) -> int | None:
    row = await (await connection.execute(sql.running, {"schedule_id": schedule_id})).fetchone()
    return None if row is None else row["run_id"]


async def handled(
    connection: Connection, one: Due, due_at: datetime, run_id: int | None, note: str | None
) -> None:
    """Records the result of a time and sets the next one; without a next one the schedule is
    paused.
    """
    await connection.execute(
        sql.handled,
        {"schedule_id": one.schedule_id, "due_at": due_at, "run_id": run_id, "note": note},
    )
    following = cron_times.next_time(one.cron, one.time_zone, max(one.now, due_at))
    await connection.execute(
        sql.advance,
        {
            "schedule_id": one.schedule_id,
            "next_at": following or one.next_at,
            "is_paused": following is None,
        },
    )


async def sweep(connection: Connection, retention: Retention) -> None:  # noqa: ARG001
    """Removes results of old times; their runs are kept separately."""
    await connection.execute(sql.forget, {"seconds": _KEPT_SECONDS})


async def _now(connection: Connection) -> datetime:
    row = await (await connection.execute(sql.clock)).fetchone()
    assert row is not None  # noqa: S101 - it has no table
    now: datetime = row["now"]
    return now
