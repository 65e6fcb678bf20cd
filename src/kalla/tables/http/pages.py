"""Pages of dynamic tables: all of them with their lag, and one with its history and query."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from fastapi import APIRouter, Request, Response

from kalla.database import Connection
from kalla.tables import store
from kalla.tables.http.drawing import chart_drawing, graph_drawing
from kalla.tables.http.explanation import shown_versions
from kalla.tables.http.routes import Name, shown_tables
from kalla.web.access import GuardedRoute
from kalla.web.app_state import AppState, State
from kalla.web.pages import live_page

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)

_REFRESHES = 50


@router.get("/tables")
async def tables(request: Request, state: State) -> Response:
    return await live_page(request, TablesView(state), "tables.html")


@router.get("/tables/{name}")
async def table(request: Request, state: State, name: Name) -> Response:
    return await live_page(request, TableView(name.lower(), state), "table.html")


@dataclass(frozen=True)
class TablesView:
    """Every dynamic table."""

    state: AppState = field(compare=False, repr=False)

    async def fragments(
        self, connection: Connection, now: datetime | None = None
    ) -> Mapping[str, str]:
        found = await shown_tables(connection, self.state)
        layout = self.state.layout
        return {
            "graph": layout.fragment("table_graph.html", now=now, drawing=graph_drawing(found)),
            "tables": layout.fragment("table_list.html", now=now, tables=found),
        }


@dataclass(frozen=True)
class TableView:
    """One dynamic table."""

    name: str
    state: AppState = field(compare=False, repr=False)

    async def fragments(
        self, connection: Connection, now: datetime | None = None
    ) -> Mapping[str, str]:
        known = await store.table(connection, self.name)
        found = await shown_tables(connection, self.state)
        table = next(each for each in found if each.name == known.name)
        refreshes = await store.history(connection, known.name, _REFRESHES)
        versions = await asyncio.to_thread(
            shown_versions, await store.versions(connection, known.name)
        )
        html = self.state.layout.fragment(
            "table_facts.html",
            now=now,
            table=table,
            refreshes=refreshes,
            chart=chart_drawing(refreshes, table.effective_lag_seconds),
            versions=versions,
        )
        return {"table": html}
