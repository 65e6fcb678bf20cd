"""Deletes segments past their retention time, files of replaced ones, and unlisted objects.

A file is deleted when no query can still read it: it was replaced longer ago than any query takes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from pydantic import BaseModel, ConfigDict

from kalla import logs
from kalla.database import Connection
from kalla.errors import NotFound
from kalla.query.store.maintenance.compaction import FOLDER
from kalla.settings import Metrics, Settings
from kalla.spark.placing import place
from kalla.spark.session import SparkSessions
from kalla.statements import load
from kalla.storage import Storage, join
from kalla.storage.files import File
from kalla.work.handler import Context
from kalla.work.job import Job, NewJob, Outcome

sql = load("kalla.query.store.maintenance", "retention.sql")
forget_tasks = load("kalla.query.store.maintenance", "upkeep.sql").forget_tasks

_TASK_FILES = 200  # removed by one task
_ATTEMPT = re.compile(rf"{FOLDER}/(\d+)-(\d+)/")
# Other files in the folder belong to somebody else.
_OBJECT = re.compile(rf"({FOLDER}/\d+-\d+/)?\d+/[0-9a-f]{{32}}\.parquet")

_log = logs.get(__name__)


class RetentionTask(BaseModel):
    """What a job deletes: files that no query reads; with `sweep` also unlisted ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: tuple[str, ...] = ()
    sweep: bool = False

    def job(self) -> NewJob:
        return NewJob("retain", self.model_dump(mode="json"))


def grace_seconds(metrics: Metrics) -> float:
    """How long after it was replaced a segment is kept: longer than any query that may read it."""
    return max(metrics.grace_seconds, metrics.query_seconds + 60)


class Retain:
    """Removes files, then forgets them; retires what is past `metrics.retention_seconds`."""

    def __init__(self, settings: Settings, spark: SparkSessions) -> None:
        self._metrics = settings.metrics
        self._storage = Storage.of(settings.storage)
        self._url = settings.metrics_url
        self._spark = spark

    def run(self, job: Job, context: Context) -> Outcome:
        asked = RetentionTask.model_validate(job.payload)
        found: list[str] | None = None
        if asked.files or asked.sweep:
            with self._spark.session(job, context) as session:
                tasks = [
                    asked.files[first : first + _TASK_FILES]
                    for first in range(0, len(asked.files), _TASK_FILES)
                ]
                place(session, partial(remove, self._storage, self._url), tasks)
                if asked.sweep:
                    age = grace_seconds(self._metrics)
                    (found,) = place(session, partial(old_objects, self._storage, self._url), [age])
        return Outcome({"removed": len(asked.files)}, facts=(asked.files, found))

    async def settle(self, connection: Connection, job: Job, outcome: Outcome) -> None:
        files, objects = outcome.facts
        await connection.execute(sql.forget, {"paths": list(files)})
        orphans = 0
        if objects is not None:
            orphans = await _condemn(connection, objects)
            await connection.execute(sql.note_sweep)
        await connection.execute(forget_tasks, {"job_id": job.job_id})
        cursor = await connection.execute(
            sql.expire, {"retention_ms": int(self._metrics.retention_seconds * 1000)}
        )
        if orphans or cursor.rowcount:
            _log.info("segments retired", job=job.job_id, expired=cursor.rowcount, unlisted=orphans)


async def _condemn(connection: Connection, objects: Sequence[str]) -> int:
    """Record unlisted objects as replaced, so that they are deleted after the grace time."""
    attempts = [_ATTEMPT.match(path) for path in objects]
    cursor = await connection.execute(
        sql.condemn,
        {
            "paths": list(objects),
            "jobs": [int(each[1]) if each else None for each in attempts],
            "fences": [int(each[2]) if each else None for each in attempts],
        },
    )
    return cursor.rowcount


# The kernels


def remove(storage: Storage, url: str, paths: Sequence[str]) -> int:
    """Remove files; files that are missing already are skipped."""
    for path in paths:
        storage.remove(join(url, path))
    for attempt in {found[0].rstrip("/") for path in paths if (found := _ATTEMPT.match(path))}:
        if not _files(storage, join(url, attempt)):
            storage.remove(join(url, attempt))
    return len(paths)


def old_objects(storage: Storage, url: str, age_seconds: float) -> list[str]:
    """All objects of the store that are older than this, below its folder."""
    before = datetime.now(UTC) - timedelta(seconds=age_seconds)
    root = storage.filesystem(url)[1].rstrip("/") + "/"
    old = [file for file in _files(storage, url) if file.modified and file.modified < before]
    paths = (storage.filesystem(file.url)[1].removeprefix(root) for file in old)
    return [path for path in paths if _OBJECT.fullmatch(path)]


def _files(storage: Storage, url: str) -> tuple[File, ...]:
    try:
        return storage.files(url)
    except NotFound:
        return ()
