"""Pages of sources and recipes, the start page from two files to a run, and settings for admins."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from kalla.reconcile.recipe.model import COMPRESSIONS, ENDINGS, Side
from kalla.reconcile.recipe.source_names import source_names
from kalla.reconcile.registry import drafts, entries
from kalla.reconcile.registry.admission import Known
from kalla.reconcile.registry.routes import Name, ShownSource
from kalla.reconcile.runs import store
from kalla.redaction import scrub
from kalla.settings import Settings
from kalla.text_diff import changed_lines
from kalla.web.access import Asking, GuardedRoute, needs
from kalla.web.app_state import AppState, State
from kalla.web.tokens import tokens

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)

OptionalVersion = Annotated[int | None, Query(ge=1, le=2**31 - 1)]
_RUNS = 20


@router.get("/start")
async def start(request: Request, state: State, caller: Asking) -> HTMLResponse:
    """Two files or sources, a proposal, a run."""
    async with state.database.transaction() as connection:
        sources = await entries.sources(connection)
    return _page(
        state,
        request,
        "start.html",
        sources=[each.name for each in sources],
        may_change=caller.may("operator"),
        endings=",".join((*ENDINGS, *COMPRESSIONS)),
        largest=state.settings.uploads.bytes,
    )


@router.get("/sources")
async def sources(request: Request, state: State, caller: Asking) -> HTMLResponse:
    async with state.database.transaction() as connection:
        found = [ShownSource.of(each) for each in await entries.sources(connection)]
    return _page(
        state,
        request,
        "sources.html",
        sources=found,
        place_of=partial(place_of, state.settings),
        may_change=caller.may("operator"),
        is_admin=caller.may("admin"),
    )


@router.get("/sources/{name}")
async def source(request: Request, state: State, caller: Asking, name: Name) -> HTMLResponse:
    async with state.database.transaction() as connection:
        found = ShownSource.of(await entries.source(connection, name))
    found.source["uri"] = place_of(state.settings, found.source["uri"])
    return _page(state, request, "source.html", source=found, may_change=caller.may("operator"))


@router.get("/recipes")
async def recipes(request: Request, state: State) -> HTMLResponse:
    async with state.database.transaction() as connection:
        found = await entries.recipes(connection, limit=500)
    return _page(state, request, "recipes.html", recipes=found)


@router.get("/recipes/{recipe_id}")
async def recipe(
    request: Request,
    state: State,
    caller: Asking,
    recipe_id: Name,
    version: OptionalVersion = None,
    against: OptionalVersion = None,
) -> HTMLResponse:
    """A version of a recipe to read and edit, its other versions, a difference, and its runs."""
    async with state.database.transaction() as connection:
        shown = await entries.recipe_version(connection, recipe_id, version)
        versions = await entries.recipe_versions(connection, recipe_id)
        other = await entries.recipe_version(connection, recipe_id, against) if against else None
        runs = await store.listing(connection, None, recipe_id, None, _RUNS)
        known = await entries.known_sources(connection)
        sources = [each.name for each in await entries.sources(connection)]
        destinations = await entries.all_destinations(connection)
    rates = [each.match_rate for each in reversed(runs.runs) if each.match_rate is not None]
    changes: list[tuple[str, str]] = []
    if other:
        compared = changed_lines(
            tuple(other.text.splitlines()),
            tuple(shown.text.splitlines()),
            (f"version {other.version}", f"version {shown.version}"),
        )
        changes = [(_KINDS.get(line[:1], ""), line) for line in compared]
    return _page(
        state,
        request,
        "recipe.html",
        recipe=shown,
        names=await asyncio.to_thread(_side_names, shown.text, known),
        versions=versions,
        against=other,
        changes=changes,
        runs=runs.runs,
        trend=_trend(rates),
        sources=sources,
        destinations=destinations,
        endings=",".join((*ENDINGS, *COMPRESSIONS)),
        largest=state.settings.uploads.bytes,
        may_change=caller.may("operator"),
    )


@router.get("/settings")
@needs("admin")
async def settings(request: Request, state: State) -> HTMLResponse:
    """Who may call the API, the names of stored secrets, and where callbacks may go."""
    async with state.database.transaction() as connection:
        listed = await tokens.listing(connection)
        destinations = await entries.all_destinations(connection)
        secrets = await entries.secret_names(connection)
    return _page(
        state, request, "settings.html", tokens=listed, destinations=destinations, secrets=secrets
    )


_KINDS = {"+": "added", "-": "removed", "@": "place"}


def place_of(settings: Settings, uri: str) -> str:
    """Where a source is, for people: of an upload the name of its file, not a folder of ours."""
    is_upload = uri.startswith(f"{settings.uploads_url}/")
    return uri.rpartition("/")[2] if is_upload else scrub(uri)


def _side_names(text: str, known: Known) -> Mapping[Side, str]:
    """The names of a recipe's sources; a recipe that cannot be read any more has sides alone."""
    recipe = drafts.judge_with_sources(text, known).recipe
    return source_names(recipe.sources) if recipe else {"left": "Left", "right": "Right"}


def _trend(rates: list[float]) -> list[tuple[float, float]]:
    """The match rate of each run with its place from left to right; one run makes no line."""
    if len(rates) < 2:
        return []
    return [(1000 * place / (len(rates) - 1), rate) for place, rate in enumerate(rates)]


def _page(state: AppState, request: Request, template: str, **context: Any) -> HTMLResponse:
    return HTMLResponse(state.layout.render(template, request, **context))
