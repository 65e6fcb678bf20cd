"""A member of a pipeline's consumer group: it only receives its partition assignment.

The ledger has the offsets to read from; offsets are committed to the group for lag tools alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from kalla import logs
from kalla.errors import NotFound
from kalla.sinks.servers.kafka_client import Admin, open_consumer, unanswered

_log = logs.get(__name__)

_ENDS_SECONDS = 0.1  # between queries for the ends of the log; less often while idle
_IDLE_ENDS_SECONDS = 0.5
_IDLE_AFTER_SECONDS = 10.0
_ASK_SECONDS = 5.0
_HEARTBEAT_SECONDS = 3.0
_LEAVE_SECONDS = 4.0
_MOST_SESSION_SECONDS = 300.0  # of a member whose consumer is not polled


@dataclass(frozen=True)
class LogEnds:
    """The oldest offset in Kafka and the next one."""

    low: int
    high: int


class GroupMember(threading.Thread):
    """One thread makes every call, for a consumer serialises them and a commit would starve."""

    def __init__(
        self,
        settings: Mapping[str, str],
        topic: str,
        group: str,
        instance: str,
        session_seconds: float,
        changed: Callable[[], None],
        drain_seconds: float = 5.0,
    ) -> None:
        super().__init__(name=f"member {instance}", daemon=True)
        self._topic = topic
        self._changed = changed
        self._drain_seconds = drain_seconds
        self._lock = threading.Condition()
        self._assigned: frozenset[int] = frozenset()
        self._leaving: frozenset[int] = frozenset()  # revoked, but their delivery may go on
        self._busy: frozenset[int] = frozenset()
        self._ends: dict[int, LogEnds] = {}
        self._positions: dict[int, int] = {}  # to be committed to the group
        self._stopping = threading.Event()
        self._moved = 0.0  # when the log last grew
        self._other_log = threading.Event()
        self.error_message: str | None = None
        self._consumer = open_consumer(
            {
                **settings,
                "group.id": group,
                "group.instance.id": instance,
                "group.protocol": "classic",
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": int(min(session_seconds, _MOST_SESSION_SECONDS) * 1000),
                # By its heartbeat a member learns that partitions move.
                "heartbeat.interval.ms": int(min(session_seconds / 6, _HEARTBEAT_SECONDS) * 1000),
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "topic.metadata.refresh.interval.ms": 10_000,
            }
        )

    def assigned(self) -> frozenset[int]:
        """The partitions whose delivery may begin now."""
        with self._lock:
            return self._assigned - self._leaving

    def ends(self) -> dict[int, LogEnds]:
        with self._lock:
            return dict(self._ends)

    def log_may_be_another(self) -> bool:
        """Whether a partition was assigned, cut back or unreadable since the last call: the topic
        may have been created again.
        """
        with self._lock:
            found = self._other_log.is_set()
            self._other_log.clear()
            return found

    def begin(self, partition: int) -> bool:
        """Records that a delivery of the partition begins; False if it was revoked."""
        with self._lock:
            if partition not in self._assigned - self._leaving:
                return False
            self._busy |= {partition}
            return True

    def end(self, partition: int, position: int | None = None) -> None:
        """Records that it has ended, and the delivered offset."""
        with self._lock:
            self._busy -= {partition}
            if position is not None:
                self._positions[partition] = position
            self._lock.notify_all()

    def stop(self) -> None:
        """Leaves the group and waits for it: a static member that only closes keeps its place."""
        self._stopping.set()
        with self._lock:
            self._lock.notify_all()
        self.join(10)

    def run(self) -> None:
        try:
            self._consumer.subscribe(
                [self._topic],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            asked = self._moved = time.monotonic()
            while not self._stopping.is_set():
                idle = time.monotonic() - self._moved > _IDLE_AFTER_SECONDS
                pause = _IDLE_ENDS_SECONDS if idle else _ENDS_SECONDS
                message = self._consumer.poll(pause / 2)
                error = message.error() if message is not None else None
                if error is not None:
                    self.error_message = f"Kafka: {error.str()}"
                    if error.fatal():
                        break
                now = time.monotonic()
                if now - asked > pause:
                    self._ask_ends()
                    asked = now
                self._commit()
            self._commit()
            self._poll_while(lambda: not self._consumer.memberid())  # it joins: let it end
            self._consumer.unsubscribe()
            self._poll_while(self._consumer.memberid)
            self._consumer.poll(0.1)
        except KafkaException as error:
            self.error_message = f"Kafka: {error.args[0].str()}"
            _log.warning("group member ended", error=self.error_message)
        finally:
            self._consumer.close()
            with self._lock:
                self._assigned = frozenset()
            self._changed()

    def _poll_while(self, condition: Callable[[], object]) -> None:
        """Joining and leaving go on while it polls; a member has an id in between."""
        deadline = time.monotonic() + _LEAVE_SECONDS
        while condition() and time.monotonic() < deadline:
            self._consumer.poll(0.05)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            each.offset = OFFSET_BEGINNING  # nothing is fetched: the kernel reads for itself
        self._other_log.set()
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)
        with self._lock:
            self._assigned |= {each.partition for each in partitions}
        self.error_message = None
        self._changed()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {each.partition for each in partitions}
        deadline = time.monotonic() + self._drain_seconds
        with self._lock:
            self._leaving |= gone
            while self._busy & gone and time.monotonic() < deadline:
                self._lock.wait(0.1)
        self._commit()
        self._drop(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._drop(consumer, partitions)

    def _drop(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {each.partition for each in partitions}
        consumer.incremental_unassign(partitions)
        with self._lock:
            self._assigned -= gone
            self._leaving -= gone
            self._ends = {each: ends for each, ends in self._ends.items() if each not in gone}
            self._positions = {
                each: offset for each, offset in self._positions.items() if each not in gone
            }
        self._changed()

    def _ask_ends(self) -> None:
        before = self.ends()
        for partition in self.assigned():
            try:
                low, high = self._consumer.get_watermark_offsets(
                    TopicPartition(self._topic, partition), timeout=_ASK_SECONDS
                )
            except KafkaException as error:
                self.error_message = f"Kafka: {error.args[0].str()}"
                self._other_log.set()
                return
            with self._lock:
                known = self._ends.get(partition)
                if known is not None and (low < known.low or high < known.high):
                    self._other_log.set()
                self._ends[partition] = LogEnds(low, high)
        self.error_message = None
        if self.ends() != before:
            self._moved = time.monotonic()
            self._changed()

    def _commit(self) -> None:
        with self._lock:
            positions, self._positions = self._positions, {}
            mine = self._assigned
        offsets = [
            TopicPartition(self._topic, partition, offset)
            for partition, offset in positions.items()
            if partition in mine
        ]
        if offsets:
            try:
                self._consumer.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:
                _log.info("group offsets not committed", error=error.args[0].str())


@dataclass(frozen=True)
class TopicFacts:
    topic_id: str  # a topic that was created again has another
    retention_ms: int | None  # None: for ever, or not readable


def topic_facts(admin: Admin, topic: str) -> TopicFacts:
    """Blocking. The facts of the topic in Kafka."""
    (described,) = admin.describe_topics(
        TopicCollection([topic]), request_timeout=_ASK_SECONDS
    ).values()
    try:
        identity = str(described.result().topic_id)
        admin.errors.clear()  # else a login that was refused once would explain every later timeout
    except KafkaException as error:
        code = error.args[0]
        if code.name() == "UNKNOWN_TOPIC_OR_PART":
            raise NotFound(f"Kafka has no topic {topic}: create it, and delivery begins") from None
        raise unanswered(admin, code) from None
    return TopicFacts(identity, _retention_ms(admin, topic))


def _retention_ms(admin: AdminClient, topic: str) -> int | None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        (answer,) = admin.describe_configs([resource], request_timeout=_ASK_SECONDS).values()
        found = answer.result()
    except KafkaException:  # it needs a right of its own, and only a figure on a page depends on it
        return None
    if "delete" not in found["cleanup.policy"].value:
        return None
    milliseconds = int(found["retention.ms"].value)
    return None if milliseconds < 0 else milliseconds
