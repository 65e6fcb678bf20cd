"""Opens Kafka clients; a setting that librdkafka refuses is an error of the user's input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient

from kalla.errors import InvalidInput, Problem
from kalla.sinks.servers.message_ranges import MessageBatch

Setting = str | int | float | bool


@dataclass(frozen=True)
class Fetched:
    """The result of one fetch."""

    messages: MessageBatch
    log_end: int  # the end of the log, if it was reached after these messages; else -1


class FetchFailed(Exception):
    """An error of Kafka instead of messages."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class PartitionConsumer(Protocol):
    """Fetches one partition from an offset on."""

    def fetch(self, most: int, seconds: float) -> Fetched:
        """Waits for this many messages, with a time limit; FetchFailed on an error of Kafka."""

    def position(self) -> int:
        """The next offset, also after offsets without a message; negative: unknown."""

    def close(self) -> None: ...


def open_consumer(settings: Mapping[str, Setting]) -> Consumer:
    try:
        return Consumer(dict(settings))
    except KafkaException as error:
        raise _refused(error) from None


def open_admin(settings: Mapping[str, Setting]) -> AdminClient:
    try:
        return AdminClient(dict(settings))
    except KafkaException as error:
        raise _refused(error) from None


def _refused(error: KafkaException) -> InvalidInput:
    return InvalidInput(Problem("kafka.settings", str(error.args[0].str())))
