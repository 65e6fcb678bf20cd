"""Stores the ledger: how far each partition was delivered, and the ranges in flight.

Every write carries the epoch under which the partition was taken; writes of older epochs fail.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    intent_mapping: int | None
    intent_table: str | None
    intent_deadline: float | None
    intent_seconds: float | None  # its age


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
) -> int:
    """Stores the intent of an insert; returns its id."""
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
    return int(_ours(await cursor.fetchone(), partition)["intent_id"])


async def extend(
    connection: Connection, pipeline: str, partition: Partition, intent_id: int, deadline: float
) -> None:
    cursor = await connection.execute(
        sql.extend,
        _fenced(pipeline, partition, partition.next_offset)
        | {"intent_id": intent_id, "deadline": deadline},
    )
    _ours(await cursor.fetchone(), partition)


async def commit(
    connection: Connection,
    pipeline: str,
    partition: Partition,
    start: int,
    intent_id: int,
    facts: Facts,
    waiting: int,
) -> int:
    """Records that the range is delivered; returns the next offset."""
    cursor = await connection.execute(
        sql.commit,
        _fenced(pipeline, partition, start)
        | {
            "intent_id": intent_id,
            "rows": facts.rows,
            "dead": facts.dead,
            "skipped": facts.skipped,
            "filtered": facts.filtered,
            "newest_ms": facts.newest_ms,
        },
    )
    position = int(_ours(await cursor.fetchone(), partition)["next_offset"])
    counted = {"rows": facts.rows, "dead": facts.dead, "waiting": waiting}
    place = {"pipeline": pipeline, "partition": partition.partition}
    await connection.execute(sql.add_rate, place | counted)
    return position


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
    connection: Connection, pipeline: str, row: LedgerRow, offset: int, by: str
) -> None:
    """Continues after a gap; the timeline shows the loss."""
    cursor = await connection.execute(sql.skip_gap, _moved(pipeline, row, offset))
    if await cursor.fetchone() is None:
        raise Conflict(f"{row.topic}/{row.partition} no longer waits at a gap")
    detail = f"{row.topic}/{row.partition}: the offsets {row.next_offset} to {offset - 1} are lost"
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
    }


def _ours(row: dict[str, Any] | None, partition: Partition) -> dict[str, Any]:
    if row is None:
        raise Lost(
            f"{partition.topic}/{partition.partition} is no longer held "
            f"under epoch {partition.epoch}"
        )
    return row
