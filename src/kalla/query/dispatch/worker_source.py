"""The metric store for the engine of an API: runs work units on query workers, by shard."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from kalla.query.dispatch.dispatcher import Dispatcher
from kalla.query.dispatch.query_records import QueryRecord
from kalla.query.evaluate.evaluation import Limits
from kalla.query.evaluate.leaf import BaseExpr, Guard, Partial, execute
from kalla.query.evaluate.sample_source import MemorySource, SeriesBatch
from kalla.query.labels.label_sets import Labels
from kalla.query.promql.matchers import Matcher
from kalla.query.protocol.artifacts import decode_batch, decode_labels, decode_partial
from kalla.query.protocol.work_messages import Assignment, LeafWork, ListWork, SelectWork, Work
from kalla.query.store.catalogue import by_shard
from kalla.query.store.segment_source import UNREAD
from kalla.query.store.segments import Segment
from kalla.query.store.series_table import SeriesTable

# How often a thread that waits for an artifact checks whether its query must stop.
_LOOK_SECONDS = 0.25


class Clock(Protocol):
    """Raises when the query must stop; returns the seconds left."""

    def check(self) -> None: ...

    @property
    def left(self) -> float: ...


class WorkerSource:
    """One fixed set of segments, read by query workers. Implements `leaf.ExecutingSource`.

    `table` is the API's own series table: labels of artifacts get their numbers there.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        record: QueryRecord,
        segments: Sequence[Segment],
        listed: Mapping[int, int],
        shards: int,
        limits: Limits,
        table: SeriesTable,
        clock: Clock,
    ) -> None:
        self._dispatcher = dispatcher
        self._record = record
        self._segments = by_shard(segments)
        self._listed = listed
        self._shards = shards
        self._limits = limits
        self._table = table
        self._clock = clock
        self._leaf_ids: dict[object, int] = {}
        self._lock = threading.Lock()

    @property
    def shards(self) -> int:
        return self._shards

    def execute(self, leaf: BaseExpr, shard: int, guard: Guard) -> Partial:
        guard.check()
        found = self._within(shard, *leaf.bounds)
        if not found:
            # No segment has a sample of this time: no work for a worker.
            return replace(execute(leaf, MemorySource({}), 0, guard), read=self._nothing(shard))
        content = self._result(LeafWork(leaf), leaf, shard, found, guard)
        return decode_partial(content, self._table)

    def select(
        self, shard: int, matchers: Sequence[Matcher], after: int, until: int
    ) -> SeriesBatch:
        found = self._within(shard, after, until)
        if not found:
            empty = MemorySource({}).select(0, matchers, after, until)
            return replace(empty, read=self._nothing(shard))
        work = SelectWork(tuple(matchers), after, until)
        return decode_batch(self._result(work, work, shard, found, self._clock), self._table)

    def labels(self, selectors: Sequence[Sequence[Matcher]], after: int, until: int) -> set[Labels]:
        """The series of any selector that have samples in blocks of this time."""
        work = ListWork(tuple(map(tuple, selectors)), after, until)
        asked = [
            self._submit(work, work, shard, found)
            for shard in range(self._shards)
            if (found := self._within(shard, after, until))
        ]
        known: set[Labels] = set()
        for one in asked:
            known.update(decode_labels(self._awaited(one, self._clock)))
        return known

    def _result(
        self,
        work: Work,
        what: object,
        shard: int,
        found: tuple[Segment, ...],
        guard: Guard | Clock,
    ) -> pa.Buffer:
        return self._awaited(self._submit(work, what, shard, found), guard)

    def _submit(
        self, work: Work, what: object, shard: int, found: tuple[Segment, ...]
    ) -> Future[pa.Buffer]:
        with self._lock:
            leaf_id = self._leaf_ids.setdefault(what, len(self._leaf_ids))
        limits = replace(self._limits, seconds=max(self._clock.left, 0.0))
        listed = self._listed.get(shard, 0)
        given = Assignment(work, shard, self._shards, found, listed, limits)
        return self._dispatcher.submit(self._record, leaf_id, given)

    @staticmethod
    def _awaited(result: Future[pa.Buffer], guard: Guard | Clock) -> pa.Buffer:
        while True:
            try:
                return result.result(timeout=_LOOK_SECONDS)
            except TimeoutError:
                guard.check()

    def _within(self, shard: int, after: int, until: int) -> tuple[Segment, ...]:
        return tuple(
            one
            for one in self._segments.get(shard, ())
            if one.max_time > after and one.min_time <= until
        )

    def _nothing(self, shard: int) -> dict[str, int]:
        return UNREAD | {"segments_pruned": self._listed.get(shard, 0)}
