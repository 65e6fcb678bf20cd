"""Stores the ledger: how far each partition was delivered, and the ranges in flight.

Every write carries the epoch under which the partition was taken; writes of older epochs fail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from kalla.database import Connection
from kalla.errors import Conflict, Lost
from kalla.sinks.kernel import Facts
from kalla.sinks.servers.message_ranges import OffsetRange
from kalla.sinks.store import add_event
from kalla.statements import load

sql = load("kalla.sinks", "ledger.sql")

Stopped = Literal["gap", "topic_replaced", "uncertain"]


@dataclass(frozen=True)
class Partition:
    """A partition as its member took it: the next offset, and the unfinished range of an earlier
    member.
    """

    topic: str
    partition: int
    topic_id: str
    epoch: int
    generation: int
    next_offset: int
    stopped: Stopped | None
    intent_id: int | None
    intent_end: int | None
    intent_part: int | None  # where the part ends that is tried now; None: all of it is
    intent_mapping: int | None
    intent_table: str | None
    intent_deadline: float | None

    @property
    def intent_range(self) -> OffsetRange:
        """What is tried now."""
        end = self.intent_part or self.intent_end
        if end is None:
            raise AssertionError("there is no intent")
        return OffsetRange(self.topic, self.partition, self.next_offset, end)


@dataclass(frozen=True)
class IntentAge:
    seconds: float
    later: int  # intents and parts that were written since


@dataclass(frozen=True)
class LedgerRow:
    """The progress of a partition, for operators."""

    topic: str
    partition: int
    topic_id: str
    epoch: int
    generation: int
    first_offset: int  # where this generation begins
    next_offset: int
    stopped: Stopped | None
    reason: str | None
    rows: int
    dead: int
    skipped: int
    filtered: int
    newest_at: datetime | None
    committed_at: datetime | None
    intent_id: int | None
    intent_end: int | None
    intent_at: datetime | None
    intent_seconds: float | None
    slot: int | None
    worker: str | None
    log_start: int | None
    log_end: int | None
    retention_ms: int | None
    newest_seconds: float | None  # since the newest message that was delivered

    @property
    def waiting(self) -> int:
        return max(0, (self.log_end or 0) - self.next_offset)

    @property
    def lag_seconds(self) -> float | None:
        """The age of the newest delivered message, if others wait."""
        return self.newest_seconds if self.waiting else 0.0

    @property
    def retention_seconds(self) -> float | None:
        """Seconds until Kafka may remove waiting messages; None: none wait, or Kafka keeps all."""
        if not self.waiting or self.retention_ms is None or self.newest_seconds is None:
            return None
        return max(0.0, self.retention_ms / 1000 - self.newest_seconds)


async def take(
    connection: Connection,
    pipeline: str,
    topic: str,
    partition: int,
    topic_id: str,
    earliest: int,
    slot: int | None,
    worker: str,
) -> Partition:
    """Takes a partition: raises its epoch, so that the former holder can change nothing."""
    named = {"pipeline": pipeline, "topic": topic, "partition": partition}
    await connection.execute(sql.enter, named | {"topic_id": topic_id, "earliest": earliest})
    cursor = await connection.execute(sql.take, named | {"slot": slot, "worker": worker})
    row = await cursor.fetchone()
    if row is None:
        raise Lost(f"{pipeline} was removed")
    return Partition(**row)


async def intend(
    connection: Connection,
    pipeline: str,
    partition: Partition,
    wanted: OffsetRange,
    mapping_version: int,
    table_uuid: str,
    deadline: float,
) -> Partition:
    """Stores the intent of an insert."""
    cursor = await connection.execute(
        sql.intend,
        _fenced(pipeline, partition, wanted.start)
        | {
            "end": wanted.end,
            "mapping_version": mapping_version,
            "table_uuid": table_uuid,
            "deadline": deadline,
        },
    )
    return replace(
        partition,
        intent_id=int(_ours(await cursor.fetchone(), partition)["intent_id"]),
        intent_end=wanted.end,
        intent_part=None,
        intent_mapping=mapping_version,
        intent_table=table_uuid,
        intent_deadline=deadline,
    )


async def extend(
    connection: Connection,
    pipeline: str,
    partition: Partition,
    deadline: float,
    part: int | None,
) -> Partition:
    """Stores the deadline of another try of the intent, or of a part of it."""
    named = _fenced(pipeline, partition, partition.next_offset)
    cursor = await connection.execute(sql.extend, named | {"deadline": deadline, "part": part})
    _ours(await cursor.fetchone(), partition)
    return replace(partition, intent_deadline=deadline, intent_part=part)


async def shorten(
    connection: Connection, pipeline: str, partition: Partition, end: int
) -> Partition:
    """Ends an intent earlier of which nothing was ever inserted."""
    named = _fenced(pipeline, partition, partition.next_offset)
    cursor = await connection.execute(sql.shorten, named | {"end": end})
    _ours(await cursor.fetchone(), partition)
    return replace(partition, intent_end=end, intent_deadline=0.0)


async def commit(
    connection: Connection,
    pipeline: str,
    partition: Partition,
    wanted: OffsetRange,
    facts: Facts,
    waiting: int,
) -> Partition:
    """Records that the intent's range is delivered, or a part of it."""
    whole = wanted.end == partition.intent_end
    cursor = await connection.execute(
        sql.commit if whole else sql.commit_part,
        _fenced(pipeline, partition, wanted.start)
        | {
            "end": wanted.end,
            "rows": facts.rows,
            "dead": facts.dead,
            "skipped": facts.skipped,
            "filtered": facts.filtered,
            "newest_ms": facts.newest_ms,
        },
    )
    moved = _ours(await cursor.fetchone(), partition)
    counted = {"rows": facts.rows, "dead": facts.dead, "waiting": waiting}
    place = {"pipeline": pipeline, "partition": partition.partition}
    await connection.execute(sql.add_rate, place | counted)
    return replace(partition if not whole else without_intent(partition), **moved)


def without_intent(partition: Partition) -> Partition:
    return replace(
        partition,
        intent_id=None,
        intent_end=None,
        intent_part=None,
        intent_mapping=None,
        intent_table=None,
        intent_deadline=None,
    )


async def note_log(
    connection: Connection,
    pipeline: str,
    partition: Partition,
    log: tuple[int, int],
    retention_ms: int | None,
) -> None:
    await connection.execute(
        sql.note_log,
        _fenced(pipeline, partition, 0)
        | {"log_start": log[0], "log_end": log[1], "retention_ms": retention_ms},
    )


async def intents_since(connection: Connection, intent_id: int) -> int:
    cursor = await connection.execute(sql.intents_since, {"intent_id": intent_id})
    row = await cursor.fetchone()
    return int(row["count"]) if row else 0


async def intent_age(connection: Connection, pipeline: str, partition: Partition) -> IntentAge:
    named = _fenced(pipeline, partition, partition.next_offset)
    cursor = await connection.execute(sql.intent_age, named)
    return IntentAge(**_ours(await cursor.fetchone(), partition))


async def stop_partition(
    connection: Connection, pipeline: str, partition: Partition, stopped: Stopped, reason: str
) -> None:
    cursor = await connection.execute(
        sql.stop_partition,
        _fenced(pipeline, partition, 0) | {"stopped": stopped, "reason": reason},
    )
    _ours(await cursor.fetchone(), partition)
    place = f"{partition.topic}/{partition.partition}"
    await add_event(connection, pipeline, stopped, f"{place}: {reason}")


async def ledger(connection: Connection, pipeline: str) -> list[LedgerRow]:
    cursor = await connection.execute(sql.ledger, {"pipeline": pipeline})
    return [LedgerRow(**row) for row in await cursor.fetchall()]


async def seek(
    connection: Connection, pipeline: str, row: LedgerRow, offset: int, topic_id: str, by: str
) -> int:
    """Delivers from this offset on, as a new generation; returns its number."""
    cursor = await connection.execute(
        sql.seek, _moved(pipeline, row, offset) | {"topic_id": topic_id}
    )
    found = await cursor.fetchone()
    if found is None:
        raise Conflict(
            f"{row.topic}/{row.partition} moved, or a range of it is in flight: "
            "start the pipeline until it is delivered, stop it, and try again"
        )
    detail = f"{row.topic}/{row.partition}: from {row.next_offset} to {offset}, by {by}"
    await add_event(connection, pipeline, "seek", detail)
    return int(found["generation"])


async def skip_gap(
    connection: Connection, pipeline: str, row: LedgerRow, offset: int, by: str, present: int = 0
) -> None:
    """Continues after a gap; the timeline shows the loss. `present` is how many of the skipped
    offsets ClickHouse holds: an insert wrote them, and its commit was lost.
    """
    inside = row.intent_end is not None and row.intent_end > offset
    statement = sql.skip_into_intent if inside else sql.skip_gap
    cursor = await connection.execute(statement, _moved(pipeline, row, offset))
    if await cursor.fetchone() is None:
        raise Conflict(f"{row.topic}/{row.partition} no longer waits at a gap")
    detail = f"{row.topic}/{row.partition}: the offsets {row.next_offset} to {offset - 1} are lost"
    if present:
        detail += f", but for {present:,} that ClickHouse holds"
    await add_event(connection, pipeline, "gap skipped", f"{detail}, by {by}")


def _moved(pipeline: str, row: LedgerRow, offset: int) -> dict[str, object]:
    return {
        "pipeline": pipeline,
        "topic": row.topic,
        "partition": row.partition,
        "from": row.next_offset,
        "offset": offset,
    }


def _fenced(pipeline: str, partition: Partition, start: int) -> dict[str, object]:
    return {
        "pipeline": pipeline,
        "topic": partition.topic,
        "partition": partition.partition,
        "epoch": partition.epoch,
        "start": start,
        "intent_id": partition.intent_id,
    }


def _ours(row: dict[str, Any] | None, partition: Partition) -> dict[str, Any]:
    if row is None:
        raise Lost(
            f"{partition.topic}/{partition.partition} is no longer held "
            f"under epoch {partition.epoch}"
        )
    return row
