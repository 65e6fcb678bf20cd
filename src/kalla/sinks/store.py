"""Stores the state of pipelines: named statements and typed rows. Nothing here uses Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from psycopg.types.json import Jsonb
from pydantic import ValidationError

from kalla import logs
from kalla.database import Connection
from kalla.errors import Conflict, NotFound
from kalla.sinks.model import (
    EXACTLY_ONCE,
    ClickHouseConfig,
    Column,
    KafkaConfig,
    Options,
    Pipeline,
    RowRules,
)
from kalla.statements import load

_log = logs.get(__name__)
sql = load("kalla.sinks", "store.sql")

_RULES = ("version", "columns", "filters", "tombstones")

Desired = Literal["started", "stopped"]
PipelineRow = dict[str, Any]
"""A pipeline as it is stored."""


@dataclass(frozen=True)
class PipelineRecord:
    """A pipeline with its latest mapping and desired state."""

    pipeline: str
    kafka: KafkaConfig
    clickhouse: ClickHouseConfig
    rules: RowRules
    options: Options
    guarantee: str
    desired: Desired
    replicas: int
    poisoned: bool  # it stopped itself: too many dead letters
    trouble: str | None
    trouble_at: datetime | None
    retry_at: datetime | None
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str

    @property
    def resource(self) -> str:
        """The resource of its slots' leases."""
        return f"sink/{self.pipeline}"

    def document(self) -> Pipeline:
        """The document that would create it again."""
        return Pipeline(
            name=self.pipeline,
            kafka=self.kafka,
            clickhouse=self.clickhouse,
            mapping=self.rules.mapping,
            filters=self.rules.filters,
            tombstones=self.rules.tombstones,
            replicas=self.replicas,
            **self.options.model_dump(exclude_unset=True),
        )


@dataclass(frozen=True)
class Rate:
    """What one partition delivered in ten seconds."""

    partition: int
    at: datetime
    rows: int
    dead: int
    waiting: int


@dataclass(frozen=True)
class Event:
    at: datetime
    event: str
    detail: str


async def apply(
    connection: Connection, pipeline: Pipeline, by: str, guarantee: str = EXACTLY_ONCE
) -> PipelineRecord:
    """Create the pipeline or change it; changed rules are a new version."""
    await _refuse_rivals(connection, pipeline)
    named = {"pipeline": pipeline.name, "by": by}
    await connection.execute(
        sql.put_pipeline,
        named
        | {
            "options": Jsonb(pipeline.options.model_dump(exclude_unset=True)),
            "guarantee": guarantee,
        },
    )
    await connection.execute(
        sql.put_kafka, named | {"config": Jsonb(pipeline.kafka.model_dump(exclude_unset=True))}
    )
    await connection.execute(
        sql.put_clickhouse,
        named | {"config": Jsonb(pipeline.clickhouse.model_dump(exclude_unset=True))},
    )
    columns = [each.model_dump(exclude_unset=True) for each in pipeline.mapping]
    made = await connection.execute(
        sql.put_mapping,
        named
        | {
            "columns": Jsonb(columns),
            "filters": Jsonb(list(pipeline.filters)),
            "tombstones": pipeline.tombstones,
        },
    )
    await connection.execute(sql.put_state, named | {"replicas": pipeline.replicas})
    record = await get(connection, pipeline.name)
    if made.rowcount:
        await add_event(
            connection, pipeline.name, "mapping", f"version {record.rules.version}, by {by}"
        )
    return record


async def _refuse_rivals(connection: Connection, pipeline: Pipeline) -> None:
    config = pipeline.clickhouse
    if not config.provenance:
        return
    cursor = await connection.execute(
        sql.rival,
        {
            "pipeline": pipeline.name,
            "topic": pipeline.kafka.topic,
            "url": config.url,
            "database": config.database,
            "table": config.table,
        },
    )
    if (row := await cursor.fetchone()) is not None:
        raise Conflict(
            f"the pipeline {row['pipeline']} delivers a topic {pipeline.kafka.topic} into "
            f"{config.database}.{config.table} already: their rows could not be told apart"
        )


async def get(connection: Connection, pipeline: str) -> PipelineRecord:
    row = await (await connection.execute(sql.pipelines, {"pipeline": pipeline})).fetchone()
    if row is None:
        raise NotFound(f"there is no pipeline {pipeline!r}: `kalla sinks list` shows them")
    return read_row(row)


async def all_pipelines(connection: Connection) -> list[PipelineRecord]:
    """Without those that cannot be read: one must not hide the others."""
    records = []
    for row in await pipeline_rows(connection):
        try:
            records.append(read_row(row))
        except ValidationError as error:
            problems = error.errors(include_input=False, include_url=False)
            _log.error("pipeline cannot be read", pipeline=row["pipeline"], problems=problems)
    return records


async def rules_of(connection: Connection, pipeline: str, version: int) -> RowRules:
    cursor = await connection.execute(sql.rules, {"pipeline": pipeline, "version": version})
    row = await cursor.fetchone()
    if row is None:
        raise NotFound(f"{pipeline} has no mapping of version {version}")
    return _rules(row)


async def all_rules(connection: Connection, pipeline: str) -> list[RowRules]:
    """Every version, the newest first."""
    cursor = await connection.execute(sql.all_rules, {"pipeline": pipeline})
    return [_rules(row) for row in await cursor.fetchall()]


async def remove(connection: Connection, pipeline: str) -> None:
    await connection.execute(sql.keep_generations, {"pipeline": pipeline})
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
    if desired is not None:
        await connection.execute(sql.end_troubles, {"pipeline": pipeline})
    detail = f"{row['desired']}, replicas: {row['replicas']}, by {by}"
    await add_event(connection, pipeline, "state", detail)
    return await get(connection, pipeline)


async def stop_poisoned(connection: Connection, pipeline: str, sentence: str) -> None:
    """Stops it automatically: too many of its messages were dead letters."""
    cursor = await connection.execute(
        sql.stop_poisoned, {"pipeline": pipeline, "trouble": sentence}
    )
    if await cursor.fetchone() is not None:
        await add_event(connection, pipeline, "poisoned", sentence)


async def set_trouble(
    connection: Connection,
    pipeline: str,
    instance: str,
    trouble: str | None,
    retry_seconds: float = 0,
) -> None:
    """Stores what keeps a slot from delivering; None: nothing does."""
    named = {"pipeline": pipeline, "instance": instance}
    if trouble is None:
        cursor = await connection.execute(sql.end_trouble, named)
        if await cursor.fetchone() is not None:
            await add_event(connection, pipeline, "trouble", "over")
        return
    cursor = await connection.execute(
        sql.set_trouble, named | {"trouble": trouble, "retry_seconds": retry_seconds}
    )
    row = await cursor.fetchone()
    if row is not None and row["before"] != trouble:
        await add_event(connection, pipeline, "trouble", trouble)


async def forget_troubles(connection: Connection) -> None:
    """Of slots and workers that are gone."""
    await connection.execute(sql.forget_troubles)


async def add_event(connection: Connection, pipeline: str, event: str, detail: str) -> None:
    await connection.execute(
        sql.event, {"pipeline": pipeline, "event": event, "detail": detail[:2000]}
    )


async def events(connection: Connection, pipeline: str, limit: int = 100) -> list[Event]:
    cursor = await connection.execute(sql.events, {"pipeline": pipeline, "limit": limit})
    return [Event(**row) for row in await cursor.fetchall()]


async def put_audit(connection: Connection, pipeline: str, result: dict[str, Any]) -> None:
    await connection.execute(sql.put_audit, {"pipeline": pipeline, "result": Jsonb(result)})


async def last_audit(
    connection: Connection, pipeline: str
) -> tuple[datetime, dict[str, Any]] | None:
    cursor = await connection.execute(sql.last_audit, {"pipeline": pipeline})
    row = await cursor.fetchone()
    return (row["at"], row["result"]) if row else None


async def rates(connection: Connection, pipeline: str) -> list[Rate]:
    """Of the last half hour."""
    cursor = await connection.execute(sql.rates, {"pipeline": pipeline})
    return [Rate(**row) for row in await cursor.fetchall()]


async def recent_rates(connection: Connection) -> dict[str, float]:
    """Rows a second by pipeline; one that delivered nothing is missing."""
    cursor = await connection.execute(sql.recent_rates)
    return {row["pipeline"]: row["rows_per_second"] for row in await cursor.fetchall()}


async def forget_rates(connection: Connection) -> None:
    await connection.execute(sql.forget_rates)


async def pipeline_rows(connection: Connection) -> list[PipelineRow]:
    """All pipelines as stored rows, for callers that parse each separately."""
    cursor = await connection.execute(sql.pipelines, {"pipeline": None})
    return await cursor.fetchall()


def read_row(row: PipelineRow) -> PipelineRecord:
    fields = {name: value for name, value in row.items() if name not in _RULES}
    return PipelineRecord(
        **fields
        | {
            "kafka": KafkaConfig.model_validate(row["kafka"]),
            "clickhouse": ClickHouseConfig.model_validate(row["clickhouse"]),
            "options": Options.model_validate(row["options"]),
            "rules": _rules({name: row[name] for name in _RULES}),
        }
    )


def _rules(row: dict[str, Any]) -> RowRules:
    return RowRules(
        row["version"],
        tuple(Column.model_validate(each) for each in row["columns"]),
        tuple(row["filters"]),
        row["tombstones"],
    )
