"""Maintains the metric store: submits jobs that merge small segments and delete expired ones.

Runs in every worker and in the API. The first process to check submits the job; one of each kind
runs at a time, and none without work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from kalla.database import Connection, Database
from kalla.query.store import catalogue
from kalla.query.store.maintenance import retention
from kalla.query.store.maintenance.compaction import Compaction
from kalla.query.store.maintenance.compaction_plan import Bounds, Merge, plan, together
from kalla.query.store.maintenance.retention import RetentionTask
from kalla.settings import Settings
from kalla.statements import load
from kalla.work.job import NewJob
from kalla.work.job_type import JobTypes
from kalla.work.service import Periodic, SetAside
from kalla.work.state import jobs
from kalla.work.state.job_insertion import Woken
from kalla.work.wake.channel import Wake

sql = load("kalla.query.store.maintenance", "upkeep.sql")

# How long segments of a failed merge are left alone; the second when a server was unreachable.
PAUSE_SECONDS = 600.0
_SHORT_SECONDS = 60.0
# With this many segments and files in one check the next check comes sooner: there may be more.
_MUCH = 100
_SOON_SECONDS = 5.0
# Between two searches for unlisted objects: they are rare, and a search reads all names.
_SWEEP_SECONDS = 3600.0
_MOST_FILES = 2000
_MOST_TASKS = 64
# What a segment takes of a job's payload, and a file's path.
_SEGMENT_BYTES, _PATH_BYTES = 400, 120

_FOR_EVER = 1 << 62

Tasks = tuple[tuple[Merge, ...], ...]


class Upkeep(Periodic):
    def __init__(
        self, settings: Settings, database: Database, job_types: JobTypes, wake: Wake
    ) -> None:
        super().__init__("upkeep", settings.metrics.compact_seconds)
        self._metrics = settings.metrics
        self._payload_bytes = settings.limits.payload_bytes
        self._database = database
        self._job_types = job_types
        self._wake = wake
        self._aside = SetAside("upkeep")

    async def tick(self) -> float | None:
        async with self._database.transaction() as connection:
            row = await (await connection.execute(sql.take_the_look)).fetchone()
            if row is None or not row["ours"]:
                return None
            state = await _state(connection)
            tasks = await self._tasks(connection, state)
            leftovers = await self._leftovers(connection, state)
            wanted = [Compaction(tasks=tasks).job()] if tasks else []
            wanted += [leftovers.job()] if leftovers else []
            woken = Woken()
            for job in wanted:  # submitted separately: a refused merge does not stop a removal
                submitted = partial(self._submit, connection, job)
                woken += await self._aside.attempt(job.type, submitted) or Woken()
        if woken:
            await self._wake.nudge(woken)
        much = (
            state.at_work + sum(map(_segments, tasks)) + len(leftovers.files if leftovers else ())
        )
        return _SOON_SECONDS if much >= _MUCH else None

    async def _submit(self, connection: Connection, job: NewJob) -> Woken:
        async with connection.transaction():
            return (await jobs.insert(connection, self._job_types, [job])).woken

    async def _tasks(self, connection: Connection, state: _State) -> Tasks:
        if state.compacting:
            return ()
        live = await catalogue.live(connection, -_FOR_EVER, _FOR_EVER)
        most = max(2, self._payload_bytes // _SEGMENT_BYTES)
        # All shards' parts of the same objects should be in one job, for they are read once there.
        share = max(Bounds().many, most // max(1, len({each.shard for each in live})))
        bounds = Bounds(segments=min(Bounds().segments, share, most))
        return chosen(together(plan(live, state.busy, bounds), bounds), most)

    async def _leftovers(self, connection: Connection, state: _State) -> RetentionTask | None:
        if state.retaining:
            return None
        grace = retention.grace_seconds(self._metrics)
        most = min(_MOST_FILES, self._payload_bytes // _PATH_BYTES)
        cursor = await connection.execute(
            retention.sql.removable, {"grace_seconds": grace, "limit": most}
        )
        files = tuple(row["path"] for row in await cursor.fetchall())
        cursor = await connection.execute(
            retention.sql.is_due,
            {
                "retention_ms": int(self._metrics.retention_seconds * 1000),
                "sweep_seconds": max(grace, _SWEEP_SECONDS),
            },
        )
        (due,) = await cursor.fetchall()
        if not (files or due["expires"] or due["sweeps"]):
            return None
        return RetentionTask(files=files, sweep=due["sweeps"])


def chosen(tasks: Iterable[tuple[Merge, ...]], most_segments: int) -> Tasks:
    """As many tasks as a job takes, those that merge most first."""
    found: list[tuple[Merge, ...]] = []
    left = most_segments
    for task in sorted(tasks, key=lambda task: -_segments(task)):
        for part in [task] if _segments(task) <= most_segments else [(merge,) for merge in task]:
            if _segments(part) <= left and len(found) < _MOST_TASKS:
                found.append(part)
                left -= _segments(part)
    return tuple(found)


def _segments(task: tuple[Merge, ...]) -> int:
    return sum(len(merge.inputs) for merge in task)


@dataclass(frozen=True)
class _State:
    compacting: bool  # by a job that took all there was
    retaining: bool
    at_work: int  # segments that jobs are merging
    busy: frozenset[int]  # these, and those of jobs that failed lately


async def _state(connection: Connection) -> _State:
    cursor = await connection.execute(
        sql.under_way, {"pause_seconds": PAUSE_SECONDS, "short_seconds": _SHORT_SECONDS}
    )
    rows = await cursor.fetchall()
    active = [row for row in rows if row["status"] in ("pending", "claimed")]
    return _State(
        any(row["type"] == "compact" and not row["alone"] for row in active),
        any(row["type"] == "retain" for row in active),
        sum(len(row["segment_ids"]) for row in active),
        frozenset(number for row in rows for number in row["segment_ids"]),
    )
