"""The pages of pipelines: all of them, and one with its slots, partitions and timeline; live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from fastapi import APIRouter, Request, Response

from kalla.database import Connection
from kalla.sinks import checks, store
from kalla.sinks.model import Pipeline
from kalla.sinks.routes import Name, ShownPipeline
from kalla.sinks.store import PipelineRecord
from kalla.web.access import Asking, GuardedRoute
from kalla.web.app_state import AppState, State
from kalla.web.pages import live_page
from kalla.work import leases

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)

_EVENTS = 30


@router.get("/sinks")
async def all_pipelines(request: Request, state: State) -> Response:
    return await live_page(request, ListView(state), "sinks.html")


@router.get("/sinks/{name}")
async def one_pipeline(request: Request, state: State, caller: Asking, name: Name) -> Response:
    view = PipelineView(name, caller.may("operator"), state)
    return await live_page(request, view, "sink.html")


@dataclass(frozen=True)
class ListView:
    """Every pipeline."""

    state: AppState = field(compare=False, repr=False)

    async def fragments(
        self, connection: Connection, now: datetime | None = None
    ) -> Mapping[str, str]:
        pipelines = [
            ShownPipeline.of(record, await store.ledger(connection, record.pipeline))
            for record in await store.all_pipelines(connection)
        ]
        layout = self.state.layout
        return {"sinks_table": layout.fragment("sinks_table.html", now=now, pipelines=pipelines)}


@dataclass(frozen=True)
class PipelineView:
    """One pipeline."""

    name: str
    may_change: bool
    state: AppState = field(compare=False, repr=False)

    async def fragments(
        self, connection: Connection, now: datetime | None = None
    ) -> Mapping[str, str]:
        record = await store.get(connection, self.name)
        ledger = await store.ledger(connection, self.name)
        context = {
            "now": now,
            "view": self,
            "pipeline": ShownPipeline.of(record, ledger),
            "ledger": ledger,
            "slots": await leases.holders(connection, record.resource),
            "events": await store.events(connection, self.name, _EVENTS),
            "definitions": _definitions(record),
        }
        return {
            name: self.state.layout.fragment(f"{name}.html", **context)
            for name in ("sink_state", "sink_partitions", "sink_slots", "sink_events", "sink_table")
        }


def _definitions(record: PipelineRecord) -> list[str]:
    """The CREATE TABLE of both tables."""
    pipeline = Pipeline(
        name=record.pipeline,
        kafka=record.kafka,
        clickhouse=record.clickhouse,
        mapping=record.mapping,
    )
    return list(checks.definitions(pipeline).values())
