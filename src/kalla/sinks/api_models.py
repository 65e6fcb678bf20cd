"""The request and response models of the REST interface of pipelines."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from kalla.sinks import model
from kalla.sinks.ledger import LedgerRow
from kalla.sinks.model import Column, KafkaConfig, Tombstones
from kalla.sinks.rows.preview import Sample
from kalla.sinks.store import PipelineRecord

Name = Annotated[str, Path(pattern=model.NAME)]


class ShownPipeline(BaseModel):
    pipeline: str
    state: str = Field(
        description="the state as text: delivering, stopped, or why it does not deliver"
    )
    desired: Literal["started", "stopped"]
    replicas: int
    trouble: str | None
    retry_at: datetime | None = Field(description="when it is tried again")
    guarantee: str
    mapping_version: int
    rows: int
    dead_letters: int
    filtered: int
    waiting: int = Field(description="messages in Kafka that are not delivered yet")
    lag_seconds: float | None = Field(description="how far behind the slowest partition is")
    rows_per_second: float
    kafka: dict[str, Any]
    clickhouse: dict[str, Any]
    mapping: list[dict[str, Any]]
    filters: list[str]
    tombstones: Tombstones
    options: dict[str, Any]
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str

    @classmethod
    def of(
        cls, record: PipelineRecord, ledger: list[LedgerRow], rate: float, carried: bool
    ) -> Self:
        """`carried`: whether a worker holds one of its slots."""
        mine = [each for each in ledger if each.topic == record.kafka.topic]
        return cls(
            pipeline=record.pipeline,
            state=_state(record, mine, carried),
            desired=record.desired,
            replicas=record.replicas,
            trouble=record.trouble,
            retry_at=record.retry_at,
            guarantee=record.guarantee,
            mapping_version=record.rules.version,
            rows=sum(each.rows for each in ledger),
            dead_letters=sum(each.dead for each in ledger),
            filtered=sum(each.filtered for each in ledger),
            waiting=sum(each.waiting for each in mine),
            lag_seconds=max((each.lag_seconds or 0.0 for each in mine), default=None),
            rows_per_second=rate,
            kafka=record.kafka.model_dump(exclude_unset=True),
            clickhouse=record.clickhouse.model_dump(exclude_unset=True),
            mapping=[each.model_dump(exclude_unset=True) for each in record.rules.mapping],
            filters=list(record.rules.filters),
            tombstones=record.rules.tombstones,
            options=record.options.model_dump(),
            created_at=record.created_at,
            created_by=record.created_by,
            changed_at=record.changed_at,
            changed_by=record.changed_by,
        )


def _state(record: PipelineRecord, ledger: list[LedgerRow], carried: bool) -> str:
    if record.poisoned:
        return "poisoned"
    if record.desired == "stopped":
        return "stopped"
    if stopped := sorted({each.stopped for each in ledger if each.stopped}):
        return ", ".join(stopped)
    if record.trouble:
        return "waiting"
    if not record.replicas:
        return "started without replicas"
    return "delivering" if carried else "waiting for a worker"


class PipelineState(BaseModel):
    """The desired state of a pipeline."""

    model_config = ConfigDict(extra="forbid")

    desired: Literal["started", "stopped"]
    replicas: int = Field(ge=0, le=1000)


class StateChange(BaseModel):
    model_config = ConfigDict(extra="forbid")

    desired: Literal["started", "stopped"] | None = None
    replicas: int | None = Field(None, ge=0, le=1000)


class Assignment(BaseModel):
    slot: int | None = Field(description="none in no-lease mode")
    worker: str
    epoch: int
    until: datetime | None
    live: bool
    partitions: list[int]


class ShownMapping(BaseModel):
    version: int
    mapping: list[dict[str, Any]]
    tombstones: Tombstones
    create_tables: list[str] = Field(description="the CREATE TABLE of both tables")


class NewMapping(BaseModel):
    model_config = ConfigDict(extra="forbid")

    mapping: list[Column]
    tombstones: Tombstones | None = None


class ShownFilters(BaseModel):
    version: int
    filters: list[str]


class NewFilters(BaseModel):
    model_config = ConfigDict(extra="forbid")

    filters: list[str] = Field(max_length=50)


class Trial(BaseModel):
    """Rules to try on samples; missing parts are taken from the saved pipeline."""

    model_config = ConfigDict(extra="forbid")

    mapping: list[Column] | None = None
    filters: list[str] | None = Field(None, max_length=50)
    tombstones: Tombstones | None = None
    messages: list[Any] | None = Field(
        None, max_length=1000, description="JSON documents to try instead of samples of the topic"
    )
    samples: int = Field(500, ge=1, le=10_000)


class LetterTrial(Trial):
    """The same on one dead letter."""

    partition: int
    offset: int


class SampleRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kafka: KafkaConfig
    samples: int = Field(1000, ge=1, le=10_000)


class Samples(BaseModel):
    samples: list[Sample]


class ReplayRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: str = Field("", description="only letters with this reason")
    field: str = Field("", description="only letters with this field")


class ShownReplay(BaseModel):
    replay: int
    version: int
    reason: str
    field: str
    status: Literal["running", "completed"]
    rows: int
    refused: int
    created_at: datetime
    created_by: str
    ended_at: datetime | None
