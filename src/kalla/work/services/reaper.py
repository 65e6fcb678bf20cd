"""Finds jobs with a silent worker or an exceeded timeout, and runs past their total timeout."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial

from kalla import logs
from kalla.database import Connection, Database
from kalla.statements import load
from kalla.work.metrics import Metrics
from kalla.work.service import Periodic, SetAside, each_step
from kalla.work.state import jobs as job_store
from kalla.work.state import runs
from kalla.work.state.job_insertion import Woken
from kalla.work.wake.channel import Wake

_log = logs.get(__name__)
sql = load("kalla.work.state", "runs.sql")

_BATCH = 500


class Reaper(Periodic):
    """Runs in every worker and in the API; the first one does the work, the others find nothing.

    A heartbeat may be old although its worker lives: Postgres was unreachable, every process was
    frozen, or the database's clock jumped ahead. A reaper that was itself silent for longer than
    `tolerance_seconds`, or saw the database's clock move by more, first gives the workers
    `grace_seconds` to send a heartbeat; so does a new reaper. A jump that comes after the look at
    the clock changes nothing either: statements judge by the time that can have passed since.
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
        self._is_new = True
        self._heard = 0.0  # when Postgres last answered, by our own clock
        self._database_time = 0.0  # and the expected time of the database's clock then
        self._patient_until = 0.0
        self._aside = SetAside("reaper")

    async def tick(self) -> None:
        if await self._may_judge():
            await self._judge()

    async def _may_judge(self) -> bool:
        database_time = await self._read_database_time()
        now = self._clock()
        if self._is_new:
            self._patient_until = now + self._grace_seconds
        else:
            silent = max(now - self._heard, database_time - self._database_time)
            if silent > self.interval + self._tolerance_seconds:
                self._patient_until = now + self._grace_seconds
        self._is_new, self._heard, self._database_time = False, now, database_time
        return now >= self._patient_until

    def _noted(self) -> None:
        """Records that Postgres answered until now: a check may exceed the interval. Silence that
        was too long is not overwritten: the check ends, and the next one gives grace.
        """
        if not self._was_silent():
            now = self._clock()
            self._database_time += now - self._heard
            self._heard = now

    def _was_silent(self) -> bool:
        """Whether this process was frozen, or had no answer, for long since the last answer."""
        return self._clock() - self._heard > self._tolerance_seconds

    def _latest(self) -> float:
        """What the database's clock can show by now, unless it jumped ahead since it was read. The
        time of a freeze does not count: nobody could send a heartbeat.
        """
        since = min(self._clock() - self._heard, self._tolerance_seconds)
        return self._database_time + since + self._tolerance_seconds

    async def _judge(self) -> None:
        async def unless_silent(step: Callable[[], Awaitable[None]]) -> None:
            if not self._was_silent():
                await step()
                self._noted()

        steps = (self._reclaim, self._end_exhausted, self._end_late_runs, self._confirm_stopped)
        await each_step(partial(unless_silent, step) for step in steps)

    async def _confirm_stopped(self) -> None:
        async with self._database.transaction() as connection:
            await job_store.stopped_with_worker(connection)

    async def _read_database_time(self) -> float:
        async with self._database.transaction() as connection:
            (row,) = await (await connection.execute(sql.database_time)).fetchall()
            return float(row["seconds"])

    async def _reclaim(self) -> None:
        while True:
            reclaimed = await self._database.retrying(
                lambda each: job_store.reap(each, _BATCH, self._latest())
            )
            self._noted()
            for row in reclaimed:
                _log.warning("job reclaimed", **_facts(row))
            self._metrics.reclaimed.inc(len(reclaimed))
            # Trap 6: a reclaimed job waits for a worker that was not woken for it.
            await self._wake.nudge(job_store.waiting_in(reclaimed))
            if len(reclaimed) < _BATCH:
                return

    async def _end_exhausted(self) -> None:
        async with self._database.transaction() as connection:
            candidates = await job_store.exhausted(connection, _BATCH, self._latest())
        for candidate in candidates:

            async def act(connection: Connection, row: dict[str, int] = candidate) -> Woken | None:
                return await job_store.end_exhausted(connection, **row, latest=self._latest())

            row = ("job", candidate["job_id"])
            woken = await self._aside.attempt(row, partial(self._database.retrying, act))
            self._noted()
            if woken is not None:
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

            row = ("run", run_id)
            if await self._aside.attempt(row, partial(self._database.retrying, act)):
                _log.error("run failed: total timeout", run=run_id)
                await self._wake.alarm()


def _facts(row: dict[str, object]) -> dict[str, object]:
    """For the log, whose own `worker` is the one that reaps."""
    names = {"job_id": "job", "run_id": "run", "worker": "lost_worker"}
    return {names.get(name, name): value for name, value in row.items()}
