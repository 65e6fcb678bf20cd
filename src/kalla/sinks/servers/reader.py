"""Reads frozen ranges of offsets from Kafka; a range ends by position, never by a count."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from confluent_kafka import KafkaError

from kalla.errors import Unavailable
from kalla.sinks.servers import librdkafka
from kalla.sinks.servers.clickhouse_client import TooSlow
from kalla.sinks.servers.kafka_client import FetchFailed, PartitionConsumer, Setting
from kalla.sinks.servers.message_ranges import MessageBatch, OffsetRange, OffsetsGone
from kalla.sinks.servers.object_consumer import ObjectConsumer

_MOST_AT_ONCE = 20_000
_MOST_OPEN = 32
_WAIT_SECONDS = 0.02

# Kalla's own settings of a reader; they take precedence over the pipeline's. A few megabytes are
# fetched ahead: more would be for nothing where another process delivers the next range.
READER: dict[str, Setting] = {
    "group.id": "kalla-reader",  # never joined nor committed: assign() alone
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 50,
    "fetch.max.bytes": 52_428_800,
    "max.partition.fetch.bytes": 2_097_152,
    "queued.max.messages.kbytes": 8_192,
    "queued.min.messages": 100_000,
    # A full queue is looked at again after this; librdkafka's default is a second, and then a
    # range that is parsed more slowly than it is fetched waits for most of its time.
    "fetch.queue.backoff.ms": 5,
}


def open_partition(
    settings: Mapping[str, Setting], topic: str, partition: int, offset: int
) -> PartitionConsumer:
    """The quicker consumer where librdkafka can be reached, which is in every wheel of it."""
    kind = ObjectConsumer if librdkafka.library() is None else librdkafka.QueueConsumer
    return kind({**settings, **READER}, topic, partition, offset)


class Reader:
    """Consumers by partition, kept open so that the next range is on its way already."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        self._settings = settings
        self._open: dict[tuple[str, int], _Partition] = {}

    def read(self, wanted: OffsetRange, seconds: float) -> Iterator[MessageBatch]:
        """Every message of the range, by offset. Compaction and transactions leave offsets without
        messages.
        """
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
            yield from partition.read(wanted, seconds)
        except BaseException:
            partition.close()
            raise
        self._open[key] = partition

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


class _Partition:
    def __init__(self, settings: Mapping[str, Setting], wanted: OffsetRange) -> None:
        self.position = wanted.start
        self._consumer = open_partition(settings, wanted.topic, wanted.partition, wanted.start)
        self._ahead: MessageBatch | None = None
        self._log_end = -1  # all messages before it were fetched

    def read(self, wanted: OffsetRange, seconds: float) -> Iterator[MessageBatch]:
        deadline = time.monotonic() + seconds
        while self.position < wanted.end:
            batch, self._ahead = self._ahead, None
            if batch is None:
                if time.monotonic() > deadline:
                    raise TooSlow(f"Kafka did not deliver {wanted} within {seconds:.0f} s")
                batch = self._fetch(wanted)
            if len(batch) and batch.offsets[-1] >= wanted.end:
                self._ahead = batch.between(wanted.end, int(batch.offsets[-1]) + 1)
            inside = batch.between(self.position, wanted.end)
            if len(inside):
                self.position = int(inside.offsets[-1]) + 1
                yield inside
            # After the last message there may be offsets without one: transaction markers.
            if (
                self._ahead is not None
                or self._log_end >= wanted.end
                or (not len(batch) and self._consumer.position() >= wanted.end)
            ):
                self.position = wanted.end

    def _fetch(self, wanted: OffsetRange) -> MessageBatch:
        """At most the remaining messages: librdkafka waits until it has this many."""
        most = min(_MOST_AT_ONCE, wanted.end - self.position)
        try:
            fetched = self._consumer.fetch(most, _WAIT_SECONDS)
        except FetchFailed as error:
            if error.code in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
                raise OffsetsGone(f"Kafka no longer has all of {wanted}: {error}") from None
            raise Unavailable(f"Kafka cannot be read ({wanted}): {error}") from None
        self._log_end = max(self._log_end, fetched.log_end)
        return fetched.messages

    def close(self) -> None:
        self._consumer.close()
