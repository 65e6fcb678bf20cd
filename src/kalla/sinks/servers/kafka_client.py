"""Opens Kafka clients; a setting that librdkafka refuses is an error of the user's input."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kalla.errors import Conflict, InvalidInput, KallaError, NotFound, Problem, Unavailable
from kalla.sinks.servers.message_ranges import MessageBatch

Setting = str | int | float | bool
Client = TypeVar("Client")


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


class Inquirer(Consumer):
    """A consumer that only asks; it keeps the errors that are in no answer."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.errors: list[KafkaError] = []
        super().__init__({**settings, "log_level": 0, "error_cb": self.errors.append})

    def partitions(self, topic: str, seconds: float) -> list[int]:
        """Blocking. A refused login is raised at once; librdkafka would try it again until then."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self.list_topics(topic, timeout=1.0).topics[topic]
            except KafkaException as error:
                reason = unanswered(self, error.args[0])
                if isinstance(reason, Unavailable) and time.monotonic() < deadline:
                    continue
                raise reason from None
            if found.error is not None:
                raise NotFound(f"Kafka has no topic {topic}: {found.error.str()}")
            return list(found.partitions)


class Admin(AdminClient):
    """The same for an admin client."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.errors: list[KafkaError] = []
        given: dict[str, Any] = {**settings, "log_level": 0, "error_cb": self.errors.append}
        super().__init__(given)


def open_consumer(settings: Mapping[str, Setting]) -> Consumer:
    return _opened(Consumer, settings)


def open_inquirer(settings: Mapping[str, Setting]) -> Inquirer:
    return _opened(Inquirer, settings)


def open_admin(settings: Mapping[str, Setting]) -> Admin:
    return _opened(Admin, settings)


def unanswered(client: Inquirer | Admin, error: KafkaError) -> KallaError:
    """Why there is no answer: a request also times out if the broker refuses it."""
    client.poll(0)  # this calls back
    for each in client.errors:
        if each.code() == KafkaError._AUTHENTICATION:
            return Conflict(f"Kafka refuses the login: {each.str()}")
    return Unavailable(f"Kafka does not answer: {error.str()}")


def _opened(kind: Callable[[dict[str, Any]], Client], settings: Mapping[str, Setting]) -> Client:
    try:
        return kind(dict(settings))
    except KafkaException as error:
        raise InvalidInput(Problem("kafka.settings", str(error.args[0].str()))) from None
