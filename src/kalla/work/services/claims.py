"""Claims waiting jobs as slots become free, on a wake-up or by polling."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from kalla import logs
from kalla.database import AWAY, COLLIDED, NOT_MIGRATED, Connection, Database
from kalla.work.handler import Context
from kalla.work.job import Job
from kalla.work.job_slots import HeldJob, JobSlots
from kalla.work.service import Periodic, Service, postgres_error_message
from kalla.work.state import jobs as job_store
from kalla.work.wake.channel import Wake

_log = logs.get(__name__)


class Claims(Service):
    """The queues take turns, so that a full one does not starve the others."""

    name = "claims"

    def __init__(
        self,
        database: Database,
        wake: Wake,
        slots: JobSlots,
        run: Callable[[HeldJob], None],
        *,
        worker: str,
        queues: Sequence[str],
        types: Sequence[str],
        poll_seconds: float,
    ) -> None:
        super().__init__()
        self._database = database
        self._wake = wake
        self._slots = slots
        self._run = run
        self._worker = worker
        self._queues = list(queues)
        self._types = list(types)
        self._poll_seconds = poll_seconds
        self._claiming = asyncio.Lock()

    async def stop(self) -> None:
        async with self._claiming:
            await super().stop()

    async def work(self) -> None:
        backoff, nudged = 0.1, set[str]()
        while True:
            if self._slots.free <= 0:
                await self._slots.wait_for_change()
                continue
            try:
                # A stop waits for this lock: a claim is never cut off between commit and slot.
                async with self._claiming:
                    claimed = await self._claim_all(nudged)
            except (*AWAY, *NOT_MIGRATED, *COLLIDED) as error:
                if self.error_message is None:
                    _log.warning("cannot claim", error=postgres_error_message(error))
                self.error_message = postgres_error_message(error)
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, 2.0)
                continue
            self.error_message, backoff, nudged = None, 0.1, set()
            if not claimed:
                nudged = await self._wake.wait(self._queues, self._poll_seconds)

    async def _claim_all(self, nudged: Collection[str]) -> int:
        """Polls every queue: first those with an announced job, then the others in turn."""
        self._queues.append(self._queues.pop(0))
        claimed: Counter[str] = Counter()
        for queue in sorted(self._queues, key=lambda queue: queue not in nudged):
            free = self._slots.free
            if free <= 0:
                break
            taken = await self._claim(queue, free)
            if taken:
                claimed[queue] = len(taken)
                self._slots.take(taken)
                for held in taken:
                    self._run(held)
        if claimed:
            await self._wake.claimed(claimed)
        return claimed.total()

    async def hand_back_strays(self) -> None:
        """A claim whose commit was confirmed on a broken connection belongs to this worker without
        its knowledge.

        Without this it would wait for the reaper, and count an attempt that did not happen.
        """
        # Under the lock a claim is either held, or unknown to this process.
        async with self._claiming:
            held = self._slots.known()
            returned, woken = await self._database.retrying(
                lambda each: job_store.hand_back_strays(each, self._worker, held)
            )
        if returned:
            _log.warning("claims handed back whose answer was lost", jobs=returned)
            await self._wake.nudge(woken)

    async def _claim(self, queue: str, limit: int) -> list[HeldJob]:
        async def act(connection: Connection) -> list[HeldJob]:
            jobs = await job_store.claim(connection, queue, self._types, self._worker, limit)
            return [HeldJob(job, await self._context(connection, job)) for job in jobs]

        return await self._database.retrying(act)

    async def _context(self, connection: Connection, job: Job) -> Context:
        return Context(await job_store.inputs(connection, job))


class StrayClaims(Periodic):
    """Searches for claims whose confirmation was lost, well before the reaper would take them."""

    def __init__(self, claims: Claims, interval: float) -> None:
        super().__init__("stray claims", interval)
        self._claims = claims

    async def tick(self) -> None:
        await self._claims.hand_back_strays()
