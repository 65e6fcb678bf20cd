"""Lists the segments of a folder from the footers of its objects, where there is no catalogue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, groupby

import pyarrow as pa
import pyarrow.parquet as pq

from kalla.errors import NotFound
from kalla.query.store import segments
from kalla.query.store.segment_cache import footer
from kalla.query.store.segments import Segment
from kalla.storage import Storage, join

_OBJECT = re.compile(r"(?:.*/)?(\d+)/[0-9a-f]{32}\.parquet")  # below a folder for its level
_EARLIEST = datetime.min.replace(tzinfo=UTC)


def segments_of(storage: Storage, url: str) -> list[Segment]:
    """All segments below a folder; later objects have later numbers, as in the catalogue.

    Objects that were merged and not removed yet are read as well: they have the same samples.
    """
    root = storage.filesystem(url)[1].rstrip("/") + "/"
    files = sorted(storage.files(url), key=lambda file: (file.modified or _EARLIEST, file.url))
    paths = (storage.filesystem(file.url)[1].removeprefix(root) for file in files)
    numbers = count(1)
    found = [
        segment
        for path in paths
        if (named := _OBJECT.fullmatch(path))
        for segment in _segments(storage, url, path, int(named[1]), numbers)
    ]
    if not found:
        raise NotFound(f"{url} holds no segments: name the folder of a metric store")
    return found


def _segments(
    storage: Storage, url: str, path: str, level: int, numbers: count[int]
) -> Iterator[Segment]:
    try:
        metadata = pq.read_metadata(storage.mapped(join(url, path)))
        shards, groups = segments.shards_of(metadata), footer(metadata).groups
    except (pa.ArrowInvalid, KeyError, TypeError):
        raise segments.broken(join(url, path)) from None
    for shard, held in groupby(range(len(groups)), shards.__getitem__):
        places = list(held)
        own = [groups[place] for place in places]
        yield Segment(
            shard=shard,
            level=level,
            min_time=min(group.min_time for group in own),
            max_time=max(group.max_time for group in own),
            path=path,
            row_group=places[0],
            row_groups=len(places),
            rows=sum(group.rows for group in own),
            samples=0,  # only the rows say
            bytes=sum(group.bytes for group in own),
            checksum="",  # in the catalogue alone
            segment_id=next(numbers),
        )
