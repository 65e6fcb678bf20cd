"""What the API and the pages show of jobs, queues and workers. Trap 17: all of it is scrubbed."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, computed_field, field_validator

from kalla.redaction import scrub, scrub_value
from kalla.work.job import JobRecord, Status
from kalla.work.state.presence import WorkerRecord
from kalla.work.state.queues import QueueRecord


class JobSummary(BaseModel):
    """A job in a list."""

    job_id: int
    type: str
    queue: str
    status: Status
    priority: int
    run_id: int | None
    recipe: str | None = Field(None, description="of the run it belongs to or is about")
    failures: int = Field(description="attempts that failed so far")
    max_attempts: int
    worker: str | None = Field(description="who runs it, or ran it last")
    created_at: datetime
    run_after: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    stopped_at: datetime | None = Field(
        description="when a cancelled job's process was known to be gone"
    )
    progress: dict[str, Any] | None
    error: str | None

    @field_validator("progress", mode="before")
    @classmethod
    def _without_secrets(cls, value: Any) -> Any:
        return scrub_value(value)

    @field_validator("error", mode="before")
    @classmethod
    def _error_without_secrets(cls, value: str | None) -> str | None:
        return None if value is None else scrub(value)

    @property
    def stopping(self) -> bool:
        """Cancelled, and its worker has not yet said that the work has ended."""
        return self.status == "cancelled" and self.stopped_at is None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def permanent(self) -> bool:
        """Failed with attempts left: the same again would fail in the same way."""
        return self.status == "failed" and self.failures < self.max_attempts

    @property
    def duration_seconds(self) -> float | None:
        if self.claimed_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.claimed_at).total_seconds()


class Attempt(BaseModel):
    """An attempt that did not complete."""

    fence: int
    ending: Literal["failed", "lost", "overran", "handed back", "put off", "cancelled"]
    worker: str | None
    claimed_at: datetime | None
    ended_at: datetime
    error: str | None

    @field_validator("error", mode="before")
    @classmethod
    def _without_secrets(cls, value: str | None) -> str | None:
        return None if value is None else scrub(value)


class Job(JobSummary):
    """A job with all there is to know about it."""

    gate: str | None
    fence: int = Field(description="raised by every claim, never lowered")
    timeout_seconds: float = Field(description="seconds without a heartbeat after which it is lost")
    max_runtime_seconds: float
    dedupe_key: str | None
    running_key: str | None
    heartbeat_at: datetime | None
    payload: dict[str, Any]
    result: dict[str, Any] | None
    traceback: str | None
    attempts: list[Attempt]

    @field_validator("payload", "result", mode="before")
    @classmethod
    def _documents_without_secrets(cls, value: Any) -> Any:
        return scrub_value(value)

    @field_validator("traceback", "dedupe_key", "running_key", mode="before")
    @classmethod
    def _texts_without_secrets(cls, value: str | None) -> str | None:
        return None if value is None else scrub(value)

    @classmethod
    def of(cls, record: JobRecord, **more: Any) -> Self:
        attempts = [vars(attempt) for attempt in record.attempts]
        return cls(**vars(record) | {"attempts": attempts} | more)


class SubmittedJob(Job):
    """A job as submitted; `repeated` if a waiting one with the same dedupe key stands for it."""

    repeated: bool


class JobPage(BaseModel):
    """Jobs, newest first."""

    jobs: list[JobSummary]
    next_before: int | None = Field(description="`before` of the next page; null on the last one")


class Queue(BaseModel):
    queue: str
    depth: int = Field(description="jobs a worker could claim now")
    delayed: int = Field(description="jobs whose time has not come")
    running: int
    oldest_wait_seconds: float
    paused: bool
    paused_at: datetime | None
    paused_by: str | None

    @classmethod
    def of(cls, record: QueueRecord) -> Queue:
        return cls(**vars(record), paused=record.paused_at is not None)


class Worker(BaseModel):
    worker: str
    state: Literal["working", "idle", "draining", "silent"]
    host: str
    pid: int
    address: str
    roles: list[str]
    concurrency: int
    active: int
    version: str
    started_at: datetime
    seen_at: datetime

    @classmethod
    def of(cls, record: WorkerRecord) -> Worker:
        names = cls.model_fields.keys()
        return cls(**{name: getattr(record, name) for name in names})


class Health(BaseModel):
    """`away` when the API cannot do its work; trouble with wake-ups costs latency only."""

    status: Literal["ok", "away"]
    troubles: list[str]
    version: str
