"""The faults of a chaos run over sinks: each is done to real processes, and healed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.integration.sinks.test_lost_answers import Dropping
from tests.sinks_kit import Site

REPLICAS = 4
LEASE_SECONDS = 4.0

WEIGHTS = {
    "worker killed": 6,
    "worker stopped": 4,
    "clickhouse killed": 3,
    "answer dropped": 6,
    "scaled": 4,
    "rebalance storm": 2,
    "kafka restarted": 1,
    "postgres restarted": 1,
}


class ArmedDropping(Dropping):
    """Drops the answers of so many inserts, when it is told to."""

    armed = 0

    def _drops(self) -> bool:
        cls = type(self)
        with cls.lock:
            if cls.armed > 0:
                cls.armed -= 1
                cls.dropped += 1
                return True
        return False


class Faults:
    def __init__(
        self,
        site: Site,
        scale: Callable[[int], Awaitable[None]],
        restart_postgres: Callable[[], None] | None,
        seed: int,
    ) -> None:
        self.done: Counter[str] = Counter()
        self._site = site
        self._scale = scale
        self._restart_postgres = restart_postgres
        self._chance = random.Random(seed)

    async def do(self, kind: str) -> None:
        acts: dict[str, Callable[[], Awaitable[None]]] = {
            "worker killed": self._kill,
            "worker stopped": self._stop,
            "clickhouse killed": self._kill_clickhouse,
            "answer dropped": self._drop,
            "scaled": self._rescale,
            "rebalance storm": self._storm,
            "kafka restarted": self._restart_kafka,
            "postgres restarted": self._restart_database,
        }
        await acts[kind]()
        self.done[kind] += 1

    def _worker(self) -> subprocess.Popen[bytes]:
        running = [each for each in self._site.workers if each.poll() is None]
        return self._chance.choice(running)

    async def _kill(self) -> None:
        victim = self._worker()
        victim.kill()
        await asyncio.to_thread(victim.wait)
        self._site.start_worker()

    async def _stop(self) -> None:
        """Long enough that its lease ends, or not; then it wakes up and believes in it."""
        victim = self._worker()
        victim.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self._chance.choice((0.5, 1.5 * LEASE_SECONDS)))
        victim.send_signal(signal.SIGCONT)

    async def _kill_clickhouse(self) -> None:
        await asyncio.to_thread(self._site.servers.clickhouse.kill)
        await asyncio.sleep(self._chance.uniform(0, 1.0))
        await asyncio.to_thread(self._site.servers.clickhouse.start)

    async def _drop(self) -> None:
        ArmedDropping.armed += self._chance.randrange(1, 4)

    async def _rescale(self) -> None:
        await self._scale(self._chance.randrange(1, REPLICAS + 1))

    async def _storm(self) -> None:
        """Members come and go."""
        for _ in range(2):
            await self._scale(REPLICAS)
            extra = self._site.start_worker()
            await asyncio.sleep(1.5)
            extra.terminate()
            await self._scale(1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(extra.wait, 20)
        await self._scale(REPLICAS)

    async def _restart_kafka(self) -> None:
        kafka = self._site.servers.kafka
        await asyncio.to_thread(kafka.kill if self._chance.random() < 0.5 else kafka.stop)
        await asyncio.to_thread(kafka.start)

    async def _restart_database(self) -> None:
        if self._restart_postgres is not None:
            await asyncio.to_thread(self._restart_postgres)
