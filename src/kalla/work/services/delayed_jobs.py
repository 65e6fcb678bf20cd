"""Moves delayed jobs to waiting when they are due, and wakes a worker for them."""

from __future__ import annotations

from kalla.database import Database
from kalla.work.service import Periodic
from kalla.work.state import jobs as job_store
from kalla.work.wake.channel import Wake

_BATCH = 1000
_SHORTEST_PAUSE = 0.05  # a job that is due but locked must not make it spin


class Scheduler(Periodic):
    def __init__(self, database: Database, wake: Wake, interval: float) -> None:
        super().__init__("scheduler", interval)
        self._database = database
        self._wake = wake

    async def tick(self) -> float | None:
        async with self._database.transaction() as connection:
            woken = await job_store.promote(connection, _BATCH)
            seconds = await job_store.next_due_seconds(connection)
        await self._wake.nudge(woken)
        if woken.total() == _BATCH:
            return 0.0
        return None if seconds is None else max(seconds, _SHORTEST_PAUSE)
