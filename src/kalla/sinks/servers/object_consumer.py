"""Fetches messages as objects of confluent-kafka: where its C library cannot be reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, TopicPartition
from confluent_kafka import Message as RawMessage

from kalla.sinks.servers.kafka_client import Fetched, FetchFailed, Setting, open_consumer
from kalla.sinks.servers.message_ranges import Message, MessageBatch


class ObjectConsumer:
    """Does what QueueConsumer does, a message at a time."""

    def __init__(
        self, settings: Mapping[str, Setting], topic: str, partition: int, offset: int
    ) -> None:
        self._place = TopicPartition(topic, partition)
        self._consumer = open_consumer(settings)
        self._consumer.assign([TopicPartition(topic, partition, offset)])

    def fetch(self, most: int, seconds: float) -> Fetched:
        messages, log_end = [], -1
        for each in self._consumer.consume(most, seconds):
            error = each.error()
            if error is None:
                messages.append(_message(each))
            elif error.code() == KafkaError._PARTITION_EOF:
                log_end = max(log_end, each.offset() or 0)
            else:
                raise FetchFailed(error.code(), error.str())
        return Fetched(MessageBatch.of(messages), log_end)

    def position(self) -> int:
        (found,) = self._consumer.position([self._place])
        return found.offset

    def close(self) -> None:
        self._consumer.close()


def _message(raw: RawMessage) -> Message:
    kind, moment = raw.timestamp()
    headers = cast("list[tuple[str, bytes | None]] | None", raw.headers())
    return Message(
        raw.topic() or "",
        raw.partition() or 0,
        raw.offset() or 0,
        None if kind == TIMESTAMP_NOT_AVAILABLE else moment,
        _bytes(raw.key()),
        _bytes(raw.value()),
        tuple((name, _bytes(value)) for name, value in headers) if headers else (),
    )


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
