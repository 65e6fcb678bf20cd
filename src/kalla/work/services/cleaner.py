"""Removes what has been kept long enough."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from kalla.database import Connection, Database
from kalla.settings import Retention
from kalla.work import jobs as job_store
from kalla.work import presence, runs
from kalla.work.service import Periodic

_BATCH = 1000
_WORKER_SECONDS = 3600

Sweep = Callable[[Connection, Retention], Awaitable[None]]


class Cleaner(Periodic):
    """In small transactions, so that nobody waits for it. `sweeps` are those of other rooms."""

    def __init__(
        self, database: Database, retention: Retention, sweeps: Sequence[Sweep] = ()
    ) -> None:
        super().__init__("cleaner", retention.interval_seconds)
        self._database = database
        self._retention = retention
        self._sweeps = sweeps

    async def tick(self) -> float | None:
        seconds = self._retention.finished_seconds
        async with self._database.transaction() as connection:
            swept = await job_store.sweep(connection, seconds, _BATCH)
        async with self._database.transaction() as connection:
            swept_runs = await runs.sweep(connection, seconds)
        async with self._database.transaction() as connection:
            await presence.forget(connection, _WORKER_SECONDS)
        for sweep in self._sweeps:
            async with self._database.transaction() as connection:
                await sweep(connection, self._retention)
        return 0.0 if swept == _BATCH or swept_runs else None
