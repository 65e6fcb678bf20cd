"""Executes one work unit in a thread: segments in, an artifact's bytes out."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from kalla.query.evaluate.evaluation import Budget
from kalla.query.evaluate.leaf import execute
from kalla.query.protocol.artifacts import Encoded, encode_batch, encode_labels, encode_partial
from kalla.query.protocol.work_messages import Assignment, LeafWork, ListWork, SelectWork
from kalla.query.store.segment_cache import SegmentCache
from kalla.query.store.segment_source import SegmentSource
from kalla.query.worker.artifact_spool import SegmentFiles
from kalla.storage import Storage

# Series whose labels a process keeps in memory; beyond this number it starts again.
_MOST_SERIES = 2_000_000


@dataclass(frozen=True)
class Result:
    """`cache_hit`: nothing had to be read from the store or from the disk."""

    artifact: Encoded
    cache_hit: bool


class Executor:
    """The segments that this worker has decoded, and the work done on them."""

    def __init__(self, storage: Storage, url: str, files: SegmentFiles, memory_bytes: int) -> None:
        self._storage = storage
        self._url = url
        self._files = files
        self._memory_bytes = memory_bytes
        self._cache = self._empty_cache()

    @property
    def memory_bytes(self) -> int:
        return self._cache.nbytes

    def run(self, given: Assignment, stop: threading.Event) -> Result:
        """Raises a QueryError where the work would fail on any worker."""
        if self._cache.series > _MOST_SERIES:
            self._cache = self._empty_cache()
        budget = Budget(given.limits, stop)
        source = SegmentSource(
            self._cache,
            given.segments,
            given.shards,
            {given.shard: given.listed},
            given.limits.memory_bytes,
            budget.check,
        )
        before = self._files.loads
        artifact = self._artifact(given, source, budget)
        return Result(artifact, self._files.loads == before)

    @staticmethod
    def _artifact(given: Assignment, source: SegmentSource, budget: Budget) -> Encoded:
        match given.work:
            case LeafWork(leaf):
                return encode_partial(execute(leaf, source, given.shard, budget))
            case SelectWork(matchers, after, until):
                batch = source.select(given.shard, matchers, after, until)
                budget.loaded(len(batch.values))
                return encode_batch(batch)
            case ListWork(selectors, after, until):
                return encode_labels(sorted(source.labels(selectors, after, until)))

    def _empty_cache(self) -> SegmentCache:
        return SegmentCache(
            self._storage, self._url, self._memory_bytes, content=self._files.content
        )
