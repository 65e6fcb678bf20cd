"""Wake channels for tests: to one server that may be taken away, and a scene of jobs and tokens."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import nats
from nats.js.api import ConsumerInfo
from nats.js.errors import NotFoundError
from pydantic import SecretStr

from kalla.database import Connection
from kalla.local.process import Server
from kalla.local.servers.nats import Nats
from kalla.settings import Wake as WakeSettings
from kalla.work.job import NewJob
from kalla.work.services.depth import Depth
from kalla.work.state import jobs, queues
from kalla.work.wake import Wake
from tests.work_kit import JOB_TYPES, take

QUEUES = ("stage", "exec")
SOON = 10.0  # a deadline, not an expectation


@dataclass
class Channel:
    """Makes wake channels to one server, and takes that server away."""

    server: Server
    url: str
    new: Callable[[], Awaitable[Wake]]
    made: list[Wake] = field(default_factory=list)

    async def open(self) -> Wake:
        wake = await self.new()
        self.made.append(wake)
        await wake.start()
        return wake

    async def stop_server(self) -> None:
        await asyncio.to_thread(self.server.stop)

    async def start_server(self) -> None:
        await asyncio.to_thread(self.server.start)


def at(server: Nats) -> WakeSettings:
    return WakeSettings(nats_url=SecretStr(server.url))


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not await condition():
        assert time.monotonic() < deadline, f"waited {SOON:g} s in vain: {what}"
        await asyncio.sleep(0.02)


async def without_trouble(wake: Wake) -> None:
    async def well() -> bool:
        return wake.error_message is None

    await until(well, "no more trouble")


async def in_trouble(wake: Wake) -> None:
    async def ill() -> bool:
        return wake.error_message is not None

    await until(ill, "trouble")


async def emptied(wake: Wake) -> None:
    """Take every wake-up that is still under way."""
    while woken := await wake.wait(QUEUES, 0.05):
        await wake.claimed(dict.fromkeys(woken, 1))


@dataclass
class Scene:
    """Jobs in Postgres, tokens in NATS, and the service that keeps the two equal."""

    channel: Channel
    server: Nats
    wake: Wake
    connection: Connection
    depth: Depth

    async def insert(self, count: int, queue: str = "exec") -> list[int]:
        new = [NewJob("task", queue=queue)] * count
        inserted = await jobs.insert(self.connection, JOB_TYPES, new)
        await self.wake.nudge(inserted.woken)
        return list(inserted.job_ids)

    async def claim(self, count: int, queue: str = "exec") -> None:
        claimed = await take(self.connection, count, queue)
        await self.wake.claimed({queue: len(claimed)})

    async def pending(self, queue: str = "exec") -> int | None:
        """What KEDA reads; None while there is no such consumer."""
        info = await self.info(queue)
        return None if info is None else (info.num_pending or 0) + (info.num_ack_pending or 0)

    async def info(self, queue: str = "exec") -> ConsumerInfo | None:
        async with await nats.connect(self.server.url) as client:
            try:
                found: ConsumerInfo = await client.jetstream().consumer_info(
                    "kalla-jobs", f"workers-{queue}"
                )
                return found
            except NotFoundError:
                return None

    async def settles_on(self, count: int, queue: str = "exec") -> None:
        """By itself, without the service."""

        async def reached() -> bool:
            return await self.pending(queue) == count

        await until(reached, f"{count} pending in {queue}, not {await self.pending(queue)}")

    async def set_right(self) -> None:
        """The service's work makes both figures equal, for every queue."""
        await self.depth.tick()
        waiting = await queues.waiting(self.connection)
        for queue in QUEUES:
            info = await self.info(queue)
            assert info is not None
            assert (info.num_pending, info.num_ack_pending) == (waiting[queue], 0), queue

    async def restart(self, wipe: bool) -> None:
        self.server.kill()
        if wipe:
            shutil.rmtree(self.server.store)
        self.server.process = None
        await in_trouble(self.wake)
        await self.channel.start_server()
        await without_trouble(self.wake)
