"""Starts the runs that are due. Runs in every worker and in the API: a row's lock and the primary
key of its times ensure that each time is handled once.
"""

from __future__ import annotations

from datetime import timedelta

from kalla import logs
from kalla.database import Connection, Database
from kalla.errors import KallaError
from kalla.reconcile.registry import entries
from kalla.reconcile.runs import run_completion, submission
from kalla.reconcile.runs.submission import RunRequest
from kalla.reconcile.schedules import cron_times, schedule_store
from kalla.reconcile.schedules.schedule_store import Due
from kalla.redaction import scrub
from kalla.settings import Settings
from kalla.work.job import NewJob
from kalla.work.job_type import JobTypes
from kalla.work.service import FORESEEN, Periodic, SetAside
from kalla.work.state import jobs
from kalla.work.state.job_insertion import Woken
from kalla.work.wake.channel import Wake

INTERVAL = 2.0
PUNCTUAL = timedelta(minutes=5)  # later than this, a time counts as missed

_log = logs.get(__name__)


class RunScheduler(Periodic):
    """One due schedule in one transaction: its run, its row of times and its next time."""

    def __init__(
        self, settings: Settings, database: Database, job_types: JobTypes, wake: Wake
    ) -> None:
        super().__init__("run schedules", INTERVAL)
        self._settings = settings
        self._database = database
        self._job_types = job_types
        self._wake = wake
        self._aside = SetAside("run schedules")

    async def tick(self) -> float | None:
        woken = Woken()
        async with self._database.transaction() as connection:
            aside = [row for row in self._aside.current() if isinstance(row, int)]
            one = await schedule_store.due(connection, aside)
            if one is None:
                return None

            async def apart() -> Woken:
                async with connection.transaction():
                    return await self._handle(connection, one)

            woken += await self._aside.attempt(one.schedule_id, apart) or Woken()
        if woken:
            await self._wake.nudge(woken)
        return 0.0  # others may be due

    async def _handle(self, connection: Connection, one: Due) -> Woken:
        last, count = cron_times.times_until(one.cron, one.time_zone, one.next_at, one.now)
        if one.missed == "skip" and one.now - last > PUNCTUAL:
            missed = f"missed while Kalla was down ({count} times): not run"
            await schedule_store.handled(connection, one, last, None, missed)
            return Woken()
        busy = await schedule_store.running(connection, one.schedule_id)
        if busy is not None:
            overlap = f"run {busy}, which this schedule started, was still running"
            await schedule_store.handled(connection, one, last, None, overlap)
            return Woken()
        note = f"stands for {count} times that were missed" if count > 1 else None
        try:
            async with connection.transaction():
                run_id, woken = await self._submit(connection, one)
        except FORESEEN:
            raise
        except KallaError as error:
            reason = scrub(str(error))
            _log.warning("a scheduled run was not started", schedule=one.schedule_id, reason=reason)
            await schedule_store.handled(connection, one, last, None, f"not started: {reason}")
            return await self._notify(connection, one, reason)
        await schedule_store.handled(connection, one, last, run_id, note)
        _log.info("a scheduled run has started", schedule=one.schedule_id, run=run_id)
        return woken

    async def _submit(self, connection: Connection, one: Due) -> tuple[int, Woken]:
        saved = await entries.recipe_version(connection, one.recipe_id)
        callback = await submission.callback_to(connection, one.notify_url, one.notify_above)
        by = f"schedule {one.schedule_id} of {one.created_by}"
        wanted = RunRequest(saved.text, saved, {}, {}, by, callback)
        return await submission.submit(connection, self._settings, self._job_types, wanted)

    async def _notify(self, connection: Connection, one: Due, reason: str) -> Woken:
        """Reports a run that could not start, because it has no end to report."""
        if one.notify_url is None:
            return Woken()
        try:
            destination = await entries.destination_for(connection, one.notify_url)
        except KallaError as error:
            _log.warning(
                "a notification cannot be sent", schedule=one.schedule_id, reason=str(error)
            )
            return Woken()
        payload = {
            "url": one.notify_url,
            "signed_with": f"secret://{destination.secret}",
            "delivery": f"schedule-{one.schedule_id}-{one.next_at.timestamp():.0f}",
            "body": {
                "schedule_id": one.schedule_id,
                "recipe_id": one.recipe_id,
                "status": "not started",
                "error": reason,
            },
        }
        new = NewJob(
            "callback",
            payload,
            priority=run_completion.PRIORITY,
            max_attempts=run_completion.CALLS,
        )
        return (await jobs.insert(connection, self._job_types, [new])).woken
