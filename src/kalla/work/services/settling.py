"""Writes the outcomes of threads to Postgres: completions and failures, not those of lost jobs."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kalla import logs
from kalla.database import AWAY, TOO_LARGE, Connection, Database
from kalla.errors import (
    BrokeOff,
    InvalidInput,
    InvalidSettings,
    KallaError,
    Lost,
    Permanent,
    Unavailable,
)
from kalla.redaction import scrub
from kalla.work.handler import settles
from kalla.work.job import Outcome
from kalla.work.job_slots import HeldJob, JobSlots
from kalla.work.job_type import JobTypes
from kalla.work.metrics import Metrics
from kalla.work.runners import Ended
from kalla.work.service import Service, end, postgres_error_message
from kalla.work.state import jobs as job_store
from kalla.work.state.job_insertion import Woken
from kalla.work.wake.channel import Wake

_log = logs.get(__name__)
Result = TypeVar("Result")

_MOST_AT_ONCE = 4  # settling transactions side by side; the pool has other users too
_MOST_IN_ONE = 1000


class Settling(Service):
    """Outcomes with nothing to settle share a transaction; every other has one of its own.

    While Postgres is unreachable outcomes wait here: the fence decides later whether they are
    valid.
    """

    name = "settling"

    def __init__(
        self, database: Database, job_types: JobTypes, slots: JobSlots, wake: Wake, metrics: Metrics
    ) -> None:
        super().__init__()
        self._database = database
        self._job_types = job_types
        self._slots = slots
        self._wake = wake
        self._metrics = metrics
        self._plain: list[tuple[HeldJob, Outcome]] = []
        self._something = asyncio.Event()
        self._places = asyncio.Semaphore(_MOST_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def receive(self, ended: list[Ended]) -> None:
        for held, ending in ended:
            job = held.job
            held.ended = True
            if held.lost is not None:
                self._spawn(self._confirm_stopped(held))
            elif held.returning and isinstance(ending, BaseException):
                held.cut_short = True  # it is handed back, and that is not a failure
                self._slots.changed()
            elif isinstance(ending, BaseException):
                self._spawn(self._fail(held, ending))
            elif (
                job.run_id is None
                and not ending.follow_ups
                and not settles(self._job_types.handler(job.type))
            ):
                self._plain.append((held, ending))
                self._something.set()
            else:
                self._spawn(self._complete(held, ending))

    async def work(self) -> None:
        while True:
            await self._something.wait()
            batch, self._plain = self._plain[:_MOST_IN_ONE], self._plain[_MOST_IN_ONE:]
            if not self._plain:
                self._something.clear()
            await self._complete_plain(batch)

    async def stop(self) -> None:
        await super().stop()
        await end(*self._tasks)

    async def _complete_plain(self, batch: list[tuple[HeldJob, Outcome]]) -> None:
        ended = [(held.job, outcome) for held, outcome in batch]

        async def act(connection: Connection) -> tuple[set[int], Woken]:
            kept = await job_store.complete_plain(connection, ended)
            keys = [job.running_key for job, _ in ended if job.job_id in kept]
            return kept, await job_store.next_of_keys(connection, keys)

        try:
            kept, woken = await self._insisting(act)
        except Exception:
            # one of them has a result that Postgres cannot store: settle each separately
            for held, outcome in batch:
                await self._complete(held, outcome)
            return
        for held, outcome in batch:
            if held.job.job_id in kept or await self._had_completed(held):
                self._completed(held, outcome)
            else:
                self._lost(held)
            self._slots.drop(held)
        await self._wake.nudge(woken)

    async def _complete(self, held: HeldJob, outcome: Outcome) -> None:
        handler = self._job_types.handler(held.job.type)

        async def act(connection: Connection) -> Woken:
            return await job_store.complete(connection, self._job_types, handler, held.job, outcome)

        try:
            woken = await self._insisting(act)
        except Lost:
            if await self._had_completed(held):
                # The commit's answer was lost, and its wake-ups with it: workers poll anyway.
                self._completed(held, outcome)
            else:
                self._lost(held)
        except Exception as error:  # settle is a handler's code: its error is the job's failure
            await self._fail(held, error)
            return
        else:
            self._completed(held, outcome)
            await self._wake.nudge(woken)
        self._slots.drop(held)

    async def _fail(self, held: HeldJob, error: BaseException) -> None:
        job = held.job
        sentence = traceback.format_exception_only(error)[-1].strip()
        if isinstance(error, KallaError):
            sentence = str(error)
        lines = "".join(traceback.format_exception(error))
        permanent = _is_lasting(error)
        patience = self._job_types.patience(job.type) if isinstance(error, Unavailable) else 0.0
        broke_off = isinstance(error, BrokeOff)

        async def act(connection: Connection) -> tuple[str, Woken]:
            if patience:
                woken = await job_store.put_off(
                    connection, job, sentence, lines, patience, broke_off=broke_off
                )
                if woken is not None:
                    return "put off", woken
            return await job_store.fail(connection, job, sentence, lines, permanent)

        try:
            status, woken = await self._insisting(act)
        except Lost:
            self._lost(held)
        except Exception:  # not even its failure can be stored: the reaper takes it, and counts one
            _log.exception("a job cannot be settled and is abandoned", **_names(held))
            self._slots.abandon(held)
        else:
            if status == "put off":
                self._metrics.put_off.labels(job.type).inc()
                _log.warning("job put off", **_names(held), error=sentence)
            else:
                self._metrics.failed.labels(job.type).inc()
                _log.warning("job attempt failed", **_names(held), status=status, error=sentence)
            await self._wake.nudge(woken)
            if status == "failed" and job.run_id is not None:
                await self._wake.alarm()
        self._slots.drop(held)

    async def _confirm_stopped(self, held: HeldJob) -> None:
        """A cancel is confirmed when the thread has ended; a lost claim needs no confirmation."""
        self._slots.drop(held)
        woken = await self._insisting(lambda connection: job_store.stopped(connection, held.job))
        await self._wake.nudge(woken)

    async def _had_completed(self, held: HeldJob) -> bool:
        return await self._insisting(
            lambda connection: job_store.completed_already(connection, held.job)
        )

    async def _insisting(self, act: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Retries until Postgres answers, with success or an error."""
        backoff = 0.1
        while True:
            try:
                result = await self._database.retrying(act)
            except TOO_LARGE:
                raise  # no later try will fit either
            except AWAY as error:
                if self.error_message is None:
                    _log.warning("outcomes wait", error=postgres_error_message(error))
                self.error_message = postgres_error_message(error)
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, 2.0)
            else:
                self.error_message = None
                return result

    def _completed(self, held: HeldJob, outcome: Outcome) -> None:
        self._metrics.completed.labels(held.job.type).inc()
        self._metrics.seconds.labels(held.job.type).observe(time.monotonic() - held.since)
        if outcome.rows:
            self._metrics.rows.inc(outcome.rows)
        _log.debug("job completed", **_names(held))

    def _lost(self, held: HeldJob) -> None:
        self._metrics.lost.labels(held.job.type).inc()
        _log.warning("result dropped: the claim was lost", **_names(held))

    def _spawn(self, work: Awaitable[None]) -> None:
        async def placed() -> None:
            async with self._places:
                await work

        task = asyncio.create_task(placed())
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.error_message = f"settling failed: {type(error).__name__}: {scrub(str(error))}"
            _log.error("the settling of one job failed", exc_info=error)


def _is_lasting(error: BaseException) -> bool:
    """Whether a retry would fail in the same way. The next worker may have other settings, and a
    missing thing may exist later.
    """
    if isinstance(error, InvalidSettings):
        return False
    return isinstance(error, Permanent | InvalidInput)


def _names(held: HeldJob) -> dict[str, object]:
    return {
        "job": held.job.job_id,
        "run": held.job.run_id,
        "fence": held.job.fence,
        "type": held.job.type,
    }
