"""Keeps a worker's leases: renews them together, and stops their work in time if that fails."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kalla import logs
from kalla.database import Database
from kalla.settings import Leases as LeaseSettings
from kalla.work.service import Periodic, end
from kalla.work.state import leases
from kalla.work.state.leases import Lease

_log = logs.get(__name__)

Stop = Callable[[Lease, str], Awaitable[None]]


@dataclass
class _Seat:
    stop: Stop
    deadline: float  # by this process's own monotonic clock: until minus a margin
    ending: asyncio.Task[None] | None = None


class LeaseKeeper(Periodic):
    """Trap 12: a holder cut off from the database stops before its lease ends, by its own clock.

    The clock starts when a request is sent, not when it is answered, so that the holder's deadline
    is never later than the database's.
    """

    def __init__(
        self,
        database: Database,
        holder: str,
        settings: LeaseSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("leases", settings.renew_seconds)
        self._database = database
        self._holder = holder
        self._settings = settings
        self._clock = clock
        self._seats: dict[Lease, _Seat] = {}
        self._watching: asyncio.Task[None] | None = None
        self._taken = asyncio.Event()

    async def acquire(
        self, resource: str, replicas: int, stop: Stop, cap: int | None = None
    ) -> Lease | None:
        """Take a free slot; `stop` is awaited when it is lost, trimmed or the keeper stops."""
        sent = self._clock()
        async with self._database.transaction() as connection:
            lease = await leases.acquire(
                connection, resource, self._holder, replicas, self._settings.ttl_seconds, cap
            )
        if lease is not None:
            self._seats[lease] = _Seat(stop, self._deadline(sent))
            self._taken.set()
            _log.info("slot taken", resource=resource, slot=lease.slot, epoch=lease.epoch)
        return lease

    def held(self, resource: str | None = None) -> list[Lease]:
        """The leases whose work may continue now."""
        now = self._clock()
        return sorted(
            lease
            for lease, seat in self._seats.items()
            if now < seat.deadline and seat.ending is None and resource in (None, lease.resource)
        )

    def deadline(self, lease: Lease) -> float:
        """When the lease's work must have ended, by this process's monotonic clock; in the past if
        lost.
        """
        seat = self._seats.get(lease)
        return 0.0 if seat is None else seat.deadline

    async def trim(self, resource: str, replicas: int) -> None:
        """Trap 11: after a scale-down, stop and release the slots that are no longer needed."""
        for lease in self.held(resource):
            if lease.slot >= replicas:
                await self.release(lease, "the number of replicas was lowered")

    async def release(self, lease: Lease, reason: str) -> None:
        """Stops the slot's work, then releases it: never the other way round."""
        await self._end(lease, reason)
        async with self._database.transaction() as connection:
            await leases.release(connection, self._holder, lease)

    async def start(self) -> None:
        await super().start()
        self._watching = asyncio.create_task(self._watch(), name="lease deadlines")

    async def stop(self) -> None:
        await super().stop()
        released = [self.release(lease, "the worker is stopping") for lease in list(self._seats)]
        for ended in await asyncio.gather(*released, return_exceptions=True):
            if isinstance(ended, BaseException):  # the slot then expires by itself
                _log.warning("slot not released", error=str(ended))
        if self._watching is not None:
            await end(self._watching)

    async def tick(self) -> None:
        sent = self._clock()
        renewing = [lease for lease, seat in self._seats.items() if sent < seat.deadline]
        if not renewing:
            return
        async with self._database.transaction() as connection:
            renewed = await leases.renew(
                connection, self._holder, renewing, self._settings.ttl_seconds
            )
        for lease in renewing:
            if lease not in renewed:
                self._begin_to_end(lease, "the lease was lost")
            elif lease in self._seats:
                self._seats[lease].deadline = self._deadline(sent)

    async def _watch(self) -> None:
        """Ends seats whose deadline passes, even while a renewal hangs on a dead connection."""
        while True:
            self._taken.clear()
            now = self._clock()
            for lease, seat in list(self._seats.items()):
                if seat.deadline <= now:
                    self._begin_to_end(lease, "it could not be renewed in time")
            waiting = [seat.deadline for seat in self._seats.values() if seat.ending is None]
            pause = min(max(min(waiting) - now, 0.01), 0.25) if waiting else None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._taken.wait(), pause)

    async def _end(self, lease: Lease, reason: str) -> None:
        """Stops the work of a slot; returns when it has stopped, whoever stopped it."""
        ending = self._begin_to_end(lease, reason)
        if ending is not None:
            await asyncio.shield(ending)

    def _begin_to_end(self, lease: Lease, reason: str) -> asyncio.Task[None] | None:
        """Each stop is a task of its own: a slow one must not hold up another seat's deadline.

        While it stops, the seat is kept and renewed: nobody else takes it before the work has
        ended.
        """
        seat = self._seats.get(lease)
        if seat is None:
            return None
        if seat.ending is None:
            _log.info("slot ends", resource=lease.resource, slot=lease.slot, reason=reason)
            seat.ending = asyncio.create_task(self._stop_work(lease, seat.stop, reason))
        return seat.ending

    async def _stop_work(self, lease: Lease, stop: Stop, reason: str) -> None:
        try:
            await stop(lease, reason)
        except Exception:  # a room's code; the other seats and the watch must go on
            _log.exception("work of a slot failed to stop cleanly", slot=lease.slot)
        finally:
            self._seats.pop(lease, None)

    def _deadline(self, sent: float) -> float:
        return sent + self._settings.ttl_seconds - self._settings.margin_seconds
