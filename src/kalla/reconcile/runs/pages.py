"""The pages of runs: the list, and one run with its progress, report, evidence and comparison.

What is live comes from Postgres. Evidence never changes, so it is read when a page is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from pydantic import BeforeValidator, Field

from kalla.database import Connection
from kalla.errors import KallaError
from kalla.reconcile.evidence.reading.run_comparison import CHANGES, WORDS, Change, Difference
from kalla.reconcile.evidence.reading.run_report import percent
from kalla.reconcile.kernel import STATES
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.recipe.source_names import name_of, told_apart
from kalla.reconcile.runs import store
from kalla.reconcile.runs.evidence_routes import Part, RunId, difference
from kalla.reconcile.runs.evidence_table import (
    EvidenceRequest,
    bar_address,
    figures,
    load_evidence_table,
    load_exception,
)
from kalla.reconcile.runs.registry_pages import place_of
from kalla.reconcile.runs.store import RunDetail, RunSummary
from kalla.redaction import scrub
from kalla.web.access import Asking, GuardedRoute
from kalla.web.app_state import AppState, State
from kalla.web.pages import live_page
from kalla.web.storable import Text
from kalla.work.job import RunStatus

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)

STATUSES: tuple[RunStatus, ...] = ("running", "completed", "failed", "cancelled")
# A form without scripts sends empty texts for fields without a choice.
OptionalId = Annotated[
    Annotated[int, Field(ge=1, le=2**63 - 1)] | None,
    BeforeValidator(lambda given: given or None),
    Query(),
]
OptionalText = Annotated[str | None, Query(max_length=20_000)]

_ROWS = 50
_EXAMPLES = 10
_ALONE = ("is_null", "not_null")


@router.get("/runs")
async def runs(
    request: Request,
    state: State,
    status: Annotated[RunStatus | None, Query()] = None,
    recipe: Annotated[Text | None, Query(max_length=200)] = None,
    before: OptionalId = None,
) -> Response:
    return await live_page(request, RunsView(status, recipe or None, before, state), "runs.html")


@router.get("/runs/{run_id}")
async def run(
    request: Request,
    state: State,
    caller: Asking,
    run_id: RunId,
    part: Annotated[Part | None, Query()] = None,
    sort: Annotated[str | None, Query(max_length=500)] = None,
    filters: Annotated[list[str] | None, Query(alias="filter", max_length=40)] = None,
    column: OptionalText = None,
    op: OptionalText = None,
    value: OptionalText = None,
    after: OptionalText = None,
    before: OptionalText = None,
    against: OptionalId = None,
    exception: OptionalText = None,
) -> Response:
    view = RunView(run_id, caller.may("operator"), state)
    if "text/event-stream" in request.headers.get("accept", ""):
        return await live_page(request, view, "run.html")
    async with state.database.transaction() as connection:
        detail = await store.get(connection, run_id)
        others = await _others(connection, detail)
    added = [f"{column}:{op}" + (f":{value or ''}" if op not in _ALONE else "")] if column else []
    evidence_request = EvidenceRequest(
        part, sort, (*(filters or ()), *added), after, before, against, exception
    )
    parts: dict[str, Any] = dict.fromkeys(
        ("evidence_table", "figures", "open_exception", "comparison")
    )
    if detail.evidence_url:
        reads = {
            "evidence_table": load_evidence_table(state, detail, evidence_request),
            "figures": figures(state, detail),
            "comparison": Comparison.of(request, state, detail, against),
            **(
                {"open_exception": load_exception(state, detail, evidence_request)}
                if exception
                else {}
            ),
        }
        parts |= zip(reads, await asyncio.gather(*reads.values()), strict=True)
    return await live_page(
        request,
        view,
        "run.html",
        figures_address=partial(bar_address, run_id),
        others=others,
        names=side_names(detail),
        **parts,
    )


def side_names(detail: RunDetail) -> Mapping[Side, str]:
    """What the report calls the sides; before there is one, by the places of the sources."""
    if detail.report:
        return {side: detail.report.name_of(side) for side in SIDES}
    return told_apart({side: name_of(detail.sources.get(side, "")) for side in SIDES})


async def _others(connection: Connection, detail: RunDetail) -> dict[str, list[RunSummary]]:
    """Runs to compare with; those of the same recipe first, even if others are newer."""
    own = await store.listing(connection, "completed", detail.recipe_id, limit=_ROWS)
    every = await store.listing(connection, "completed", limit=_ROWS)
    found = {
        "Runs of this recipe": [each for each in own.runs if each.run_id != detail.run_id],
        "Of others": [each for each in every.runs if each.recipe_id != detail.recipe_id],
    }
    return {label: runs for label, runs in found.items() if runs}


@dataclass(frozen=True)
class RunsView:
    """Runs, newest first."""

    status: RunStatus | None
    recipe: str | None
    before: int | None
    state: AppState = field(compare=False, repr=False)

    async def fragments(
        self, connection: Connection, now: datetime | None = None
    ) -> Mapping[str, str]:
        page = await store.listing(connection, self.status, self.recipe, self.before, _ROWS)
        context = {
            "now": now,
            "view": self,
            "page": page,
            "statuses": STATUSES,
            "percent": percent,
        }
        return {
            name: self.state.layout.fragment(f"{template}.html", **context)
            for name, template in (("filters", "runs_filters"), ("runs", "runs_table"))
        }

    def address(self, **changes: object) -> str:
        """This page with another filter. A new filter begins at its first page."""
        values = {"status": self.status, "recipe": self.recipe} | changes
        given = {name: value for name, value in values.items() if value is not None}
        return f"/runs?{urlencode(given)}" if given else "/runs"


@dataclass(frozen=True)
class RunView:
    """One run: the parts that can still change."""

    run_id: int
    may_change: bool
    state: AppState = field(compare=False, repr=False)

    async def fragments(
        self, connection: Connection, now: datetime | None = None
    ) -> Mapping[str, str]:
        detail = await store.get(connection, self.run_id)
        context = {
            "now": now,
            "view": self,
            "run": detail,
            "sources": {
                side: place_of(self.state.settings, uri) for side, uri in detail.sources.items()
            },
            "names": side_names(detail),
            "sides": SIDES,
            "states": STATES,
            "percent": percent,
        }
        return {"run": self.state.layout.fragment("run_report.html", **context)}


@dataclass(frozen=True)
class Comparison:
    """The comparison of the run with another one; A is the one that started first."""

    a: int
    b: int
    other: int
    found: Difference | None
    error_message: str | None

    @classmethod
    async def of(
        cls, request: Request, state: AppState, detail: RunDetail, against: int | None
    ) -> Comparison | None:
        if against is None:
            return None
        try:
            async with state.database.transaction() as connection:
                runs = [detail, await store.get(connection, against)]
            # Not by their numbers: evidence of May may be imported before that of April.
            runs = sorted(runs, key=lambda each: (each.created_at, each.run_id))
            a, b = (each.run_id for each in runs)
            found = await difference(request, state, a, b, _EXAMPLES)
        except KallaError as error:
            return cls(detail.run_id, against, against, None, scrub(str(error)))
        return cls(a, b, against, found, None)

    @property
    def changes(self) -> tuple[Change, ...]:
        return CHANGES

    @property
    def sides(self) -> tuple[str, ...]:
        return SIDES

    def words(self, change: Change) -> str:
        return WORDS[change].replace(" A", f" run {self.a}").replace(" B", f" run {self.b}")
