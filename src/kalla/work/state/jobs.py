"""Jobs in Postgres: inserted, claimed, kept alive, ended. Only this code moves a status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from kalla.database import Connection
from kalla.errors import Conflict, Lost, NotFound
from kalla.redaction import scrub
from kalla.statements import load
from kalla.work.handler import Handler
from kalla.work.job import Attempt, Job, JobRecord, NewJob, Outcome
from kalla.work.job_type import JobTypes
from kalla.work.state import runs
from kalla.work.state.job_insertion import Woken, insert_rows

sql = load("kalla.work.state", "jobs.sql")

LONGEST_PAUSE = 30.0  # seconds before an unreachable server is tried again

_LONGEST_ERROR = 8_000


@dataclass(frozen=True)
class Inserted:
    """`job_ids[i]` is the i-th given job, or the pending one it repeats."""

    job_ids: tuple[int, ...]
    repeated: tuple[bool, ...]
    woken: Woken


async def insert(connection: Connection, job_types: JobTypes, jobs: Sequence[NewJob]) -> Inserted:
    """Insert jobs of no run. One whose dedupe key waits already is not inserted again."""
    rows = job_types.rows(jobs)
    for row, job in zip(rows, jobs, strict=True):
        if job.gate is not None:
            raise Conflict(
                f"job type {row['type']} names gate {job.gate}, but only a run has gates"
            )
    found: dict[int, dict[str, Any]] = {}
    while rows:
        for row in await insert_rows(connection, rows):
            # No id: the waiting duplicate was committed after our snapshot. Read again.
            if row["job_id"] is not None:
                found[row["position"]] = row
        rows = [row for row in rows if row["position"] not in found]
    ordered = [found[position] for position in range(len(jobs))]
    # A repeated job wakes too: it was locked meanwhile, so the worker woken for it did not see it.
    due = {row["job_id"]: row["queue"] for row in ordered if row["due"]}
    return Inserted(
        tuple(row["job_id"] for row in ordered),
        tuple(not row["inserted"] for row in ordered),
        Woken(due.values()),
    )


async def claim(
    connection: Connection, queue: str, types: Sequence[str], worker: str, limit: int
) -> list[Job]:
    """Take up to `limit` waiting jobs. UniqueViolation: running keys raced, try again."""
    cursor = await connection.execute(
        sql.claim, {"queue": queue, "types": list(types), "worker": worker, "limit": limit}
    )
    rows = await cursor.fetchall()
    rows.sort(key=lambda row: (-row["priority"], row["job_id"]))
    return [Job.from_row(row) for row in rows]


async def heartbeat(
    connection: Connection, jobs: Sequence[Job], progress: Sequence[dict[str, Any] | None]
) -> set[int]:
    """Renews these claims; returns the ids of those that were lost."""
    claims = _claims(jobs)
    reports = [None if facts is None else Jsonb(facts) for facts in progress]
    await connection.execute(sql.heartbeat, claims | {"progress": reports})
    cursor = await connection.execute(sql.lost, claims)
    return {row["job_id"] for row in await cursor.fetchall()}


async def complete_plain(connection: Connection, ended: Sequence[tuple[Job, Outcome]]) -> set[int]:
    """Complete jobs with nothing to settle, many in one statement; returns the ids that were still
    held.
    """
    results = [
        None if outcome.result is None else Jsonb(dict(outcome.result)) for _, outcome in ended
    ]
    cursor = await connection.execute(
        sql.complete, _claims([job for job, _ in ended]) | {"results": results}
    )
    return {row["job_id"] for row in await cursor.fetchall()}


async def complete(
    connection: Connection, job_types: JobTypes, handler: Handler, job: Job, outcome: Outcome
) -> Woken:
    """The fenced completion, settle, follow-ups and gates, all in the caller's one transaction."""
    if job.run_id is not None:
        await runs.lock(connection, job.run_id)
    if not await complete_plain(connection, [(job, outcome)]):
        raise Lost(f"job {job.job_id} is no longer held under fence {job.fence}")
    await handler.settle(connection, job, outcome)
    woken = Woken()
    if job.run_id is not None:
        woken += await runs.advance(connection, job_types, job, outcome.follow_ups)
    elif outcome.follow_ups:
        woken += (await insert(connection, job_types, outcome.follow_ups)).woken
    return woken + await next_of_keys(connection, [job.running_key])


async def next_of_keys(connection: Connection, keys: Sequence[str | None]) -> Woken:
    """The jobs that can be claimed after these running keys were released."""
    freed = sorted({key for key in keys if key is not None})
    if not freed:
        return Woken()
    return waiting_in(
        await (await connection.execute(sql.next_of_keys, {"keys": freed})).fetchall()
    )


async def completed_already(connection: Connection, job: Job) -> bool:
    """Whether this claim completed: for commits whose answer was lost."""
    cursor = await connection.execute(sql.standing, {"job_id": job.job_id, "fence": job.fence})
    row = await cursor.fetchone()
    return row is not None and row["status"] == "completed"


async def fail(
    connection: Connection, job: Job, error: str, traceback: str = "", permanent: bool = False
) -> tuple[str, Woken]:
    """Count a failure; the last one ends the job, and with it the run it belongs to."""
    if job.run_id is not None:
        await runs.lock(connection, job.run_id)
    ended = _ended(job, error, traceback)
    cursor = await connection.execute(sql.fail, ended | {"permanent": permanent})
    row = await cursor.fetchone()
    if row is None:
        raise Lost(f"job {job.job_id} is no longer held under fence {job.fence}")
    if row["status"] == "failed" and job.run_id is not None:
        reason = f"job {job.job_id} failed: {ended['error']}"
        await runs.end_locked(connection, job.run_id, "failed", reason)
    if row["status"] == "pending" and row["due"]:
        return row["status"], Woken([row["queue"]])
    return row["status"], await next_of_keys(connection, [job.running_key])


async def put_off(
    connection: Connection,
    job: Job,
    error: str,
    traceback: str,
    patience: float,
    *,
    broke_off: bool = False,
) -> Woken | None:
    """A server that the job needs is unreachable: lets it wait without counting a failure.

    None if this has lasted `patience` seconds, if the server failed again after it was back, or if
    the claim was lost: then call `fail`.
    """
    if job.run_id is not None:
        await runs.lock(connection, job.run_id)  # first of all: `fail` may follow
    ended = _ended(job, error, traceback)
    cursor = await connection.execute(
        sql.put_off,
        ended | {"patience": patience, "longest": LONGEST_PAUSE, "broke_off": broke_off},
    )
    if await cursor.fetchone() is None:
        return None
    return await next_of_keys(connection, [job.running_key])


async def hand_back(connection: Connection, jobs: Sequence[Job]) -> Woken:
    """Releases claims without counting a failure. Skips lost ones."""
    cursor = await connection.execute(sql.hand_back, _claims(jobs))
    return waiting_in(await cursor.fetchall())


async def hand_back_strays(
    connection: Connection, worker: str, held: Sequence[Job]
) -> tuple[list[int], Woken]:
    """Releases claims of this worker that it does not hold: nobody would run or renew them."""
    cursor = await connection.execute(sql.strays, _claims(held) | {"worker": worker})
    strays = await cursor.fetchall()
    if not strays:
        return [], Woken()
    claims = {
        "jobs": [row["job_id"] for row in strays],
        "fences": [row["fence"] for row in strays],
    }
    cursor = await connection.execute(sql.hand_back, claims)
    returned = await cursor.fetchall()
    return [row["job_id"] for row in returned], waiting_in(returned)


async def reap(
    connection: Connection, limit: int = 500, latest: float | None = None
) -> list[dict[str, Any]]:
    """Return lost jobs to their queues. Those out of attempts are found by `exhausted`.

    `latest`, in seconds since 1970, bounds the time by which heartbeats are judged: the database's
    clock may have jumped ahead.
    """
    cursor = await connection.execute(sql.reap, {"limit": limit, "latest": latest})
    return await cursor.fetchall()


def waiting_in(rows: Sequence[dict[str, Any]]) -> Woken:
    """How many of these rows wait in which queue."""
    return Woken(row["queue"] for row in rows)


async def exhausted(
    connection: Connection, limit: int = 100, latest: float | None = None
) -> list[dict[str, Any]]:
    cursor = await connection.execute(sql.exhausted, {"limit": limit, "latest": latest})
    return await cursor.fetchall()


async def end_exhausted(
    connection: Connection, job_id: int, fence: int, run_id: int | None, latest: float | None = None
) -> Woken | None:
    """Fail a lost job that has no attempt left, and its run; None if a heartbeat came first."""
    if run_id is not None:
        await runs.lock(connection, run_id)
    cursor = await connection.execute(
        sql.end_exhausted, {"job_id": job_id, "fence": fence, "latest": latest}
    )
    row = await cursor.fetchone()
    if row is None:
        return None
    if run_id is not None:
        await runs.end_locked(connection, run_id, "failed", f"job {job_id} failed: {row['error']}")
    return await next_of_keys(connection, [row["running_key"]])


async def promote(connection: Connection, limit: int = 1000) -> Woken:
    """Delayed jobs that came due begin to wait."""
    cursor = await connection.execute(sql.promote, {"limit": limit})
    return waiting_in(await cursor.fetchall())


async def next_due_seconds(connection: Connection) -> float | None:
    """Seconds until the next delayed job comes due; None when there is none."""
    row = await (await connection.execute(sql.next_due)).fetchone()
    return None if row is None else row["seconds"]


async def cancel(connection: Connection, job_id: int, by: str) -> JobRecord:
    """Cancel a job; one that belongs to a run takes the whole run with it."""
    reason = f"cancelled by {by}"
    record = await get(connection, job_id)
    if record.run_id is not None:
        await runs.lock(connection, record.run_id)
        record = await get(connection, job_id)  # it may have completed before we got the lock
    if record.status not in ("pending", "claimed"):
        raise Conflict(f"job {job_id} is {record.status} already")
    if record.run_id is not None:
        await runs.cancel(connection, record.run_id, reason)
    else:
        cursor = await connection.execute(sql.cancel, {"job_id": job_id, "error": reason})
        if await cursor.fetchone() is None:
            current = await get(connection, job_id)
            raise Conflict(f"job {job_id} is {current.status} already")
    return await get(connection, job_id)


async def retry(connection: Connection, job_id: int, total_timeout_seconds: float) -> Woken:
    """Let a failed or cancelled job wait again; one that belongs to a run revives the whole run."""
    record = await get(connection, job_id)
    if record.status not in ("failed", "cancelled"):
        raise Conflict(
            f"job {job_id} is {record.status}: only failed and cancelled jobs are retried"
        )
    if record.run_id is not None:
        return await runs.revive(connection, record.run_id, total_timeout_seconds)
    cursor = await connection.execute(sql.retry, {"job_id": job_id})
    rows = await cursor.fetchall()
    if not rows:
        current = await get(connection, job_id)
        raise Conflict(f"job {job_id} changed meanwhile: it is {current.status} now")
    return Woken(row["queue"] for row in rows)


async def stopped(connection: Connection, job: Job) -> Woken:
    """Confirm a cancel: the thread of this job has ended. Its key is free since the cancel."""
    await connection.execute(sql.stopped, _claims([job]))
    return await next_of_keys(connection, [job.running_key])


async def stopped_with_worker(connection: Connection) -> None:
    """Confirms cancels of jobs whose worker has ended."""
    await connection.execute(sql.stopped_with_worker)


async def get(connection: Connection, job_id: int) -> JobRecord:
    row = await (await connection.execute(sql.get, {"job_id": job_id})).fetchone()
    if row is None:
        raise NotFound(f"there is no job {job_id}")
    attempts = await (await connection.execute(sql.attempts, {"job_id": job_id})).fetchall()
    return JobRecord.from_row(row, tuple(Attempt(**attempt) for attempt in attempts))


async def listing(
    connection: Connection,
    *,
    status: str | None = None,
    queue: str | None = None,
    job_type: str | None = None,
    run_id: int | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[JobRecord]:
    """Jobs, newest first; `before` is the last job_id of the page before."""
    filters = {"status": status, "queue": queue, "type": job_type, "run_id": run_id}
    cursor = await connection.execute(sql.list, filters | {"before": before, "limit": limit})
    return [JobRecord.from_row(row) for row in await cursor.fetchall()]


async def inputs(connection: Connection, job: Job) -> tuple[Any, ...]:
    """Results of the jobs that came through the gate which inserted this one."""
    if job.opened_by is None:
        return ()
    cursor = await connection.execute(sql.inputs, {"run_id": job.run_id, "gate": job.opened_by})
    return tuple(row["result"] for row in await cursor.fetchall())


async def sweep(connection: Connection, seconds: float, limit: int = 1000) -> int:
    """Remove finished jobs of no run that are older than `seconds`."""
    return (await connection.execute(sql.sweep, {"seconds": seconds, "limit": limit})).rowcount


def _claims(jobs: Sequence[Job]) -> dict[str, Any]:
    return {"jobs": [job.job_id for job in jobs], "fences": [job.fence for job in jobs]}


def _ended(job: Job, error: str, traceback: str) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "fence": job.fence,
        "error": _clip(scrub(error)),
        "traceback": _storable(scrub(traceback)[-_LONGEST_ERROR:]),
    }


def _storable(text: str) -> str:
    """Replaces NUL and half surrogate pairs, which Postgres cannot store."""
    return text.replace("\0", "�").encode("utf-8", "replace").decode()


def _clip(text: str) -> str:
    text = _storable(text)
    return text if len(text) <= _LONGEST_ERROR else text[:_LONGEST_ERROR] + " …"
