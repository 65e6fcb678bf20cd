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
from kalla.sinks.api_models import Name
from kalla.sinks.charts import charts
from kalla.sinks.overview import show, show_all
from kalla.sinks.records import replays
from kalla.sinks.routes import assignments
from kalla.sinks.servers import checks
from kalla.web.access import Asking, GuardedRoute
from kalla.web.app_state import AppState, State
from kalla.web.live import clock
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
        pipeline = await show(connection, record, state.settings.sinks.leases)
    view = PipelineView(name, tab, caller.may("operator"), state)
    return await live_page(
        request,
        view,
        f"sink_{tab.replace('-', '_')}.html",
        pipeline=pipeline,
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
        leased = self.state.settings.sinks.leases
        pipelines = await show_all(connection, leased)
        return {
            "sinks_table": self.state.layout.fragment(
                "sinks_table.html", now=now, pipelines=pipelines, unleased=not leased
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
        leased = self.state.settings.sinks.leases
        context: dict[str, Any] = {
            "now": now,
            "view": self,
            "pipeline": await show(connection, record, leased),
            "ledger": rows,
            "unleased": not leased,
        }
        if self.tab == "run":
            held = await leases.holders(connection, record.resource)
            context["slots"] = assignments(held, rows)
            waiting = {
                each.partition: each.waiting for each in rows if each.topic == record.kafka.topic
            }
            moment = _ten_seconds(now or await clock(connection))
            context["charts"] = charts(await store.rates(connection, self.name), waiting, moment)
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


def _ten_seconds(now: datetime) -> datetime:
    """The begin of the ten seconds: a chart is sent again when it differs, not with every look."""
    return now.replace(second=now.second // 10 * 10, microsecond=0)
