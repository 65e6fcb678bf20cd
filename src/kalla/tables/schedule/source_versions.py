"""The newest versions of the sources of due tables: Delta tables and folders are pinned at once,
mirrors of registered tables after a job brought them up to date.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from kalla.database import Database
from kalla.errors import InvalidInput, Problem
from kalla.tables import store
from kalla.tables.schedule.pins import PinCache
from kalla.tables.sources import mirrors
from kalla.tables.sources.snapshots import Pin
from kalla.tables.store import Source, Table
from kalla.work.job import NewJob
from kalla.work.job_type import JobTypes
from kalla.work.service import SetAside
from kalla.work.state import jobs
from kalla.work.wake.channel import Wake


@dataclass(frozen=True)
class Newest:
    """A source without a pin and without a problem waits for its mirror."""

    pins: dict[str, Pin] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)  # why an input cannot be read
    moments: dict[str, datetime] = field(default_factory=dict)  # of mirrors

    def reasons(self, tables: Mapping[str, Table], wanted: Sequence[str]) -> dict[str, str]:
        """Why tables cannot be refreshed now, by what they read directly or not; empty for those
        that wait. `wanted` has upstream tables first."""
        found: dict[str, str] = {}
        for name in wanted:
            reasons = [
                found[read] if read in found else self.problems.get(read, "")
                for read in tables[name].reads
                if read in found or (read not in tables and read not in self.pins)
            ]
            if reasons:
                found[name] = max(reasons)
        return found


class SourceVersions:
    def __init__(self, folder: str, database: Database, job_types: JobTypes, wake: Wake) -> None:
        self._folder = folder
        self._database = database
        self._job_types = job_types
        self._wake = wake
        self._pins = PinCache()
        self._aside = SetAside("mirrors of registered tables")

    async def newest(
        self,
        tables: Mapping[str, Table],
        sources: Mapping[str, Source],
        due: set[str],
        now: datetime,
    ) -> Newest:
        """Every source that the due tables read, once for all of them."""
        ticked: dict[str, float] = {}  # of each source, the last tick of its due readers
        found = Newest()
        for name in due:
            for read in tables[name].reads:
                if read in sources:
                    ticked[read] = max(ticked.get(read, 0.0), tables[name].last_tick or 0.0)
                elif read not in tables:
                    found.problems[read] = f"{read} cannot be scheduled: see the log"
        ready = []
        for source in [sources[name] for name in sorted(ticked)]:
            if source.format != "registered":
                ready.append(source)
                continue
            mirrored, last = source.mirrored_at, ticked[source.name]
            if mirrored is not None and mirrored.timestamp() > last:
                found.moments[source.name] = mirrored
                ready.append(source)
            elif source.job_status not in ("pending", "claimed"):
                mirror = partial(self._mirror, source, now, found)
                await self._aside.attempt(source.name, mirror)
        pins, problems = await asyncio.to_thread(self._pins.of, self._folder, ready)
        found.pins.update(pins)
        found.problems.update(problems)
        return found

    async def _mirror(self, source: Source, now: datetime, found: Newest) -> None:
        """Submits the job that updates a mirror, or reports that the newest one failed."""
        if source.job_status in ("failed", "cancelled"):
            async with self._database.transaction() as connection:
                await store.set_mirror_job(connection, source.name, None)
            found.problems[source.name] = str(
                Problem(source.name, source.job_error or "mirroring it was cancelled")
            )
            return
        async with self._database.transaction() as connection:
            await store.lock_graph(connection)
            newest = (await store.sources(connection)).get(source.name)
            if newest is None or newest.mirror_job != source.mirror_job:
                return  # another scheduler was first
            documents = await store.registered(connection)
            try:
                asked = mirrors.payload(source.definition, documents, self._folder, now)
            except InvalidInput as error:
                found.problems[source.name] = str(error)
                return
            job = NewJob(
                mirrors.JOB_TYPE,
                asked.model_dump(mode="json"),
                running_key=f"mirror-{source.name}",
            )
            inserted = await jobs.insert(connection, self._job_types, [job])
            await store.set_mirror_job(connection, source.name, inserted.job_ids[0])
        await self._wake.nudge(inserted.woken)
