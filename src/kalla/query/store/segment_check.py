"""Verifies segments by reading them whole, before a query fails on a damaged one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kalla.query.store import segment_rows, segments
from kalla.query.store.segments import Segment, SegmentBroken
from kalla.storage import Storage, join

# The errors that damaged bytes cause in Parquet's reader or Kalla's.
_UNREADABLE = (SegmentBroken, pa.ArrowException, OSError, ValueError, LookupError)


@dataclass(frozen=True)
class SegmentVerdict:
    segment: Segment
    problem: str  # empty: it is sound


def examine(storage: Storage, url: str, some: Sequence[Segment]) -> Iterator[SegmentVerdict]:
    """Checksum, then every row. An object is read once for all of its segments."""
    for path, shared in groupby(sorted(some, key=lambda one: one.path), lambda one: one.path):
        held = list(shared)
        try:
            file = pq.ParquetFile(segments.content(storage, url, held[0]))
        except _UNREADABLE as error:
            yield from (SegmentVerdict(segment, _error_text(error)) for segment in held)
            continue
        place = join(url, path)
        for segment in held:
            try:
                _require_rows(file, segment, place)
            except _UNREADABLE as error:
                yield SegmentVerdict(segment, _error_text(error))
            else:
                yield SegmentVerdict(segment, "")


def _require_rows(file: pq.ParquetFile, segment: Segment, place: str) -> None:
    """Compares a segment's catalogue entry with its rows."""
    found = samples = 0
    earliest: list[int] = []
    latest: list[int] = []
    for group in range(segment.row_group, segment.row_group + segment.row_groups):
        if segments.shards_of(file.metadata)[group : group + 1] != [segment.shard]:
            raise _unlike(place, f"row group {group} is not of shard {segment.shard}")
        table = file.read_row_group(
            group, segment_rows.HEADS + segment_rows.BODIES, use_threads=False
        )
        body = segment_rows.body(table)
        if (np.diff(body.offsets) < 1).any():
            raise _unlike(place, f"row group {group} has a row without samples")
        firsts, lasts = body.times[body.offsets[:-1]], body.times[body.offsets[1:] - 1]
        rises = np.diff(body.times) > 0
        rises[body.offsets[1:-1] - 1] = True
        for name, times in (("min_time", firsts), ("max_time", lasts)):
            if not (rises.all() and (table.column(name).to_numpy() == times).all()):
                raise _unlike(place, f"times of row group {group} are not in order")
        found += table.num_rows
        samples += len(body.times)
        earliest.append(int(firsts.min()))
        latest.append(int(lasts.max()))
    has = (found, samples, min(earliest), max(latest))
    listed = (segment.rows, segment.samples, segment.min_time, segment.max_time)
    if has != listed:
        raise _unlike(place, f"it has (rows, samples, from, to) {has}, listed are {listed}")


def _unlike(place: str, reason: str) -> SegmentBroken:
    return SegmentBroken(f"the segment {place} is not what is listed: {reason}")


def _error_text(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
