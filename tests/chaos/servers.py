"""The embedded servers of a chaos run, on ports that no outgoing connection ever gets."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kalla.local import ports
from kalla.local.process import Server
from kalla.local.servers.nats import Nats
from kalla.local.servers.postgres import Postgres
from tests.work_kit import Clock, connect

_OUTSIDE_EPHEMERAL = range(20_000, 30_000)


class Servers:
    """Real Postgres, with fsync, and NATS. What is done to one server is done one after another."""

    def __init__(self, folder: Path) -> None:
        # A port from the ephemeral range could be taken, while its server is down, by a client's
        # end of some connection, even by one that so connects to itself.
        free = _free_ports()
        self.postgres = Postgres(folder, next(free), options={"log_lock_waits": "on"})
        self.nats = Nats(folder, next(free))
        self._hands: dict[Server, ThreadPoolExecutor] = {
            server: ThreadPoolExecutor(1, thread_name_prefix=server.name)
            for server in (self.postgres, self.nats)
        }

    async def start(self) -> None:
        await self._do(self.postgres, self.postgres.start)
        await self._do(self.postgres, self.postgres.create_database)
        await self._do(self.nats, self.nats.start)

    async def stop(self) -> None:
        for server in self._hands:
            await self._do(server, server.stop)
        for hand in self._hands.values():
            hand.shutdown()

    async def restart_postgres(self) -> None:
        """Fast: clients are cut off, the rest is written down."""
        await self._do(self.postgres, self.postgres.stop)
        await self._do(self.postgres, self.postgres.start)

    async def kill_postgres(self) -> None:
        """The next start recovers from the log."""
        await self._do(self.postgres, self.postgres.kill)
        await self._do(self.postgres, self.postgres.start)

    async def kill_nats(self, down_seconds: float, wipe: bool) -> None:
        await self._do(self.nats, self.nats.kill)
        if wipe:
            await self._do(self.nats, lambda: shutil.rmtree(self.nats.store))
        await asyncio.sleep(down_seconds)
        await self._do(self.nats, self.nats.start)

    async def step_clock(self, seconds: float) -> None:
        """The database's clock jumps ahead; `install_clock` has made it one that can."""
        async with await connect(self.postgres.url()) as connection:
            await Clock(connection).jump(seconds)

    async def _do(self, server: Server, act: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._hands[server], act)


def _free_ports() -> Iterator[int]:
    candidates = list(_OUTSIDE_EPHEMERAL)
    random.SystemRandom().shuffle(candidates)
    return (port for port in candidates if ports.is_free(port))
