"""REST of pipelines: apply, show, start, stop, scale, lag and audit."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from kalla.secrets import Vault
from kalla.sinks import audit as audits
from kalla.sinks import checks, dead_letters, lag, model, seeking, store
from kalla.sinks.connections import kafka_settings, target
from kalla.sinks.member import topic_id
from kalla.sinks.store import LedgerRow, PipelineRecord
from kalla.web.access import GuardedRoute, harmless, needs
from kalla.web.app_state import AppState, State
from kalla.web.commands import Commanded
from kalla.work import leases

router = APIRouter(prefix="/api/pipelines", route_class=GuardedRoute, tags=["pipelines"])

Name = Annotated[str, Path(pattern=model.NAME)]


class ShownPipeline(BaseModel):
    pipeline: str
    state: str = Field(description="in words: delivering, stopped, or what keeps it from that")
    desired: Literal["started", "stopped"]
    replicas: int
    trouble: str | None
    guarantee: str
    mapping_version: int
    rows: int
    dead_letters: int
    kafka: dict[str, Any]
    clickhouse: dict[str, Any]
    mapping: list[dict[str, Any]]
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str

    @classmethod
    def of(cls, record: PipelineRecord, ledger: list[LedgerRow]) -> Self:
        return cls(
            pipeline=record.pipeline,
            state=_state(record, ledger),
            desired=record.desired,
            replicas=record.replicas,
            trouble=record.trouble,
            guarantee="exactly once",
            mapping_version=record.mapping_version,
            rows=sum(each.rows for each in ledger),
            dead_letters=sum(each.dead for each in ledger),
            kafka=record.kafka.model_dump(exclude_unset=True),
            clickhouse=record.clickhouse.model_dump(exclude_unset=True),
            mapping=[each.model_dump(exclude_unset=True) for each in record.mapping],
            created_at=record.created_at,
            created_by=record.created_by,
            changed_at=record.changed_at,
            changed_by=record.changed_by,
        )


class NewState(BaseModel):
    model_config = ConfigDict(extra="forbid")

    desired: Literal["started", "stopped"] | None = None
    replicas: int | None = Field(None, ge=0, le=1000)


class Assignment(BaseModel):
    slot: int
    worker: str
    epoch: int
    until: datetime
    live: bool


def _state(record: PipelineRecord, ledger: list[LedgerRow]) -> str:
    if record.desired == "stopped":
        return "stopped"
    if stopped := sorted({each.stopped for each in ledger if each.stopped}):
        return ", ".join(stopped)
    if record.trouble:
        return "waiting"
    return "delivering" if record.replicas else "started without replicas"


@router.get("")
async def list_pipelines(state: State) -> list[ShownPipeline]:
    """Every pipeline, by name."""
    async with state.database.transaction() as connection:
        return [
            ShownPipeline.of(record, await store.ledger(connection, record.pipeline))
            for record in await store.all_pipelines(connection)
        ]


@router.post("", status_code=201)
@needs("admin")
async def apply_pipeline(
    state: State, command: Commanded, response: Response, document: dict[str, Any]
) -> ShownPipeline:
    """Create a pipeline or change it. Its tables are checked; passwords only as secret://name."""
    pipeline = model.validate(document)
    resolve = Vault(state.settings).resolve
    await asyncio.to_thread(
        lambda: checks.check_tables(pipeline, target(pipeline.clickhouse, resolve))
    )
    record = await store.apply(command.connection, pipeline, command.caller.name)
    response.headers["Location"] = f"/api/pipelines/{record.pipeline}"
    return ShownPipeline.of(record, await store.ledger(command.connection, record.pipeline))


@router.get("/{name}")
async def show_pipeline(state: State, name: Name) -> ShownPipeline:
    """A pipeline with its configuration and what becomes of it."""
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
        return ShownPipeline.of(record, await store.ledger(connection, name))


@router.delete("/{name}", status_code=204)
@needs("admin")
async def remove_pipeline(command: Commanded, name: Name) -> None:
    """Forget a pipeline and how far it came; its tables in ClickHouse stay."""
    await store.remove(command.connection, name)


@router.get("/{name}/state")
async def show_state(state: State, name: Name) -> NewState:
    """What is wanted of a pipeline."""
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
    return NewState(desired=record.desired, replicas=record.replicas)


@router.patch("/{name}/state")
async def change_state(command: Commanded, name: Name, new: NewState) -> NewState:
    """Start, stop or scale; workers follow within sinks.reconcile_seconds."""
    record = await store.set_state(
        command.connection, name, command.caller.name, new.desired, new.replicas
    )
    return NewState(desired=record.desired, replicas=record.replicas)


@router.post("/{name}/start")
async def start_pipeline(command: Commanded, name: Name) -> NewState:
    """Begin to deliver."""
    return await change_state(command, name, NewState(desired="started"))


@router.post("/{name}/stop")
async def stop_pipeline(command: Commanded, name: Name) -> NewState:
    """Stop to deliver; what is on its way is finished first."""
    return await change_state(command, name, NewState(desired="stopped"))


@router.get("/{name}/assignments")
async def show_assignments(state: State, name: Name) -> list[Assignment]:
    """Who holds which slot, and until when."""
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
        held = await leases.holders(connection, record.resource)
    return [
        Assignment(
            slot=each.slot, worker=each.holder, epoch=each.epoch, until=each.until, live=each.live
        )
        for each in held
    ]


@router.get("/{name}/metrics")
async def show_metrics(state: State, name: Name) -> list[lag.PartitionLag]:
    """How far each partition has come, and what waits."""
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
        ledger = await store.ledger(connection, name)
    resolve = Vault(state.settings).resolve
    return await asyncio.to_thread(lag.measure, record, ledger, resolve)


@router.get("/{name}/events")
async def show_events(state: State, name: Name) -> list[dict[str, Any]]:
    """What happened to the pipeline, the newest first."""
    async with state.database.transaction() as connection:
        await store.get(connection, name)
        return [vars(each) for each in await store.events(connection, name)]


@router.post("/{name}/seek")
async def seek_pipeline(
    state: State, command: Commanded, name: Name, wanted: seeking.Wanted
) -> list[seeking.Move]:
    """Deliver again from an offset, as a new generation; with `dry_run` only say what that is."""
    record = await store.get(command.connection, name)
    ledger = await store.ledger(command.connection, name)
    ends = await _ends(state, record)
    moves = seeking.moves(record, ledger, ends, wanted)
    if not wanted.dry_run:
        settings = await asyncio.to_thread(
            kafka_settings, record.kafka, Vault(state.settings).resolve
        )
        identity = await asyncio.to_thread(topic_id, settings, record.kafka.topic)
        rows = {each.partition: each for each in ledger if each.topic == record.kafka.topic}
        for move in moves:
            row = rows[move.partition]
            await store.seek(
                command.connection, name, row, move.to_offset, identity, command.caller.name
            )
    return moves


@router.post("/{name}/skip-gap")
async def skip_gap(state: State, command: Commanded, name: Name) -> list[seeking.Move]:
    """Go on behind every gap; the offsets that are lost are named in the timeline."""
    record = await store.get(command.connection, name)
    ledger = await store.ledger(command.connection, name)
    ends = await _ends(state, record)
    moves = []
    for row in ledger:
        if row.stopped == "gap" and row.partition in ends:
            low = max(ends[row.partition][0], row.next_offset)
            await store.skip_gap(command.connection, name, row, low, command.caller.name)
            moves.append(
                seeking.Move(
                    partition=row.partition, from_offset=row.next_offset, to_offset=low, rereads=0
                )
            )
    return moves


async def _ends(state: AppState, record: PipelineRecord) -> dict[int, tuple[int, int]]:
    resolve = Vault(state.settings).resolve
    return await asyncio.to_thread(
        lambda: lag.log_ends(kafka_settings(record.kafka, resolve), record.kafka.topic)
    )


@router.get("/{name}/dead-letters")
async def show_dead_letters(
    state: State,
    name: Name,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    reason: str | None = None,
    field: str | None = None,
) -> dead_letters.DeadLetters:
    """What could not become a row: how many by reason and field, and the newest of them."""
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
    resolve = Vault(state.settings).resolve
    return await asyncio.to_thread(dead_letters.read, record, resolve, limit, reason, field)


@router.post("/{name}/audit")
@harmless
async def audit_pipeline(state: State, name: Name) -> audits.Audit:
    """Compare what ClickHouse holds with what Kafka has, offset by offset."""
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
        ledger = await store.ledger(connection, name)
    resolve = Vault(state.settings).resolve
    return await asyncio.to_thread(audits.audit, record, ledger, resolve)
