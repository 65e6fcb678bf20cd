"""A small pure model of jobs, runs and queues: what each act makes of the rows.

No database, no clock, no chance: what Postgres decides (ids, jitter) is handed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kalla.errors import Conflict, Lost
from kalla.work.job import NewJob
from kalla.work.state.job_insertion import Woken
from kalla.work.state.jobs import LONGEST_PAUSE
from tests.integration.work.model_rows import (
    AttemptRow,
    Claim,
    GateRow,
    JobRow,
    QueueRow,
    Row,
    RunRow,
    View,
)
from tests.integration.work.model_steps import (
    add,
    anew,
    cancel_job,
    end_run,
    let_wait,
    new_row,
    next_of,
    note,
    waiting_for,
)
from tests.work_kit import BACKOFF, BACKOFF_LIMIT, MAX_RUNTIME, TIMEOUT

# Jobs


def insert(view: View, new: Sequence[NewJob]) -> tuple[list[int], Woken]:
    """The ids of the new jobs, or of the pending ones they repeat."""
    found: dict[int, str] = {}
    ids = []
    if any(job.gate is not None for job in new):
        raise Conflict("only a run has gates")
    for job in new:
        row = waiting_for(view, job.dedupe_key)
        if row is None:
            row = new_row(next(view.new_ids), job, view.now, None, None)
            view.put(row)
        view.lock(row)
        ids.append(row.job_id)
        if row.due:
            found[row.job_id] = row.queue
    return ids, Woken(found.values())


def claim(view: View, queue: str, limit: int) -> list[Claim]:
    if any(row.queue == queue and row.paused for row in view.all(QueueRow)):
        return []
    running = {row.running_key for row in view.all(JobRow) if row.status == "claimed"} - {None}
    waiting = [
        row
        for row in view.all(JobRow)
        if row.queue == queue and row.status == "pending" and row.due
        if row.running_key not in running and row.key not in view.locked
    ]
    waiting.sort(key=lambda row: (-row.priority, row.job_id))
    claims = []
    for row in waiting[:limit]:
        view.lock(row)
        if row.running_key is not None:
            if row.running_key in running:
                continue
            running.add(row.running_key)
        view.put(
            replace(
                row,
                status="claimed",
                fence=row.fence + 1,
                claimed_at=view.now,
                heartbeat_at=view.now,
            )
        )
        claims.append((row.job_id, row.fence + 1))
    return claims


def heartbeat(view: View, claims: Sequence[Claim]) -> set[int]:
    for row in filter(None, map(view.held, claims)):
        if row.key not in view.locked:
            view.put(replace(row, heartbeat_at=view.now))
    return {each[0] for each in claims if view.held(each) is None}


def complete(view: View, claim: Claim, follow_ups: Sequence[NewJob]) -> Woken:
    row = _must_hold(view, claim)
    view.put(replace(row, status="completed", heartbeat_at=None, finished_at=view.now))
    if row.run_id is None:
        return insert(view, follow_ups)[1] + next_of(view, row)
    woken = add(view, row.run_id, follow_ups)
    run = view.run(row.run_id)
    view.put(replace(run, completed=run.completed + 1))
    if row.gate is not None:
        gate = view.rows[("gate", row.run_id, row.gate)]
        assert isinstance(gate, GateRow)
        gate = replace(gate, arrived=gate.arrived + 1)
        if gate.arrived == gate.expected:
            gate = replace(gate, opened=True)
            woken += add(view, row.run_id, gate.jobs, opened_by=gate.gate)
        view.put(gate)
    run = view.run(row.run_id)
    if run.completed == run.jobs:
        view.put(replace(run, status="completed", finished_at=view.now))
    return woken + next_of(view, row)


def fail(view: View, claim: Claim, permanent: bool, waits: float) -> tuple[str, Woken]:
    """`waits` is what chance made of the back-off."""
    row = _must_hold(view, claim)
    note(view, row, "failed")
    whole = min(BACKOFF * 2**row.failures, BACKOFF_LIMIT) if row.type == "flaky" else 0.0
    assert whole / 2 <= waits <= whole
    ended = permanent or row.failures + 1 >= row.max_attempts
    row = replace(
        row,
        status="failed" if ended else "pending",
        failures=row.failures + 1,
        away_since=None,
        heartbeat_at=None,
        finished_at=view.now if ended else None,
        due=whole == 0,
        run_after=round(view.now + waits, 6),
        dedupe_key=None if waiting_for(view, row.dedupe_key) else row.dedupe_key,
    )
    view.put(row)
    if ended and row.run_id is not None:
        end_run(view, row.run_id, "failed")
    if not ended and row.due:
        return row.status, Woken([row.queue])
    return row.status, next_of(view, row)


def put_off(
    view: View, claim: Claim, patience: float, waits: float, broke_off: bool
) -> Woken | None:
    known = view.rows.get(("job", claim[0]))
    if isinstance(known, JobRow) and known.run_id is not None:  # whoever holds the claim by now
        view.lock(view.run(known.run_id))
    row = view.held(claim)
    if row is None:
        return None
    since = view.now if row.away_since is None else row.away_since
    if row.away_since is not None and (broke_off or view.now >= since + patience):
        return None
    note(view, row, "put off")
    least, most = (BACKOFF, BACKOFF_LIMIT) if row.type == "flaky" else (0.0, LONGEST_PAUSE)
    whole = min(max(least, view.now - since), most)
    assert whole / 2 - 1e-6 <= waits <= whole + 1e-6
    let_wait(view, row, row.failures, round(view.now + waits, 6), away_since=since)
    return next_of(view, row)


def hand_back(view: View, claims: Sequence[Claim]) -> Woken:
    held = {row.job_id: row for row in filter(None, map(view.held, claims))}
    for _, row in sorted(held.items()):
        note(view, row, "handed back")
        let_wait(view, row, row.failures, away_since=row.away_since)
    return Woken(row.queue for row in held.values())


def reap(view: View) -> list[int]:
    gone = [
        row
        for row in view.all(JobRow)
        if _ending(view, row) and row.failures + 1 < row.max_attempts
        if row.key not in view.locked
    ]
    for row in sorted(gone, key=lambda row: row.job_id):
        note(view, row, _ending(view, row))
        let_wait(view, row, row.failures + 1)
    return sorted(row.job_id for row in gone)


def exhausted(view: View) -> list[Claim]:
    return sorted(
        (row.job_id, row.fence)
        for row in view.all(JobRow)
        if _ending(view, row) and row.failures + 1 >= row.max_attempts
    )


def end_exhausted(view: View, claim: Claim) -> Woken | None:
    row = view.held(claim)
    if row is None or not _ending(view, row):
        return None
    note(view, row, _ending(view, row))
    view.put(
        replace(
            row,
            status="failed",
            failures=row.failures + 1,
            heartbeat_at=None,
            finished_at=view.now,
        )
    )
    if row.run_id is not None:
        end_run(view, row.run_id, "failed")
    return next_of(view, row)


def promote(view: View) -> Woken:
    arrived = [
        row
        for row in view.all(JobRow)
        if row.status == "pending" and not row.due and row.run_after <= view.now
        if row.key not in view.locked
    ]
    for row in arrived:
        view.put(replace(row, due=True))
    return Woken(row.queue for row in arrived)


def cancel(view: View, job_id: int) -> str:
    row = view.job(job_id)
    if row.status not in ("pending", "claimed"):
        raise Conflict("the job has ended already")
    if row.run_id is not None:
        end_run(view, row.run_id, "cancelled")
    else:
        cancel_job(view, row)
    return view.job(job_id).status


def retry(view: View, job_id: int, total_timeout: float) -> Woken:
    row = view.job(job_id)
    if row.status not in ("failed", "cancelled"):
        raise Conflict("only failed and cancelled jobs are retried")
    if row.run_id is None:
        key = None if waiting_for(view, row.dedupe_key) else row.dedupe_key
        view.put(replace(anew(row, view.now), dedupe_key=key))
        return Woken([row.queue])
    run = view.run(row.run_id)
    view.put(
        replace(run, status="running", finished_at=None, deadline=view.now + total_timeout),
    )
    again = [
        row
        for row in view.all(JobRow)
        if row.run_id == run.run_id and row.status in ("failed", "cancelled")
    ]
    for row in again:
        view.put(anew(row, view.now))
    return Woken(row.queue for row in again)


def _must_hold(view: View, claim: Claim) -> JobRow:
    row = view.held(claim)
    if row is None:
        raise Lost("no longer held")
    if row.run_id is not None:
        view.lock(view.run(row.run_id))
    return row


def _ending(view: View, row: JobRow) -> str:
    """How the reaper would call it, or nothing."""
    if row.heartbeat_at is None or row.claimed_at is None:
        return ""
    if row.heartbeat_at < view.now - TIMEOUT:
        return "lost"
    return "overran" if row.claimed_at < view.now - MAX_RUNTIME else ""


# Runs


def create_run(
    view: View,
    run_id: int,
    first: Sequence[NewJob],
    gates: Mapping[str, Sequence[NewJob]],
    total_timeout: float,
) -> Woken:
    view.put(RunRow(run_id, view.now + total_timeout))
    announced = Counter(job.gate for opened in gates.values() for job in opened)
    for gate, opened in gates.items():
        view.put(GateRow(run_id, gate, len(opened), announced[gate], jobs=tuple(opened)))
    return add(view, run_id, first)


def late(view: View) -> list[int]:
    return sorted(
        run.run_id
        for run in view.all(RunRow)
        if run.status == "running" and run.deadline < view.now
    )


def end_late(view: View, run_id: int) -> bool:
    if run_id not in late(view):
        return False
    end_run(view, run_id, "failed")
    return True


def sweep(view: View, seconds: float) -> tuple[int, int]:
    """Finished jobs of no run, and finished runs with all that is theirs."""

    def is_old(row: JobRow | RunRow) -> bool:
        finished = row.finished_at is not None and row.finished_at < view.now - seconds
        return finished and row.key not in view.locked

    jobs = [row for row in view.all(JobRow) if row.run_id is None and is_old(row)]
    runs = [row for row in view.all(RunRow) if is_old(row)]
    run_ids = {row.run_id for row in runs}
    members = [row for row in view.all(JobRow) if row.run_id in run_ids]
    job_ids = {row.job_id for row in [*jobs, *members]}
    gates = [row for row in view.all(GateRow) if row.run_id in run_ids]
    attempts = [row for row in view.all(AttemptRow) if row.job_id in job_ids]
    gone: list[Row] = [*attempts, *jobs, *members, *gates, *runs]
    for row in gone:
        view.remove(row)
    return len(jobs), len(runs)


# Queues


def pause(view: View, queue: str) -> None:
    view.put(QueueRow(queue, True))


def resume(view: View, queue: str) -> None:
    if ("queue", queue) in view.rows:
        view.put(QueueRow(queue, False))
