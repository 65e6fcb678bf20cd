"""A worker: job slots, threads to run jobs in, and services that claim, keep and settle."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence

from kalla import logs
from kalla.database import AWAY, Database
from kalla.release import version
from kalla.settings import Settings
from kalla.work.job_slots import JobSlots
from kalla.work.job_type import JobTypes
from kalla.work.lease_keeper import LeaseKeeper
from kalla.work.metrics import Metrics
from kalla.work.runners import Runners
from kalla.work.service import Service, ServiceGroup, postgres_error_message
from kalla.work.services.alarms import Alarms
from kalla.work.services.claims import Claims, StrayClaims
from kalla.work.services.cleaner import Cleaner, Sweep
from kalla.work.services.delayed_jobs import Scheduler
from kalla.work.services.depth import Depth
from kalla.work.services.gauges import Gauges
from kalla.work.services.heartbeats import Heartbeats
from kalla.work.services.reaper import Reaper
from kalla.work.services.settling import Settling
from kalla.work.state import jobs as job_store
from kalla.work.state import presence
from kalla.work.wake.channel import Wake

_log = logs.get(__name__)

_STOP_SECONDS = 3.0  # how long a thread has to notice that its job was lost
_RETURN_SECONDS = 5.0  # how long a drain tries to hand its jobs back
_RETURN_PAUSE = 0.1


class Worker:
    """Every worker is equal: there is no leader, and each may be killed at any moment."""

    def __init__(
        self,
        settings: Settings,
        job_types: JobTypes,
        database: Database,
        wake: Wake,
        address: str = "",
        sweeps: Sequence[Sweep] = (),
        services: Sequence[Service] = (),
        name: str | None = None,
    ) -> None:
        """`sweeps` and `services` are those of the rooms above."""
        self.name = name or new_name()
        self.metrics = Metrics()
        self.slots = JobSlots(settings.worker.concurrency)
        self.metrics.watch(self.slots)
        self.keeper = LeaseKeeper(database, self.name, settings.leases)
        self._settings = settings
        self._database = database
        self._wake = wake
        self._address = address
        self._draining = False
        self._settling = Settling(database, job_types, self.slots, wake, self.metrics)
        self._runners = Runners(
            job_types, self.name, settings.worker.concurrency, self._settling.receive
        )
        interval = min(
            settings.policy(each).heartbeat_interval for each in ["default", *job_types.types]
        )
        heartbeats = Heartbeats(
            database, self.slots, self.metrics, self._announcement, min(interval, 5.0)
        )
        self._claims = Claims(
            database,
            wake,
            self.slots,
            self._runners.run,
            worker=self.name,
            queues=settings.worker.roles,
            types=job_types.types,
            poll_seconds=settings.wake.poll_seconds,
        )
        self._services = ServiceGroup(
            [
                self._settling,
                heartbeats,
                Alarms(wake, heartbeats),
                self.keeper,
                *background(settings, database, wake, self.metrics, sweeps),
                *services,
                StrayClaims(self._claims, min(interval, 5.0)),
                self._claims,
            ]
        )

    async def start(self) -> None:
        logs.bind(worker=self.name)
        await self._wake.start()
        await self._services.start()
        _log.info(
            "worker started",
            roles=list(self._settings.worker.roles),
            concurrency=self.slots.concurrency,
        )

    async def drain(self) -> None:
        """Stops claiming; current work finishes or, at the deadline, is handed back; then stops
        all.
        """
        self._draining = True
        await self._claims.stop()
        await self._until(lambda: not len(self.slots), self._settings.worker.drain_seconds)
        await self._hand_back()
        await self._services.stop()
        self._runners.stop()
        try:
            async with self._database.transaction() as connection:
                await presence.leave(connection, self.name)
        except AWAY as error:
            _log.warning("not deregistered", error=postgres_error_message(error))
        await self._wake.stop()
        _log.info("worker stopped")

    def problems(self) -> list[str]:
        """Problems that a restart would fix: a dead service, or a thread that outlives its lost
        job.
        """
        found = self._services.deaths()
        if self.slots.stuck_seconds() > self._settings.worker.stuck_seconds:
            found.append("a thread has not stopped although its job was cancelled or lost")
        return found

    async def absences(self) -> list[str]:
        """Reasons why this worker does not accept work now."""
        draining = ["the worker is draining"] if self._draining else []
        return draining + await absences(self._database, self._wake)

    def _announcement(self) -> presence.Announcement:
        return presence.Announcement(
            worker=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            address=self._address,
            roles=list(self._settings.worker.roles),
            concurrency=self.slots.concurrency,
            active=len(self.slots),
            version=version(),
            draining=self._draining,
        )

    async def _hand_back(self) -> None:
        for held in self.slots.ours():
            held.returning = True
            held.context.end("the worker is stopping")
        await self._until(lambda: all(held.cut_short for held in self.slots.ours()), _STOP_SECONDS)
        await self._return_claims()

    async def _return_claims(self) -> None:
        """Tries again while connections break: what stays claimed costs its job an attempt."""
        deadline = time.monotonic() + _RETURN_SECONDS
        while True:
            try:
                await self._return_jobs()
                await self._claims.hand_back_strays()
                return
            except AWAY as error:
                if time.monotonic() > deadline:
                    _log.warning("jobs not handed back", error=postgres_error_message(error))
                    return
            await asyncio.sleep(_RETURN_PAUSE)

    async def _return_jobs(self) -> None:
        jobs = [held.job for held in self.slots.ours()]
        if not jobs:
            return
        woken = await self._database.retrying(
            lambda connection: job_store.hand_back(connection, jobs)
        )
        await self._wake.nudge(woken)
        _log.info("jobs handed back", jobs=[job.job_id for job in jobs])
        for held in self.slots:
            if held.cut_short:
                self.slots.drop(held)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    await self.slots.wait_for_change()


def new_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"


async def absences(database: Database, wake: Wake) -> list[str]:
    """Unreachable servers, a message each."""
    found = []
    try:
        await database.ping()
    except AWAY as error:
        found.append(postgres_error_message(error))
    if (error_message := wake.error_message) is not None:
        found.append(error_message)
    return found


def background(
    settings: Settings,
    database: Database,
    wake: Wake,
    metrics: Metrics,
    sweeps: Sequence[Sweep] = (),
) -> list[Service]:
    """The services that workers and the API share, so that workers can scale to zero."""
    policy = settings.policy("default")
    beat = policy.heartbeat_interval
    return [
        Reaper(
            database,
            wake,
            metrics,
            settings.reaper.interval_seconds,
            grace_seconds=2 * beat,
            # A live worker's last heartbeat is one beat old, and its next comes within another.
            tolerance_seconds=max(beat, policy.timeout_seconds - 3 * beat),
        ),
        Scheduler(database, wake, settings.scheduler.interval_seconds),
        Cleaner(database, settings.retention, sweeps),
        Gauges(database, metrics),
        Depth(database, wake, settings.wake.sync_seconds),
    ]
