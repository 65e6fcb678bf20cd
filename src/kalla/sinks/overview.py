"""Pipelines as they are shown, over REST and on pages, with who carries them at the moment."""

from __future__ import annotations

from kalla.database import Connection
from kalla.sinks import ledger as ledgers
from kalla.sinks import store
from kalla.sinks.api_models import ShownPipeline
from kalla.sinks.store import PipelineRecord
from kalla.work.state import leases


async def show(connection: Connection, record: PipelineRecord, leased: bool) -> ShownPipeline:
    """`leased` is the setting `sinks.leases`: without leases nobody knows who is at work."""
    (shown,) = await _shown(connection, [record], leased)
    return shown


async def show_all(connection: Connection, leased: bool) -> list[ShownPipeline]:
    return await _shown(connection, await store.all_pipelines(connection), leased)


async def _shown(
    connection: Connection, records: list[PipelineRecord], leased: bool
) -> list[ShownPipeline]:
    rates = await store.recent_rates(connection)
    resource = records[0].resource if len(records) == 1 else None
    held = {each.resource for each in await leases.holders(connection, resource) if each.live}
    return [
        ShownPipeline.of(
            record,
            await ledgers.ledger(connection, record.pipeline),
            rates.get(record.pipeline, 0.0),
            carried=record.resource in held or not leased,
        )
        for record in records
    ]
