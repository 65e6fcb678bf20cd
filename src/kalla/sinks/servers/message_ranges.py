"""Reads frozen ranges of offsets from Kafka; a range ends by position, never by a count."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from confluent_kafka import (
    OFFSET_INVALID,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    TopicPartition,
)
from confluent_kafka import Message as RawMessage

from kalla.errors import Unavailable
from kalla.sinks.servers.kafka_client import Setting, open_consumer

_MOST_AT_ONCE = 20_000
_MOST_OPEN = 32

# Kalla's own settings of a reader; what a pipeline says comes before them.
READER: dict[str, Setting] = {
    "group.id": "kalla-reader",  # never joined nor committed: assign() alone
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 50,
    "fetch.max.bytes": 52_428_800,
    "max.partition.fetch.bytes": 8_388_608,
    "queued.max.messages.kbytes": 32_768,
    "queued.min.messages": 100_000,
}


class OffsetsGone(Exception):
    """The range begins before the oldest message that Kafka still has, or after the newest."""


@dataclass(frozen=True, slots=True)
class Message:
    topic: str
    partition: int
    offset: int
    timestamp: int | None  # milliseconds since 1970
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, order=True)
class OffsetRange:
    """The offsets from `start` up to but not including `end`, of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} {self.start}..{self.end - 1}"


class Reader:
    """Consumers by partition, kept open so that the next range is on its way already."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        self._settings: dict[str, Setting] = {**settings, **READER}
        self._open: dict[tuple[str, int], _Partition] = {}

    def read(self, wanted: OffsetRange, seconds: float) -> list[Message]:
        """Every message of the range. Compaction and transactions leave offsets without one."""
        key = (wanted.topic, wanted.partition)
        partition = self._open.pop(key, None)
        if partition is not None and partition.position != wanted.start:
            partition.close()
            partition = None
        if partition is None:
            while len(self._open) >= _MOST_OPEN:
                self._open.pop(next(iter(self._open))).close()
            partition = _Partition(self._settings, wanted)
        try:
            messages = partition.read(wanted, seconds)
        except BaseException:
            partition.close()
            raise
        self._open[key] = partition
        return messages

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


class _Partition:
    def __init__(self, settings: Mapping[str, Setting], wanted: OffsetRange) -> None:
        self.position = wanted.start
        self._consumer = open_consumer(settings)
        self._consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.start)])
        self._ahead: list[RawMessage] = []

    def read(self, wanted: OffsetRange, seconds: float) -> list[Message]:
        found: list[RawMessage] = []
        deadline = time.monotonic() + seconds
        batch, self._ahead = self._ahead, []
        while True:
            for index, message in enumerate(batch):
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        # Its offset is the end of the log: all before it was seen.
                        if (message.offset() or 0) >= wanted.end:
                            self._ahead = batch[index + 1 :]
                            self.position = wanted.end
                            return _copied(found)
                        continue
                    _refuse(error, wanted)
                offset = message.offset() or 0
                if offset >= wanted.end:
                    self._ahead = batch[index:]
                    self.position = wanted.end
                    return _copied(found)
                if offset >= wanted.start:
                    found.append(message)
                    if offset == wanted.end - 1:
                        self._ahead = batch[index + 1 :]
                        self.position = wanted.end
                        return _copied(found)
            if time.monotonic() > deadline:
                raise Unavailable(f"Kafka did not deliver {wanted} within {seconds:.0f} s")
            batch = self._consumer.consume(_MOST_AT_ONCE, 0.1)
            if not batch and self._passed(wanted):
                self.position = wanted.end
                return _copied(found)

    def _passed(self, wanted: OffsetRange) -> bool:
        """Whether the position is beyond the end without a message: transaction markers."""
        (place,) = self._consumer.position([TopicPartition(wanted.topic, wanted.partition)])
        return place.offset != OFFSET_INVALID and place.offset >= wanted.end

    def close(self) -> None:
        self._consumer.close()


def _refuse(error: KafkaError, wanted: OffsetRange) -> None:
    gone = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)
    if error.code() in gone:
        raise OffsetsGone(f"Kafka no longer has all of {wanted}: {error.str()}")
    raise Unavailable(f"Kafka cannot be read ({wanted}): {error.str()}")


def _copied(raw: list[RawMessage]) -> list[Message]:
    messages = []
    for each in raw:
        kind, moment = each.timestamp()
        headers = cast("list[tuple[str, bytes | None]] | None", each.headers())
        messages.append(
            Message(
                each.topic() or "",
                each.partition() or 0,
                each.offset() or 0,
                None if kind == TIMESTAMP_NOT_AVAILABLE else moment,
                _bytes(each.key()),
                _bytes(each.value()),
                tuple((name, _bytes(value)) for name, value in headers) if headers else (),
            )
        )
    return messages


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
