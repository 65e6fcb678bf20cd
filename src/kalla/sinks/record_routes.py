"""REST of a pipeline's records: metrics, events, dead letters, replays, audit."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from kalla.errors import Conflict, NotFound
from kalla.secrets import Vault
from kalla.sinks import ledger as ledgers
from kalla.sinks import store
from kalla.sinks.api_models import Name, ReplayRequest, ShownReplay
from kalla.sinks.model import EXACTLY_ONCE
from kalla.sinks.records import audit as audits
from kalla.sinks.records import clickhouse_tables, dead_letters, replays
from kalla.sinks.records.replays import Replay
from kalla.sinks.servers import consumer_lag
from kalla.web.access import GuardedRoute, harmless
from kalla.web.app_state import State
from kalla.web.commands import Commanded

router = APIRouter(prefix="/api/pipelines/{name}", route_class=GuardedRoute, tags=["pipelines"])


@router.get("/metrics")
async def show_metrics(state: State, name: Name) -> list[consumer_lag.PartitionLag]:
    """The progress and the lag of each partition."""
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
        rows = await ledgers.ledger(connection, name)
    resolve = Vault(state.settings).resolve
    return await asyncio.to_thread(consumer_lag.measure, record, rows, resolve)


@router.get("/rates")
async def show_rates(state: State, name: Name) -> list[dict[str, Any]]:
    """The rows of each partition per ten seconds, over the last half hour."""
    async with state.database.transaction() as connection:
        await store.get(connection, name)
        return [asdict(each) for each in await store.rates(connection, name)]


@router.get("/events")
async def show_events(state: State, name: Name) -> list[dict[str, Any]]:
    """The events of the pipeline, the newest first."""
    async with state.database.transaction() as connection:
        await store.get(connection, name)
        return [asdict(each) for each in await store.events(connection, name)]


@router.get("/tables")
async def show_tables(state: State, name: Name) -> list[clickhouse_tables.Table]:
    """The tables as ClickHouse has them now, with their deduplication windows."""
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
    return await asyncio.to_thread(clickhouse_tables.tables, record, Vault(state.settings).resolve)


@router.get("/dead-letters")
async def show_dead_letters(
    state: State,
    name: Name,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    reason: str | None = None,
    field: str | None = None,
) -> dead_letters.DeadLetters:
    """Messages that could not become rows: counts by reason and field, and the newest of them."""
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
    resolve = Vault(state.settings).resolve
    return await asyncio.to_thread(dead_letters.read, record, resolve, limit, reason, field)


@router.get("/dead-letters/{partition}/{offset}")
async def show_dead_letter(
    state: State,
    name: Name,
    partition: Annotated[int, Path(ge=0, le=2**31 - 1)],
    offset: Annotated[int, Path(ge=0, le=2**63 - 1)],
) -> dead_letters.WholeLetter:
    """One letter with its whole message."""
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
    resolve = Vault(state.settings).resolve
    return await asyncio.to_thread(dead_letters.whole, record, resolve, partition, offset)


@router.post("/dead-letters/replay", status_code=202)
async def replay_dead_letters(
    state: State, command: Commanded, name: Name, wanted: ReplayRequest | None = None
) -> ShownReplay:
    """Try dead letters again with the newest mapping; the holder of slot 0 replays each once."""
    wanted = wanted or ReplayRequest()
    record = await store.get(command.connection, name)
    if record.guarantee != EXACTLY_ONCE:
        raise Conflict(
            "a replay needs provenance columns and SELECT: they show which rows it has inserted"
        )
    if not state.settings.sinks.leases:
        raise Conflict("a replay runs in slot 0, and without leases there are no slots")
    if record.desired != "started":
        raise Conflict(f"a replay needs a started pipeline: `kalla sinks start {name}` first")
    made = await replays.create(
        command.connection,
        name,
        record.rules.version,
        wanted.reason,
        wanted.field,
        command.caller.name,
    )
    return _shown(made)


@router.get("/replays")
async def show_replays(state: State, name: Name) -> list[ShownReplay]:
    """Replays, the newest first."""
    async with state.database.transaction() as connection:
        await store.get(connection, name)
        return [_shown(each) for each in await replays.all_replays(connection, name)]


def _shown(replay: Replay) -> ShownReplay:
    return ShownReplay(**{name: getattr(replay, name) for name in ShownReplay.model_fields})


@router.get("/audit")
async def last_audit(state: State, name: Name) -> audits.LastAudit:
    """The result of the last audit."""
    async with state.database.transaction() as connection:
        await store.get(connection, name)
        found = await store.last_audit(connection, name)
    if found is None:
        raise NotFound(f"{name} has no audit yet: `kalla sinks audit {name}`")
    return audits.LastAudit(at=found[0], **found[1])


@router.post("/audit")
@harmless
async def audit_pipeline(state: State, name: Name) -> audits.Audit:
    """Compare what ClickHouse holds with what Kafka has, offset by offset."""
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
        rows = await ledgers.ledger(connection, name)
        versions = await store.all_rules(connection, name)
    resolve = Vault(state.settings).resolve
    found = await asyncio.to_thread(audits.audit, record, rows, versions, resolve)
    async with state.database.transaction() as connection:
        await store.put_audit(connection, name, found.model_dump())
    return found
