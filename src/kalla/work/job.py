"""The data types of jobs: a new job, a claimed job, an outcome, a job as shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

from kalla.work.document import document

Status = Literal["pending", "claimed", "completed", "failed", "cancelled"]
RunStatus = Literal["running", "completed", "failed", "cancelled"]
STATUSES: tuple[Status, ...] = ("pending", "claimed", "completed", "failed", "cancelled")


@dataclass(frozen=True)
class NewJob:
    """A new job. Fields that are None come from the job type's policy in the settings."""

    type: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    queue: str | None = None
    priority: int = 0
    delay_seconds: float = 0
    gate: str | None = None
    dedupe_key: str | None = None
    running_key: str | None = None
    timeout_seconds: float | None = None
    max_runtime_seconds: float | None = None
    max_attempts: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Only fields that differ from the defaults: how a gate stores the jobs it will insert."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {"type": self.type} | {
            name: value for name, value in values.items() if value not in (None, 0, {})
        }


@dataclass(frozen=True)
class Job:
    """A claimed job. Every write about it must carry its `fence`."""

    job_id: int
    fence: int
    type: str
    queue: str
    payload: dict[str, Any]
    priority: int
    failures: int
    max_attempts: int
    timeout_seconds: float
    max_runtime_seconds: float
    run_id: int | None
    gate: str | None
    opened_by: str | None
    running_key: str | None = None

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Job:
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Outcome:
    """What `run` passes to `settle`: a result to store, follow-ups, and facts for `settle` only."""

    result: Mapping[str, Any] | None = None
    follow_ups: tuple[NewJob, ...] = ()
    rows: int = 0
    facts: Any = None

    def __post_init__(self) -> None:
        # Here, in the handler's thread: completions share a statement that a bad one would break.
        if self.result is not None:
            try:
                document(dict(self.result))
            except ValueError as error:
                raise ValueError(f"the result {error}") from None


@dataclass(frozen=True)
class Attempt:
    """An attempt that did not complete."""

    fence: int
    ending: str
    worker: str | None
    claimed_at: datetime | None
    ended_at: datetime
    error: str | None


@dataclass(frozen=True)
class JobRecord:
    """A job as an operator sees it."""

    job_id: int
    type: str
    queue: str
    status: Status
    priority: int
    run_id: int | None
    gate: str | None
    fence: int
    failures: int
    max_attempts: int
    timeout_seconds: float
    max_runtime_seconds: float
    dedupe_key: str | None
    running_key: str | None
    worker: str | None
    created_at: datetime
    run_after: datetime
    claimed_at: datetime | None
    heartbeat_at: datetime | None
    finished_at: datetime | None
    stopped_at: datetime | None
    payload: dict[str, Any]
    progress: dict[str, Any] | None
    result: dict[str, Any] | None
    error: str | None
    traceback: str | None
    attempts: tuple[Attempt, ...] = ()

    @classmethod
    def from_row(cls, row: Mapping[str, Any], attempts: tuple[Attempt, ...] = ()) -> JobRecord:
        names = cls.__dataclass_fields__.keys() - {"attempts"}
        return cls(attempts=attempts, **{name: row[name] for name in names})


@dataclass(frozen=True)
class RunRecord:
    """A run as an operator sees it."""

    run_id: int
    kind: str
    status: RunStatus
    jobs: int
    completed: int
    error: str | None
    created_at: datetime
    deadline: datetime
    finished_at: datetime | None

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> RunRecord:
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})
