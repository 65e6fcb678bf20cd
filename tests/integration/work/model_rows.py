"""The model's rows, what one transaction sees of them, and the laws they keep whatever happens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from kalla.errors import NotFound
from kalla.work.job import NewJob

Key: TypeAlias = tuple[object, ...]
Claim: TypeAlias = tuple[int, int]  # a job's id and the fence under which it was claimed


@dataclass(frozen=True)
class JobRow:
    job_id: int
    type: str
    queue: str
    priority: int
    max_attempts: int
    due: bool
    run_after: float
    run_id: int | None = None
    gate: str | None = None
    opened_by: str | None = None
    dedupe_key: str | None = None
    running_key: str | None = None
    status: str = "pending"
    fence: int = 0
    failures: int = 0
    claimed_at: float | None = None
    heartbeat_at: float | None = None
    finished_at: float | None = None
    stopped: bool = False
    away_since: float | None = None

    @property
    def key(self) -> Key:
        return ("job", self.job_id)


@dataclass(frozen=True)
class AttemptRow:
    job_id: int
    fence: int
    ending: str

    @property
    def key(self) -> Key:
        return ("attempt", self.job_id, self.fence)


@dataclass(frozen=True)
class RunRow:
    run_id: int
    deadline: float
    status: str = "running"
    jobs: int = 0
    completed: int = 0
    finished_at: float | None = None

    @property
    def key(self) -> Key:
        return ("run", self.run_id)


@dataclass(frozen=True)
class GateRow:
    run_id: int
    gate: str
    opens: int
    expected: int = 0
    arrived: int = 0
    opened: bool = False
    jobs: tuple[NewJob, ...] = field(default=(), compare=False)

    @property
    def key(self) -> Key:
        return ("gate", self.run_id, self.gate)


@dataclass(frozen=True)
class QueueRow:
    queue: str
    paused: bool

    @property
    def key(self) -> Key:
        return ("queue", self.queue)


@dataclass(frozen=True)
class LeaseRow:
    resource: str
    slot: int
    epoch: int = 0
    holder: str | None = None
    until: float | None = None

    @property
    def key(self) -> Key:
        return ("lease", self.resource, self.slot)


Row: TypeAlias = JobRow | AttemptRow | RunRow | GateRow | QueueRow | LeaseRow
Rows: TypeAlias = dict[Key, Row]
AnyRow = TypeVar("AnyRow", bound=Row)


class View:
    """What one transaction sees and writes. `locked` are the rows another one holds meanwhile."""

    def __init__(
        self,
        rows: Mapping[Key, Row],
        now: float,
        locked: AbstractSet[Key] = frozenset(),
        new_ids: Iterable[int] = (),
    ) -> None:
        self.rows: Rows = dict(rows)
        self.now = now
        self.locked = locked
        self.new_ids = iter(new_ids)
        self.writes: dict[Key, Row | None] = {}
        self.locks: set[Key] = set()

    def put(self, row: Row) -> None:
        self.rows[row.key] = self.writes[row.key] = row
        self.locks.add(row.key)

    def remove(self, row: Row) -> None:
        del self.rows[row.key]
        self.writes[row.key] = None
        self.locks.add(row.key)

    def lock(self, row: Row) -> None:
        self.locks.add(row.key)

    def all(self, kind: type[AnyRow]) -> Iterator[AnyRow]:
        return iter([row for row in self.rows.values() if isinstance(row, kind)])

    def job(self, job_id: int) -> JobRow:
        row = self.rows.get(("job", job_id))
        if not isinstance(row, JobRow):
            raise NotFound("swept meanwhile")
        return row

    def run(self, run_id: int) -> RunRow:
        row = self.rows[("run", run_id)]
        assert isinstance(row, RunRow)
        return row

    def held(self, claim: Claim) -> JobRow | None:
        row = self.rows.get(("job", claim[0]))
        held = isinstance(row, JobRow) and (row.fence, row.status) == (claim[1], "claimed")
        return row if held and isinstance(row, JobRow) else None


def check(rows: Rows) -> None:
    """The promises, counted from the rows themselves."""
    view = View(rows, 0.0)
    jobs = list(view.all(JobRow))
    _unique(row.dedupe_key for row in jobs if row.status == "pending")
    _unique(row.running_key for row in jobs if row.status == "claimed")
    for row in jobs:
        assert (row.status == "claimed") == (row.heartbeat_at is not None)
        assert (row.status in ("pending", "claimed")) == (row.finished_at is None)
        assert row.failures <= row.max_attempts
    for run in view.all(RunRow):
        _check_run(view, run, [row for row in jobs if row.run_id == run.run_id])


def _check_run(view: View, run: RunRow, members: list[JobRow]) -> None:
    done = [row for row in members if row.status == "completed"]
    alive = [row for row in members if row.status in ("pending", "claimed")]
    assert (run.jobs, run.completed) == (len(members), len(done))
    assert (run.status == "completed") == (len(done) == len(members))
    # A running run has something to wait for, and an ended one leaves nothing behind.
    assert (run.status == "running") == bool(alive)
    gates = {gate.gate: gate for gate in view.all(GateRow) if gate.run_id == run.run_id}
    for gate in gates.values():
        counted = [row for row in members if row.gate == gate.gate]
        opened = [row for row in members if row.opened_by == gate.gate]
        assert gate.arrived == sum(row.status == "completed" for row in counted)
        assert gate.opened == (gate.arrived == gate.expected)
        assert gate.expected >= len(counted)
        assert len(opened) == (gate.opens if gate.opened else 0)
        assert gate.opened or run.status != "completed"


def _unique(keys: Iterable[str | None]) -> None:
    present = [key for key in keys if key is not None]
    assert len(present) == len(set(present))
