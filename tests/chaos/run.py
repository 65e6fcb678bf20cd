"""One chaos run: servers, proxies, workers, load and faults; then quiet, and the checker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg import AsyncConnection

from kalla import database, logs, settings
from kalla.database import AWAY, Connection, Database
from kalla.settings import ROLES, Settings
from kalla.work.wake import Wake, open_channel
from tests.chaos import facts as facts_of
from tests.chaos import report as reports
from tests.chaos.checker import Violation, check
from tests.chaos.facts import Facts
from tests.chaos.faults import CLOCK, KILL, ON_ALL, SOUND_WEIGHTS, WEIGHTS, Injector
from tests.chaos.fleet import Fleet
from tests.chaos.job_types import chaos_job_types
from tests.chaos.ledger import Ledger
from tests.chaos.load import SCHEMA, Load
from tests.chaos.recovery import recoveries
from tests.chaos.servers import Servers
from tests.work_kit import install_clock

_DRAIN_SECONDS = 4.0
_MOST_EVIDENCE = 50


@dataclass(frozen=True)
class Wish:
    """What was asked for on the command line."""

    jobs: int = 2_000
    faults: int = 40
    kills: int = 0  # among the faults, at least
    workers: int = 6
    concurrency: int = 8
    seed: int = 1
    every: float = 1.7  # seconds between faults, on average
    rate: float = 65.0  # jobs a second
    channel: str = "nats"
    quick: bool = False  # short timeouts, to see much in little time
    once: bool = False  # every job has one attempt, and no fault may cost it
    only: tuple[str, ...] = ()  # the kinds of faults; all of such a run when empty
    idle_seconds: float = 180.0
    deadline_seconds: float = 7_200.0

    @property
    def environment(self) -> dict[str, str]:
        """The workers' settings. What the promise of 22 s rests on stays at its default."""
        values: dict[str, object] = {
            "WAKE_CHANNEL": self.channel,
            "WORKER_CONCURRENCY": self.concurrency,
            "WORKER_ROLES": "stage,exec",
            "WORKER_DRAIN_SECONDS": _DRAIN_SECONDS,
            "JOBS_DEFAULT_MAX_ATTEMPTS": 1 if self.once else 100,
            "JOBS_DEFAULT_BACKOFF_SECONDS": 0.2,
            "JOBS_DEFAULT_BACKOFF_LIMIT_SECONDS": 2,
        }
        if self.quick:
            values |= {
                "JOBS_DEFAULT_TIMEOUT_SECONDS": 3,
                "JOBS_DEFAULT_HEARTBEAT_INTERVAL": 0.5,
                "REAPER_INTERVAL_SECONDS": 0.5,
                "SCHEDULER_INTERVAL_SECONDS": 0.5,
                "WAKE_POLL_SECONDS": 1,
                "WAKE_SYNC_SECONDS": 1,
                "WORKER_DRAIN_SECONDS": 2,
            }
        return {f"KALLA_{name}": str(value) for name, value in values.items()}

    @property
    def weights(self) -> Mapping[str, int]:
        """How often each kind of fault comes up."""
        return {
            kind: weight
            for kind, weight in (SOUND_WEIGHTS if self.once else WEIGHTS).items()
            if (kind in self.only or not self.only)
            and (self.channel == "nats" or not kind.startswith("nats"))
        }


async def carry_out(wish: Wish, folder: Path) -> dict[str, Any]:
    """Returns the report; `violations` in it says whether the promise held."""
    logs.configure("error", "text")
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # its own level, or it would warn
    servers = Servers(folder)
    try:
        await servers.start()
        urls = {
            "KALLA_DATABASE_URL": servers.postgres.url(),
            "KALLA_WAKE_NATS_URL": servers.nats.url,
        }
        effective = settings.load(
            wish.environment | urls, directory=folder, with_running=False
        ).settings
        await database.migrate(effective.database)
        async with await AsyncConnection.connect(servers.postgres.url()) as connection:
            await connection.execute(SCHEMA.encode())
        if CLOCK in wish.weights:
            await install_clock(servers.postgres.url())
        async with asyncio.timeout(wish.deadline_seconds), Database(effective.database) as direct:
            wake = open_channel(effective, direct, ROLES)
            await wake.start()
            try:
                return await _disturbed(wish, folder, servers, effective, direct, wake)
            finally:
                await wake.stop()
    finally:
        await servers.stop()


async def _disturbed(
    wish: Wish, folder: Path, servers: Servers, effective: Settings, direct: Database, wake: Wake
) -> dict[str, Any]:
    chance = random.Random(wish.seed)
    began = time.monotonic()
    fleet = await Fleet.open(
        wish.workers, folder, wish.environment, servers.postgres.url(), servers.nats.url
    )
    job_types = chaos_job_types(effective, Ledger(folder, "load"))
    load = Load(
        direct,
        job_types,
        wake,
        random.Random(chance.random()),
        rate=wish.rate,
        backlog=300 if wish.quick else 1_000,
        long_seconds=(0.5, 3) if wish.quick else (2, 8),
        # Few jobs, so that such a run is short; of these, many are in hand when a fault comes.
        long_share=0.6 if wish.once else 0.06,
        sound=wish.once,
    )
    policy = effective.policy("default")
    injector = Injector(
        fleet,
        servers,
        random.Random(chance.random()),
        every=wish.every,
        timeout_seconds=policy.timeout_seconds,
        drain_seconds=effective.worker.drain_seconds,
        weights=wish.weights,
        claimed=lambda: load.claimed,
    )

    def enough(injected: Counter[str]) -> bool:
        return (
            injected.total() >= wish.faults
            and injected[KILL] >= wish.kills
            and all(injected[kind] for kind in ON_ALL if kind in wish.weights)
            and load.submitted.count >= wish.jobs
        )

    telling = asyncio.create_task(_tell(load, injector, began))
    loading = asyncio.create_task(load.work())
    try:
        fleet.start()
        faulting = asyncio.create_task(injector.work(enough))
        await asyncio.wait({loading, faulting}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            faulting.cancel()
            loading.result()  # it ends by itself only by an error
        await faulting
        load.stop()
        await loading
        idle = await _idle(load, fleet, wish.idle_seconds)
        left = await _left_in_channel(wake, idle is not None)
        await fleet.close(effective.worker.drain_seconds + 60)
        facts = await _read(direct, folder, load, fleet, left, wish.once)
        violations = check(facts)
        found = recoveries(facts, injector.faults)
        circumstances = reports.Circumstances(
            seed=wish.seed,
            once=wish.once,
            channel=wish.channel,
            workers=wish.workers,
            concurrency=wish.concurrency,
            timeout_seconds=policy.timeout_seconds,
            heartbeat_interval=policy.heartbeat_interval,
            reaper_interval=effective.reaper.interval_seconds,
            seconds=time.monotonic() - began,
            idle_after_seconds=idle,
            commands=load.commands,
        )
        report = reports.figures(circumstances, facts, injector.faults, found, violations)
        if violations:
            report["evidence"] = await _evidence(direct, folder, violations)
        return report
    finally:
        telling.cancel()
        loading.cancel()
        await injector.end()
        await fleet.end()
        await asyncio.gather(telling, loading, return_exceptions=True)


async def _tell(load: Load, injector: Injector, began: float) -> None:
    """A line every ten seconds."""
    done = 0
    while True:
        await asyncio.sleep(10)
        with contextlib.suppress(*AWAY):  # then the figure of ten seconds ago must do
            done = await load.count_finished()
        print(
            f"{time.monotonic() - began:6.0f} s   {done:>8,} jobs done   "
            f"{load.unfinished:>5,} to do   {injector.injected.total():>5,} faults "
            f"({injector.injected[KILL]} kills)",
            flush=True,
        )


async def _idle(load: Load, fleet: Fleet, seconds: float) -> float | None:
    """Seconds until no job waits or runs; None if that does not come."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        fleet.replace_fallen()
        try:
            await load.look()
            if not load.unfinished:
                return time.monotonic() - began
        except AWAY:
            pass
        await asyncio.sleep(0.25)
    return None


async def _left_in_channel(wake: Wake, idle: bool, seconds: float = 30) -> dict[str, int]:
    """Wake-ups that stay though no job waits. Setting the depth right takes a few looks."""
    deadline = time.monotonic() + seconds
    while idle:
        left = {queue: count for queue, count in (await wake.depth()).items() if count}
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.25)
    return {}


async def _read(
    direct: Database, folder: Path, load: Load, fleet: Fleet, left: dict[str, int], sound: bool
) -> Facts:
    async def act(connection: Connection) -> Facts:
        return await facts_of.read(connection, folder, load.submitted, fleet.endings, left, sound)

    return await direct.retrying(act)


async def _evidence(
    direct: Database, folder: Path, violations: Sequence[Violation]
) -> dict[str, Any]:
    concerned = violations[:_MOST_EVIDENCE]
    jobs = sorted({each.job_id for each in concerned if each.job_id is not None})
    runs = sorted({each.run_id for each in concerned if each.run_id is not None})
    async with direct.transaction() as connection:
        return await facts_of.evidence(connection, folder, jobs, runs)
