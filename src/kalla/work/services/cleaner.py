"""Removes rows after their retention time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from kalla.database import Connection, Database
from kalla.settings import Retention
from kalla.work.service import Periodic, each_step
from kalla.work.state import jobs as job_store
from kalla.work.state import presence, runs

_BATCH = 1000
_WORKER_SECONDS = 3600

Sweep = Callable[[Connection, Retention], Awaitable[None]]


class Cleaner(Periodic):
    """Works in small transactions, so that nobody waits for it. `sweeps` belong to other rooms."""

    def __init__(
        self, database: Database, retention: Retention, sweeps: Sequence[Sweep] = ()
    ) -> None:
        super().__init__("cleaner", retention.interval_seconds)
        self._database = database
        self._retention = retention
        self._sweeps = sweeps
        self._more = False  # than one look removes

    async def tick(self) -> float | None:
        self._more = False
        steps = (self._jobs, self._runs, self._workers)
        await each_step([*steps, *(partial(self._other, sweep) for sweep in self._sweeps)])
        return 0.0 if self._more else None

    async def _jobs(self) -> None:
        async with self._database.transaction() as connection:
            swept = await job_store.sweep(connection, self._retention.finished_seconds, _BATCH)
        self._more |= swept == _BATCH

    async def _runs(self) -> None:
        async with self._database.transaction() as connection:
            swept = await runs.sweep(connection, self._retention.finished_seconds)
        self._more |= swept > 0

    async def _workers(self) -> None:
        async with self._database.transaction() as connection:
            await presence.forget(connection, _WORKER_SECONDS)

    async def _other(self, sweep: Sweep) -> None:
        async with self._database.transaction() as connection:
            await sweep(connection, self._retention)
