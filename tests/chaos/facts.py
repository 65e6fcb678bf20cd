"""What is known after a chaos run, from the database and from the ledger, as plain data."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from kalla.database import Connection
from tests.chaos import ledger
from tests.chaos.fleet import Ending
from tests.chaos.ledger import Execution, Life
from tests.chaos.load import Submitted, SubmittedJob, SubmittedRun

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class JobFact:
    """A job's row, as far as the promise is about it."""

    job_id: int
    type: str
    status: str
    fence: int
    created_at: datetime
    run_id: int | None = None
    gate: str | None = None
    opened_by: str | None = None
    finished_at: datetime | None = None
    parent: int | None = None
    index: int | None = None
    follow_ups: int = 0
    failures: int = 0
    result_fence: int | None = None
    progress_fence: int | None = None


@dataclass(frozen=True, slots=True)
class RunFact:
    run_id: int
    status: str
    jobs: int
    completed: int


@dataclass(frozen=True, slots=True)
class GateFact:
    run_id: int
    gate: str
    expected: int
    arrived: int
    opened_at: datetime | None


@dataclass(frozen=True, slots=True)
class AttemptFact:
    job_id: int
    fence: int
    ending: str
    worker: str | None
    claimed: float | None = None  # on the ledger's clock


@dataclass(frozen=True, slots=True)
class EffectFact:
    job_id: int
    fence: int


@dataclass(frozen=True)
class Facts:
    submitted_jobs: Sequence[SubmittedJob] = ()
    submitted_runs: Sequence[SubmittedRun] = ()
    jobs: Mapping[int, JobFact] = field(default_factory=dict)
    runs: Mapping[int, RunFact] = field(default_factory=dict)
    gates: Sequence[GateFact] = ()
    attempts: Sequence[AttemptFact] = ()
    effects: Sequence[EffectFact] = ()
    executions: Sequence[Execution] = ()
    lives: Sequence[Life] = ()
    endings: Sequence[Ending] = ()
    left_in_channel: Mapping[str, int] = field(default_factory=dict)  # wake-ups, when all is done
    sound: bool = False  # nothing that was done to jobs or workers may cost an attempt


_JOBS = """
SELECT job_id, type, status, fence, failures, created_at, run_id, gate, opened_by, finished_at,
       (payload->>'parent')::bigint AS parent, (payload->>'index')::int AS index,
       coalesce((payload->>'follow_ups')::int, 0) AS follow_ups,
       (result->>'fence')::bigint AS result_fence, (progress->>'fence')::bigint AS progress_fence
FROM kalla.jobs
"""


# How long ago a claim was: the database's clock and the ledger's have no moment in common. It is
# too long where the database's clock was stepped meanwhile.
_ATTEMPTS = """
SELECT job_id, fence, ending, worker,
       extract(epoch FROM kalla.clock() - claimed_at)::double precision AS ago
FROM kalla.attempts
"""


async def read(
    connection: Connection,
    folder: Path,
    submitted: Submitted,
    endings: Sequence[Ending],
    left_in_channel: Mapping[str, int],
    sound: bool,
) -> Facts:
    async def rows(statement: str) -> list[dict[str, Any]]:
        return await (await connection.execute(statement.encode())).fetchall()

    executions, lives = ledger.read(folder / "ledger")
    jobs = [JobFact(**row) for row in await rows(_JOBS)]
    runs = [
        RunFact(**row)
        for row in await rows("SELECT run_id, status, jobs, completed FROM kalla.runs")
    ]
    gates = await rows("SELECT run_id, gate, expected, arrived, opened_at FROM kalla.gates")
    attempts = await rows(_ATTEMPTS)
    clock = time.monotonic()
    effects = await rows("SELECT job_id, fence FROM chaos.effects")
    return Facts(
        submitted_jobs=submitted.jobs,
        submitted_runs=submitted.runs,
        jobs={job.job_id: job for job in jobs},
        runs={run.run_id: run for run in runs},
        gates=[GateFact(**row) for row in gates],
        attempts=[_attempt(row, clock) for row in attempts],
        effects=[EffectFact(**row) for row in effects],
        executions=executions,
        lives=lives,
        endings=endings,
        left_in_channel={queue: count for queue, count in left_in_channel.items() if count},
        sound=sound,
    )


def _attempt(row: dict[str, Any], clock: float) -> AttemptFact:
    ago = row.pop("ago")
    return AttemptFact(**row, claimed=None if ago is None else clock - ago)


async def evidence(
    connection: Connection, folder: Path, job_ids: Sequence[int], run_ids: Sequence[int]
) -> dict[str, Any]:
    """Everything about some jobs and runs, for whoever has to find out what happened."""
    found: dict[str, Any] = {}
    for name, statement in {
        "runs": "SELECT * FROM kalla.runs WHERE run_id = ANY(%(runs)s)",
        "gates": "SELECT * FROM kalla.gates WHERE run_id = ANY(%(runs)s)",
        "jobs": "SELECT * FROM kalla.jobs WHERE job_id = ANY(%(jobs)s) OR run_id = ANY(%(runs)s)",
        "attempts": "SELECT * FROM kalla.attempts WHERE job_id = ANY(%(jobs)s)",
        "effects": "SELECT * FROM chaos.effects WHERE job_id = ANY(%(jobs)s)",
    }.items():
        cursor = await connection.execute(
            statement.encode(), {"jobs": list(job_ids), "runs": list(run_ids)}
        )
        found[name] = await cursor.fetchall()
    wanted = {*job_ids, *(row["job_id"] for row in found["jobs"])}
    found["ledger"] = [
        line for line in ledger.lines(folder / "ledger") if line.get("job") in wanted
    ]
    return found
