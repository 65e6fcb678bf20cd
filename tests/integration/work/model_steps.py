"""What several acts of the model do to its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kalla.errors import Conflict
from kalla.work.job import NewJob
from kalla.work.state.job_insertion import Woken
from tests.integration.work.model_rows import AttemptRow, GateRow, JobRow, View
from tests.work_kit import JOB_TYPES


def new_row(
    job_id: int, job: NewJob, now: float, run_id: int | None, opened_by: str | None
) -> JobRow:
    (filled,) = JOB_TYPES.rows([job])
    return JobRow(
        job_id,
        job.type,
        filled["queue"],
        job.priority,
        filled["max_attempts"],
        due=job.delay_seconds == 0,
        run_after=now + job.delay_seconds,
        run_id=run_id,
        gate=job.gate,
        opened_by=opened_by,
        dedupe_key=job.dedupe_key,
        running_key=job.running_key,
    )


def waiting_for(view: View, dedupe_key: str | None) -> JobRow | None:
    for row in view.all(JobRow):
        if dedupe_key and row.status == "pending" and row.dedupe_key == dedupe_key:
            return row
    return None


def next_of(view: View, freed: JobRow) -> Woken:
    """The first job that waits for the key that this one has held."""
    shared = [
        row
        for row in view.all(JobRow)
        if freed.running_key and row.running_key == freed.running_key
    ]
    waiting = [row for row in shared if row.status == "pending" and row.due]
    if not waiting or any(row.status == "claimed" for row in shared):
        return Woken()
    return Woken([min(waiting, key=lambda row: (-row.priority, row.job_id)).queue])


def anew(row: JobRow, now: float) -> JobRow:
    return replace(
        row,
        status="pending",
        failures=0,
        due=True,
        run_after=now,
        finished_at=None,
        stopped=False,
        away_since=None,
    )


def let_wait(
    view: View,
    row: JobRow,
    failures: int,
    run_after: float | None = None,
    away_since: float | None = None,
) -> None:
    """It waits: at once, or until `run_after`."""
    key = None if waiting_for(view, row.dedupe_key) else row.dedupe_key
    view.put(
        replace(
            row,
            status="pending",
            due=run_after is None,
            run_after=view.now if run_after is None else run_after,
            heartbeat_at=None,
            failures=failures,
            dedupe_key=key,
            away_since=away_since,
        )
    )


def note(view: View, row: JobRow, ending: str) -> None:
    attempt = AttemptRow(row.job_id, row.fence, ending)
    assert attempt.key not in view.rows, "the same fence ended twice"
    view.put(attempt)


def cancel_job(view: View, row: JobRow) -> None:
    if row.status == "claimed":
        note(view, row, "cancelled")
    view.put(
        replace(
            row,
            status="cancelled",
            heartbeat_at=None,
            finished_at=view.now,
            stopped=row.status == "pending",
        )
    )


def add(view: View, run_id: int, new: Sequence[NewJob], opened_by: str | None = None) -> Woken:
    for job in new:
        gate = view.rows.get(("gate", run_id, job.gate))
        if job.gate is None or opened_by is not None:
            continue
        if not isinstance(gate, GateRow) or gate.opened:
            raise Conflict("no closed gate of this name")
        view.put(replace(gate, expected=gate.expected + 1))
    run = view.run(run_id)
    view.put(replace(run, jobs=run.jobs + len(new)))
    rows = [new_row(next(view.new_ids), job, view.now, run_id, opened_by) for job in new]
    for row in rows:
        view.put(row)
    return Woken(row.queue for row in rows if row.due)


def end_run(view: View, run_id: int, status: str) -> None:
    view.put(replace(view.run(run_id), status=status, finished_at=view.now))
    for row in view.all(JobRow):
        if row.run_id == run_id and row.status in ("pending", "claimed"):
            cancel_job(view, row)
