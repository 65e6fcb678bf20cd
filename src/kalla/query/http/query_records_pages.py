"""The pages Queries and Query workers, live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from fastapi import APIRouter, Request, Response

from kalla.database import Connection
from kalla.query.dispatch.dispatcher import Dispatcher
from kalla.query.http.query_records_routes import QueryFacts, dispatcher_of_app, workers_of
from kalla.web.access import Asking, GuardedRoute
from kalla.web.app_state import AppState, State
from kalla.web.pages import live_page

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)


@router.get("/queries")
async def queries(request: Request, state: State, caller: Asking) -> Response:
    view = QueriesView(caller.may("operator"), dispatcher_of_app(request), state)
    return await live_page(request, view, "queries.html")


@router.get("/query-workers")
async def query_workers(request: Request, state: State) -> Response:
    view = QueryWorkersView(dispatcher_of_app(request), state)
    return await live_page(request, view, "query_workers.html")


@dataclass(frozen=True)
class QueriesView:
    """What this API process answers now, and what it answered last."""

    may_change: bool
    dispatcher: Dispatcher = field(compare=False, repr=False)
    state: AppState = field(compare=False, repr=False)

    async def fragments(
        self,
        connection: Connection,  # noqa: ARG002  (nothing of it is in Postgres)
        now: datetime | None = None,
    ) -> Mapping[str, str]:
        found = [QueryFacts.of(one) for one in self.dispatcher.records.all()]
        context = {"now": now, "view": self, "queries": found}
        return {"query_list": self.state.layout.fragment("query_list.html", **context)}


@dataclass(frozen=True)
class QueryWorkersView:
    dispatcher: Dispatcher = field(compare=False, repr=False)
    state: AppState = field(compare=False, repr=False)

    async def fragments(
        self,
        connection: Connection,  # noqa: ARG002  (nothing of it is in Postgres)
        now: datetime | None = None,
    ) -> Mapping[str, str]:
        context = {"now": now, "workers": workers_of(self.dispatcher)}
        name = "query_worker_list"
        return {name: self.state.layout.fragment(f"{name}.html", **context)}
