"""Segments written for tests, and a source that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kalla.query.labels.label_sets import Labels
from kalla.query.store import segments
from kalla.query.store.segment_cache import SegmentCache
from kalla.query.store.segment_source import SegmentSource
from kalla.query.store.segments import Segment
from kalla.storage import LOCAL, Storage
from tests.metrics_kit import Points, batch_of, listed

EVER = (-(2**60), 2**60)


def source(
    url: Path | str, held: Sequence[Segment], storage: Storage = LOCAL, memory: int = 1 << 20
) -> SegmentSource:
    return SegmentSource(SegmentCache(storage, str(url), memory), held, 1)


def kept(tmp_path: Path, *batches: Mapping[Labels, Points], level: int = 0) -> list[Segment]:
    """Each in a segment of its own, the first acknowledged first."""
    return [
        segment
        for place, series in enumerate(batches, 1)
        for segment in listed(
            segments.write(LOCAL, str(tmp_path), level, {0: batch_of(series)}), place
        )
    ]
