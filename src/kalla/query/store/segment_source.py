"""One fixed set of segments as a source of the engine: a query reads the same set from beginning to
end.

Segments and rows without matching samples are skipped by the catalogue, by row groups' statistics,
and by the labels of their rows, in this order; only then are samples read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kalla.query.array_types import Mask, Whole
from kalla.query.evaluate.sample_source import SeriesBatch
from kalla.query.labels.interned import Interned
from kalla.query.labels.label_sets import Labels
from kalla.query.promql.matchers import Matcher, readable
from kalla.query.promql.query_errors import LimitReached
from kalla.query.promql.syntax_tree import METRIC_NAME
from kalla.query.store.catalogue import by_shard
from kalla.query.store.segment_cache import Group, Head, SegmentCache
from kalla.query.store.segments import Segment

# Samples of a row group that is better read together with its neighbours.
_SMALL_SAMPLES = 1 << 16
# What explain shows; row groups are counted in the segments of the time asked for.
UNREAD = dict.fromkeys(
    ("segments", "segments_pruned", "row_groups", "row_groups_pruned", "rows", "bytes"), 0
)


class SegmentSource:
    """Implements `samples.Source`.

    `listed` counts each shard's segments of all times. `most_bytes` bounds the memory of one
    select; `check` is called regularly while it reads, and raises to end it.
    """

    def __init__(
        self,
        segment_cache: SegmentCache,
        segments: Sequence[Segment],
        shards: int,
        listed: Mapping[int, int] | None = None,
        most_bytes: int | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._segment_cache = segment_cache
        self._most_bytes = most_bytes
        self._check = check or (lambda: None)
        self._segments = by_shard(segments)
        self._shards = shards
        self._matching_by_matchers: dict[tuple[Matcher, ...], Mask] = {}
        self._listed = listed or {shard: len(held) for shard, held in self._segments.items()}

    @property
    def shards(self) -> int:
        return self._shards

    def select(
        self, shard: int, matchers: Sequence[Matcher], after: int, until: int
    ) -> SeriesBatch:
        from kalla.query.store import series_merge  # brings the compiler of kernels

        read = Counter(UNREAD)
        table = self._segment_cache.table
        chosen = self._chosen(shard, matchers, after, until, read)
        ranks, numbers = table.ranks()
        pieces, held = [], 0
        for part, rows in chosen:
            self._check()
            first = part.groups[0]
            body = self._segment_cache.body(first.segment, first.place, part.head)
            series = ranks[part.head.numbers[rows]]
            pieces.append(series_merge.piece(body, series, rows, after, until))
            held += pieces[-1].nbytes
            self._require_room(held)
        merged = series_merge.merge(pieces)
        found = numbers[merged.series]
        return SeriesBatch(
            Interned(table, found),
            merged.offsets,
            merged.times,
            merged.values,
            merged.stale if merged.stale is not None and merged.stale.any() else None,
            merged.starts,
            dict(read),
        )

    def _require_room(self, needed: int) -> None:
        if self._most_bytes is not None and needed > self._most_bytes:
            raise LimitReached(
                f"query would need more than {self._most_bytes} bytes of memory for samples of one "
                "shard, which is the limit per query"
            )

    def labels(self, selectors: Sequence[Sequence[Matcher]], after: int, until: int) -> set[Labels]:
        """The series of any selector that have samples in blocks of this time."""
        found: set[Labels] = set()
        for shard in self._segments:
            numbers = [np.empty(0, np.int32)]
            for matchers in selectors:
                self._check()
                chosen = self._chosen(shard, matchers, after, until, Counter(UNREAD))
                numbers += [part.head.numbers[rows] for part, rows in chosen]
            found.update(self._segment_cache.table.labels(np.unique(np.concatenate(numbers))))
        return found

    def _chosen(
        self,
        shard: int,
        matchers: Sequence[Matcher],
        after: int,
        until: int,
        read: Counter[str],
    ) -> list[tuple[_Part, Whole]]:
        """The rows of matching series and this time, by parts, senior first."""
        parts = self._parts(shard, _names(matchers), after, until, read)
        matching = self._matching_series(tuple(matchers))
        chosen: list[tuple[_Part, Whole]] = []
        touched: set[int] = set()
        for part in parts:
            head = part.head
            fits = matching[head.numbers]
            if part.min_time <= after or part.max_time > until:
                fits &= (head.max_times > after) & (head.min_times <= until)
            rows = fits.nonzero()[0]
            if not len(rows):
                continue
            chosen.append((part, rows))
            read["rows"] += len(rows)
            for group in part.touched(rows):
                touched.add(group.segment.segment_id)
                read["row_groups"] += 1
                read["bytes"] += group.bytes
        read["segments"] = len(touched)
        read["segments_pruned"] = self._listed.get(shard, 0) - len(touched)
        read["row_groups_pruned"] += sum(len(part.groups) for part in parts) - read["row_groups"]
        return chosen

    def _matching_series(self, matchers: tuple[Matcher, ...]) -> Mask:
        """Whether each series matches, by number: one answer for all shards, unless more came."""
        table = self._segment_cache.table
        mask = self._matching_by_matchers.get(matchers)
        if mask is None or len(mask) < len(table):
            mask = self._matching_by_matchers[matchers] = table.matching(matchers, self._check)
        return mask

    def _parts(
        self,
        shard: int,
        names: tuple[str, ...] | None,
        after: int,
        until: int,
        read: Counter[str],
    ) -> list[_Part]:
        """The row groups that may have rows of these names and this time, senior first."""
        found: list[_Part] = []
        for segment in self._segments.get(shard, ()):
            if segment.max_time <= after or segment.min_time > until:
                continue
            self._check()
            first = segment.row_group
            fitting = [_Group(segment, first, segment.rows, segment.bytes)]
            if segment.row_groups > 1:
                row_groups = self._segment_cache.groups(segment)
                fitting = [
                    _Group(segment, place, row_groups[place].rows, row_groups[place].bytes)
                    for place in range(first, first + segment.row_groups)
                    if _may_hold(row_groups[place], names, after, until)
                ]
                read["row_groups_pruned"] += segment.row_groups - len(fitting)
            found += [_Part([one], self._segment_cache.head(segment, one.place)) for one in fitting]
        return _joined(found)


def prepare() -> None:
    """Loads what the first select needs; `compiling.prepare` then compiles its kernels too."""
    from kalla.query.store import label_keys, series_merge  # noqa: F401

    pa.array(np.empty(0))  # with its first array Arrow loads pandas, which takes seconds


class _Group(NamedTuple):
    """A row group: its place in the object, its rows and its bytes."""

    segment: Segment
    place: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class _Part:
    """Some rows: of one row group, or of several small ones next to each other in seniority."""

    groups: list[_Group]
    head: Head

    @property
    def min_time(self) -> int:
        return min(group.segment.min_time for group in self.groups)

    @property
    def max_time(self) -> int:
        return max(group.segment.max_time for group in self.groups)

    @property
    def is_small(self) -> bool:
        return self.head.body is not None and len(self.head.body.times) <= _SMALL_SAMPLES

    def touched(self, rows: Whole) -> list[_Group]:
        """Those of the groups that these rows are of."""
        if len(self.groups) == 1:
            return self.groups
        ends = np.cumsum([group.rows for group in self.groups])
        found = np.unique(np.searchsorted(ends, rows, side="right"))
        return [self.groups[place] for place in found.tolist()]


def _joined(parts: Sequence[_Part]) -> list[_Part]:
    """Small ones next to each other become one: what costs per array is then paid once."""
    found: list[_Part] = []
    for small, run in groupby(parts, lambda part: part.is_small):
        some = list(run)
        if small and len(some) > 1:
            groups = [group for part in some for group in part.groups]
            found.append(_Part(groups, Head.joined([part.head for part in some])))
        else:
            found += some
    return found


def _names(matchers: Sequence[Matcher]) -> tuple[str, ...] | None:
    """The metric names that can match, where the matchers list them."""
    for matcher in matchers:
        if matcher.name == METRIC_NAME and matcher.alternatives is not None:
            return tuple(readable(name) for name in matcher.alternatives)
    return None


def _may_hold(group: Group, names: tuple[str, ...] | None, after: int, until: int) -> bool:
    if group.max_time <= after or group.min_time > until:
        return False
    if names is None or group.first_metric is None or group.last_metric is None:
        return True
    return any(group.first_metric <= name <= group.last_metric for name in names)
