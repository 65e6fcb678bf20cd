"""The pages of pipelines: the list, and one pipeline with its tabs; figures stay live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from kalla.database import Connection
from kalla.sinks import ledger as ledgers
from kalla.sinks import store
from kalla.sinks.api_models import Name, ShownPipeline
from kalla.sinks.charts import charts
from kalla.sinks.records import replays
from kalla.sinks.routes import assignments
from kalla.sinks.servers import checks
from kalla.web.access import Asking, GuardedRoute
from kalla.web.app_state import AppState, State
from kalla.web.pages import live_page
from kalla.work.state import leases

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)

Tab = Literal[
    "run", "kafka", "clickhouse", "mapping", "filters", "dead-letters", "proof", "timeline"
]
TABS: dict[Tab, str] = {
    "run": "Run",
    "kafka": "Kafka",
    "clickhouse": "ClickHouse",
    "mapping": "Mapping",
    "filters": "Filters",
    "dead-letters": "Dead letters",
    "proof": "Proof",
    "timeline": "Timeline",
}
# The live part of each tab; the rest is in its page.
_FRAGMENTS: dict[Tab, tuple[str, ...]] = {
    "run": ("sink_charts", "sink_partitions", "sink_slots"),
    "dead-letters": ("sink_replays",),
    "proof": ("sink_audit", "sink_headroom"),
    "timeline": ("sink_events",),
}
_EVENTS = 200


@router.get("/sinks")
async def all_pipelines(request: Request, state: State) -> Response:
    return await live_page(request, ListView(state), "sinks.html")


@router.get("/sinks/{name}")
async def one_pipeline(request: Request, state: State, caller: Asking, name: Name) -> Response:
    return await _tab(request, state, caller, name, "run")


@router.get("/sinks/{name}/{tab}")
async def one_tab(request: Request, state: State, caller: Asking, name: Name, tab: Tab) -> Response:
    return await _tab(request, state, caller, name, tab)


async def _tab(request: Request, state: AppState, caller: Asking, name: str, tab: Tab) -> Response:
    async with state.database.transaction() as connection:
        record = await store.get(connection, name)
        rows = await ledgers.ledger(connection, name)
    view = PipelineView(name, tab, caller.may("operator"), state)
    return await live_page(
        request,
        view,
        f"sink_{tab.replace('-', '_')}.html",
        pipeline=ShownPipeline.of(record, rows),
        tabs=TABS,
        may_configure=caller.may("admin"),
        definitions=list(checks.definitions(record.document()).values()),
    )


@dataclass(frozen=True)
class ListView:
    """Every pipeline."""

    state: AppState = field(compare=False, repr=False)

    async def fragments(
        self, connection: Connection, now: datetime | None = None
    ) -> Mapping[str, str]:
        rates = await store.recent_rates(connection)
        pipelines = [
            ShownPipeline.of(
                record,
                await ledgers.ledger(connection, record.pipeline),
                rates.get(record.pipeline, 0.0),
            )
            for record in await store.all_pipelines(connection)
        ]
        layout = self.state.layout
        unleased = not self.state.settings.sinks.leases
        return {
            "sinks_table": layout.fragment(
                "sinks_table.html", now=now, pipelines=pipelines, unleased=unleased
            )
        }


@dataclass(frozen=True)
class PipelineView:
    """One tab of a pipeline."""

    name: str
    tab: Tab
    may_change: bool
    state: AppState = field(compare=False, repr=False)

    async def fragments(
        self, connection: Connection, now: datetime | None = None
    ) -> Mapping[str, str]:
        record = await store.get(connection, self.name)
        rows = await ledgers.ledger(connection, self.name)
        rates = await store.recent_rates(connection)
        context: dict[str, Any] = {
            "now": now,
            "view": self,
            "pipeline": ShownPipeline.of(record, rows, rates.get(self.name, 0.0)),
            "ledger": rows,
            "unleased": not self.state.settings.sinks.leases,
        }
        if self.tab == "run":
            held = await leases.holders(connection, record.resource)
            context["slots"] = assignments(held, rows)
            context["charts"] = charts(await store.rates(connection, self.name))
        elif self.tab == "timeline":
            context["events"] = await store.events(connection, self.name, _EVENTS)
        elif self.tab == "dead-letters":
            context["replays"] = await replays.all_replays(connection, self.name)
        elif self.tab == "proof":
            context["audit"] = await store.last_audit(connection, self.name)
            context["last_intent"] = await ledgers.intents_since(connection, 0)
        return {
            name: self.state.layout.fragment(f"{name}.html", **context)
            for name in ("sink_state", *_FRAGMENTS.get(self.tab, ()))
        }
