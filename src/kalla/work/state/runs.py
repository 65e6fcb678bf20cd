"""Runs: jobs that succeed or fail together, and gates that open when all before them arrived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal

from psycopg.types.json import Jsonb

from kalla.database import Connection
from kalla.errors import Conflict, InvalidInput, NotFound, Problem
from kalla.statements import load
from kalla.work.job import Job, NewJob, RunRecord
from kalla.work.job_type import JobTypes
from kalla.work.state.job_insertion import Woken, insert_rows

sql = load("kalla.work.state", "runs.sql")

_LONGEST_SECONDS = 10 * 365 * 24 * 3600.0


async def create(
    connection: Connection,
    job_types: JobTypes,
    kind: str,
    jobs: Sequence[NewJob],
    gates: Mapping[str, Sequence[NewJob]],
    total_timeout_seconds: float,
) -> tuple[int, Woken]:
    """Start a run with its first jobs; `gates` names the jobs that each gate will insert."""
    if not jobs:
        raise Conflict("a run needs at least one job to begin with")
    _check_timeout(total_timeout_seconds)
    _check_gates(jobs, gates)
    opening = [job for opened in gates.values() for job in opened]
    job_types.rows(opening, in_run=True)
    cursor = await connection.execute(
        sql.create, {"kind": kind, "total_timeout_seconds": total_timeout_seconds}
    )
    (row,) = await cursor.fetchall()
    run_id: int = row["run_id"]
    for gate, opened in gates.items():
        opens = Jsonb([job.as_json() for job in opened])
        await connection.execute(sql.create_gate, {"run_id": run_id, "gate": gate, "opens": opens})
    # Trap 4: jobs that a gate will insert are expected at the next gate from the beginning.
    await _expect(connection, run_id, [job.gate for job in opening])
    return run_id, await _add(connection, job_types, run_id, jobs)


async def lock(connection: Connection, run_id: int) -> None:
    """The first statement of every transaction about a run: serializes its changes."""
    await connection.execute(sql.lock, {"run_id": run_id})


async def advance(
    connection: Connection, job_types: JobTypes, job: Job, follow_ups: Sequence[NewJob]
) -> Woken:
    """After a fenced completion, under the run's lock: fan out, arrive, open gates, finish."""
    run_id = job.run_id
    woken = await _add(connection, job_types, run_id, follow_ups)
    await connection.execute(sql.count_completed, {"run_id": run_id})
    if job.gate is not None:
        await connection.execute(sql.arrive, {"run_id": run_id, "gate": job.gate})
        opened = await (await connection.execute(sql.open_gates, {"run_id": run_id})).fetchall()
        for row in opened:
            following = [NewJob(**values) for values in row["opens"]]
            woken += await _add(connection, job_types, run_id, following, opened_by=row["gate"])
    await connection.execute(sql.finish, {"run_id": run_id})
    return woken


async def cancel(connection: Connection, run_id: int, reason: str) -> list[int]:
    """End a run by hand; returns its jobs that were running."""
    await lock(connection, run_id)
    ended = await end_locked(connection, run_id, "cancelled", reason)
    if ended is None:
        raise Conflict(f"run {run_id} is {(await get(connection, run_id)).status} already")
    return ended


async def end_locked(
    connection: Connection, run_id: int, status: Literal["failed", "cancelled"], error: str
) -> list[int] | None:
    """End a locked run and its open jobs; None if it had ended before."""
    cursor = await connection.execute(sql.end, {"run_id": run_id, "status": status, "error": error})
    if await cursor.fetchone() is None:
        return None
    reason = error if status == "cancelled" else f"run {run_id} failed: {error}"
    cursor = await connection.execute(sql.cancel_jobs, {"run_id": run_id, "error": reason})
    return [row["job_id"] for row in await cursor.fetchall()]


async def late(connection: Connection, limit: int = 50) -> list[int]:
    """Running runs past their total timeout."""
    cursor = await connection.execute(sql.late, {"limit": limit})
    return [row["run_id"] for row in await cursor.fetchall()]


async def end_late(connection: Connection, run_id: int) -> bool:
    """Fail a run that is late; False if it ended, or was retried, since it was found."""
    await lock(connection, run_id)
    if await (await connection.execute(sql.is_late, {"run_id": run_id})).fetchone() is None:
        return False
    error = "the run took longer than its total timeout"
    return await end_locked(connection, run_id, "failed", error) is not None


async def revive(connection: Connection, run_id: int, total_timeout_seconds: float) -> Woken:
    """Manual retry: completed jobs stay counted, failed and cancelled jobs wait again."""
    _check_timeout(total_timeout_seconds)
    await lock(connection, run_id)
    cursor = await connection.execute(
        sql.revive, {"run_id": run_id, "total_timeout_seconds": total_timeout_seconds}
    )
    if await cursor.fetchone() is None:
        status = (await get(connection, run_id)).status
        raise Conflict(f"run {run_id} is {status}: nothing to retry")
    await _cancel_after(connection, run_id)
    cursor = await connection.execute(sql.revive_jobs, {"run_id": run_id})
    return Woken(row["queue"] for row in await cursor.fetchall())


def after_run(run_id: int) -> str:
    """The dedupe key of a job that may only happen while the run has ended."""
    return f"after run {run_id}"


async def _cancel_after(connection: Connection, run_id: int) -> None:
    """Cancels the jobs planned for after the run's end, because the run continues."""
    cursor = await connection.execute(sql.jobs_after, {"dedupe_key": after_run(run_id)})
    rows = await cursor.fetchall()
    if any(row["status"] == "claimed" for row in rows):
        raise Conflict(f"what run {run_id} has left is being removed right now: submit it again")
    await connection.execute(sql.cancel_after, {"job_ids": [row["job_id"] for row in rows]})


async def get(connection: Connection, run_id: int) -> RunRecord:
    row = await (await connection.execute(sql.get, {"run_id": run_id})).fetchone()
    if row is None:
        raise NotFound(f"there is no run {run_id}")
    return RunRecord.from_row(row)


async def sweep(connection: Connection, seconds: float, limit: int = 20) -> int:
    """Remove runs that ended longer ago than `seconds`, with their jobs."""
    return (await connection.execute(sql.sweep, {"seconds": seconds, "limit": limit})).rowcount


async def _add(
    connection: Connection,
    job_types: JobTypes,
    run_id: int | None,
    new: Sequence[NewJob],
    opened_by: str | None = None,
) -> Woken:
    """Insert jobs into a locked or new run; those no gate has announced are expected at theirs."""
    if not new:
        return Woken()
    rows: Sequence[dict[str, Any]] = await insert_rows(
        connection, job_types.rows(new, in_run=True), run_id, opened_by
    )
    await connection.execute(sql.expect_jobs, {"run_id": run_id, "count": len(rows)})
    if opened_by is None:
        await _expect(connection, run_id, [row["gate"] for row in rows])
    return Woken(row["queue"] for row in rows if row["due"])


async def _expect(connection: Connection, run_id: int | None, gates: Sequence[str | None]) -> None:
    for gate, count in Counter(gate for gate in gates if gate).items():
        cursor = await connection.execute(
            sql.expect_at_gate, {"run_id": run_id, "gate": gate, "count": count}
        )
        if await cursor.fetchone() is None:
            raise Conflict(f"run {run_id} has no closed gate named {gate}")


def _check_gates(jobs: Sequence[NewJob], gates: Mapping[str, Sequence[NewJob]]) -> None:
    """Every gate must be able to open, or the run would complete without the jobs behind it."""
    opening = [job for opened in gates.values() for job in opened]
    counted = {job.gate for job in [*jobs, *opening] if job.gate}
    if missing := counted - gates.keys():
        raise Conflict(f"the run has no gate named {', '.join(sorted(missing))}")
    if idle := gates.keys() - counted:
        raise Conflict(
            f"nothing counts towards gate {', '.join(sorted(idle))}, so it would never open: "
            "let the job that plans count towards it"
        )
    leads_to = {gate: {job.gate for job in opened if job.gate} for gate, opened in gates.items()}
    try:
        TopologicalSorter(leads_to).prepare()
    except CycleError as error:
        raise Conflict(
            f"gate {error.args[1][0]} waits for itself: a job behind it counts towards it"
        ) from None


def _check_timeout(total_timeout_seconds: float) -> None:
    if not 0 < total_timeout_seconds <= _LONGEST_SECONDS:
        raise InvalidInput(
            Problem(
                "total_timeout_seconds",
                f"must be greater than 0 and at most ten years, got {total_timeout_seconds:g}",
            )
        )
