"""Caches segments that a process has read: a series table and decoded row groups, bounded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kalla.query.array_types import Whole
from kalla.query.store import segment_rows, segments
from kalla.query.store.segment_rows import SampleColumns
from kalla.query.store.segments import Segment
from kalla.query.store.series_table import Numbers, SeriesTable
from kalla.storage import Storage, join

# An object up to this size is decoded whole when any part of it is wanted: so are fresh ones.
_SMALL_BYTES = 1 << 20


@dataclass(frozen=True)
class Head:
    """Which series the rows of a row group are of, by number, and between which times.

    `body` are their samples, if those were read along.
    """

    numbers: Numbers
    min_times: Whole
    max_times: Whole
    body: SampleColumns | None = None

    @property
    def nbytes(self) -> int:
        own = self.numbers.nbytes + self.min_times.nbytes + self.max_times.nbytes
        return own + (self.body.nbytes if self.body is not None else 0)

    def part(self, numbers: Numbers, first: int, beyond: int) -> Head:
        """Some rows next to each other, of these series."""
        body = None if self.body is None else self.body.part(first, beyond)
        return Head(numbers, self.min_times[first:beyond], self.max_times[first:beyond], body)

    @classmethod
    def joined(cls, heads: Sequence[Head]) -> Head:
        bodies = [head.body for head in heads if head.body is not None]
        return cls(
            np.concatenate([head.numbers for head in heads]),
            np.concatenate([head.min_times for head in heads]),
            np.concatenate([head.max_times for head in heads]),
            SampleColumns.joined(bodies) if len(bodies) == len(heads) else None,
        )


@dataclass(frozen=True)
class Group:
    """An object's footer entry of a row group."""

    rows: int
    bytes: int
    min_time: int
    max_time: int
    first_metric: str | None
    last_metric: str | None


@dataclass(frozen=True)
class Footer:
    groups: tuple[Group, ...]

    @property
    def nbytes(self) -> int:
        return 500 * len(self.groups)  # about


@dataclass(frozen=True)
class _Opened:
    """An object's bytes, checked, as a Parquet file; for one thread at a time."""

    file: pq.ParquetFile
    nbytes: int

    @classmethod
    def of(cls, content: pa.Buffer) -> _Opened:
        small = content.size <= _SMALL_BYTES
        file = pq.ParquetFile(content, read_dictionary=[] if small else ["labels"])
        return cls(file, content.size)


_Kind = Literal["opened", "footer", "head", "body"]
_Key = tuple[_Kind, str, int]


class SegmentCache:
    """Entries never change: segments are written once. Evicts the least recently used first."""

    def __init__(
        self,
        storage: Storage,
        url: str,
        most_bytes: int,
        content: Callable[[Segment], pa.Buffer] | None = None,
    ) -> None:
        """`content` gives all bytes of the object that holds a segment; else storage does."""
        self._url = url
        self._content = content or (lambda segment: segments.content(storage, url, segment))
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        # One thread reads an object, the others wait for it; a few locks serve all objects.
        self._reading = [threading.Lock() for _ in range(64)]
        self._held: OrderedDict[_Key, Any] = OrderedDict()
        self._bytes = 0
        # One for all shards: series keep the same numbers in every shard.
        self.table = SeriesTable()

    @property
    def nbytes(self) -> int:
        return self._bytes

    @property
    def series(self) -> int:
        return len(self.table)

    def groups(self, segment: Segment) -> tuple[Group, ...]:
        """All row groups of the object that holds a segment."""
        return cast(Footer, self._cached(segment, ("footer", segment.path, 0))).groups

    def head(self, segment: Segment, group: int) -> Head:
        return cast(Head, self._cached(segment, ("head", segment.path, group)))

    def body(self, segment: Segment, group: int, head: Head) -> SampleColumns:
        if head.body is not None:
            return head.body
        return cast(SampleColumns, self._cached(segment, ("body", segment.path, group)))

    def _cached(self, segment: Segment, key: _Key) -> Any:
        found = self._get(key)
        if found is None:
            with self._reading[hash(segment.path) % len(self._reading)]:
                found = self._get(key)
                if found is None:
                    found = self._read(segment, key)
        return found

    def _read(self, segment: Segment, key: _Key) -> Any:
        kind, path, group = key
        try:
            opened = self._get(("opened", path, 0))
            if opened is None:
                content = self._content(segment)
                opened = self._put(("opened", path, 0), _Opened.of(content))
            if kind == "footer":
                return self._put(key, footer(opened.file.metadata))
            if opened.nbytes <= _SMALL_BYTES:
                return self._read_whole(opened, path)[group]
            columns = segment_rows.HEADS if kind == "head" else segment_rows.BODIES
            table = opened.file.read_row_group(group, columns, use_threads=False)
        except pa.ArrowException as problem:
            raise segments.broken(join(self._url, path)) from problem
        if kind == "body":
            return self._put(key, segment_rows.body(table))
        labels = table.column("labels").combine_chunks()
        numbers = self.table.numbers(labels.dictionary)
        return self._put(key, _head(numbers[labels.indices.to_numpy()], table))

    def _read_whole(self, opened: _Opened, path: str) -> list[Head]:
        """Every row group of a small object, decoded at once."""
        table = opened.file.read(segment_rows.HEADS + segment_rows.BODIES, use_threads=False)
        texts = table.column("labels").combine_chunks()
        whole = _head(np.empty(0, np.int32), table, segment_rows.body(table))
        found, first = [], 0
        for place in range(opened.file.metadata.num_row_groups):
            beyond = first + opened.file.metadata.row_group(place).num_rows
            numbers = self.table.numbers(texts[first:beyond])
            head = whole.part(numbers, first, beyond)
            found.append(self._put(("head", path, place), head))
            first = beyond
        self._drop(("opened", path, 0))
        return found

    def _get(self, key: _Key) -> Any:
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def _put(self, key: _Key, value: Any) -> Any:
        self._drop(key)
        with self._lock:
            self._held[key] = value
            self._bytes += value.nbytes
            while self._bytes > self._most_bytes:
                _, dropped = self._held.popitem(last=False)
                self._bytes -= dropped.nbytes
        return value

    def _drop(self, key: _Key) -> None:
        with self._lock:
            dropped = self._held.pop(key, None)
            if dropped is not None:
                self._bytes -= dropped.nbytes


def _head(numbers: Numbers, table: pa.Table, body: SampleColumns | None = None) -> Head:
    earliest, latest = (table.column(name).to_numpy() for name in ("min_time", "max_time"))
    return Head(numbers, earliest, latest, body)


def footer(metadata: pq.FileMetaData) -> Footer:
    places = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    groups = []
    for place in range(metadata.num_row_groups):
        group = metadata.row_group(place)
        metric, earliest, latest = (
            group.column(places[name]).statistics for name in ("metric", "min_time", "max_time")
        )
        groups.append(
            Group(
                group.num_rows,
                segments.size_of(group),
                earliest.min,
                latest.max,
                # Very long names have no statistics.
                metric.min if metric is not None and metric.has_min_max else None,
                metric.max if metric is not None and metric.has_min_max else None,
            )
        )
    return Footer(tuple(groups))
