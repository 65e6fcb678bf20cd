"""Executes the coordinator's actions: assigns and cancels work, fetches artifacts.

Runs on the event loop; queries' threads submit work units and wait for their artifacts. Modules of
the engine are imported when a query has loaded it: its compiler takes seconds.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from kalla import logs, tracing
from kalla.errors import KallaError, Unavailable
from kalla.query.coordination.coordinator import Bounds, Coordinator
from kalla.query.coordination.events import (
    Acknowledge,
    Action,
    AnswerQuery,
    Assign,
    Cancel,
    Deliver,
    Disconnected,
    Event,
    FailQuery,
    Fetch,
    Fetched,
    FetchFailed,
    HeartbeatReceived,
    QueryCancelled,
    QueryEvaluated,
    QueryStarted,
    Requeue,
    Tick,
    WorkAccepted,
    WorkAdded,
    WorkerJoined,
    WorkerStatus,
    WorkFailed,
    WorkKey,
    WorkReady,
    WorkRejected,
    WorkUnit,
)
from kalla.query.discovery.addresses import Discovery, discovery_of
from kalla.query.dispatch.artifact_fetch import ArtifactClient, FetchProblem
from kalla.query.dispatch.metrics import DispatchMetrics
from kalla.query.dispatch.query_records import QueryRecord, QueryRecords, WorkRecord
from kalla.query.dispatch.worker_connection import WorkerConnection
from kalla.query.dispatch.worker_pool import WorkerPool
from kalla.query.promql.query_errors import Stopped
from kalla.query.protocol import control_pb2 as pb
from kalla.query.protocol.background import repeat
from kalla.query.protocol.peer_access import PeerAccess
from kalla.settings import Settings

if TYPE_CHECKING:
    from kalla.query.protocol.work_messages import Assignment

_log = logs.get(__name__)

_TICK_SECONDS = 0.25
_TENANT = "default"


@dataclass
class _Unit:
    key: WorkKey
    assignment: Assignment
    result: Future[pa.Buffer]
    record: WorkRecord
    ready: pb.WorkReady = field(default_factory=pb.WorkReady)
    content: pa.Buffer | None = None
    stop: threading.Event = field(default_factory=threading.Event)  # ends the fetch


class Dispatcher:
    """The query workers of this API process, and the work of its queries on them."""

    def __init__(
        self,
        discovery: Discovery,
        access: PeerAccess = PeerAccess(),  # noqa: B008  (frozen)
        bounds: Bounds | None = None,
        discovery_seconds: float = 5.0,
    ) -> None:
        self.records = QueryRecords()
        self.metrics = DispatchMetrics()
        self.metrics.watch(self._gauges)
        self.api_id = uuid4().hex
        self._coordinator = Coordinator(bounds)
        self.workers = WorkerPool(
            discovery,
            discovery_seconds,
            lambda address: WorkerConnection(address, self.api_id, access, self),
        )
        self._units: dict[str, dict[WorkKey, _Unit]] = {}  # by query
        self._events: deque[Event] = deque()  # handled within the call that adds them
        self._handling = False
        self._problems: dict[str, KallaError] = {}  # of failed queries, until they are closed
        self._clock, self._ticked_at = 0.0, time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self._services: list[asyncio.Task[None]] = []
        self._artifacts = ArtifactClient(access, self.metrics.mismatches.inc)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._services = [
            asyncio.create_task(
                repeat(_TICK_SECONDS, self._tick, "query ticks"), name="query ticks"
            ),
            asyncio.create_task(self.workers.discover_regularly(), name="query worker discovery"),
        ]

    async def close(self) -> None:
        for query_id in list(self._units):
            self.cancel_query(query_id)
        for task in (*self._services, *self._tasks):
            task.cancel()
        await asyncio.gather(*self._services, *self._tasks, return_exceptions=True)
        await self.workers.close()
        self._artifacts.close()
        self._loop = None

    # Called by queries

    def open_query(self, record: QueryRecord) -> None:
        self._units[record.query_id] = {}
        self._feed(QueryStarted(record.query_id))

    def close_query(self, query_id: str) -> None:
        """The query has its answer or failed: cancels its remaining work."""
        self._end_work(query_id, "cancelled", Stopped("the query has ended"))
        self._feed(QueryEvaluated(query_id))
        self._problems.pop(query_id, None)

    def cancel_query(self, query_id: str) -> None:
        self._end_work(query_id, "cancelled", Stopped("query was canceled in query execution"))
        self._feed(QueryCancelled(query_id))

    def submit(
        self, record: QueryRecord, leaf_id: int, assignment: Assignment
    ) -> Future[pa.Buffer]:
        """Called by a query's thread; returns the artifact's bytes, checked."""
        result: Future[pa.Buffer] = Future()
        if self._loop is None:
            raise Unavailable("the API is stopping: ask again in a moment")
        self._loop.call_soon_threadsafe(self._add, record, leaf_id, assignment, result)
        return result

    def _add(
        self,
        record: QueryRecord,
        leaf_id: int,
        assignment: Assignment,
        result: Future[pa.Buffer],
    ) -> None:
        units = self._units.get(record.query_id)
        if units is None:
            ended = Stopped("query was canceled in query execution")
            _fail(result, self._problems.get(record.query_id, ended))
            return
        key = WorkKey(record.query_id, leaf_id, uuid4().hex)
        work = WorkRecord(key.work_id, leaf_id, assignment.shard)
        record.work.append(work)
        span = tracing.start(
            "query work",
            key.query_id,
            key.work_id,
            key.query_id,
            query_id=key.query_id,
            work_id=key.work_id,
            leaf=leaf_id,
            shard=assignment.shard,
        )
        units[key] = _Unit(key, assignment, result, work)
        result.add_done_callback(lambda done: _end_span(span, work, done))
        unit = WorkUnit(key, _TENANT, assignment.shard, assignment.shards)
        self._feed(WorkAdded(record.query_id, (unit,)))

    # Messages of connections

    def joined(self, connection: WorkerConnection) -> bool:
        if not self.workers.admit(connection):
            return False
        self._artifacts.joined(connection.artifact_host)
        if connection.lost_at is not None:
            self.metrics.reconnect.observe(time.monotonic() - connection.lost_at)
        _log.info("a query worker joined", worker=connection.worker_id, address=connection.address)
        self._feed(WorkerJoined(connection.worker_id))
        return True

    def lost(self, connection: WorkerConnection) -> None:
        if not connection.status.draining:
            self.metrics.disconnects.inc()
        self._artifacts.hang_up(connection.artifact_host)
        if self.workers.remove(connection):
            _log.warning("a query worker was lost", worker=connection.worker_id)
            self._feed(Disconnected(connection.worker_id))

    def received(self, connection: WorkerConnection, message: pb.ToApi) -> None:
        worker = connection.worker_id
        if not self.workers.holds(connection):
            return
        self._feed(HeartbeatReceived(worker))
        match message.WhichOneof("message"):
            case "heartbeat":
                self.metrics.heartbeat.observe(connection.round_trip)
            case "status":
                status = message.status
                self._feed(WorkerStatus(worker, status.accepting_work, status.draining))
            case "accepted":
                self._accepted(worker, _key(message.accepted.key))
            case "rejected":
                self.metrics.rejected.inc()
                self._feed(WorkRejected(worker, _key(message.rejected.key)))
            case "ready":
                self._ready(worker, message.ready)
            case "failed":
                failed = message.failed
                error = (failed.error or "execution") if failed.final else ""
                self._feed(WorkFailed(worker, _key(failed.key), failed.reason, error))

    def _accepted(self, worker: str, key: WorkKey) -> None:
        self.metrics.accepted.inc()
        unit = self._unit(key)
        if unit is not None and unit.record.worker == worker:
            unit.record.state = "accepted"
            self.metrics.assignment.observe(time.monotonic() - unit.record.added_at)
        self._feed(WorkAccepted(worker, key))

    def _ready(self, worker: str, ready: pb.WorkReady) -> None:
        unit = self._unit(_key(ready.key))
        if unit is not None and unit.record.worker == worker:
            unit.ready, record = ready, unit.record
            record.state, record.ready_at = "ready", time.monotonic()
            record.cache_hit, record.rows = ready.cache_hit, ready.row_count
            record.wait_seconds, record.run_seconds = ready.wait_seconds, ready.run_seconds
            record.bytes = ready.artifact_size_bytes
            self.metrics.affinity.labels(str(ready.cache_hit).lower()).inc()
            self.workers.note_hit(worker, hit=ready.cache_hit)
        self._feed(WorkReady(worker, _key(ready.key), ready.artifact_checksum))

    # The coordinator's actions

    def _feed(self, event: Event) -> None:
        """An action may cause the next event: each is handled before the one after it."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                for action in self._coordinator.handle(self._events.popleft()):
                    self._perform_or_fail(action)
        finally:
            self._handling = False

    def _perform_or_fail(self, action: Action) -> None:
        """An error here is a flaw: it fails the query, and the other actions are performed."""
        try:
            self._perform(action)
        except Exception as error:
            query_id = _query_of(action)
            _log.exception("an action of the coordinator failed", query_id=query_id)
            problem = _problem(f"{type(error).__name__}: {error}", "")
            self._end_work(query_id, "failed", problem)
            self._events.append(QueryCancelled(query_id))

    def _perform(self, action: Action) -> None:
        match action:
            case Assign(worker, unit):
                self._assign(worker, unit.key)
            case Cancel(worker, key):
                self.workers.cancel(worker, _wire(key))
            case Requeue(key, reason):
                self._requeue(key, reason)
            case Acknowledge(worker, key, checksum):
                ack = pb.ArtifactAck(key=_wire(key), artifact_checksum=checksum)
                self.workers.send(worker, pb.ToWorker(ack=ack))
            case Fetch(worker, key, _):
                connection = self.workers.open.get(worker)
                if (found := self._unit(key)) is not None and connection is not None:
                    self._spawn(self._fetch(connection, found))
            case Deliver(key, _):
                self._deliver(key)
            case FailQuery(query_id, reason, error):
                self._end_work(query_id, "failed", _problem(reason, error))
            case AnswerQuery():
                pass

    def _assign(self, worker: str, key: WorkKey) -> None:
        unit = self._unit(key)
        if unit is None:
            return
        record = unit.record
        if record.attempts:
            self.metrics.reassigned.inc()
        record.worker, record.state = worker, "assigned"
        record.attempts, record.assigned_at = record.attempts + 1, time.monotonic()
        from kalla.query.protocol.work_messages import assignment_message

        message = assignment_message(_wire(key), unit.assignment)
        self.workers.send(worker, pb.ToWorker(assign=message))

    def _requeue(self, key: WorkKey, reason: str) -> None:
        unit = self._unit(key)
        if unit is None:
            return
        _log.info(
            "a work unit waits for another query worker",
            query_id=key.query_id,
            work_id=key.work_id,
            reason=reason,
        )
        unit.record.worker, unit.record.state = "", "pending"

    async def _fetch(self, connection: WorkerConnection, unit: _Unit) -> None:
        ready, record = unit.ready, unit.record
        checksum = ready.artifact_checksum
        worker, began = connection.worker_id, time.monotonic()
        record.ready_to_fetch_seconds = began - record.ready_at
        self.metrics.ready_to_fetch.observe(record.ready_to_fetch_seconds)
        host, size = connection.artifact_host, ready.artifact_size_bytes
        try:
            content = await self._artifacts.fetch(
                host, ready.artifact_url, size, checksum, unit.stop
            )
        except Exception as error:
            if not unit.stop.is_set():
                _log.warning(
                    "an artifact could not be fetched",
                    query_id=unit.key.query_id,
                    work_id=unit.key.work_id,
                    worker=worker,
                    reason=str(error),
                    exc_info=None if isinstance(error, FetchProblem) else error,
                )
            self._feed(FetchFailed(worker, unit.key, checksum, str(error)))
            return
        record.fetch_seconds = time.monotonic() - began
        self.metrics.fetch.observe(record.fetch_seconds)
        unit.content = content
        self._feed(Fetched(unit.key, checksum))

    def _deliver(self, key: WorkKey) -> None:
        """The query alone holds the artifact from now on, so that it can release it."""
        unit = self._units.get(key.query_id, {}).pop(key, None)
        if unit is not None and unit.content is not None:
            unit.record.state, unit.record.fetched_at = "fetched", time.monotonic()
            if not unit.result.done():
                unit.result.set_result(unit.content)

    def _end_work(self, query_id: str, state: str, problem: KallaError) -> None:
        """Ends what waits for this query's work."""
        units = self._units.pop(query_id, None)
        if units is None:
            return
        self._problems[query_id] = problem
        for unit in units.values():
            unit.record.state = state
            unit.stop.set()
            _fail(unit.result, problem)

    # Services

    async def _tick(self) -> None:
        # This clock stops while the process is paused: its own pause does not count as a worker's
        # silence.
        now = time.monotonic()
        self._clock += min(now - self._ticked_at, 2 * _TICK_SECONDS)
        self._ticked_at = now
        self._feed(Tick(self._clock))
        self.workers.hang_up_except(self._coordinator.workers)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="fetch")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _unit(self, key: WorkKey) -> _Unit | None:
        return self._units.get(key.query_id, {}).get(key)

    def queue(self) -> tuple[int, float, int]:
        """Work units that wait, the age of the oldest, and those that run."""
        waiting, running = [], 0
        for units in self._units.values():
            for unit in units.values():
                if unit.record.state in ("pending", "assigned"):
                    waiting.append(unit.record.added_at)
                running += unit.record.state == "accepted"
        age = time.monotonic() - min(waiting) if waiting else 0.0
        return len(waiting), age, running

    def _gauges(self) -> dict[str, float]:
        depth, age, running = self.queue()
        return {
            "streams": len(self.workers.open),
            "queue_depth": depth,
            "oldest_age_seconds": age,
            "work_running": running,
            "live": len(self.records.live),
        }


def dispatcher_of(settings: Settings) -> Dispatcher:
    query = settings.query
    bounds = Bounds(attempts=query.attempts, wait_seconds=query.worker_wait_seconds)
    return Dispatcher(
        discovery_of(query.workers),
        PeerAccess.of(query),
        bounds,
        query.discovery_seconds,
    )


def _problem(reason: str, error: str) -> KallaError:
    """The error that every worker would have, or that none could do the work."""
    if not error:
        return Unavailable(f"{reason}: see the page Query workers, or ask again in a moment")
    from kalla.query.protocol.work_messages import error_of

    return error_of(error, reason)


def _query_of(action: Action) -> str:
    match action:
        case AnswerQuery(query_id) | FailQuery(query_id):
            return query_id
        case Assign(_, unit):
            return unit.key.query_id
    return action.key.query_id


def _end_span(span: tracing.Span, work: WorkRecord, done: Future[pa.Buffer]) -> None:
    problem = None if done.cancelled() else done.exception(timeout=0)
    error = "" if problem is None else str(problem)
    span.end(error, worker=work.worker, attempts=work.attempts, bytes=work.bytes)


def _fail(result: Future[pa.Buffer], problem: KallaError) -> None:
    if not result.done():
        result.set_exception(problem)


def _key(message: pb.WorkKey) -> WorkKey:
    return WorkKey(message.query_id, message.leaf_id, message.work_id)


def _wire(key: WorkKey) -> pb.WorkKey:
    return pb.WorkKey(query_id=key.query_id, leaf_id=key.leaf_id, work_id=key.work_id)
