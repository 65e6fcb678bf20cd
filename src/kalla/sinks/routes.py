"""REST of pipelines: apply, show, change their parts, start, stop, scale, seek."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Response

from kalla.errors import Conflict
from kalla.secrets import Vault
from kalla.sinks import ledger as ledgers
from kalla.sinks import model, store
from kalla.sinks.api_models import (
    Assignment,
    Name,
    NewFilters,
    NewMapping,
    PipelineState,
    ShownFilters,
    ShownMapping,
    ShownPipeline,
    StateChange,
)
from kalla.sinks.kernel import OWN_LETTERS, present_offsets
from kalla.sinks.ledger import LedgerRow
from kalla.sinks.model import ClickHouseConfig, KafkaConfig, Pipeline
from kalla.sinks.overview import show, show_all
from kalla.sinks.records import seeking
from kalla.sinks.servers import checks, consumer_lag
from kalla.sinks.servers.clickhouse_client import ClickHouse
from kalla.sinks.servers.kafka_client import open_admin
from kalla.sinks.servers.message_ranges import OffsetRange
from kalla.sinks.servers.server_connections import kafka_settings, target
from kalla.sinks.slots.member import topic_facts
from kalla.sinks.store import PipelineRecord
from kalla.web.access import GuardedRoute, needs
from kalla.web.app_state import AppState, State
from kalla.web.commands import Command, Commanded
from kalla.work.state import leases
from kalla.work.state.leases import Holding

router = APIRouter(prefix="/api/pipelines", route_class=GuardedRoute, tags=["pipelines"])


@router.get("")
async def list_pipelines(state: State) -> list[ShownPipeline]:
    """Every pipeline, by name."""
    async with state.database.transaction() as connection:
        return await show_all(connection, state.settings.sinks.leases)


@router.post("", status_code=201)
@needs("admin")
async def apply_pipeline(
    state: State, command: Commanded, response: Response, document: dict[str, Any]
) -> ShownPipeline:
    """Create a pipeline or change it. Its tables are checked; passwords only as secret://name."""
    record = await _apply(state, command, model.validate(document))
    response.headers["Location"] = f"/api/pipelines/{record.pipeline}"
    return await show(command.connection, record, state.settings.sinks.leases)


async def _apply(state: AppState, command: Command, pipeline: Pipeline) -> PipelineRecord:
    resolve = Vault(state.settings).resolve
    guarantee = await asyncio.to_thread(
        lambda: checks.check_tables(pipeline, target(pipeline.clickhouse, resolve))
    )
    return await store.apply(command.connection, pipeline, command.caller.name, guarantee)


async def _change(state: AppState, command: Command, name: str, **parts: object) -> PipelineRecord:
    """Apply the pipeline with these parts instead of its own."""
    record = await store.get(command.connection, name)
    document = record.document().model_dump(exclude_unset=True, mode="json")
    return await _apply(state, command, model.validate(document | parts))


@router.get("/{name}")
async def show_pipeline(state: State, name: Name) -> ShownPipeline:
    """A pipeline with its configuration and state."""
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
        return await show(connection, record, state.settings.sinks.leases)


@router.delete("/{name}", status_code=204)
@needs("admin")
async def remove_pipeline(command: Commanded, name: Name) -> None:
    """Remove a pipeline and its progress; its tables in ClickHouse stay."""
    await store.remove(command.connection, name)


@router.get("/{name}/kafka")
async def show_kafka(state: State, name: Name) -> KafkaConfig:
    """The topic and its connection; passwords are shown as secret names."""
    async with state.database.transaction() as connection:
        return (await store.get(connection, name)).kafka


@router.put("/{name}/kafka")
@needs("admin")
async def change_kafka(
    state: State, command: Commanded, name: Name, new: KafkaConfig
) -> KafkaConfig:
    """Another topic, other brokers, other settings."""
    kafka = new.model_dump(exclude_unset=True)
    return (await _change(state, command, name, kafka=kafka)).kafka


@router.get("/{name}/clickhouse")
async def show_clickhouse(state: State, name: Name) -> ClickHouseConfig:
    """The table and its connection; the password is shown as a secret name."""
    async with state.database.transaction() as connection:
        return (await store.get(connection, name)).clickhouse


@router.put("/{name}/clickhouse")
@needs("admin")
async def change_clickhouse(
    state: State, command: Commanded, name: Name, new: ClickHouseConfig
) -> ClickHouseConfig:
    """Another table or server; it is checked first."""
    config = new.model_dump(exclude_unset=True)
    return (await _change(state, command, name, clickhouse=config)).clickhouse


@router.get("/{name}/mapping")
async def show_mapping(state: State, name: Name) -> ShownMapping:
    """The columns, and the tables they need."""
    async with state.database.transaction() as connection:
        return _mapping(await store.get(connection, name))


@router.put("/{name}/mapping")
async def change_mapping(
    state: State, command: Commanded, name: Name, new: NewMapping
) -> ShownMapping:
    """Other columns, as a new version; the table is checked first."""
    parts: dict[str, object] = {
        "mapping": [each.model_dump(exclude_unset=True) for each in new.mapping]
    }
    if new.tombstones is not None:
        parts["tombstones"] = new.tombstones
    return _mapping(await _change(state, command, name, **parts))


def _mapping(record: PipelineRecord) -> ShownMapping:
    return ShownMapping(
        version=record.rules.version,
        mapping=[each.model_dump(exclude_unset=True) for each in record.rules.mapping],
        tombstones=record.rules.tombstones,
        create_tables=list(checks.definitions(record.document()).values()),
    )


@router.get("/{name}/filters")
async def show_filters(state: State, name: Name) -> ShownFilters:
    """The predicates that a row has to pass."""
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
    return ShownFilters(version=record.rules.version, filters=list(record.rules.filters))


@router.put("/{name}/filters")
async def change_filters(
    state: State, command: Commanded, name: Name, new: NewFilters
) -> ShownFilters:
    """Other predicates, as a new version of the rules."""
    record = await _change(state, command, name, filters=new.filters)
    return ShownFilters(version=record.rules.version, filters=list(record.rules.filters))


@router.get("/{name}/state")
async def show_state(state: State, name: Name) -> PipelineState:
    """The desired state of a pipeline."""
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
    return PipelineState(desired=record.desired, replicas=record.replicas)


@router.patch("/{name}/state")
async def change_state(
    state: State, command: Commanded, name: Name, new: StateChange
) -> PipelineState:
    """Start, stop or scale; workers follow within sinks.reconcile_seconds."""
    if new.replicas is not None and not state.settings.sinks.leases:
        raise Conflict("without leases every worker runs the pipeline: start or stop workers")
    record = await store.set_state(
        command.connection, name, command.caller.name, new.desired, new.replicas
    )
    return PipelineState(desired=record.desired, replicas=record.replicas)


@router.put("/{name}/state")
async def put_state(
    state: State, command: Commanded, name: Name, new: PipelineState
) -> PipelineState:
    """The same with both parts given."""
    change = StateChange(desired=new.desired, replicas=new.replicas)
    return await change_state(state, command, name, change)


@router.post("/{name}/start")
async def start_pipeline(state: State, command: Commanded, name: Name) -> PipelineState:
    """Begin to deliver."""
    return await change_state(state, command, name, StateChange(desired="started"))


@router.post("/{name}/stop")
async def stop_pipeline(state: State, command: Commanded, name: Name) -> PipelineState:
    """Stop delivering; ranges in flight are finished first."""
    return await change_state(state, command, name, StateChange(desired="stopped"))


@router.get("/{name}/assignments")
async def show_assignments(state: State, name: Name) -> list[Assignment]:
    """The holders of slots, with the end of their leases and their partitions."""
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
        held = await leases.holders(connection, record.resource)
        return assignments(held, await ledgers.ledger(connection, name))


def assignments(held: list[Holding], rows: list[LedgerRow]) -> list[Assignment]:
    found = [
        Assignment(
            slot=each.slot,
            worker=each.holder,
            epoch=each.epoch,
            until=each.until,
            live=each.live,
            partitions=[
                row.partition for row in rows if (row.slot, row.worker) == (each.slot, each.holder)
            ],
        )
        for each in held
    ]
    unleased: dict[str, list[int]] = {}
    for row in rows:
        if row.slot is None and row.worker is not None:
            unleased.setdefault(row.worker, []).append(row.partition)
    found += [
        Assignment(slot=None, worker=worker, epoch=0, until=None, live=True, partitions=partitions)
        for worker, partitions in sorted(unleased.items())
    ]
    return found


@router.post("/{name}/seek")
async def seek_pipeline(
    state: State, command: Commanded, name: Name, wanted: seeking.Wanted
) -> list[seeking.Move]:
    """Deliver again from an offset, as a new generation; with `dry_run` only show the effect."""
    record = await store.get(command.connection, name)
    rows = await ledgers.ledger(command.connection, name)
    moves = seeking.moves(record, rows, await _ends(state, record), wanted)
    if not wanted.dry_run:
        settings = await asyncio.to_thread(
            kafka_settings, record.kafka, Vault(state.settings).resolve
        )
        topic = await asyncio.to_thread(
            lambda: topic_facts(open_admin(settings), record.kafka.topic)
        )
        mine = {each.partition: each for each in rows if each.topic == record.kafka.topic}
        for move in moves:
            await ledgers.seek(
                command.connection,
                name,
                mine[move.partition],
                move.to_offset,
                topic.topic_id,
                command.caller.name,
            )
    return moves


@router.post("/{name}/skip-gap")
async def skip_gap(state: State, command: Commanded, name: Name) -> list[seeking.Move]:
    """Continue after every gap; the timeline shows the lost offsets."""
    record = await store.get(command.connection, name)
    rows = await ledgers.ledger(command.connection, name)
    ends = await _ends(state, record)
    moves = []
    for row in rows:
        mine = row.topic == record.kafka.topic and row.partition in ends
        if row.stopped == "gap" and mine:
            if ends[row.partition][1] < row.next_offset:
                raise Conflict(
                    f"the log of partition {row.partition} ends before its next offset: "
                    f"`kalla sinks seek {name}` sets where to continue"
                )
            low = max(ends[row.partition][0], row.next_offset)
            present = await asyncio.to_thread(_present, state, record, row, low)
            await ledgers.skip_gap(command.connection, name, row, low, command.caller.name, present)
            moves.append(
                seeking.Move(
                    partition=row.partition, from_offset=row.next_offset, to_offset=low, rereads=0
                )
            )
    return moves


def _present(state: AppState, record: PipelineRecord, row: LedgerRow, end: int) -> int:
    """How many of the skipped offsets an insert has written whose commit was lost."""
    if row.intent_id is None or record.guarantee != model.EXACTLY_ONCE:
        return 0
    config = record.clickhouse
    server = ClickHouse(target(config, Vault(state.settings).resolve))
    skipped = OffsetRange(row.topic, row.partition, row.next_offset, end)
    try:
        rows, letters = (
            present_offsets(server, table, prefix, skipped, row.generation, record.pipeline, own)
            for table, prefix, own in (
                (config.table, "_", ""),
                (config.dead_letters, "", OWN_LETTERS),
            )
        )
    finally:
        server.close()
    return len(rows | letters)


async def _ends(state: AppState, record: PipelineRecord) -> dict[int, tuple[int, int]]:
    resolve = Vault(state.settings).resolve
    return await asyncio.to_thread(
        lambda: consumer_lag.log_ends(kafka_settings(record.kafka, resolve), record.kafka.topic)
    )
