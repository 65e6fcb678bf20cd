"""Stores a reconciliation's state: submitted, running, ended. Typed rows over `store.sql`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from kalla.database import Connection
from kalla.errors import Conflict, NotFound
from kalla.reconcile.evidence.reading.run_report import Report
from kalla.reconcile.recipe.model import SIDES
from kalla.redaction import scrub
from kalla.statements import load
from kalla.web.storable import replaced
from kalla.web.text_format import shortened
from kalla.work.job import RunStatus

sql = load("kalla.reconcile.runs", "store.sql")


# A failed run may be retried, for which its staged rows are needed.
KEPT_SECONDS = 24 * 3600.0

_SHOWN = 500  # signs of an error


@dataclass(frozen=True)
class Callback:
    """Where to send a run's result, and the name of the secret that signs the call."""

    url: str
    secret: str
    above: int | None = None  # only if a completed run has more exceptions than this

    def wants(self, status: RunStatus, exceptions: int | None) -> bool:
        """Whether a result is reported. A run that did not complete always is."""
        if self.above is None or status != "completed" or exceptions is None:
            return True
        return exceptions > self.above


@dataclass(frozen=True)
class NewReconciliation:
    """A run to be created."""

    name: str
    recipe_id: str
    recipe_version: int
    recipe_hash: str
    recipe: str
    sources: Mapping[str, str]
    submitted_by: str
    callback: Callback | None = None


@dataclass(frozen=True)
class RunSummary:
    """A run in a list."""

    run_id: int
    name: str
    recipe_id: str
    recipe_version: int | None
    recipe_hash: str
    sources: dict[str, str]
    submitted_by: str
    created_at: datetime
    status: RunStatus
    error: str | None
    finished_at: datetime | None
    match_rate: float | None
    exceptions: int | None


@dataclass(frozen=True)
class SideProgress:
    """How far the staging of one side is."""

    side: str
    planned: bool
    chunks: int
    chunks_done: int
    rows: int
    rows_expected: int | None


@dataclass(frozen=True)
class PutOff:
    """Why a job of the run waits: it failed, or a server is unreachable, and since when."""

    reason: str
    seconds: float | None  # None: it failed
    next_try_seconds: float


@dataclass(frozen=True)
class Progress:
    """The progress of a run. A side that is read in place has no entry."""

    stage: str  # waiting, staging, matching, ended
    staging: tuple[SideProgress, ...] = ()
    spark_tasks: int | None = None
    spark_tasks_done: int | None = None
    rows_per_second: float | None = None
    seconds_left: float | None = None
    share: float = 1.0  # from 0 to 1, for a bar
    put_off: PutOff | None = None


@dataclass(frozen=True)
class RunDetail(RunSummary):
    """A run with its progress, and its report once there is one."""

    recipe: str = ""
    evidence_url: str | None = None
    report: Report | None = None
    progress: Progress = field(default_factory=lambda: Progress("ended"))


@dataclass(frozen=True)
class RunPage:
    runs: list[RunSummary]
    next_before: int | None


@dataclass(frozen=True)
class Ended:
    """An ended run that has not been completed yet."""

    run_id: int
    name: str
    callback: Callback | None
    evidence_url: str | None
    report: Report | None
    status: RunStatus
    finished_at: datetime | None
    error: str | None


@dataclass(frozen=True)
class Untidy:
    """An ended run, the evidence that counts, and the highest fence that any attempt had so far."""

    run_id: int
    evidence_url: str | None
    fence: int


async def create(connection: Connection, run_id: int, new: NewReconciliation) -> None:
    callback = new.callback and Jsonb(vars(new.callback))
    values = vars(new) | {"run_id": run_id, "sources": Jsonb(dict(new.sources))}
    await connection.execute(sql.create, values | {"callback": callback})


async def adopted(connection: Connection, report: Report) -> int | None:
    """The run that shows this evidence already; no other comes until the transaction ends."""
    values = {"evidence_url": report.evidence, "started_at": report.started_at}
    await connection.execute(sql.serialise_adoption, values)
    row = await (await connection.execute(sql.adopted, values)).fetchone()
    return None if row is None else int(row["run_id"])


async def adopt(
    connection: Connection, report: Report, recipe_id: str, recipe: str, by: str
) -> int:
    """Imports evidence from elsewhere, by its report; returns the run's number."""
    cursor = await connection.execute(
        sql.adopt,
        {
            "name": replaced(report.name),
            "recipe_id": replaced(recipe_id),
            "recipe_hash": replaced(report.recipe_hash),
            "recipe": replaced(recipe),
            "sources": Jsonb(replaced(report.sources)),
            "submitted_by": by,
            "created_at": report.started_at,
            "finished_at": report.finished_at,
            "evidence_url": report.evidence,
            "report": Jsonb(replaced(report.model_dump(mode="json"))),
        },
    )
    (row,) = await cursor.fetchall()
    run_id: int = row["run_id"]
    return run_id


async def settle(connection: Connection, run_id: int, report: Report) -> None:
    """Stores the result of a match: where its evidence is, and its report."""
    values = {"run_id": run_id, "evidence_url": report.evidence}
    document = Jsonb(replaced(report.model_dump(mode="json")))
    await connection.execute(sql.settle, values | {"report": document})


async def listing(
    connection: Connection,
    status: RunStatus | None = None,
    recipe_id: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> RunPage:
    """Runs, newest first."""
    which = {"status": status, "recipe_id": recipe_id, "before": before, "run_id": None}
    # One row more than requested shows whether there is a next page.
    cursor = await connection.execute(sql.listing, which | {"limit": limit + 1})
    found = [RunSummary(**_shown(row)) for row in await cursor.fetchall()]
    more = len(found) > limit
    return RunPage(found[:limit], found[limit - 1].run_id if more else None)


async def get(connection: Connection, run_id: int) -> RunDetail:
    which = {"status": None, "recipe_id": None, "before": None, "run_id": run_id, "limit": 1}
    row = await (await connection.execute(sql.listing, which)).fetchone()
    if row is None:
        raise NotFound(f"there is no run {run_id}")
    kept = await (await connection.execute(sql.kept, {"run_id": run_id})).fetchone()
    cursor = await connection.execute(sql.jobs, {"run_id": run_id})
    progress = (
        _progress(await cursor.fetchall()) if row["status"] == "running" else Progress("ended")
    )
    return RunDetail(**_shown(row), **_reported(kept or {}), progress=progress)


async def evidence_url(connection: Connection, run_id: int) -> str:
    """Where a run's evidence is; Conflict while there is none."""
    detail = await get(connection, run_id)
    if detail.evidence_url is None:
        raise Conflict(f"run {run_id} is {detail.status} and has no evidence")
    return detail.evidence_url


async def ended(
    connection: Connection, limit: int = 20, without: Collection[int] = ()
) -> list[dict[str, Any]]:
    """The rows of ended runs that were not completed, locked until the transaction ends."""
    await connection.execute(sql.reopen)
    cursor = await connection.execute(sql.ended, {"limit": limit, "without": list(without)})
    return await cursor.fetchall()


def ended_run(row: Mapping[str, Any]) -> Ended:
    """Apart from `ended`: a row that cannot be read must not hold up the others."""
    callback = row["callback"] and Callback(**row["callback"])
    return Ended(**_reported(row) | {"callback": callback})


async def conclude(connection: Connection, run: Ended) -> None:
    """Stores how the run ended, because its jobs will be removed later."""
    values = {"status": run.status, "error": run.error, "finished_at": run.finished_at}
    await connection.execute(sql.conclude, values | {"run_id": run.run_id, "kept": KEPT_SECONDS})


async def untidy(connection: Connection, limit: int = 20) -> list[Untidy]:
    """Ended runs whose attempts' files are old enough to be removed."""
    cursor = await connection.execute(sql.untidy, {"limit": limit, "kept": KEPT_SECONDS})
    return [Untidy(**row) for row in await cursor.fetchall()]


async def tidy_later(connection: Connection, run_id: int) -> None:
    await connection.execute(sql.tidy_later, {"run_id": run_id})


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "error": row["error"] and _told_of(row["error"])}


def _told_of(error: str) -> str:
    return shortened(scrub(error), _SHOWN)  # half of a secret would not be recognised


def _reported(row: Mapping[str, Any]) -> dict[str, Any]:
    report = row.get("report")
    return {**row, "report": report and Report.model_validate(report)}


def _progress(jobs: list[dict[str, Any]]) -> Progress:
    by_type = {kind: [job for job in jobs if job["type"] == kind] for kind in _TYPES}
    staging = tuple(
        _side(side, plans, [job for job in by_type["stage_chunk"] if job["side"] == side])
        for side in SIDES
        if (plans := [job for job in by_type["stage_plan"] if job["side"] == side])
    )
    current: dict[str, Any] = {}
    stage, rate, left = "waiting", None, None
    working = {job["type"] for job in jobs if job["status"] == "claimed"}
    if "exec" in working:
        (match,) = by_type["exec"]
        current = match["progress"] or {}
        stage = "matching"
        rate, left = _match_rate(match, current)
    elif working:
        stage = "staging"
        rate, left = _rate([*by_type["stage_plan"], *by_type["stage_chunk"]], staging)
    share = _share(stage, staging, _matched(current))
    tasks, done = current.get("tasks"), current.get("tasks_done")
    return Progress(stage, staging, tasks, done, rate, left, share, _put_off(jobs))


def _put_off(jobs: list[dict[str, Any]]) -> PutOff | None:
    """The reason of the first of several jobs that wait for a retry."""
    waiting = [job for job in jobs if job["status"] == "pending" and job["error"]]
    if not waiting:
        return None
    first = min(waiting, key=lambda job: job["run_after"])
    now, since = first["now"], first["away_since"]
    return PutOff(
        _told_of(first["error"]),
        (now - since).total_seconds() if since else None,
        max((first["run_after"] - now).total_seconds(), 0.0),
    )


_TYPES = ("stage_plan", "stage_chunk", "exec")


def _side(side: str, plans: list[dict[str, Any]], chunks: list[dict[str, Any]]) -> SideProgress:
    """A plan that holds a snapshot stages all chunks itself, and reports them as it goes."""
    plan = plans[0]
    planned = _progress_of(plan)
    done = [job["result"] for job in chunks if job["status"] == "completed"]
    return SideProgress(
        side,
        plan["status"] == "completed",
        len(chunks) or planned.get("chunks", 0),
        len(done) or planned.get("chunks_done", 0),
        sum(each["rows"] for each in done) or planned.get("rows", 0),
        planned.get("rows_expected"),
    )


def _progress_of(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The progress of this attempt, or of the one that counts."""
    if job["status"] == "completed":
        return job["result"] or {}
    return (job["progress"] or {}) if job["status"] == "claimed" else {}


def _matched(current: Mapping[str, Any]) -> float:
    """The done share of a match."""
    parts = current.get("parts", 0)
    return current.get("parts_done", 0) / parts if parts else 0.0


def _match_rate(
    match: Mapping[str, Any], current: Mapping[str, Any]
) -> tuple[float | None, float | None]:
    """The rate up to the last part that was done, and how long the rest takes at that rate."""
    share, seconds = _matched(current), current.get("seconds")
    if not share or not seconds:
        return None, None
    since = current["since"] + (match["now"] - match["heartbeat_at"]).total_seconds()
    left = seconds / share - seconds - since
    return share * current.get("rows", 0) / seconds or None, left if left > 0 else None


def _share(stage: str, staging: tuple[SideProgress, ...], matched: float) -> float:
    """Staging counts for the first half, where there is any."""
    if not staging:
        return matched
    if stage == "matching":
        return 0.5 + matched / 2
    chunks = sum(side.chunks for side in staging)
    return sum(side.chunks_done for side in staging) / chunks / 2 if chunks else 0.0


def _rate(
    jobs: list[dict[str, Any]], staging: tuple[SideProgress, ...]
) -> tuple[float | None, float | None]:
    """Rows a second since the first chunk began, and how long the rest takes at that rate.

    What was staged before a retry does not count: the run stood still in between. All that is not
    done waits since then, or since it was made.
    """
    open_since = min(job["run_after"] for job in jobs if job["status"] in ("pending", "claimed"))
    movers = [
        job
        for job in jobs
        if (job["status"] == "claimed" or _has_ended(job, open_since))
        and (job["type"] == "stage_chunk" or "rows" in _progress_of(job))
    ]
    rows = sum(_progress_of(job).get("rows", 0) for job in movers)
    if not rows:
        return None, None
    began, now = min(job["claimed_at"] for job in movers), movers[0]["now"]
    rate = rows / max((now - began).total_seconds(), 0.001)
    left = [_rows_left(side) for side in staging]
    known = [each for each in left if each is not None]
    return rate, sum(known) / rate if len(known) == len(left) else None


def _has_ended(job: Mapping[str, Any], since: datetime) -> bool:
    """It may have begun before: a side whose plan took longer has the younger jobs."""
    return bool(job["status"] == "completed" and job["finished_at"] >= since)


def _rows_left(side: SideProgress) -> float | None:
    """By the chunks that are done, for they are cut alike and an estimate knows of no filters."""
    if side.chunks_done:
        return side.rows / side.chunks_done * (side.chunks - side.chunks_done)
    return side.rows_expected
