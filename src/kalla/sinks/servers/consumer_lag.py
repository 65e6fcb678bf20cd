"""The consumer lag: the end of each partition's log compared with the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from confluent_kafka import KafkaException, TopicPartition
from pydantic import BaseModel

from kalla.sinks.ledger import LedgerRow
from kalla.sinks.servers.kafka_client import open_inquirer, unanswered
from kalla.sinks.servers.server_connections import Resolve, kafka_settings
from kalla.sinks.store import PipelineRecord

_SECONDS = 10.0


class PartitionLag(BaseModel):
    partition: int
    earliest: int
    end: int
    next_offset: int | None
    waiting: int
    rows: int
    dead_letters: int
    skipped: int
    filtered: int
    generation: int
    stopped: str | None
    reason: str | None
    intent_seconds: float | None
    lag_seconds: float | None
    retention_seconds: float | None
    newest_at: datetime | None
    committed_at: datetime | None


def measure(
    record: PipelineRecord, ledger: Sequence[LedgerRow], resolve: Resolve
) -> list[PartitionLag]:
    """Blocking. A partition that was never taken has no next offset; all of it waits."""
    ends = log_ends(kafka_settings(record.kafka, resolve), record.kafka.topic)
    known = {each.partition: each for each in ledger if each.topic == record.kafka.topic}
    found = []
    for partition, (low, high) in sorted(ends.items()):
        row = known.get(partition)
        found.append(
            PartitionLag(
                partition=partition,
                earliest=low,
                end=high,
                next_offset=row.next_offset if row else None,
                waiting=max(0, high - (row.next_offset if row else low)),
                rows=row.rows if row else 0,
                dead_letters=row.dead if row else 0,
                skipped=row.skipped if row else 0,
                filtered=row.filtered if row else 0,
                generation=row.generation if row else 0,
                stopped=row.stopped if row else None,
                reason=row.reason if row else None,
                intent_seconds=row.intent_seconds if row else None,
                lag_seconds=row.lag_seconds if row else None,
                retention_seconds=row.retention_seconds if row else None,
                newest_at=row.newest_at if row else None,
                committed_at=row.committed_at if row else None,
            )
        )
    return found


def log_ends(settings: Mapping[str, str], topic: str) -> dict[int, tuple[int, int]]:
    """The earliest offset and the end of each partition; open transactions come after it."""
    consumer = open_inquirer(
        {
            **settings,
            "group.id": "kalla-look",
            "isolation.level": "read_committed",
            "allow.auto.create.topics": False,
        }
    )
    try:
        return {
            partition: consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=_SECONDS
            )
            for partition in consumer.partitions(topic, _SECONDS)
        }
    except KafkaException as error:
        raise unanswered(consumer, error.args[0]) from None
    finally:
        consumer.close()
