"""The coordinator of workers, queries and work units: one event in, the actions it calls for."""

from __future__ import annotations

from dataclasses import dataclass, field

from kalla.errors import KallaError
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
from kalla.query.coordination.rendezvous import candidates
from kalla.query.coordination.work_states import ENDS, State, Step, following


class DuplicateQuery(KallaError):
    """A query was started under an id that is in use, or with a work unit of another query."""


@dataclass(frozen=True)
class Bounds:
    dead_after_seconds: float = 3.0  # without a heartbeat
    attempts: int = 5  # of one work unit, then its query fails
    losses: int = 3  # workers lost while they executed it, then its query fails
    wait_seconds: float = 10.0  # for a worker that accepts work


@dataclass
class Work:
    unit: WorkUnit
    since: float  # when it last became pending
    state: State = "pending"
    worker: str = ""
    checksum: str = ""
    attempts: int = 0
    losses: int = 0
    avoided: set[str] = field(default_factory=set)  # rejected or failed it

    def take(self, step: Step) -> None:
        self.state = following(self.state, step)


@dataclass
class _Worker:
    last_seen: float
    accepting: bool = True
    works: dict[WorkKey, Work] = field(default_factory=dict)  # assigned and not fetched yet


class Coordinator:
    """Holds running queries only; messages about others are late and change nothing."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.now = 0.0
        self.workers: dict[str, _Worker] = {}
        self.queries: dict[str, dict[WorkKey, Work]] = {}
        # What waits for a worker, in the order in which it came.
        self._pending: dict[WorkKey, Work] = {}

    def handle(self, event: Event) -> list[Action]:
        return [*self._react(event), *self._assign()]

    def _react(self, event: Event) -> list[Action]:
        match event:
            case Tick(at):
                return self._tick(at)
            case WorkerJoined(worker):
                actions = self._lose(worker)
                self.workers[worker] = _Worker(self.now)
                return actions
            case Disconnected(worker):
                return self._lose(worker)
            case HeartbeatReceived(worker):
                if worker in self.workers:
                    self.workers[worker].last_seen = self.now
            case WorkerStatus(worker, accepting, draining):
                return self._status(worker, accepting, draining)
            case QueryStarted(query_id):
                if query_id in self.queries:
                    raise DuplicateQuery(f"the query {query_id} is not new")
                self.queries[query_id] = {}
            case WorkAdded(query_id, units):
                self._add(query_id, units)
            case QueryEvaluated(query_id):
                if query_id in self.queries:
                    return [*self._end(query_id, "cancel"), AnswerQuery(query_id)]
            case QueryCancelled(query_id):
                return self._end(query_id, "cancel")
            case _:
                return self._report(event)
        return []

    def _report(
        self,
        event: WorkAccepted | WorkRejected | WorkReady | WorkFailed | Fetched | FetchFailed,
    ) -> list[Action]:
        work = self.queries.get(event.key.query_id, {}).get(event.key)
        if isinstance(event, Fetched | FetchFailed):
            if work is None or work.state != "ready" or work.checksum != event.artifact_checksum:
                return []
            if isinstance(event, FetchFailed):
                if work.worker != event.worker:  # of the worker that had it before
                    return []
                return [*self._released(work), *self._retry(work, event.reason)]
            return self._fetched(work)
        if work is None or work.worker != event.worker or work.state in ENDS:
            # Late: the worker may delete the artifact, and nothing else happens.
            if isinstance(event, WorkReady) and event.worker in self.workers:
                return [Acknowledge(event.worker, event.key, event.artifact_checksum)]
            return []
        match event:
            case WorkAccepted() if work.state == "assigned":
                work.take("accept")
            case WorkReady() if work.state in ("assigned", "accepted"):
                if work.state == "assigned":
                    work.take("accept")
                work.take("ready")
                work.checksum = event.artifact_checksum
                return [Fetch(event.worker, event.key, event.artifact_checksum)]
            case WorkReady() if event.artifact_checksum != work.checksum:
                return [Acknowledge(event.worker, event.key, event.artifact_checksum)]
            case WorkRejected() if work.state == "assigned":
                work.attempts -= 1  # it was not tried
                return self._retry(work, f"the query worker {work.worker} rejected it")
            case WorkFailed() if event.error:
                return self._fail(event.key.query_id, event.reason, event.error)
            case WorkFailed():
                return self._retry(work, event.reason)
        return []

    def _fetched(self, work: Work) -> list[Action]:
        work.take("fetch")
        self._remove(work)
        key = work.unit.key
        return [Deliver(key, work.checksum), *self._released(work)]

    def _released(self, work: Work) -> list[Action]:
        """The artifact will not be fetched any more."""
        if work.worker not in self.workers:
            return []
        return [Acknowledge(work.worker, work.unit.key, work.checksum)]

    def _add(self, query_id: str, units: tuple[WorkUnit, ...]) -> None:
        """A query that has ended meanwhile gets no more work."""
        known = self.queries.get(query_id)
        if known is None:
            return
        works = {unit.key: Work(unit, self.now) for unit in units}
        strange = any(key.query_id != query_id or key in known for key in works)
        if strange or len(works) != len(units):
            raise DuplicateQuery(f"a work unit of the query {query_id} is not new")
        known.update(works)
        self._pending.update(works)

    def _end(self, query_id: str, step: Step) -> list[Action]:
        actions: list[Action] = []
        for key, work in self.queries.pop(query_id, {}).items():
            self._pending.pop(key, None)
            if work.state in ENDS:
                continue
            if work.worker in self.workers:
                actions.append(Cancel(work.worker, key))
            self._remove(work)
            work.take(step)
        return actions

    def _retry(self, work: Work, reason: str) -> list[Action]:
        key = work.unit.key
        if work.attempts >= self.bounds.attempts:
            reason = f"a work unit failed {work.attempts} times, at last: {reason}"
            return self._fail(key.query_id, reason)
        work.take("retry")
        self._remove(work)
        work.avoided.add(work.worker)
        work.worker, work.checksum, work.since = "", "", self.now
        self._pending[key] = work
        return [Requeue(key, reason)]

    def _fail(self, query_id: str, reason: str, error: str = "") -> list[Action]:
        return [*self._end(query_id, "fail"), FailQuery(query_id, reason, error)]

    def _status(self, worker: str, accepting: bool, draining: bool) -> list[Action]:
        if worker not in self.workers:
            return []
        self.workers[worker].accepting = accepting and not draining
        actions: list[Action] = []
        if draining:
            # Work that was not started moves to other workers at once; accepted work is finished
            # there.
            for work in self._works(worker, "assigned"):
                actions.append(Cancel(worker, work.unit.key))
                work.attempts -= 1
                actions += self._retry(work, f"the query worker {worker} is draining")
        return actions

    def _lose(self, worker: str) -> list[Action]:
        works = self._works(worker, "assigned", "accepted", "ready")
        if self.workers.pop(worker, None) is None:
            return []
        actions: list[Action] = []
        for work in works:
            if work.state in ENDS:  # an earlier one has failed the query
                continue
            if work.state == "accepted":
                work.losses += 1
            else:
                work.attempts -= 1  # it had no part in the loss
            if work.losses >= self.bounds.losses:
                reason = (
                    f"{work.losses} query workers were lost while they executed the same work unit"
                )
                actions += self._fail(work.unit.key.query_id, reason)
                continue
            actions += self._retry(work, f"the query worker {worker} was lost")
            work.avoided.discard(worker)
        return actions

    def _tick(self, at: float) -> list[Action]:
        self.now = max(self.now, at)
        actions: list[Action] = []
        for name, worker in list(self.workers.items()):
            if self.now - worker.last_seen > self.bounds.dead_after_seconds:
                actions += self._lose(name)
        late = {
            key.query_id: None
            for key, work in self._pending.items()
            if self.now - work.since > self.bounds.wait_seconds
        }
        for query_id in late:
            reason = f"no query worker took work within {self.bounds.wait_seconds:g} s"
            actions += self._fail(query_id, reason)
        return actions

    def _assign(self) -> list[Action]:
        usable = {name for name, worker in self.workers.items() if worker.accepting}
        if not usable:
            return []
        actions: list[Action] = []
        for work in self._pending.values():
            unit = work.unit
            # Workers that failed at it are used again only when no other is left.
            asked = frozenset(usable - work.avoided or usable)
            shards = max(unit.shards, unit.shard + 1)
            some = candidates(unit.tenant, shards, asked)[unit.shard]
            # The first of those with the least work: without load a shard stays with one worker.
            worker = min(some, key=lambda name: len(self.workers[name].works))
            work.take("assign")
            work.worker, work.attempts = worker, work.attempts + 1
            self.workers[worker].works[unit.key] = work
            actions.append(Assign(worker, unit))
        self._pending.clear()
        return actions

    def _remove(self, work: Work) -> None:
        if work.worker in self.workers:
            self.workers[work.worker].works.pop(work.unit.key, None)

    def _works(self, worker: str, *states: State) -> list[Work]:
        if worker not in self.workers:
            return []
        return [work for work in self.workers[worker].works.values() if work.state in states]
