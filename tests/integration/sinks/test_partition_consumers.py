"""Both ways to fetch from Kafka give the same messages: by librdkafka's queue, and as objects."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from kalla.errors import InvalidInput
from kalla.sinks.servers import librdkafka, reader
from kalla.sinks.servers.kafka_client import PartitionConsumer
from kalla.sinks.servers.librdkafka import QueueConsumer
from kalla.sinks.servers.message_ranges import Message, MessageBatch, OffsetRange
from kalla.sinks.servers.object_consumer import ObjectConsumer
from kalla.sinks.servers.reader import READER, Reader
from tests.sinks_kit import Servers, until

Kind = Callable[..., PartitionConsumer]


def produced(servers: Servers) -> str:
    """A topic with keys, headers, tombstones and empty values, and without some of them."""
    topic = servers.create_topic(1)
    producer = Producer({"bootstrap.servers": servers.kafka.address})
    now = int(time.time() * 1000)  # what is older than the retention would be removed
    for number in range(300):
        headers: list[tuple[str, str | bytes | None]]
        headers = [("a", b"1"), ("a", None), (f"n-{number}", b"\xff\x00")]
        producer.produce(
            topic,
            value=(None, b"", b"x" * number, b'{"id": %d}' % number)[number % 4],
            key=(None, b"", f"key-{number}".encode())[number % 3],
            headers=headers[: number % 5],
            timestamp=now + number,
        )
    assert producer.flush(30) == 0
    return topic


def fetched(kind: Kind, servers: Servers, topic: str, start: int) -> tuple[list[Message], int]:
    """Every message from an offset on, and the end of the log."""
    settings = {"bootstrap.servers": servers.kafka.address, **READER}
    consumer = kind(settings, topic, 0, start)
    found: list[MessageBatch] = []
    ends = [-1]
    try:

        def ended() -> bool:
            answer = consumer.fetch(100, 0.1)
            found.append(answer.messages)
            ends.append(answer.log_end)
            return ends[-1] >= 0

        until(ended, "the end of the log")
        assert consumer.position() == ends[-1]
    finally:
        consumer.close()
    return [message for batch in found for message in batch], ends[-1]


def test_both_consumers_give_the_same_messages(sink_servers: Servers) -> None:
    topic = produced(sink_servers)
    by_queue, end = fetched(QueueConsumer, sink_servers, topic, 7)
    assert (by_queue, end) == fetched(ObjectConsumer, sink_servers, topic, 7)
    assert [message.offset for message in by_queue] == list(range(7, 300))
    assert {len(message.headers) for message in by_queue} == {0, 1, 2, 3}
    assert {message.value for message in by_queue} >= {None, b""}


def test_the_quick_consumer_is_the_one_that_is_used(sink_servers: Servers) -> None:
    topic = sink_servers.create_topic(1)
    settings = {"bootstrap.servers": sink_servers.kafka.address}
    consumer = reader.open_partition(settings, topic, 0, 0)
    consumer.close()
    assert isinstance(consumer, QueueConsumer)


def test_without_the_library_ranges_are_read_as_objects(
    sink_servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = produced(sink_servers)
    spans = [OffsetRange(topic, 0, 0, 120), OffsetRange(topic, 0, 120, 300)]
    ways = []
    for _ in range(2):
        opened = Reader({"bootstrap.servers": sink_servers.kafka.address})
        batches = [batch for span in spans for batch in opened.read(span, 30)]
        ways.append([message for batch in batches for message in batch])
        opened.close()
        monkeypatch.setattr(librdkafka, "library", lambda: None)
    assert ways[0] == ways[1]
    assert [message.offset for message in ways[0]] == list(range(300))


@pytest.mark.parametrize("kind", [QueueConsumer, ObjectConsumer])
def test_a_setting_that_librdkafka_does_not_take_is_named(kind: Kind) -> None:
    with pytest.raises(InvalidInput, match=r"no\.such\.setting"):
        kind({**READER, "no.such.setting": "x"}, "t", 0, 0)
