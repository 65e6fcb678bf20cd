"""The coordinator's inputs and outputs: events and actions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class WorkKey:
    """Names one work unit: a leaf of a query on a shard."""

    query_id: str
    leaf_id: int
    work_id: str


@dataclass(frozen=True)
class WorkUnit:
    """A work unit and the key of its affinity; `shards` is how many the tenant has."""

    key: WorkKey
    tenant: str
    shard: int
    shards: int = 1


# Events


@dataclass(frozen=True)
class WorkerJoined:
    """A control stream opened; a known worker that joins again has lost its former session."""

    worker: str


@dataclass(frozen=True)
class WorkerStatus:
    worker: str
    accepting_work: bool
    draining: bool


@dataclass(frozen=True)
class HeartbeatReceived:
    worker: str


@dataclass(frozen=True)
class Disconnected:
    worker: str


@dataclass(frozen=True)
class QueryStarted:
    query_id: str


@dataclass(frozen=True)
class WorkAdded:
    """Work of a running query: some of it depends on parts that were evaluated before."""

    query_id: str
    units: tuple[WorkUnit, ...]


@dataclass(frozen=True)
class QueryEvaluated:
    """The query has its answer; its remaining work is not needed."""

    query_id: str


@dataclass(frozen=True)
class WorkAccepted:
    worker: str
    key: WorkKey


@dataclass(frozen=True)
class WorkRejected:
    worker: str
    key: WorkKey


@dataclass(frozen=True)
class WorkReady:
    worker: str
    key: WorkKey
    artifact_checksum: str


@dataclass(frozen=True)
class WorkFailed:
    """`error` names a failure that every worker would have: the query fails at once."""

    worker: str
    key: WorkKey
    reason: str
    error: str = ""


@dataclass(frozen=True)
class Fetched:
    key: WorkKey
    artifact_checksum: str


@dataclass(frozen=True)
class FetchFailed:
    worker: str
    key: WorkKey
    artifact_checksum: str
    reason: str


@dataclass(frozen=True)
class QueryCancelled:
    query_id: str


@dataclass(frozen=True)
class Tick:
    """The time, in seconds; it never goes back."""

    at: float


Event = (
    WorkerJoined | WorkerStatus | HeartbeatReceived | Disconnected | QueryStarted | WorkAdded
    | WorkAccepted | WorkRejected | WorkReady | WorkFailed | Fetched | FetchFailed
    | QueryEvaluated | QueryCancelled | Tick
)  # fmt: skip

# Actions


@dataclass(frozen=True)
class Assign:
    worker: str
    unit: WorkUnit


@dataclass(frozen=True)
class Requeue:
    """The work unit has lost its worker and waits for another."""

    key: WorkKey
    reason: str


@dataclass(frozen=True)
class Cancel:
    worker: str
    key: WorkKey


@dataclass(frozen=True)
class Fetch:
    worker: str
    key: WorkKey
    artifact_checksum: str


@dataclass(frozen=True)
class Acknowledge:
    """The worker may delete this artifact."""

    worker: str
    key: WorkKey
    artifact_checksum: str


@dataclass(frozen=True)
class Deliver:
    """This artifact is the work unit's result: the first that was fetched, and the only one."""

    key: WorkKey
    artifact_checksum: str


@dataclass(frozen=True)
class AnswerQuery:
    query_id: str


@dataclass(frozen=True)
class FailQuery:
    """`error` is that of the work unit, where every worker would have it."""

    query_id: str
    reason: str
    error: str = ""


Action = Assign | Requeue | Cancel | Fetch | Acknowledge | Deliver | AnswerQuery | FailQuery
