"""A worker process of the chaos run: Kalla's own worker, with the chaos run's job types.

Settings come from KALLA_*; CHAOS_LEDGER names the ledger's folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from kalla import logs, settings
from kalla.database import Database
from kalla.settings import ROLES, Settings
from kalla.work.wake import open_channel
from kalla.work.worker import Worker
from tests.chaos.job_types import chaos_job_types
from tests.chaos.ledger import Ledger

DUTY_DIED = 70
_LOOK_SECONDS = 0.5


async def run_worker(effective: Settings, ledger: Ledger) -> int:
    """Work until SIGTERM, then drain; end at once when a service has died."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    job_types = chaos_job_types(effective, ledger)
    async with Database(effective.database, name="kalla worker") as database:
        wake = open_channel(effective, database, ROLES)
        worker = Worker(effective, job_types, database, wake)
        ledger.write("born", pid=os.getpid(), name=worker.name)
        await worker.start()
        while not stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), _LOOK_SECONDS)
            if deaths := worker.problems():
                ledger.write("service died", deaths=deaths)
                return DUTY_DIED
        await worker.drain()
    if len(worker.slots):
        os._exit(0)  # as `kalla worker` does: a deaf thread must not keep the process
    return 0


def main() -> None:
    effective = settings.load(with_running=False).settings
    logs.configure(effective.log.level, effective.log.format)
    ledger = Ledger(Path(os.environ["CHAOS_LEDGER"]), f"worker-{os.getpid()}-{os.urandom(3).hex()}")
    code = asyncio.run(run_worker(effective, ledger))
    sys.stderr.flush()
    if code:
        os._exit(code)  # other services may still hang on what killed this one


if __name__ == "__main__":
    main()
