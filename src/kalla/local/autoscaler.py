"""Keeps as many worker processes on this machine as its demand needs, and drains idle ones."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace

import psutil

from kalla import logs
from kalla.database import AWAY, Database
from kalla.errors import StartFailed
from kalla.local import ports
from kalla.local.program import Program
from kalla.scaling import store
from kalla.scaling.decision_service import ScalingGauges, policy_of
from kalla.scaling.policy import Decision, Policy
from kalla.settings import Settings
from kalla.work.state import presence

INTERVAL = 2.0
_log = logs.get(__name__)


class Autoscaler:
    """One machine's workers. A worker that has a job is never asked to stop."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._host = socket.gethostname()
        self._workers: list[Program] = []
        self._draining: list[Program] = []
        self._stopping: set[asyncio.Task[None]] = set()
        self._started = 0
        self.gauges = ScalingGauges()
        self.policy = bounded(policy_of(settings), settings)

    @property
    def pool(self) -> str:
        return self._host

    @property
    def pids(self) -> list[int]:
        """The processes of the workers that are not draining."""
        return [worker.process.pid for worker in self._workers if worker.process]

    async def run(self, wait: Callable[[float], Awaitable[bool]]) -> None:
        """Work until `wait` says that it is time to stop, then drain every worker."""
        try:
            while True:
                try:
                    await self.step()
                except AWAY as error:
                    # Without the database the demand is unknown; the existing workers continue.
                    _log.warning("the database does not answer", reason=str(error))
                except StartFailed as error:
                    _log.error("a worker does not start", reason=str(error))
                if await wait(INTERVAL):
                    return
        finally:
            await self.stop()

    async def step(self) -> Decision:
        """Look, decide, record, and start or drain workers."""
        self._bury()
        async with self._database.transaction() as connection:
            members = frozenset((self._host, pid) for pid in self.pids)
            inputs = await store.pool_inputs(connection, members, self._settings)
            # A worker that is still starting has not announced itself, but counts.
            inputs = replace(inputs, current=len(self._workers))
            decision = await store.decide(connection, self.pool, inputs, self.policy)
            await store.record(connection, self.pool, decision)
            await store.forget(connection, self.pool, inputs.at, self.policy)
            idle = {
                worker.pid
                for worker in await presence.workers(connection)
                if worker.host == self._host and worker.state == "idle"
            }
        self.gauges.set([decision])
        await self._add(decision.desired - len(self._workers))
        surplus = len(self._workers) - decision.desired
        # The newest first: the older ones have warm Spark sessions.
        victims = [w for w in reversed(self._workers) if w.process and w.process.pid in idle]
        for worker in victims[: max(surplus, 0)]:
            self._drain(worker)
        return decision

    async def stop(self) -> None:
        """Drain all workers and wait until they are gone."""
        for worker in list(self._workers):
            self._drain(worker)
        while self._stopping:
            await asyncio.wait(self._stopping)

    async def _add(self, number: int) -> None:
        """Start so many together; those that start count though another does not."""
        workers = [self._program() for _ in range(number)]
        starts = [asyncio.to_thread(worker.start) for worker in workers]
        results = await asyncio.gather(*starts, return_exceptions=True)
        failures = []
        for worker, result in zip(workers, results, strict=True):
            if isinstance(result, BaseException):
                failures.append(result)
                continue
            self._workers.append(worker)
            _log.info("worker started", worker=worker.name, workers=len(self._workers))
        for failure in failures:
            raise failure

    def _program(self) -> Program:
        self._started += 1
        settings = self._settings
        port = ports.choose_free()
        return Program(
            f"autoscaled-{os.getpid()}-{self._started}",
            ["worker", "--port", str(port), "--roles", ",".join(settings.worker.roles)],
            settings.data_dir,
            settings.worker.host,
            port,
            "worker.port",
            stop_seconds=settings.worker.drain_seconds + 10,
        )

    def _drain(self, worker: Program) -> None:
        """SIGTERM: the worker claims nothing more, finishes or hands back, and ends."""
        self._workers.remove(worker)
        self._draining.append(worker)
        _log.info("worker drains", worker=worker.name, workers=len(self._workers))
        task = asyncio.create_task(asyncio.to_thread(worker.stop))
        self._stopping.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._stopping.discard(task)
            self._draining.remove(worker)
            if error := task.exception():
                _log.error("a worker did not drain", worker=worker.name, reason=str(error))

        task.add_done_callback(ended)

    def _bury(self) -> None:
        for worker in [worker for worker in self._workers if not worker.running]:
            _log.warning("worker ended by itself", worker=worker.name, how=worker.ending())
            self._workers.remove(worker)


def bounded(policy: Policy, settings: Settings) -> Policy:
    """The policy, limited by this machine: memory for each worker, and four a core."""
    by_memory = psutil.virtual_memory().available // settings.scaling.worker_memory_bytes
    by_cores = 4 * (os.cpu_count() or 1)
    most = max(1, min(policy.max_workers, int(by_memory), by_cores))
    return replace(policy, max_workers=most, min_workers=min(policy.min_workers, most))
