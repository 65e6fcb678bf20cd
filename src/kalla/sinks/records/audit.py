"""Compares, offset by offset, what ClickHouse and the dead letters hold with what Kafka has.

It reads from the ledger only the delivered span, never the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from kalla.errors import Conflict
from kalla.sinks.ledger import LedgerRow
from kalla.sinks.model import RowRules
from kalla.sinks.records.letters import OPEN
from kalla.sinks.rows.transform import Transform
from kalla.sinks.servers.clickhouse_client import ClickHouse
from kalla.sinks.servers.consumer_lag import log_ends
from kalla.sinks.servers.message_ranges import Integers, MessageBatch, OffsetRange, OffsetsGone
from kalla.sinks.servers.reader import Reader
from kalla.sinks.servers.server_connections import Resolve, kafka_settings, target
from kalla.sinks.store import PipelineRecord

_STEP = 200_000
_MOST_NAMED = 20
_READ_SECONDS = 120.0
_NONE: Integers = np.zeros(0, np.int64)


class PartitionAudit(BaseModel):
    partition: int
    start: int
    end: int
    messages: int = Field(description="in Kafka")
    rows: int
    dead_letters: int = Field(description="those without a successful replay")
    left_out: int = Field(description="messages without a row because of a filter or a tombstone")
    missing: list[int] = Field(description="offsets in Kafka and nowhere else; the first ones")
    doubled: list[int] = Field(description="offsets in ClickHouse more than once; the first ones")
    unknown: list[int] = Field(description="offsets in ClickHouse and not in Kafka; the first ones")
    missing_count: int
    doubled_count: int
    unknown_count: int
    removed: int = Field(description="offsets that retention removed: they cannot be compared")


class Audit(BaseModel):
    agrees: bool
    partitions: list[PartitionAudit]
    not_compared: list[int] = Field(
        [], description="partitions of a topic that was replaced: Kafka has other messages now"
    )


class LastAudit(Audit):
    at: datetime


def audit(
    record: PipelineRecord,
    ledger: Sequence[LedgerRow],
    versions: Sequence[RowRules],
    resolve: Resolve,
) -> Audit:
    """Blocking; reads the whole span from Kafka again. `versions` explain missing rows."""
    if not record.clickhouse.provenance:
        raise Conflict("without provenance columns the message of a row is unknown")
    transforms = [Transform(each) for each in versions]
    settings = kafka_settings(record.kafka, resolve)
    ends = log_ends(settings, record.kafka.topic)
    reader, server = Reader(settings), ClickHouse(target(record.clickhouse, resolve), 300)
    mine = [row for row in ledger if row.topic == record.kafka.topic]
    compared = [row for row in mine if row.stopped != "topic_replaced" and row.partition in ends]
    try:
        found = [
            _partition(record, row, ends[row.partition][0], reader, server, transforms)
            for row in compared
        ]
    except OffsetsGone as error:
        raise Conflict(f"{error}, and it had when the audit began: start it again") from None
    finally:
        reader.close()
        server.close()
        for each in transforms:
            each.close()
    not_compared = [row.partition for row in mine if row not in compared]
    agrees = not not_compared and not any(
        each.missing_count or each.doubled_count or each.unknown_count for each in found
    )
    return Audit(agrees=agrees, partitions=found, not_compared=not_compared)


def _partition(
    record: PipelineRecord,
    row: LedgerRow,
    earliest: int,
    reader: Reader,
    server: ClickHouse,
    transforms: Sequence[Transform],
) -> PartitionAudit:
    total: dict[str, Any] = {
        "messages": 0, "rows": 0, "dead_letters": 0, "missing_count": 0, "doubled_count": 0,
        "unknown_count": 0, "left_out": 0,
    }  # fmt: skip
    named: dict[str, list[int]] = {"missing": [], "doubled": [], "unknown": []}
    start = min(max(earliest, row.first_offset), row.next_offset)
    for begin in range(start, row.next_offset, _STEP):
        span = OffsetRange(row.topic, row.partition, begin, min(begin + _STEP, row.next_offset))
        rows = _offsets(server, record, row, span, record.clickhouse.table, "_")
        dead = _offsets(server, record, row, span, record.clickhouse.dead_letters, "")
        held, counts = np.unique(np.concatenate([rows, dead]), return_counts=True)
        wanted, explained = _NONE, _NONE
        for batch in reader.read(span, _READ_SECONDS):  # none is kept: messages may be large
            wanted = np.concatenate([wanted, batch.offsets])
            explained = np.concatenate([explained, _explained(batch, held, transforms)])
        absent = np.setdiff1d(wanted, held)
        total["left_out"] += len(explained)
        for name, offsets in (
            ("missing", np.setdiff1d(absent, explained)),
            ("doubled", held[counts > 1]),
            ("unknown", np.setdiff1d(held, wanted)),
        ):
            total[f"{name}_count"] += len(offsets)
            named[name] += offsets[: _MOST_NAMED - len(named[name])].tolist()
        total["messages"] += len(wanted)
        total["rows"] += len(rows)
        total["dead_letters"] += len(dead)
    return PartitionAudit(
        partition=row.partition,
        start=start,
        end=row.next_offset,
        removed=start - min(row.first_offset, start),
        **total,
        **named,
    )


def _explained(batch: MessageBatch, held: Integers, transforms: Sequence[Transform]) -> Integers:
    """The offsets without a row that some version of the rules leaves out."""
    found = _NONE
    left = batch.take(np.flatnonzero(~np.isin(batch.offsets, held)))
    for transform in transforms:
        if not len(left):
            break
        result = transform.apply(left)
        out = np.concatenate([result.skipped, result.filtered])
        found = np.concatenate([found, out])
        left = left.take(np.flatnonzero(~np.isin(left.offsets, out)))
    return found


def _offsets(
    server: ClickHouse,
    record: PipelineRecord,
    row: LedgerRow,
    span: OffsetRange,
    table: str,
    prefix: str,
) -> Any:
    named = f"`{record.clickhouse.database}`.`{table}`"
    mine = "" if prefix else f" AND {OPEN % {'table': named}}"
    found = server.arrow(
        f"SELECT {prefix}offset AS o FROM {named}"
        f" WHERE {prefix}topic = {{topic:String}} AND {prefix}partition = {{partition:Int32}}"
        f" AND {prefix}generation = {{generation:Int32}}"
        f" AND {prefix}offset >= {{start:Int64}} AND {prefix}offset < {{end:Int64}}{mine}",
        topic=span.topic,
        partition=span.partition,
        generation=row.generation,
        start=span.start,
        end=span.end,
        pipeline=record.pipeline,
    )
    return found.column("o").to_numpy()
