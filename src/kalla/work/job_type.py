"""The job types: their queue, policy and payload model."""

from __future__ import annotations

import builtins
import difflib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from kalla.errors import InvalidInput, Problem
from kalla.redaction import secrets_in
from kalla.settings import ROLES, Settings
from kalla.work.document import document
from kalla.work.handler import Handler
from kalla.work.job import NewJob

_LONGEST_KEY = 512
_LONGEST_SECONDS = 10 * 365 * 24 * 3600.0


@dataclass(frozen=True)
class JobType:
    """One job type."""

    type: str
    queue: str
    handler: Handler
    payload: builtins.type[BaseModel] | None = None
    # Whether people can submit it. Other jobs come from Kalla's own code, which has checked them.
    submittable: bool = False
    # Waits for an unreachable server without counting a failure; otherwise each counts as one.
    patient: bool = True


class JobTypes:
    """Every job type of this process. All inserted jobs are checked here."""

    def __init__(self, settings: Settings, job_types: Iterable[JobType]) -> None:
        self._settings = settings
        self._job_types = {kind.type: kind for kind in job_types}

    @property
    def types(self) -> list[str]:
        return sorted(self._job_types)

    @property
    def queues(self) -> list[str]:
        return sorted({kind.queue for kind in self._job_types.values()})

    def require_submittable(self, job_type: str) -> None:
        """Refuse a type that people cannot submit. `rows` refuses unknown types."""
        kind = self._job_types.get(job_type)
        if kind is not None and not kind.submittable:
            theirs = [each.type for each in self._job_types.values() if each.submittable]
            raise InvalidInput(
                Problem(
                    "type",
                    f"{job_type} jobs come from runs and are not submitted by themselves; "
                    f"what is: {', '.join(sorted(theirs))}",
                )
            )

    def handler(self, job_type: str) -> Handler:
        return self._job_types[job_type].handler

    def patience(self, job_type: str) -> float:
        """How many seconds a server may be unreachable before this counts as a failed attempt."""
        if not self._job_types[job_type].patient:
            return 0.0
        return self._settings.policy(job_type).unavailable_seconds

    def rows(self, jobs: Sequence[NewJob], in_run: bool = False) -> list[dict[str, Any]]:
        """The rows to insert, with each type's policy filled in; or every problem at once."""
        problems: list[Problem] = []
        rows = []
        for position, job in enumerate(jobs):
            found = list(self._problems(job, in_run))
            prefix = f"jobs[{position}]." if len(jobs) > 1 else ""
            problems += [Problem(prefix + problem.field, problem.message) for problem in found]
            if not found:
                rows.append(self._row(position, job))
        if problems:
            raise InvalidInput(*problems)
        return rows

    def _row(self, position: int, job: NewJob) -> dict[str, Any]:
        policy = self._settings.policy(job.type)
        return {
            "position": position,
            "type": job.type,
            "queue": job.queue or self._job_types[job.type].queue,
            "payload": job.payload,
            "priority": job.priority,
            "delay_seconds": job.delay_seconds,
            "gate": job.gate,
            "dedupe_key": job.dedupe_key,
            "running_key": job.running_key,
            "timeout_seconds": job.timeout_seconds or policy.timeout_seconds,
            "max_runtime_seconds": job.max_runtime_seconds or policy.max_runtime_seconds,
            "max_attempts": job.max_attempts or policy.max_attempts,
            "backoff_seconds": policy.backoff_seconds,
            "backoff_limit_seconds": policy.backoff_limit_seconds,
        }

    def _problems(self, job: NewJob, in_run: bool) -> Iterator[Problem]:
        kind = self._job_types.get(job.type)
        if kind is None:
            near = difflib.get_close_matches(job.type, self._job_types, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self.types)}"
            yield Problem("type", f"there is no job type {job.type!r}; {hint}")
        if job.queue is not None and job.queue not in ROLES:
            yield Problem("queue", f"there is no queue {job.queue!r}; known: {', '.join(ROLES)}")
        if not -32768 <= job.priority <= 32767:
            yield Problem("priority", f"must be between -32768 and 32767, got {job.priority}")
        if not 0 <= job.delay_seconds <= _LONGEST_SECONDS:
            yield Problem("delay_seconds", f"must be 0 to ten years, got {job.delay_seconds:g}")
        for name in ("timeout_seconds", "max_runtime_seconds"):
            value = getattr(job, name)
            if value is not None and not (0 < value <= _LONGEST_SECONDS and math.isfinite(value)):
                yield Problem(name, f"must be greater than 0 and at most ten years, got {value:g}")
        beat = self._settings.policy(job.type).heartbeat_interval
        if job.timeout_seconds is not None and 0 < job.timeout_seconds < beat * 2:
            yield Problem(
                "timeout_seconds",
                f"must be at least {beat * 2:g}, two heartbeats of this type, "
                f"got {job.timeout_seconds:g}",
            )
        if job.max_attempts is not None and not 1 <= job.max_attempts <= 1000:
            yield Problem("max_attempts", f"must be between 1 and 1000, got {job.max_attempts}")
        yield from self._key_problems(job)
        if in_run and job.dedupe_key is not None:
            yield Problem("dedupe_key", "a job of a run cannot have a dedupe key")
        yield from self._payload_problems(kind, job)

    def _key_problems(self, job: NewJob) -> Iterator[Problem]:
        for name, key in (("dedupe_key", job.dedupe_key), ("running_key", job.running_key)):
            if key is None:
                continue
            if not 0 < len(key) <= _LONGEST_KEY:
                yield Problem(name, f"must have 1 to {_LONGEST_KEY} characters, got {len(key)}")
            for _ in secrets_in(key, name):
                yield Problem(name, "holds a secret in the clear: keys are shown as they are")
            try:
                document(key)
            except ValueError as error:
                yield Problem(name, str(error))

    def _payload_problems(self, kind: JobType | None, job: NewJob) -> Iterator[Problem]:
        try:
            size = len(document(job.payload).encode())
        except ValueError as error:
            yield Problem("payload", str(error))
            return
        limit = self._settings.limits.payload_bytes
        if size > limit:
            yield Problem(
                "payload",
                f"has {size} bytes, the limit is {limit} (limits.payload_bytes): "
                "put the data into a file and pass its URL",
            )
            return
        for path in secrets_in(job.payload, "payload"):
            yield Problem(path, "holds a secret in the clear: store it and pass secret://name")
        if kind is not None and kind.payload is not None:
            try:
                kind.payload.model_validate(job.payload)
            except ValidationError as error:
                for item in error.errors(include_url=False):
                    yield Problem(".".join(["payload", *map(str, item["loc"])]), item["msg"])
