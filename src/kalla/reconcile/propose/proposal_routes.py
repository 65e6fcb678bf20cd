"""REST of profiles, proposals and trials, each in a thread, two at once, in time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from kalla.errors import InvalidInput, NotFound, Problem, Unavailable
from kalla.reconcile.propose import profile, proposal, row_samples
from kalla.reconcile.propose.trial_cache import TrialCache
from kalla.reconcile.recipe.model import SIDES, Filter, Recipe, Source
from kalla.reconcile.registry import admission, drafts, entries
from kalla.reconcile.registry.admission import Known
from kalla.reconcile.registry.upload_names import public_errors
from kalla.reconcile.sources.inspection import Preview
from kalla.secrets import Vault
from kalla.settings import Settings
from kalla.storage import Storage
from kalla.web.access import GuardedRoute, harmless, needs
from kalla.web.app_state import State
from kalla.web.storable import Text

router = APIRouter(prefix="/api", route_class=GuardedRoute)

Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
Result = TypeVar("Result")

# A pool of its own: a proposal uses both cores for a while, and other requests must still be
# answered.
_threads = ThreadPoolExecutor(2, thread_name_prefix="propose")
_MOST_WAITING = 6
_waiting = 0
_trials = TrialCache()


class AskedPair(BaseModel):
    """Two sources that should agree, as recipes name them."""

    model_config = ConfigDict(extra="forbid")

    left: Text = Field(max_length=200, examples=["source://ledger"])
    right: Text = Field(max_length=200, examples=["source://upload-0011223344556677"])


class AskedTrial(BaseModel):
    model_config = ConfigDict(extra="forbid")

    recipe: Text = Field(max_length=250_000, description="a recipe as YAML or JSON text")
    before: Text | None = Field(
        None,
        max_length=250_000,
        description="the recipe before an edit: the answer then contains what the edit changed",
    )


class Scope(BaseModel):
    """The filters that select rows of a source."""

    model_config = ConfigDict(extra="forbid")

    filters: tuple[Filter, ...] = Field((), max_length=40)
    limit: int = Field(100, ge=1, le=1000)


@router.get("/sources/{name}/profile", tags=["sources"])
async def profile_source(state: State, name: Name) -> dict[str, Any]:
    """Columns with types, empty and distinct values, examples and histograms, by up to 5 million
    rows."""
    async with state.database.transaction() as connection:
        source = (await entries.source(connection, name)).source
    means = _means(state.settings)
    with public_errors(state.settings):
        found = await _in_thread(lambda: profile.profile(source, **means))
    return dataclasses.asdict(found)


@router.post("/sources/{name}/load-scoped", tags=["sources"])
@needs("viewer")
@harmless
async def load_scoped(state: State, name: Name, scope: Scope) -> Preview:
    """The first rows of a source under filters, as a recipe would apply them."""
    async with state.database.transaction() as connection:
        source = (await entries.source(connection, name)).source
    means = _means(state.settings)
    with public_errors(state.settings):
        return await _in_thread(
            lambda: row_samples.scoped(source, scope.filters, scope.limit, **means)
        )


@router.post("/recipes/propose", tags=["recipes"])
@harmless
async def propose_recipe(state: State, asked: AskedPair) -> dict[str, Any]:
    """Propose a recipe for two sources, with evidence for each part and a trial match rate."""
    async with state.database.transaction() as connection:
        known = await entries.known_sources(connection)
        uploads = await entries.upload_names(connection)
        left, right = (_named(getattr(asked, side), side, known) for side in SIDES)
        names = tuple(_called(getattr(asked, side), uploads) for side in SIDES)
        if names[0] == names[1]:
            names = ("left", "right")
        title = await entries.free_name(connection, " and ".join(names))
    means = _means(state.settings)

    def propose() -> proposal.Proposal:
        return proposal.propose(
            left,
            right,
            names=(names[0], names[1]),
            title=title,
            uris=(asked.left, asked.right),
            **means,
        )

    with public_errors(state.settings):
        return proposal.as_facts(await _in_thread(propose))


@router.post("/recipes/try", tags=["recipes"])
@harmless
async def try_recipe(state: State, asked: AskedTrial) -> dict[str, Any]:
    """Match a sample of both sources by a recipe and return what each rule matches. Nothing is
    stored.
    """
    async with state.database.transaction() as connection:
        known = await entries.known_sources(connection)
    means = _means(state.settings)

    def admitted(text: str) -> Recipe:
        recipe = admission.admit(drafts.ready(text, known, {}, {}), known)
        if recipe.match_sql is not None:
            raise InvalidInput(Problem("match_sql", "runs on Spark alone: run the recipe instead"))
        return recipe

    def attempt() -> dict[str, Any]:
        before = None
        if asked.before is not None:
            # it was a recipe before; its source may have been removed
            with contextlib.suppress(InvalidInput):
                before = admitted(asked.before)
        return _trials.attempt(admitted(asked.recipe), before, **means)

    with public_errors(state.settings):
        return await _in_thread(attempt)


def _means(settings: Settings) -> dict[str, Any]:
    return {"storage": Storage.of(settings.storage), "resolve": Vault(settings).resolve}


def _named(uri: str, side: str, known: Known) -> Source:
    name = uri.removeprefix("source://")
    if name == uri or name not in known:
        raise NotFound(f"{side}: there is no source {uri!r}: write source:// and a name")
    return known[name]


def _called(uri: str, uploads: dict[str, str]) -> str:
    name = uri.removeprefix("source://")
    return uploads.get(name, name).partition(".")[0]


async def _in_thread(work: Callable[[], Result]) -> Result:
    global _waiting
    if _waiting >= _MOST_WAITING:
        raise Unavailable("too many sources are being read: try again in a moment")
    _waiting += 1
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, work)
    finally:
        _waiting -= 1
