"""Finds jobs whose worker fell silent or that overran, and runs past their total timeout."""

from __future__ import annotations

import time
from collections.abc import Callable

from kalla import logs
from kalla.database import AWAY, Connection, Database
from kalla.statements import load
from kalla.work import jobs as job_store
from kalla.work import runs
from kalla.work.duty import Periodic
from kalla.work.intake import Woken
from kalla.work.metrics import Metrics
from kalla.work.wake.channel import Wake

_log = logs.get(__name__)
sql = load("kalla.work", "runs.sql")

_BATCH = 500


class Reaper(Periodic):
    """Runs in every worker and in the API; whoever comes first does it, the others find nothing.

    After Postgres was away for long, all heartbeats are old though their workers live:
    `grace_seconds` give them time to be heard first. An absence of up to `tolerance_seconds` makes
    nobody look dead, and must not hold up the jobs of those who are.
    """

    def __init__(
        self,
        database: Database,
        wake: Wake,
        metrics: Metrics,
        interval: float,
        grace_seconds: float,
        tolerance_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("reaper", interval)
        self._database = database
        self._wake = wake
        self._metrics = metrics
        self._grace_seconds = grace_seconds
        self._tolerance_seconds = tolerance_seconds
        self._clock = clock
        self._heard: float | None = None  # when Postgres last answered this process
        self._missed = False
        self._patient_until = 0.0

    async def tick(self) -> None:
        try:
            if await self._may_judge():
                await self._judge()
                self._heard = self._clock()
        except AWAY:
            self._missed = True
            raise

    async def _may_judge(self) -> bool:
        age = await self._postgres_age()
        now = self._clock()
        if self._heard is None:  # new itself, it cannot know how long the others were not heard
            self._patient_until = now + self._grace_seconds - age
        else:
            unheard = now - self._heard
            if (
                self._missed or age < unheard
            ) and unheard > self.interval + self._tolerance_seconds:
                self._patient_until = now + self._grace_seconds
        self._heard, self._missed = now, False
        return now >= self._patient_until

    async def _judge(self) -> None:
        await self._reclaim()
        await self._end_exhausted()
        await self._end_late_runs()
        async with self._database.transaction() as connection:
            await job_store.stopped_with_worker(connection)

    async def _postgres_age(self) -> float:
        async with self._database.transaction() as connection:
            (row,) = await (await connection.execute(sql.postgres_age)).fetchall()
            return float(row["seconds"])

    async def _reclaim(self) -> None:
        while True:
            reclaimed = await self._database.retrying(lambda each: job_store.reap(each, _BATCH))
            for row in reclaimed:
                _log.warning("job reclaimed", **_facts(row))
            self._metrics.reclaimed.inc(len(reclaimed))
            # Trap 6: a reclaimed job waits for somebody who does not know it yet.
            await self._wake.nudge(job_store.waiting_in(reclaimed))
            if len(reclaimed) < _BATCH:
                return

    async def _end_exhausted(self) -> None:
        async with self._database.transaction() as connection:
            candidates = await job_store.exhausted(connection, _BATCH)
        for candidate in candidates:

            async def act(connection: Connection, row: dict[str, int] = candidate) -> Woken | None:
                return await job_store.end_exhausted(connection, **row)

            if (woken := await self._database.retrying(act)) is not None:
                _log.error("job failed: no attempt left", **_facts(candidate))
                self._metrics.reaper_failed.inc()
                await self._wake.nudge(woken)
                await self._wake.alarm()

    async def _end_late_runs(self) -> None:
        async with self._database.transaction() as connection:
            late = await runs.late(connection)
        for run_id in late:

            async def act(connection: Connection, run_id: int = run_id) -> bool:
                return await runs.end_late(connection, run_id)

            if await self._database.retrying(act):
                _log.error("run failed: total timeout", run=run_id)
                await self._wake.alarm()


def _facts(row: dict[str, object]) -> dict[str, object]:
    """For the log, whose own `worker` is the one that reaps."""
    names = {"job_id": "job", "run_id": "run", "worker": "lost_worker"}
    return {names.get(name, name): value for name, value in row.items()}
