"""A worker: a hand of jobs, threads to run them in, and the duties that claim, keep and settle."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from importlib.metadata import version

from kalla import logs
from kalla.database import AWAY, Database
from kalla.settings import Settings
from kalla.work import jobs as job_store
from kalla.work import presence
from kalla.work.duties.alarms import Alarms
from kalla.work.duties.claims import Claims
from kalla.work.duties.cleaner import Cleaner, Sweep
from kalla.work.duties.depth import Depth
from kalla.work.duties.gauges import Gauges
from kalla.work.duties.heartbeats import Heartbeats
from kalla.work.duties.reaper import Reaper
from kalla.work.duties.scheduler import Scheduler
from kalla.work.duties.settling import Settling
from kalla.work.duty import Crew, Duty, trouble_with_postgres
from kalla.work.hand import Hand
from kalla.work.keeper import Keeper
from kalla.work.kinds import Kinds
from kalla.work.metrics import Metrics
from kalla.work.runners import Runners
from kalla.work.wake.channel import Wake

_log = logs.get(__name__)

_STOP_SECONDS = 3.0  # what a thread gets to notice that its job was taken from it


class Worker:
    """Every worker is equal: there is no leader, and each may be killed at any moment."""

    def __init__(
        self,
        settings: Settings,
        kinds: Kinds,
        database: Database,
        wake: Wake,
        address: str = "",
        sweeps: Sequence[Sweep] = (),
        duties: Sequence[Duty] = (),
    ) -> None:
        """`sweeps` and `duties` are those of the rooms above."""
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self.metrics = Metrics()
        self.hand = Hand(settings.worker.concurrency)
        self.metrics.watch(self.hand)
        self.keeper = Keeper(database, self.name, settings.leases)
        self._settings = settings
        self._database = database
        self._wake = wake
        self._address = address
        self._draining = False
        self._settling = Settling(database, kinds, self.hand, wake, self.metrics)
        self._runners = Runners(
            kinds, self.name, settings.worker.concurrency, self._settling.receive
        )
        interval = min(
            settings.policy(each).heartbeat_interval for each in ["default", *kinds.types]
        )
        heartbeats = Heartbeats(
            database, self.hand, self.metrics, self._announcement, min(interval, 5.0)
        )
        self._claims = Claims(
            database,
            wake,
            self.hand,
            self._runners.run,
            worker=self.name,
            queues=settings.worker.roles,
            types=kinds.types,
            poll_seconds=settings.wake.poll_seconds,
        )
        self._crew = Crew(
            [
                self._settling,
                heartbeats,
                Alarms(wake, heartbeats),
                self.keeper,
                *background(settings, database, wake, self.metrics, sweeps),
                *duties,
                self._claims,
            ]
        )

    async def start(self) -> None:
        logs.bind(worker=self.name)
        await self._wake.start()
        await self._crew.start()
        _log.info(
            "worker started",
            roles=list(self._settings.worker.roles),
            concurrency=self.hand.concurrency,
        )

    async def drain(self) -> None:
        """No new claims; current work finishes or, at the deadline, is handed back; all stops."""
        self._draining = True
        await self._claims.stop()
        await self._until(lambda: not len(self.hand), self._settings.worker.drain_seconds)
        await self._hand_back()
        await self._crew.stop()
        self._runners.stop()
        try:
            async with self._database.transaction() as connection:
                await presence.leave(connection, self.name)
        except AWAY as error:
            _log.warning("left without a word", trouble=trouble_with_postgres(error))
        await self._wake.stop()
        _log.info("worker stopped")

    def problems(self) -> list[str]:
        """What a restart would cure: a dead duty, or a thread that outlives its lost job."""
        found = self._crew.deaths()
        if self.hand.stuck_seconds() > self._settings.worker.stuck_seconds:
            found.append("a thread has not stopped though its job was cancelled or taken away")
        return found

    async def absences(self) -> list[str]:
        """What keeps this worker from taking work now."""
        draining = ["the worker is draining"] if self._draining else []
        return draining + await absences(self._database, self._wake)

    def _announcement(self) -> presence.Announcement:
        return presence.Announcement(
            worker=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            address=self._address,
            roles=list(self._settings.worker.roles),
            concurrency=self.hand.concurrency,
            active=len(self.hand),
            version=version("kalla"),
            draining=self._draining,
        )

    async def _hand_back(self) -> None:
        for held in self.hand.ours():
            held.returning = True
            held.context.end("the worker is stopping")
        await self._until(lambda: all(held.cut_short for held in self.hand.ours()), _STOP_SECONDS)
        jobs = [held.job for held in self.hand.ours()]
        if not jobs:
            return
        try:
            woken = await self._database.retrying(
                lambda connection: job_store.hand_back(connection, jobs)
            )
            await self._wake.nudge(woken)
            _log.info("jobs handed back", jobs=[job.job_id for job in jobs])
            for held in self.hand:
                if held.cut_short:
                    self.hand.drop(held)
        except AWAY as error:
            _log.warning("jobs not handed back", trouble=trouble_with_postgres(error))

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    await self.hand.wait_for_change()


async def absences(database: Database, wake: Wake) -> list[str]:
    """Which servers are away, a sentence each."""
    found = []
    try:
        await database.ping()
    except AWAY as error:
        found.append(trouble_with_postgres(error))
    if (trouble := wake.trouble) is not None:
        found.append(trouble)
    return found


def background(
    settings: Settings,
    database: Database,
    wake: Wake,
    metrics: Metrics,
    sweeps: Sequence[Sweep] = (),
) -> list[Duty]:
    """The duties that workers and the API share, so that workers can scale to zero."""
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
