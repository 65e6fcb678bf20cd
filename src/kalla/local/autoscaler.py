"""Keeps as many worker processes on this machine as its demand needs, and drains idle ones."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from kalla import logs
from kalla.database import Database
from kalla.errors import StartFailed
from kalla.local import machine_limits, ports
from kalla.local.program import STOP_SECONDS, Program
from kalla.local.supervisor import (
    FIRST_PAUSE,
    HEALTH_SECONDS,
    LONGEST_PAUSE,
    SETTLED_SECONDS,
    SICK_AFTER,
)
from kalla.scaling import store
from kalla.scaling.decision_service import ScalingGauges, policy_of
from kalla.scaling.policy import Decision, Policy
from kalla.settings import Settings
from kalla.work.service import FORESEEN
from kalla.work.state import presence

INTERVAL = 2.0
_log = logs.get(__name__)
Result = TypeVar("Result")


class Autoscaler:
    """One machine's workers. A healthy worker that has a job is never asked to stop."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._host = socket.gethostname()
        self._workers: list[Program] = []  # those that start or work, in the order of their start
        self._started_at: dict[Program, float] = {}  # of those that have answered
        self._failed_checks: dict[Program, int] = {}  # health checks in a row
        self._checked_at = 0.0
        self._draining: list[Program] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._pause = FIRST_PAUSE
        self._paused_until = 0.0
        # Each start and each drain blocks a thread for as long as it takes.
        self._threads = ThreadPoolExecutor(
            2 * settings.scaling.max_workers, thread_name_prefix="worker process"
        )
        self.gauges = ScalingGauges()

    @property
    def pool(self) -> str:
        return self._host

    @property
    def pids(self) -> list[int]:
        """The processes of the workers that have started and are not draining."""
        return list(self._by_pid())

    async def run(self, wait: Callable[[float], Awaitable[bool]]) -> None:
        """Work until `wait` says that it is time to stop, then drain every worker."""
        failure = ""
        try:
            while True:
                try:
                    await self.step()
                    failure = ""
                except FORESEEN as error:
                    # Without the database the demand is unknown; the existing workers continue.
                    if not failure:
                        _log.warning("the database does not answer", reason=str(error))
                    failure = str(error)
                except Exception as error:  # ending here would drain every worker
                    if failure != str(error):
                        _log.exception("a decision failed")
                    failure = str(error)
                if await wait(INTERVAL):
                    return
        finally:
            await self.stop()

    async def step(self) -> Decision:
        """Look, decide, record, and start or drain workers."""
        self._remove_ended()
        await self._check_health()
        async with self._database.transaction() as connection:
            members = await presence.members(connection, self._host, self.pids)
            inputs = await store.pool_inputs(connection, members, self._settings)
            # A worker that is still starting has not announced itself, but counts.
            inputs = replace(inputs, current=len(self._workers))
            decision = await store.decide(connection, self.pool, inputs, self._policy())
            await store.record(connection, self.pool, decision)
            await store.forget(connection, self.pool, inputs.at, decision.policy)
            # Again, as late as possible: one that has just claimed a job is not idle any more.
            members = await presence.members(connection, self._host, self.pids)
        self.gauges.set([decision])
        if time.monotonic() >= self._paused_until:
            for _ in range(decision.desired - len(self._workers)):
                self._start()
        # Until a worker that is starting can take jobs, it replaces none that can.
        surplus = len(self._started_at) - decision.desired
        for worker in self._idle(members)[: max(surplus, 0)]:
            self._drain(worker)
        return decision

    async def stop(self) -> None:
        """Drain all workers and wait until they are gone."""
        self._stopping = True
        for worker in list(self._started_at):
            self._drain(worker)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _policy(self) -> Policy:
        started = (worker.process.pid for worker in self._workers if worker.process)
        return machine_limits.bounded(
            policy_of(self._settings),
            len(self._workers),
            self._settings.scaling.worker_memory_bytes,
            list(started),
        )

    def _idle(self, members: list[presence.Member]) -> list[Program]:
        """Those without a job. First those with fewer slots of sinks, as a slot that moves stops
        its deliveries for a moment; then the newest, as the older ones have warm Spark sessions.
        """
        idle = {member.pid: member.slots for member in members if not member.jobs}
        by_pid = self._by_pid()
        newest = [pid for pid in reversed(by_pid) if pid in idle]
        return [by_pid[pid] for pid in sorted(newest, key=lambda pid: idle[pid])]

    def _by_pid(self) -> dict[int, Program]:
        return {
            worker.process.pid: worker
            for worker in self._workers
            if worker.process and worker in self._started_at
        }

    def _start(self) -> None:
        settings = self._settings
        port = ports.choose_free()
        worker = Program(
            self._free_name(),
            ["worker", "--port", str(port), "--roles", ",".join(settings.worker.roles)],
            settings.data_dir,
            settings.worker.host,
            port,
            "worker.port",
            stop_seconds=settings.worker.drain_seconds + STOP_SECONDS,
        )
        self._workers.append(worker)
        self._spawn(self._started(worker))

    def _free_name(self) -> str:
        """The lowest number that no process has: names, and with them logs, are used again."""
        taken = {worker.name for worker in (*self._workers, *self._draining)}
        names = (f"autoscaled-{os.getpid()}-{number}" for number in range(1, len(taken) + 2))
        return next(name for name in names if name not in taken)

    async def _started(self, worker: Program) -> None:
        try:
            await self._in_thread(lambda: worker.start(lambda: self._stopping))
        except (StartFailed, OSError) as error:
            self._workers.remove(worker)
            if not self._stopping:
                _log.error("a worker does not start", worker=worker.name, reason=str(error))
                self._wait_longer()
            return
        self._started_at[worker] = time.monotonic()
        _log.info("worker started", **_facts(worker), workers=len(self._workers))
        if self._stopping:
            self._drain(worker)

    def _drain(self, worker: Program) -> None:
        """SIGTERM: the worker claims nothing more, finishes or hands back, and ends."""
        self._forget(worker)
        self._draining.append(worker)
        _log.info("worker drains", **_facts(worker), workers=len(self._workers))
        # At once, whether or not a thread is free to wait for its end.
        worker.ask_to_stop()
        self._spawn(self._stopped(worker))

    async def _stopped(self, worker: Program) -> None:
        try:
            await self._in_thread(worker.stop)
        except OSError as error:
            _log.error("a worker did not drain", worker=worker.name, reason=str(error))
        finally:
            self._draining.remove(worker)

    def _remove_ended(self) -> None:
        now = time.monotonic()
        for worker, started_at in list(self._started_at.items()):
            lived = now - started_at
            if not worker.running:
                _log.warning("worker ended by itself", **_facts(worker), how=worker.ending())
                self._forget(worker)
                if lived < SETTLED_SECONDS:
                    self._wait_longer()
            elif lived >= SETTLED_SECONDS and self._paused_until + SETTLED_SECONDS < now:
                self._pause = FIRST_PAUSE

    async def _check_health(self) -> None:
        """Replace workers whose /health says that a restart would help, or that do not answer."""
        if time.monotonic() - self._checked_at < HEALTH_SECONDS:
            return
        self._checked_at = time.monotonic()
        workers = list(self._started_at)
        probes = [self._in_thread(worker.probe) for worker in workers]
        for worker, is_healthy in zip(workers, await asyncio.gather(*probes), strict=True):
            failed = 0 if is_healthy else self._failed_checks.get(worker, 0) + 1
            self._failed_checks[worker] = failed
            if failed >= SICK_AFTER:
                _log.warning("worker is replaced", **_facts(worker), failed_checks=failed)
                self._drain(worker)

    def _wait_longer(self) -> None:
        """A worker that fails soon after its start is not replaced at once, again and again."""
        if time.monotonic() < self._paused_until:
            return  # several that fail together count once
        self._paused_until = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _forget(self, worker: Program) -> None:
        self._workers.remove(worker)
        self._started_at.pop(worker, None)
        self._failed_checks.pop(worker, None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _facts(worker: Program) -> dict[str, object]:
    """A worker for the log: its name, by which its own log is called, is used again."""
    return {"worker": worker.name, "process": worker.process.pid if worker.process else None}
