"""Decides what is delivered next: pure functions over the ledger and the ends of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kalla.sinks.messages import OffsetRange
from kalla.sinks.store import Partition


def next_ranges(
    partitions: Sequence[Partition], ends: Mapping[int, int], batch_rows: int
) -> list[OffsetRange]:
    """One range for each partition in which messages wait; the longest wait comes first."""
    ranges = [
        OffsetRange(each.topic, each.partition, each.next_offset, min(end, limit))
        for each in partitions
        if each.stopped is None and each.intent_id is None
        for end in [ends.get(each.partition, 0)]
        for limit in [each.next_offset + batch_rows]
        if end > each.next_offset
    ]
    return sorted(ranges, key=lambda each: each.start - ends[each.partition])


def token(
    pipeline: str, topic_id: str, generation: int, mapping_version: int, wanted: OffsetRange
) -> str:
    """Whatever makes other content of a range is part of it: a token stands for one content."""
    return (
        f"{pipeline}/{topic_id}/{wanted.partition}/{wanted.start}-{wanted.end}"
        f"/g{generation}/m{mapping_version}"
    )
