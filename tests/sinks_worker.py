"""A worker that holds slots and nothing else: a process of its own that starts in a second."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import uvloop

from kalla import logs, settings
from kalla.database import Database
from kalla.secrets import Vault
from kalla.settings import Settings
from kalla.sinks.slots.reconciling import Slots


async def run(loaded: Settings) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    holder = f"{socket.gethostname()}-{os.getpid()}"
    async with Database(loaded.database, name="sinks worker") as database:
        slots = Slots(loaded, database, holder, Vault(loaded).resolve)
        await slots.start()
        await stopping.wait()
        await slots.stop()


if __name__ == "__main__":
    effective = settings.load().settings
    logs.configure("info", "text")
    uvloop.run(run(effective))
