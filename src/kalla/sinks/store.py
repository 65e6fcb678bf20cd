"""Moves the state of pipelines: named statements and typed rows. Nothing here touches Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from psycopg.types.json import Jsonb

from kalla.database import Connection
from kalla.errors import Conflict, Lost, NotFound
from kalla.sinks.kernel import Facts
from kalla.sinks.messages import OffsetRange
from kalla.sinks.model import ClickHouseConfig, Column, KafkaConfig, Pipeline
from kalla.statements import load

sql = load("kalla.sinks", "store.sql")

Desired = Literal["started", "stopped"]
Stopped = Literal["gap", "topic_replaced", "uncertain"]


@dataclass(frozen=True)
class PipelineRecord:
    """A pipeline with its latest mapping and what is wanted of it."""

    pipeline: str
    kafka: KafkaConfig
    clickhouse: ClickHouseConfig
    mapping_version: int
    mapping: tuple[Column, ...]
    tombstones: str
    batch_rows: int
    desired: Desired
    replicas: int
    trouble: str | None
    trouble_at: datetime | None
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str

    @property
    def resource(self) -> str:
        """What its slots are leased of."""
        return f"sink/{self.pipeline}"


@dataclass(frozen=True)
class Partition:
    """A partition as its member took it: what is next, and what an earlier one left unfinished."""

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


@dataclass(frozen=True)
class LedgerRow:
    """How far a partition has come, as an operator sees it."""

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
    newest_at: datetime | None
    committed_at: datetime | None
    intent_id: int | None
    intent_end: int | None
    intent_at: datetime | None
    intent_seconds: float | None


@dataclass(frozen=True)
class Event:
    at: datetime
    event: str
    detail: str


async def apply(connection: Connection, pipeline: Pipeline, by: str) -> PipelineRecord:
    """Create the pipeline or change it; a changed mapping is a new version."""
    named = {"pipeline": pipeline.name, "by": by}
    await connection.execute(
        sql.put_pipeline,
        named | {"tombstones": pipeline.tombstones, "batch_rows": pipeline.batch_rows},
    )
    await connection.execute(
        sql.put_kafka, named | {"config": Jsonb(pipeline.kafka.model_dump(exclude_unset=True))}
    )
    await connection.execute(
        sql.put_clickhouse,
        named | {"config": Jsonb(pipeline.clickhouse.model_dump(exclude_unset=True))},
    )
    columns = [each.model_dump(exclude_unset=True) for each in pipeline.mapping]
    made = await connection.execute(sql.put_mapping, named | {"columns": Jsonb(columns)})
    await connection.execute(sql.put_state, named | {"replicas": pipeline.replicas})
    record = await get(connection, pipeline.name)
    if made.rowcount:
        await add_event(
            connection, pipeline.name, "mapping", f"version {record.mapping_version}, by {by}"
        )
    return record


async def get(connection: Connection, pipeline: str) -> PipelineRecord:
    found = await _records(connection, pipeline)
    if not found:
        raise NotFound(f"there is no pipeline {pipeline!r}: `kalla sinks list` shows them")
    return found[0]


async def all_pipelines(connection: Connection) -> list[PipelineRecord]:
    return await _records(connection, None)


async def mapping_of(connection: Connection, pipeline: str, version: int) -> tuple[Column, ...]:
    cursor = await connection.execute(
        sql.mapping_version, {"pipeline": pipeline, "version": version}
    )
    row = await cursor.fetchone()
    if row is None:
        raise NotFound(f"{pipeline} has no mapping of version {version}")
    return _columns(row["columns"])


async def remove(connection: Connection, pipeline: str) -> None:
    cursor = await connection.execute(sql.remove, {"pipeline": pipeline})
    if await cursor.fetchone() is None:
        raise NotFound(f"there is no pipeline {pipeline!r}: `kalla sinks list` shows them")


async def set_state(
    connection: Connection,
    pipeline: str,
    by: str,
    desired: Desired | None = None,
    replicas: int | None = None,
) -> PipelineRecord:
    cursor = await connection.execute(
        sql.set_state, {"pipeline": pipeline, "desired": desired, "replicas": replicas}
    )
    row = await cursor.fetchone()
    if row is None:
        raise NotFound(f"there is no pipeline {pipeline!r}: `kalla sinks list` shows them")
    detail = f"{row['desired']}, replicas: {row['replicas']}, by {by}"
    await add_event(connection, pipeline, "state", detail)
    return await get(connection, pipeline)


async def set_trouble(connection: Connection, pipeline: str, trouble: str | None) -> None:
    cursor = await connection.execute(sql.set_trouble, {"pipeline": pipeline, "trouble": trouble})
    if await cursor.fetchone() is not None:
        await add_event(connection, pipeline, "trouble", trouble or "over")


async def add_event(connection: Connection, pipeline: str, event: str, detail: str) -> None:
    await connection.execute(
        sql.event, {"pipeline": pipeline, "event": event, "detail": detail[:2000]}
    )


async def events(connection: Connection, pipeline: str, limit: int = 100) -> list[Event]:
    cursor = await connection.execute(sql.events, {"pipeline": pipeline, "limit": limit})
    return [Event(**row) for row in await cursor.fetchall()]


async def take(
    connection: Connection,
    pipeline: str,
    topic: str,
    partition: int,
    topic_id: str,
    earliest: int,
) -> Partition:
    """Take a partition: its epoch rises, so that whoever had it before can change nothing."""
    named = {"pipeline": pipeline, "topic": topic, "partition": partition}
    await connection.execute(sql.enter, named | {"topic_id": topic_id, "earliest": earliest})
    cursor = await connection.execute(sql.take, named)
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
    """Write down what is about to be inserted; returns the intent's id."""
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
) -> int:
    """The range is delivered; returns the next offset."""
    cursor = await connection.execute(
        sql.commit,
        _fenced(pipeline, partition, start)
        | {
            "intent_id": intent_id,
            "rows": facts.rows,
            "dead": facts.dead,
            "skipped": facts.skipped,
            "newest_ms": facts.newest_ms,
        },
    )
    return int(_ours(await cursor.fetchone(), partition)["next_offset"])


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
    """Deliver from this offset on, as a new generation; returns its number."""
    cursor = await connection.execute(
        sql.seek, _moved(pipeline, row, offset) | {"topic_id": topic_id}
    )
    found = await cursor.fetchone()
    if found is None:
        raise Conflict(
            f"{row.topic}/{row.partition} moved, or a range of it is on its way: "
            "start the pipeline until it is delivered, stop it, and try again"
        )
    detail = f"{row.topic}/{row.partition}: from {row.next_offset} to {offset}, by {by}"
    await add_event(connection, pipeline, "seek", detail)
    return int(found["generation"])


async def skip_gap(
    connection: Connection, pipeline: str, row: LedgerRow, offset: int, by: str
) -> None:
    """Go on behind a gap; the loss is named in the timeline."""
    cursor = await connection.execute(sql.skip_gap, _moved(pipeline, row, offset))
    if await cursor.fetchone() is None:
        raise Conflict(f"{row.topic}/{row.partition} is not stopped at a gap any more")
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
            f"{partition.topic}/{partition.partition} is no longer ours "
            f"under epoch {partition.epoch}"
        )
    return row


async def _records(connection: Connection, pipeline: str | None) -> list[PipelineRecord]:
    cursor = await connection.execute(sql.pipelines, {"pipeline": pipeline})
    return [
        PipelineRecord(
            **row
            | {
                "kafka": KafkaConfig.model_validate(row["kafka"]),
                "clickhouse": ClickHouseConfig.model_validate(row["clickhouse"]),
                "mapping": _columns(row["mapping"]),
            }
        )
        for row in await cursor.fetchall()
    ]


def _columns(documents: Sequence[dict[str, Any]]) -> tuple[Column, ...]:
    return tuple(Column.model_validate(each) for each in documents)
