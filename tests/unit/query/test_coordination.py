"""Work units go to one worker at a time, and every query ends in exactly one way."""

from __future__ import annotations

import ast
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kalla.query import coordination
from kalla.query.coordination.coordinator import Bounds, Coordinator, DuplicateQuery
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
from kalla.query.coordination.work_states import (
    ENDS,
    STATES,
    STEPS,
    TRANSITIONS,
    IllegalTransition,
    State,
    Step,
    following,
)

WORKERS = ("a", "b", "c")


def unit(query_id: str = "q", shard: int = 0, shards: int = 1) -> WorkUnit:
    return WorkUnit(WorkKey(query_id, 0, f"w{shard}"), "tenant", shard, shards)


@pytest.mark.parametrize(("state", "step"), list(product(STATES, STEPS)))
def test_every_transition_is_in_the_table_or_refused_by_name(state: State, step: Step) -> None:
    if (state, step) in TRANSITIONS:
        assert following(state, step) in STATES
        assert state not in ENDS
    else:
        with pytest.raises(IllegalTransition, match=f"work that is {state} cannot {step}"):
            following(state, step)


def test_every_state_is_reached_and_every_way_can_end() -> None:
    assert set(TRANSITIONS.values()) == set(STATES)
    for state in set(STATES) - ENDS:
        assert {"cancel", "fail"} <= {step for at, step in TRANSITIONS if at == state}


def fleet(count: int) -> frozenset[str]:
    return frozenset(f"worker-{number}" for number in range(count))


@pytest.mark.parametrize(("shards", "count"), [(8, 8), (16, 8), (32, 8), (4, 3), (2000, 10)])
def test_a_worker_that_leaves_moves_its_own_shards_alone(shards: int, count: int) -> None:
    tenants = [f"tenant {number}" for number in range(max(1, 2000 // shards))]
    moved = 0
    for tenant in tenants:
        before = candidates(tenant, shards, fleet(count))
        after = candidates(tenant, shards, fleet(count) - {"worker-0"})
        for shard in range(shards):
            assert (before[shard][0] != after[shard][0]) == (before[shard][0] == "worker-0")
            moved += before[shard][0] == "worker-0"

    assert moved / (len(tenants) * shards) == pytest.approx(1 / count, rel=0.2)


@pytest.mark.parametrize(("shards", "count"), [(4, 2), (4, 12), (1, 5), (4, 50), (8, 20)])
def test_every_worker_is_a_candidate_and_every_shard_has_two(shards: int, count: int) -> None:
    found = candidates("t", shards, fleet(count))

    assert {worker for some in found for worker in some} == fleet(count)
    assert min(map(len, found)) >= min(2, count)
    assert all(len(set(some)) == len(some) for some in found)


def test_more_workers_than_shards_all_get_work() -> None:
    coordinator = Coordinator()
    for worker in fleet(12):
        coordinator.handle(WorkerJoined(worker))
    busy = set()
    for number in range(30):
        coordinator.handle(QueryStarted(f"q{number}"))
        units = tuple(unit(f"q{number}", shard, 4) for shard in range(4))
        busy |= {one.worker for one in assigned(coordinator.handle(WorkAdded(f"q{number}", units)))}

    assert busy == fleet(12)


@pytest.mark.parametrize("shards", [2, 4, 6])
def test_the_shards_of_a_query_are_spread_evenly_over_two_workers(shards: int) -> None:
    coordinator = Coordinator()
    for worker in fleet(2):
        coordinator.handle(WorkerJoined(worker))
    coordinator.handle(QueryStarted("q"))
    units = tuple(unit("q", shard, shards) for shard in range(shards))
    counts = Counter(one.worker for one in assigned(coordinator.handle(WorkAdded("q", units))))

    assert set(counts.values()) == {shards // 2}


def assigned(actions: list[Action]) -> list[Assign]:
    return [one for one in actions if isinstance(one, Assign)]


@pytest.mark.parametrize("path", sorted(Path(coordination.__file__).parent.glob("*.py")))
def test_coordination_reaches_no_socket_thread_or_clock(path: Path) -> None:
    tree = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    plain = {one.name for node in tree if isinstance(node, ast.Import) for one in node.names}
    names = plain | {node.module or "" for node in tree if isinstance(node, ast.ImportFrom)}
    pure = {"__future__", "collections.abc", "dataclasses", "functools", "hashlib", "typing"}
    beyond = {name for name in names - pure if not name.startswith("kalla.query.coordination.")}
    assert beyond <= {"kalla.errors"}


def started(*workers: str) -> tuple[Coordinator, Assign]:
    coordinator = Coordinator()
    for worker in workers:
        coordinator.handle(WorkerJoined(worker))
    coordinator.handle(QueryStarted("q"))
    (action,) = coordinator.handle(WorkAdded("q", (unit(),)))
    assert isinstance(action, Assign)
    return coordinator, action


def test_work_goes_from_assignment_to_an_answer() -> None:
    coordinator, assign = started("a")
    key = assign.unit.key

    assert coordinator.handle(WorkAccepted("a", key)) == []
    assert coordinator.handle(WorkReady("a", key, "sum")) == [Fetch("a", key, "sum")]
    assert coordinator.handle(WorkReady("a", key, "sum")) == []
    assert coordinator.handle(Fetched(key, "sum")) == [
        Deliver(key, "sum"),
        Acknowledge("a", key, "sum"),
    ]
    assert coordinator.handle(Fetched(key, "sum")) == []
    assert coordinator.handle(QueryEvaluated("q")) == [AnswerQuery("q")]


def test_a_query_is_answered_once_and_its_id_is_free_then() -> None:
    coordinator, assign = started("a")
    key = assign.unit.key
    coordinator.handle(WorkReady("a", key, "sum"))

    assert coordinator.handle(Fetched(key, "of another artifact")) == []
    assert coordinator.handle(Fetched(key, "sum"))[0] == Deliver(key, "sum")
    assert coordinator.handle(QueryEvaluated("q")) == [AnswerQuery("q")]
    assert coordinator.queries == {}
    coordinator.handle(QueryStarted("q"))
    assert coordinator.handle(WorkAdded("q", (unit(),))) == [Assign("a", unit())]


def test_work_can_be_added_while_other_work_is_done() -> None:
    coordinator, assign = started("a")
    coordinator.handle(WorkReady("a", assign.unit.key, "sum"))
    more = unit(shard=1)

    assert coordinator.handle(WorkAdded("q", (more,))) == [Assign("a", more)]
    with pytest.raises(DuplicateQuery):
        coordinator.handle(WorkAdded("q", (more,)))


def test_an_evaluated_query_cancels_what_it_no_longer_needs() -> None:
    coordinator, assign = started("a")

    assert coordinator.handle(QueryEvaluated("q")) == [
        Cancel("a", assign.unit.key),
        AnswerQuery("q"),
    ]
    assert coordinator.handle(WorkAdded("q", (unit(shard=1),))) == []


def test_a_failure_that_every_worker_would_have_is_not_tried_again() -> None:
    coordinator, assign = started("a", "b")
    key = assign.unit.key

    assert coordinator.handle(WorkFailed(assign.worker, key, "too many samples", "limit")) == [
        Cancel(assign.worker, key),
        FailQuery("q", "too many samples", "limit"),
    ]


def test_a_lost_worker_s_work_is_assigned_elsewhere_at_once() -> None:
    coordinator, assign = started("a", "b")
    (other,) = {"a", "b"} - {assign.worker}

    assert coordinator.handle(Disconnected(assign.worker)) == [
        Requeue(assign.unit.key, f"the query worker {assign.worker} was lost"),
        Assign(other, assign.unit),
    ]


def test_a_silent_worker_is_dead_after_three_seconds_and_not_before() -> None:
    coordinator, assign = started("a", "b")
    (other,) = {"a", "b"} - {assign.worker}
    coordinator.handle(Tick(2.0))
    coordinator.handle(HeartbeatReceived(other))

    assert coordinator.handle(Tick(3.0)) == []
    assert coordinator.handle(Tick(3.1)) == [
        Requeue(assign.unit.key, f"the query worker {assign.worker} was lost"),
        Assign(other, assign.unit),
    ]


def test_a_draining_worker_keeps_what_it_began_and_gives_the_rest_away() -> None:
    coordinator, assign = started("a", "b")
    (other,) = {"a", "b"} - {assign.worker}
    draining = WorkerStatus(assign.worker, accepting_work=True, draining=True)

    assert coordinator.handle(draining) == [
        Cancel(assign.worker, assign.unit.key),
        Requeue(assign.unit.key, f"the query worker {assign.worker} is draining"),
        Assign(other, assign.unit),
    ]
    coordinator.handle(WorkAccepted(other, assign.unit.key))
    assert coordinator.handle(WorkerStatus(other, True, True)) == []


def test_a_full_worker_keeps_the_work_that_waits_there() -> None:
    coordinator, assign = started("a", "b")

    assert coordinator.handle(WorkerStatus(assign.worker, False, False)) == []
    coordinator.handle(WorkerStatus("a", accepting_work=False, draining=False))
    coordinator.handle(WorkerStatus("b", accepting_work=False, draining=False))
    assert coordinator.handle(WorkAdded("q", (unit(shard=1),))) == []


def test_work_that_was_not_begun_outlives_any_number_of_lost_workers() -> None:
    coordinator, assign = started("a", "b")
    for _ in range(10):
        *_, again = coordinator.handle(Disconnected(assign.worker))
        coordinator.handle(WorkerJoined(assign.worker))
        assert isinstance(again, Assign)
        assign = again


def test_work_during_which_workers_are_lost_fails_its_query_with_the_reason() -> None:
    coordinator, assign = started("a", "b")
    for _ in range(2):
        coordinator.handle(WorkAccepted(assign.worker, assign.unit.key))
        *_, again = coordinator.handle(Disconnected(assign.worker))
        coordinator.handle(WorkerJoined(assign.worker))
        assert isinstance(again, Assign)
        assign = again
    coordinator.handle(WorkAccepted(assign.worker, assign.unit.key))

    assert coordinator.handle(Disconnected(assign.worker)) == [
        FailQuery("q", "3 query workers were lost while they executed the same work unit")
    ]


def test_a_late_fetch_of_a_lost_worker_s_artifact_changes_nothing() -> None:
    coordinator, assign = started("a", "b")
    key = assign.unit.key
    coordinator.handle(WorkReady(assign.worker, key, "sum"))
    *_, again = coordinator.handle(Disconnected(assign.worker))
    assert isinstance(again, Assign)
    coordinator.handle(WorkReady(again.worker, key, "sum"))

    assert coordinator.handle(FetchFailed(assign.worker, key, "sum", "it was lost")) == []
    assert coordinator.handle(Fetched(key, "sum"))[0] == Deliver(key, "sum")


def test_work_that_fails_too_often_fails_its_query_with_the_reason() -> None:
    coordinator = Coordinator(Bounds(attempts=2))
    coordinator.handle(WorkerJoined("a"))
    coordinator.handle(QueryStarted("q"))
    coordinator.handle(WorkAdded("q", (unit(),)))
    coordinator.handle(WorkFailed("a", unit().key, "disk full"))

    *_, last = coordinator.handle(WorkFailed("a", unit().key, "disk full"))

    assert last == FailQuery("q", "a work unit failed 2 times, at last: disk full")


def test_a_query_without_a_worker_fails_after_its_wait() -> None:
    coordinator = Coordinator()
    coordinator.handle(QueryStarted("q"))
    coordinator.handle(WorkAdded("q", (unit(),)))

    assert coordinator.handle(Tick(10.0)) == []
    assert coordinator.handle(Tick(10.1)) == [
        FailQuery("q", "no query worker took work within 10 s")
    ]


def test_an_id_in_use_is_refused_by_name() -> None:
    coordinator, _ = started("a")

    with pytest.raises(DuplicateQuery):
        coordinator.handle(QueryStarted("q"))


class AnyInterleaving(RuleBasedStateMachine):
    """Messages are lost, late and doubled; only the actions are looked at."""

    @initialize()
    def begin(self) -> None:
        self.coordinator = Coordinator(Bounds(attempts=3))
        self.ended: dict[str, str] = {}
        self.begun: list[str] = []
        self.usable: set[str] = set()
        self.doing: dict[WorkKey, str] = {}
        self.fetching: dict[WorkKey, str] = {}
        self.sent: list[Event] = []
        self.delivered: set[WorkKey] = set()
        self.at = 0.0

    def feed(self, event: Event) -> None:
        self.sent.append(event)
        for action in self.coordinator.handle(event):
            self.look(action)
        self.usable &= set(self.coordinator.workers)

    def look(self, action: Action) -> None:
        match action:
            case Assign(worker, given):
                assert worker in self.usable & set(self.coordinator.workers)
                assert given.key.query_id not in self.ended
                self.doing[given.key] = worker
            case AnswerQuery(query_id):
                self.end(query_id, "answered")
            case FailQuery(query_id, _):
                self.end(query_id, "failed")
            case Deliver(key, _):
                assert key not in self.delivered
                self.delivered.add(key)
            case Fetch(worker, key, checksum):
                assert self.doing[key] == worker
                self.fetching[key] = checksum

    def end(self, query_id: str, how: str) -> None:
        assert query_id not in self.ended
        self.ended[query_id] = how

    @rule(worker=st.sampled_from(WORKERS))
    def join(self, worker: str) -> None:
        self.usable.add(worker)
        self.feed(WorkerJoined(worker))

    @rule(worker=st.sampled_from(WORKERS), accepting=st.booleans(), draining=st.booleans())
    def status(self, worker: str, accepting: bool, draining: bool) -> None:
        if worker in self.coordinator.workers and accepting and not draining:
            self.usable.add(worker)
        else:
            self.usable.discard(worker)
        self.feed(WorkerStatus(worker, accepting, draining))

    @rule(worker=st.sampled_from(WORKERS))
    def disconnect(self, worker: str) -> None:
        self.usable.discard(worker)
        self.feed(Disconnected(worker))

    @rule(worker=st.sampled_from(WORKERS))
    def beat(self, worker: str) -> None:
        self.feed(HeartbeatReceived(worker))

    @rule(seconds=st.floats(0.1, 5))
    def tick(self, seconds: float) -> None:
        self.at += seconds
        self.feed(Tick(self.at))

    @rule(shards=st.integers(1, 4))
    def start(self, shards: int) -> None:
        query_id = f"q{len(self.begun)}"
        self.begun.append(query_id)
        self.feed(QueryStarted(query_id))
        self.feed(WorkAdded(query_id, tuple(unit(query_id, one) for one in range(shards))))

    @rule(data=st.data(), shard=st.integers(4, 9))
    def add(self, data: st.DataObject, shard: int) -> None:
        """More work, also for a query that has ended."""
        if self.begun:
            query_id = data.draw(st.sampled_from(self.begun))
            given = unit(query_id, shard)
            if given.key not in self.coordinator.queries.get(query_id, {}):
                self.feed(WorkAdded(query_id, (given,)))

    @rule(data=st.data())
    def evaluate(self, data: st.DataObject) -> None:
        """As the API does it: when every work unit was delivered, and never before."""
        whole = [
            query_id
            for query_id, works in self.coordinator.queries.items()
            if works and set(works) <= self.delivered
        ]
        if whole:
            self.feed(QueryEvaluated(data.draw(st.sampled_from(whole))))

    @rule()
    def all_go_on(self) -> None:
        """Every worker finishes what it does, and all artifacts but one query's are fetched."""
        for key, worker in list(self.doing.items()):
            self.feed(WorkReady(worker, key, "x"))
        for key, checksum in list(self.fetching.items()):
            if key.query_id != self.begun[-1]:
                self.feed(Fetched(key, checksum))

    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        if not self.doing:
            return
        key = data.draw(st.sampled_from(sorted(self.doing)))
        worker = data.draw(st.sampled_from((self.doing[key], *WORKERS)))
        checksum = data.draw(st.sampled_from(("x", "y")))
        events: list[Event] = [
            WorkAccepted(worker, key),
            WorkRejected(worker, key),
            WorkReady(worker, key, checksum),
            WorkFailed(worker, key, "broken"),
            WorkFailed(worker, key, "too much", "limit"),
            Fetched(key, checksum),
            FetchFailed(worker, key, checksum, "expired"),
        ]
        self.feed(data.draw(st.sampled_from(events)))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        running = [one for one in self.begun if one not in self.ended]
        if running:
            query_id = data.draw(st.sampled_from(running))
            self.end(query_id, "cancelled")
            self.feed(QueryCancelled(query_id))

    @rule(data=st.data())
    def again(self, data: st.DataObject) -> None:
        """A report that came before comes once more."""
        late = [
            one
            for one in self.sent
            if isinstance(one, WorkAccepted | WorkRejected | WorkReady | WorkFailed | Fetched)
        ]
        if late:
            self.feed(data.draw(st.sampled_from(late)))

    @invariant()
    def what_has_not_ended_is_under_way(self) -> None:
        running = {one for one in self.begun if one not in self.ended}
        assert set(self.coordinator.queries) == running

    @invariant()
    def the_load_of_a_worker_is_what_it_was_given_and_has_not_delivered(self) -> None:
        held = {
            (work.worker, key)
            for works in self.coordinator.queries.values()
            for key, work in works.items()
            if work.state in ("assigned", "accepted", "ready")
        }
        counted = {
            (name, key) for name, worker in self.coordinator.workers.items() for key in worker.works
        }
        assert held == counted

    def teardown(self) -> None:
        """Without any worker every query that is left ends by itself."""
        for worker in WORKERS:
            self.disconnect(worker)
        self.tick(11)
        for query_id in list(self.coordinator.queries):
            self.feed(QueryEvaluated(query_id))  # all of its work was delivered before
        assert set(self.ended) == set(self.begun)


AnyInterleaving.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestAnyInterleaving = AnyInterleaving.TestCase
