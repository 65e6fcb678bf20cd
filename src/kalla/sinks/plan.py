"""Decides what is delivered next: pure functions over the ledger and the ends of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kalla.sinks.ledger import Partition
from kalla.sinks.servers.message_ranges import OffsetRange

SPARK_ROWS = 100_000  # with this many waiting, Spark is faster than one process

_BURST_SECONDS = 1.0
_BATCH_BYTES = 48 << 20  # less than what the kernel refuses
_POISON_MESSAGES = 100  # fewer are not enough to judge a topic

Placement = Literal["auto", "spark", "local"]


@dataclass(frozen=True)
class Limits:
    """The limits of the next ranges."""

    batch_rows: int
    flush_seconds: float = 0.0
    budget: int | None = None  # messages that the rate allows now
    now: float = 0.0
    waiting_since: Mapping[int, float] = field(default_factory=dict)  # by partition


def next_ranges(
    partitions: Sequence[Partition], ends: Mapping[int, int], limits: Limits
) -> list[OffsetRange]:
    """Plans one range for each partition with waiting messages; the longest wait comes first.

    Fewer messages than a batch are delivered when they have waited for `flush_seconds`, so that
    the last ones of a topic never wait for others.
    """
    ranges = []
    for each in partitions:
        waiting = ends.get(each.partition, 0) - each.next_offset
        if each.stopped is not None or each.intent_id is not None or waiting <= 0:
            continue
        since = limits.waiting_since.get(each.partition, limits.now - limits.flush_seconds)
        if waiting >= limits.batch_rows or limits.now - since >= limits.flush_seconds:
            end = each.next_offset + min(waiting, limits.batch_rows)
            ranges.append(OffsetRange(each.topic, each.partition, each.next_offset, end))
    ranges.sort(key=lambda each: each.start - ends[each.partition])
    return ranges if limits.budget is None else _within(ranges, limits.budget)


def _within(ranges: Sequence[OffsetRange], budget: int) -> list[OffsetRange]:
    kept = []
    for each in ranges:
        end = min(each.end, each.start + budget)
        if end > each.start:
            kept.append(OffsetRange(each.topic, each.partition, each.start, end))
            budget -= end - each.start
    return kept


def groups(ranges: Sequence[OffsetRange], most: int) -> list[list[OffsetRange]]:
    """Cuts ranges into groups of at most so many offsets; a longer range is a group of its own.

    A group shares its transactions: for a few messages these take longer than their delivery.
    """
    found: list[list[OffsetRange]] = []
    size = 0
    for each in ranges:
        length = each.end - each.start
        if not found or size + length > most:
            found.append([])
            size = 0
        found[-1].append(each)
        size += length
    return found


def on_spark(placement: Placement, waiting: int) -> bool:
    """Whether Spark delivers the next ranges; otherwise the slot's own process does."""
    return placement == "spark" or (placement == "auto" and waiting >= SPARK_ROWS)


class BatchSize:
    """Limits a range by bytes and time, too: a range is frozen before its messages are read."""

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self._usual_rows = most_rows
        self._message_bytes = 1.0

    @property
    def rows(self) -> int:
        return max(1, min(self._most_rows, int(_BATCH_BYTES / max(self._message_bytes, 1.0))))

    def note(self, messages: int, size: int) -> None:
        """Keeps the larger of the last size and the average: memory is scarcer than time."""
        if messages:
            latest = size / messages
            self._message_bytes = max(latest, (3 * self._message_bytes + latest) / 4)
            self._most_rows = min(self._usual_rows, self._most_rows + self._most_rows // 8 + 1)

    def note_too_slow(self, messages: int) -> None:
        """A range of so many had not enough time; later ones are smaller for a while."""
        self._most_rows = max(1, min(self._most_rows, messages // 2))


class RateLimit:
    """A token bucket that fills at a rate and holds the messages of one second."""

    def __init__(self, per_second: float | None, now: float) -> None:
        self._rate = per_second
        self._filled = (per_second or 0) * _BURST_SECONDS
        self._at = now

    def budget(self, now: float) -> int | None:
        if self._rate is None:
            return None
        most = max(self._rate * _BURST_SECONDS, 1.0)
        self._filled = min(most, self._filled + (now - self._at) * self._rate)
        self._at = now
        return max(0, int(self._filled))

    def spend(self, messages: int) -> None:
        self._filled -= messages


class Poison:
    """Counts dead letters until there are enough messages to judge by."""

    def __init__(self, percent: int | None) -> None:
        self._percent = percent
        self._messages = self._dead = 0

    def verdict(self, messages: int, dead: int) -> str | None:
        """A message if too many of the last messages were dead letters."""
        if self._percent is None:
            return None
        self._messages += messages
        self._dead += dead
        if self._messages < _POISON_MESSAGES:
            return None
        counted, bad, self._messages, self._dead = self._messages, self._dead, 0, 0
        if bad * 100 <= self._percent * counted:
            return None
        return (
            f"{bad:,} of the last {counted:,} messages were dead letters, more than "
            f"{self._percent} percent: check them, correct the mapping and start it again"
        )


def token(
    pipeline: str, topic_id: str, generation: int, mapping_version: int, wanted: OffsetRange
) -> str:
    """The token contains everything that changes the content of a range: one token, one content."""
    return (
        f"{pipeline}/{topic_id}/{wanted.partition}/{wanted.start}-{wanted.end}"
        f"/g{generation}/m{mapping_version}"
    )
