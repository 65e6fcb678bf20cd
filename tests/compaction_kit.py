"""A metric store for tests of its upkeep: samples made up, jobs taken by hand one after another."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import SecretStr

from kalla.app.job_types import job_types as all_job_types
from kalla.database import Database
from kalla.query.evaluate.sample_source import STALE, Source
from kalla.query.labels.label_sets import Labels
from kalla.query.store import catalogue
from kalla.query.store.maintenance.upkeep import Upkeep
from kalla.query.store.metric_store import MetricStore
from kalla.query.store.segments import Segment
from kalla.settings import Database as DatabaseSettings
from kalla.settings import JobPolicy, Metrics, Settings, Storage
from kalla.settings import Wake as WakeSettings
from kalla.spark.session import SparkSessions
from kalla.work.handler import Context
from kalla.work.job import Job, JobRecord, Outcome
from kalla.work.job_type import JobTypes
from kalla.work.state import jobs
from kalla.work.wake import open_channel
from tests.metrics_kit import Points, commit, named

EVER = 1 << 62
MINUTE = 60_000
HOUR = 60 * MINUTE
START = 1_700_000_000_000 // (72 * HOUR) * 72 * HOUR
"""Where windows of all sizes begin."""

Samples = Mapping[Labels, Points]


def series(number: int) -> Labels:
    return named(f"m{number % 3}_total", i=str(number))


def ticks(first: int, count: int, *, step: int = 15_000, of: int = 8) -> Samples:
    """Some series' samples one after another; values tell series and time."""
    return {
        series(number): [
            (at, number + at / 1000) for at in range(first, first + count * step, step)
        ]
        for number in range(of)
    }


def everything(source: Source, after: int = -EVER, until: int = EVER) -> list[Any]:
    """All that can be read, to the bit."""
    found: list[Any] = []
    for shard in range(source.shards):
        batch = source.select(shard, (), after, until)
        stale = np.zeros(len(batch.times), bool) if batch.stale is None else batch.stale
        starts = np.zeros(len(batch.times), int) if batch.starts is None else batch.starts
        values = np.where(stale, STALE, batch.values).view(np.uint64)
        for place, labels in enumerate(batch.labels):
            own = slice(int(batch.offsets[place]), int(batch.offsets[place + 1]))
            columns = (batch.times, values, stale, starts)
            found.append((labels, *(column[own].tolist() for column in columns)))
    return found


@dataclass
class Kept:
    """A site whose jobs are carried out when the test says so."""

    settings: Settings
    job_types: JobTypes
    database: Database
    store: MetricStore
    upkeep: Upkeep
    done: list[JobRecord] = field(default_factory=list)

    async def write(self, samples: Samples) -> None:
        await commit(self.store, samples)

    async def read(self) -> list[Any]:
        return everything(await self.store.snapshot(-EVER, EVER))

    async def live(self) -> list[Segment]:
        async with self.database.transaction() as connection:
            return await catalogue.live(connection, -EVER, EVER)

    async def look(self) -> list[JobRecord]:
        """A look of the service; what waits after it."""
        await self.upkeep.tick()
        return await self.waiting()

    async def waiting(self) -> list[JobRecord]:
        async with self.database.transaction() as connection:
            return await jobs.listing(connection, status="pending", queue="compact")

    async def claim(self) -> Job:
        async with self.database.transaction() as connection:
            (job,) = await jobs.claim(connection, "compact", self.job_types.types, "by hand", 1)
        return job

    def run(self, job: Job) -> Outcome:
        return self.job_types.handler(job.type).run(job, Context())

    async def settle(self, job: Job, outcome: Outcome) -> None:
        async with self.database.transaction() as connection:
            handler = self.job_types.handler(job.type)
            await jobs.complete(connection, self.job_types, handler, job, outcome)

    async def carry_out(self) -> None:
        """Every job that waits, as a worker would."""
        while await self.waiting():
            job = await self.claim()
            try:
                outcome = self.run(job)
            except Exception as error:
                permanent = type(error).__name__ == "Permanent"
                async with self.database.transaction() as connection:
                    await jobs.fail(connection, job, str(error), permanent=permanent)
                    await connection.execute("UPDATE kalla.jobs SET due = true WHERE NOT due")
            else:
                await self.settle(job, outcome)
            async with self.database.transaction() as connection:
                self.done.append(await jobs.get(connection, job.job_id))

    async def settle_down(self) -> int:
        """Looks and works until nothing is to do; how many jobs that took."""
        count = 0
        while found := await self.look():
            count += len(found)
            await self.carry_out()
            assert count < 50, "it never settles"
        return count

    async def rows(self, statement: str, *values: object) -> list[dict[str, Any]]:
        async with self.database.transaction() as connection:
            return await (await connection.execute(statement.encode(), values)).fetchall()

    async def later(self, seconds: float) -> None:
        """Let so much time pass for segments, their files, and jobs that have ended."""
        for table, column in (
            ("segments", "replaced_at"),
            ("segments", "created_at"),
            ("jobs", "finished_at"),
            ("metric_store", "swept_at"),
        ):
            await self.rows(
                f"UPDATE kalla.{table} SET {column} = {column} - make_interval(secs => %s)"
                " RETURNING 1",
                seconds,
            )
        for file in self.files:
            self._age(Path(self.settings.metrics_url, file), seconds)

    def _age(self, file: Path, seconds: float) -> None:
        told = file.stat()
        os.utime(file, (told.st_atime, told.st_mtime - seconds))

    def damage(self, segment: Segment) -> tuple[Path, bytes]:
        """Turn a bit of its file; the file, and what it held."""
        file = Path(self.settings.metrics_url, segment.path)
        whole = file.read_bytes()
        file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
        return file, whole

    @property
    def files(self) -> set[str]:
        """The objects there are, below the store's folder; on this machine."""
        root = Path(self.settings.metrics_url)
        return {str(each.relative_to(root)) for each in root.rglob("*") if each.is_file()}


def kept_settings(
    url: str, folder: Path, storage: Storage | None = None, attempts: int = 3, **metrics: Any
) -> Settings:
    return Settings(
        data_dir=folder,
        database=DatabaseSettings(url=SecretStr(url)),
        wake=WakeSettings(channel="postgres", poll_seconds=1),
        jobs={
            "default": JobPolicy(
                timeout_seconds=20,
                heartbeat_interval=0.5,
                backoff_seconds=0.1,
                max_attempts=attempts,
            )
        },
        storage=storage or Storage(),
        metrics=Metrics(**{"shards": 2, "compact_seconds": 0.2, **metrics}),
    )


@asynccontextmanager
async def open_store(settings: Settings, spark: SparkSessions) -> AsyncIterator[Kept]:
    job_types = all_job_types(settings, spark)
    async with Database(settings.database) as database:
        wake = open_channel(settings, database, ["compact"])
        store = MetricStore(settings, database)
        upkeep = Upkeep(settings, database, job_types, wake)
        yield Kept(settings, job_types, database, store, upkeep)
        await store.close()


def levels(segments: Sequence[Segment]) -> list[int]:
    return sorted(each.level for each in segments)
