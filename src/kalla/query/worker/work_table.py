"""The work units that a query worker holds, of all its sessions: waiting, running, or ready."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import structlog

from kalla import logs, tracing
from kalla.errors import KallaError
from kalla.query.coordination.events import WorkKey
from kalla.query.promql.query_errors import QueryError, Stopped
from kalla.query.protocol import control_pb2 as pb
from kalla.query.protocol.versions import SCHEMA_VERSION
from kalla.query.protocol.work_messages import assignment_of, error_name
from kalla.query.worker.artifact_spool import Spool
from kalla.query.worker.execution import Executor, Result
from kalla.query.worker.metrics import WorkerMetrics

_log = logs.get(__name__)


@dataclass
class Unit:
    """One work unit of one session; `session` is the identity of its stream."""

    session: str
    key: WorkKey
    message: pb.AssignWork
    send: Callable[[pb.ToApi], None]
    queued_at: float
    stop: threading.Event = field(default_factory=threading.Event)
    cancelled_at: float | None = None
    began_at: float | None = None
    problem: str = ""

    @property
    def wire_key(self) -> pb.WorkKey:
        return self.message.key


class WorkTable:
    """Runs on the event loop; threads only execute."""

    def __init__(
        self,
        executor: Executor,
        spool: Spool,
        metrics: WorkerMetrics,
        threads: int,
        most_queued: int,
    ) -> None:
        self._executor = executor
        self._spool = spool
        self._metrics = metrics
        self._most_queued = most_queued
        self._threads = ThreadPoolExecutor(threads, "query-work")
        self._slots = asyncio.Semaphore(threads)
        # Called when the table accepts work again.
        self.on_accepting: Callable[[], None] = lambda: None
        self._units: dict[tuple[str, WorkKey], Unit] = {}
        self._tasks: dict[tuple[str, WorkKey], asyncio.Task[None]] = {}
        # Checksum and name of artifacts by session: deleted when the session will not fetch them.
        self._artifacts: dict[tuple[str, WorkKey], tuple[str, str]] = {}
        self.draining = False

    @property
    def queued(self) -> int:
        return sum(1 for unit in self._units.values() if unit.began_at is None)

    @property
    def running(self) -> int:
        return sum(1 for unit in self._units.values() if unit.began_at is not None)

    @property
    def unfetched(self) -> int:
        return len(self._artifacts)

    @property
    def oldest_age(self) -> float:
        waiting = [unit.queued_at for unit in self._units.values() if unit.began_at is None]
        return time.monotonic() - min(waiting) if waiting else 0.0

    @property
    def accepting(self) -> bool:
        return not self.draining and len(self._units) < self._most_queued

    def assign(
        self, session: str, message: pb.AssignWork, send: Callable[[pb.ToApi], None]
    ) -> None:
        key = key_of(message.key)
        if not self.accepting or (session, key) in self._units:
            self._metrics.rejected.inc()
            reason = "the query worker is draining" if self.draining else "its queue is full"
            send(pb.ToApi(rejected=pb.WorkRejected(key=message.key, reason=reason)))
            return
        unit = Unit(session, key, message, send, time.monotonic())
        self._units[session, key] = unit
        task = asyncio.create_task(self._execute_unit(unit), name=f"work {key.work_id}")
        self._tasks[session, key] = task
        task.add_done_callback(lambda _: self._forget(session, key))

    def cancel(self, session: str, key: WorkKey) -> None:
        self._drop_artifact(session, key)
        unit = self._units.get((session, key))
        if unit is not None:
            unit.cancelled_at = unit.cancelled_at or time.monotonic()
            unit.stop.set()
            if unit.began_at is None:
                self._tasks[session, key].cancel()

    def acknowledge(self, session: str, key: WorkKey, checksum: str) -> None:
        known, name = self._artifacts.get((session, key), ("", ""))
        if known == checksum:
            del self._artifacts[session, key]
            self._spool.acknowledge(name)

    def drop_session(self, session: str) -> None:
        """The session has ended: cancels its work."""
        for owner, key in list(self._units):
            if owner == session:
                self.cancel(session, key)
        for owner, key in list(self._artifacts):
            if owner == session:
                self._drop_artifact(session, key)

    def drain(self) -> None:
        """Accepts no new work; returns work that was not started."""
        self.draining = True
        for unit in list(self._units.values()):
            if unit.began_at is None:
                self.cancel(unit.session, unit.key)
                unit.send(
                    pb.ToApi(
                        rejected=pb.WorkRejected(
                            key=unit.wire_key, reason="the query worker is draining"
                        )
                    )
                )

    async def changed(self, seconds: float) -> None:
        """Waits for the end of a work unit, at most this long."""
        if self._tasks:
            await asyncio.wait(
                self._tasks.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        else:
            await asyncio.sleep(seconds)

    async def close(self) -> None:
        for unit in list(self._units.values()):
            self.cancel(unit.session, unit.key)
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=5)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def forget_expired(self) -> None:
        for owner, (_, name) in list(self._artifacts.items()):
            if self._spool.path(name) is None:
                del self._artifacts[owner]

    def _drop_artifact(self, session: str, key: WorkKey) -> None:
        """That of a query that has ended, or of work that was done once more."""
        _, name = self._artifacts.pop((session, key), ("", ""))
        if name:
            self._spool.drop(name)

    def _forget(self, session: str, key: WorkKey) -> None:
        accepted_before = self.accepting
        unit = self._units.pop((session, key), None)
        self._tasks.pop((session, key), None)
        if self.accepting and not accepted_before:
            self.on_accepting()
        if unit is not None and unit.cancelled_at is not None:
            self._metrics.cancel_seconds.observe(time.monotonic() - unit.cancelled_at)

    async def _execute_unit(self, unit: Unit) -> None:
        structlog.contextvars.bind_contextvars(query_id=unit.key.query_id, work_id=unit.key.work_id)
        span = tracing.start(
            "execute query work",
            unit.key.query_id,
            parent_id=unit.key.work_id,
            query_id=unit.key.query_id,
            work_id=unit.key.work_id,
            shard=unit.message.shard,
        )
        try:
            await self._execute_and_announce(unit)
        finally:
            span.end(unit.problem, cancelled=unit.stop.is_set())

    async def _execute_and_announce(self, unit: Unit) -> None:
        async with self._slots:
            unit.began_at = time.monotonic()
            waited = unit.began_at - unit.queued_at
            unit.send(pb.ToApi(accepted=pb.WorkAccepted(key=unit.wire_key)))
            self._metrics.accepted.inc()
            self._metrics.wait_seconds.observe(waited)
            loop = asyncio.get_running_loop()
            try:
                # The thread's log lines name the work unit, too.
                run = contextvars.copy_context().run
                result, name = await loop.run_in_executor(self._threads, run, self._execute, unit)
            except Exception as error:
                self._failed(unit, error)
                return
        spent = time.monotonic() - unit.began_at
        self._metrics.task_seconds.observe(spent)
        self._metrics.cache_hits.labels(str(result.cache_hit).lower()).inc()
        if unit.stop.is_set():
            self._spool.drop(name)
            return
        checksum = result.artifact.checksum
        self._drop_artifact(unit.session, unit.key)
        self._artifacts[unit.session, unit.key] = checksum, name
        after, until = assignment_of(unit.message).bounds
        unit.send(
            pb.ToApi(
                ready=pb.WorkReady(
                    key=unit.wire_key,
                    artifact_url=f"/artifacts/{name}",
                    artifact_size_bytes=result.artifact.content.size,
                    artifact_checksum=checksum,
                    row_count=result.artifact.rows,
                    min_ts=after,
                    max_ts=until,
                    parquet_schema_version=SCHEMA_VERSION,
                    cache_hit=result.cache_hit,
                    wait_seconds=waited,
                    run_seconds=spent,
                )
            )
        )

    def _execute(self, unit: Unit) -> tuple[Result, str]:
        result = self._executor.run(assignment_of(unit.message), unit.stop)
        return result, self._spool.keep(result.artifact.content)

    def _failed(self, unit: Unit, error: Exception) -> None:
        if isinstance(error, Stopped) or unit.stop.is_set():
            return  # nobody waits for it
        final = isinstance(error, QueryError)
        name, reason = error_name(error) if isinstance(error, QueryError) else ("", str(error))
        unit.problem = reason
        self._metrics.failed.labels(str(final).lower()).inc()
        if not isinstance(error, KallaError):
            _log.error("a work unit failed", exc_info=error)
            reason = f"{type(error).__name__}: {error}"
        unit.send(
            pb.ToApi(
                failed=pb.WorkFailed(key=unit.wire_key, reason=reason, final=final, error=name)
            )
        )


def key_of(message: pb.WorkKey) -> WorkKey:
    return WorkKey(message.query_id, message.leaf_id, message.work_id)
