"""Executes a compaction plan: kernels on Spark write the merged objects, one transaction swaps them
in.

Before it queries read the old segments, after it the new ones. A lost attempt leaves its objects in
its own folder, which no catalogue lists and `retention` sweeps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from kalla import logs
from kalla.database import Connection
from kalla.errors import Conflict, KallaError, Permanent, Unavailable
from kalla.query.array_types import Mask
from kalla.query.evaluate.sample_source import SeriesBatch
from kalla.query.store import catalogue, segments
from kalla.query.store.maintenance.compaction_plan import Bounds, Merge, span
from kalla.query.store.segment_cache import SegmentCache
from kalla.query.store.segment_source import SegmentSource
from kalla.query.store.segments import NewSegment, Segment
from kalla.settings import Settings
from kalla.spark.placing import place
from kalla.spark.session import SparkSessions
from kalla.statements import load
from kalla.storage import Storage, join
from kalla.work.handler import Context
from kalla.work.job import Job, NewJob, Outcome

Parts = dict[int, SeriesBatch]
"""What an object holds, by shard."""

sql = load("kalla.query.store.maintenance", "upkeep.sql")

FOLDER = "compacted"
"""Below the store's folder: a folder for each attempt of a job."""

# Decoded objects that a task caches while it merges.
_CACHE_BYTES = 1 << 30

_log = logs.get(__name__)


class Compaction(BaseModel):
    """What a job merges, by tasks. `alone`: set apart, for it failed among others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks: tuple[tuple[Merge, ...], ...] = ()
    alone: bool = False

    def job(self) -> NewJob:
        return NewJob("compact", self.model_dump(mode="json"))


@dataclass(frozen=True)
class Merged:
    merge: Merge
    news: tuple[NewSegment, ...]


@dataclass(frozen=True)
class Refused:
    """A task whose segments cannot be read. It should not keep others from being done."""

    reason: KallaError


def attempt_of(job: Job) -> str:
    """The folder of this attempt; its name shows the sweep whether the attempt may still commit."""
    return f"{FOLDER}/{job.job_id}-{job.fence}"


class Compact:
    """Merges segments. A task that fails is tried again in a job of its own, which names it."""

    def __init__(self, settings: Settings, spark: SparkSessions) -> None:
        self._storage = Storage.of(settings.storage)
        self._url = settings.metrics_url
        self._spark = spark

    def run(self, job: Job, context: Context) -> Outcome:
        asked = Compaction.model_validate(job.payload)
        kernel = partial(carry_out, self._storage, self._url, attempt_of(job))
        try:
            with self._spark.session(job, context) as session:
                found = place(session, kernel, asked.tasks)
        except KallaError:
            raise
        except Exception as error:
            # A crashed kernel does not say which task it ran.
            if len(asked.tasks) == 1:
                raise
            _log.warning("merges are tried one by one", error=str(error).strip().splitlines()[0])
            return Outcome({"merged": 0}, _each_alone(asked.tasks))
        return _outcome(asked.tasks, found)

    async def settle(self, connection: Connection, job: Job, outcome: Outcome) -> None:
        # Writers wait for their turn while they hold nothing; so does this.
        await connection.execute(catalogue.sql.take_turns)
        merged: Sequence[Merged] = outcome.facts or ()
        for each in merged:
            try:
                async with connection.transaction():
                    await catalogue.replace(connection, each.merge.inputs, each.news)
            except Conflict as reason:
                _log.warning("a merge came too late", job=job.job_id, reason=str(reason))
        await connection.execute(sql.forget_tasks, {"job_id": job.job_id})


def _outcome(tasks: Sequence[Sequence[Merge]], found: Sequence[list[Merged] | Refused]) -> Outcome:
    refused = [
        (task, each.reason)
        for task, each in zip(tasks, found, strict=True)
        if isinstance(each, Refused)
    ]
    if refused and len(tasks) == 1:
        raise Permanent(str(refused[0][1]))
    merged = [each for done in found if not isinstance(done, Refused) for each in done]
    result: dict[str, Any] = {
        "merged": sum(len(each.merge.inputs) for each in merged),
        "into": sum(len(each.news) for each in merged),
        "bytes": sum(new.bytes for each in merged for new in each.news),
    }
    if refused:
        result["refused"] = [str(reason) for _, reason in refused]
    return Outcome(
        result,
        _each_alone([task for task, _ in refused]),
        rows=sum(each.merge.samples for each in merged),
        facts=merged,
    )


def _each_alone(tasks: Sequence[Sequence[Merge]]) -> tuple[NewJob, ...]:
    return tuple(Compaction(tasks=(tuple(task),), alone=True).job() for task in tasks)


# The kernel


def carry_out(
    storage: Storage, url: str, folder: str, merges: Sequence[Merge]
) -> list[Merged] | Refused:
    """Reads, merges and writes: an object for each window, with every shard's part of it."""
    rewritten = [merge for merge in merges if not _may_stay(merge)]
    found: dict[int, list[NewSegment]] = {
        merge.shard: [_raised(merge)] if _may_stay(merge) else [] for merge in merges
    }
    segment_cache = SegmentCache(storage, url, _CACHE_BYTES)
    read: Counter[int] = Counter()
    try:
        for level, shards in _objects(segment_cache, rewritten, read):
            for new in segments.write(storage, join(url, folder), level, shards):
                found[new.shard].append(replace(new, path=f"{folder}/{new.path}"))
        for merge in rewritten:
            _require_all(merge, read[merge.shard], found[merge.shard])
    except Unavailable:
        raise  # nothing is wrong with the segments: all is tried again later
    except KallaError as reason:
        return Refused(reason)
    return [Merged(merge, tuple(found[merge.shard])) for merge in merges]


def _require_all(merge: Merge, read: int, news: Sequence[NewSegment]) -> None:
    """What is settled replaces the old segments: it must hold every sample a query could read."""
    written = sum(new.samples for new in news)
    if written != read:
        raise Permanent(
            f"a merge of shard {merge.shard} wrote {written} of {read} samples, so the segments it "
            "read stay as they are: report this as a defect of Kalla"
        )


def _may_stay(merge: Merge) -> bool:
    """A segment that only changes its place in the order is not written again."""
    one = merge.inputs[0]
    window = span(merge.level)
    fits = one.min_time // window == one.max_time // window and one.samples <= Bounds().samples
    return len(merge.inputs) == 1 and fits


def _raised(merge: Merge) -> NewSegment:
    kept = {field.name: getattr(merge.inputs[0], field.name) for field in fields(NewSegment)}
    return NewSegment(**kept | {"level": merge.level})


def _objects(
    segment_cache: SegmentCache, merges: Sequence[Merge], read: Counter[int]
) -> Iterator[tuple[int, Parts]]:
    """What each new object holds: a window of a merge, or of merges that read the same.

    `read` receives each shard's samples; duplicates count once.
    """
    if len(merges) == 1:
        for batch in _pieces(segment_cache, merges[0], read):
            for part in _cut(batch, span(merges[0].level)).values():
                yield merges[0].level, {merges[0].shard: part}
        return
    windows: defaultdict[tuple[int, int], list[Parts]] = defaultdict(list)
    for merge in merges:
        for batch in _pieces(segment_cache, merge, read):
            for window, part in _cut(batch, span(merge.level)).items():
                _add(windows[merge.level, window], merge.shard, part)
    for level, window in sorted(windows):
        for shards in windows[level, window]:
            yield level, shards


def _add(objects: list[Parts], shard: int, part: SeriesBatch) -> None:
    """An object holds one piece of a shard: a further one goes into a further object."""
    for shards in objects:
        if shard not in shards:
            shards[shard] = part
            return
    objects.append({shard: part})


def _pieces(segment_cache: SegmentCache, merge: Merge, read: Counter[int]) -> Iterator[SeriesBatch]:
    """What a query would read of these segments: in one, or in several if it is too much."""
    low = min(each.min_time for each in merge.inputs)
    high = max(each.max_time for each in merge.inputs)
    for inputs in _digestible(merge):
        source = SegmentSource(segment_cache, inputs, merge.shard + 1)
        batch = source.select(merge.shard, (), low - 1, high)
        read[merge.shard] += len(batch.times)
        yield batch


def _digestible(merge: Merge) -> Iterator[Sequence[Segment]]:
    """A single segment may be too large for a task. Its row groups have no series in common."""
    one, most = merge.inputs[0], Bounds().samples // 2
    if len(merge.inputs) > 1 or one.samples <= most:
        yield merge.inputs
        return
    step = max(1, one.row_groups * most // one.samples)
    end = one.row_group + one.row_groups
    for first in range(one.row_group, end, step):
        yield [replace(one, row_group=first, row_groups=min(step, end - first))]


def _cut(batch: SeriesBatch, window: int) -> dict[int, SeriesBatch]:
    """The samples of each window of time."""
    places = batch.times // window
    found = np.unique(places).tolist()
    return {place: batch if len(found) == 1 else _only(batch, places == place) for place in found}


def _only(batch: SeriesBatch, kept: Mask) -> SeriesBatch:
    """These samples, and the series that have some."""
    reached = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)[batch.offsets]
    some = np.flatnonzero(np.diff(reached))
    return SeriesBatch(
        [batch.labels[place] for place in some.tolist()],
        np.append(reached[some], reached[-1]),
        batch.times[kept],
        batch.values[kept],
        None if batch.stale is None else batch.stale[kept],
        None if batch.starts is None else batch.starts[kept],
    )
