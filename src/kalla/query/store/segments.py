"""Segments: what one object holds of one shard, how an object is written, and how it is read.

An object is written once, durably, under a unique name; the catalogue makes it visible.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from kalla.errors import NotFound
from kalla.query.evaluate.sample_source import SeriesBatch
from kalla.query.promql.query_errors import ExecutionFailed
from kalla.query.store import segment_rows
from kalla.storage import Storage, join

SHARDS = "kalla.shards"
"""In an object's footer: the shard of each row group."""


# What was just written is merged soon, and every row of it is another series: it is packed by what
# takes the least time. What stays is packed well.
_FRESH: dict[str, Any] = {"compression": "lz4", "use_dictionary": ["metric"]}
_LASTING: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["metric", "labels"],
}


@dataclass(frozen=True)
class NewSegment:
    """What was written of one shard: a run of row groups in an object."""

    shard: int
    level: int
    min_time: int
    max_time: int
    path: str
    row_group: int
    row_groups: int
    rows: int
    samples: int
    bytes: int
    checksum: str


@dataclass(frozen=True)
class Segment(NewSegment):
    """A segment that the catalogue lists."""

    segment_id: int

    @property
    def seniority(self) -> tuple[int, int]:
        """In the order in which samples were acknowledged: what is compacted came first."""
        return -self.level, self.segment_id


class SegmentBroken(ExecutionFailed):
    """A segment that is listed cannot be read: the answer would be a part of the truth."""

    status = 500


def write(
    storage: Storage, url: str, level: int, shards: Mapping[int, SeriesBatch]
) -> list[NewSegment]:
    """One object with what every shard has, durable when it returns; nothing for no samples."""
    buffer = io.BytesIO()
    given = sorted(shards)
    shard_of_groups: list[int] = []
    with pq.ParquetWriter(
        buffer,
        segment_rows.SCHEMA,
        **(_FRESH if level == 0 else _LASTING),
        column_encoding=segment_rows.ENCODINGS,
        write_statistics=["metric", "block", "min_time", "max_time"],
    ) as writer:
        for place, table in segment_rows.tables([shards[shard] for shard in given]):
            writer.write_table(table, row_group_size=table.num_rows)
            shard_of_groups.append(given[place])
        # So that an object contains its own catalogue entry.
        writer.add_key_value_metadata({SHARDS: json.dumps(shard_of_groups)})
    if not shard_of_groups:
        return []
    content = buffer.getbuffer()
    path = f"{level}/{uuid4().hex}.parquet"
    storage.keep(join(url, path), content)
    found = pq.read_metadata(pa.BufferReader(content))
    checksum = _digest(content)
    return [
        _new_segment(level, path, checksum, shard, shards[shard], found, list(groups))
        for shard, groups in groupby(range(len(shard_of_groups)), shard_of_groups.__getitem__)
    ]


def content(storage: Storage, url: str, segment: NewSegment) -> pa.Buffer:
    """All bytes of the object that holds a segment, checked."""
    place = join(url, segment.path)
    try:
        with storage.open(place) as opened:
            found = pa.py_buffer(opened.read())
    except NotFound:
        raise missing(place) from None
    if _digest(found) != segment.checksum:
        raise broken(place)
    return found


def mapped(path: str, segment: NewSegment) -> pa.Buffer:
    """The same of a file on this machine, which is mapped instead of read."""
    try:
        found = pa.memory_map(path).read_buffer()
    except FileNotFoundError:
        raise missing(path) from None
    if _digest(found) != segment.checksum:
        raise broken(path)
    return found


def shards_of(found: pq.FileMetaData) -> list[int]:
    """The shard of each row group of an object."""
    shards: list[int] = json.loads(found.metadata[SHARDS.encode()])
    return shards


def missing(place: str) -> SegmentBroken:
    return SegmentBroken(
        f"the segment {place} is listed but does not exist: bring it back from a backup, or "
        "ask again if the query ran longer than metrics.grace_seconds"
    )


def broken(place: str) -> SegmentBroken:
    return SegmentBroken(
        f"the segment {place} is damaged: bring it back from a backup, or give it up (`kalla "
        "metrics check` finds its number, `kalla metrics drop-segment` drops it)"
    )


def _digest(held: memoryview | pa.Buffer) -> str:
    return hashlib.sha256(held).hexdigest()


def _new_segment(
    level: int,
    path: str,
    checksum: str,
    shard: int,
    batch: SeriesBatch,
    found: pq.FileMetaData,
    places: Sequence[int],
) -> NewSegment:
    groups = [found.row_group(place) for place in places]
    return NewSegment(
        shard=shard,
        level=level,
        min_time=int(batch.times.min()),
        max_time=int(batch.times.max()),
        path=path,
        row_group=places[0],
        row_groups=len(places),
        rows=sum(group.num_rows for group in groups),
        samples=len(batch.times),
        bytes=sum(size_of(group) for group in groups),
        checksum=checksum,
    )


def size_of(group: pq.RowGroupMetaData) -> int:
    """Its bytes in the object."""
    return sum(group.column(place).total_compressed_size for place in range(group.num_columns))
