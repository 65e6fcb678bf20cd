"""REST of recipes (for operators), and of sources and destinations (for admins, because they define
where Kalla may connect to).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Self

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from kalla.database import Connection
from kalla.errors import InvalidInput
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.recipe_problems import RecipeProblem
from kalla.reconcile.registry import drafts, entries
from kalla.reconcile.registry.admission import SourceDocument
from kalla.reconcile.registry.drafts import Judgement
from kalla.reconcile.registry.entries import (
    Destination,
    RecipeSummary,
    RecipeVersion,
    RegisteredSource,
    SavedRecipe,
)
from kalla.reconcile.registry.timed_inspection import InspectedColumns, SourceInspector
from kalla.reconcile.sources.inspection import PREVIEW_ROWS, Inspection, Preview, Reach
from kalla.redaction import scrub, scrub_value
from kalla.web.access import GuardedRoute, harmless, needs
from kalla.web.app_state import AppState, State
from kalla.web.commands import Commanded

router = APIRouter(prefix="/api", route_class=GuardedRoute)

Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
Version = Annotated[int, Path(ge=1, le=2**31 - 1)]


class NewSource(BaseModel):
    """A source to register. Recipes then call it source://NAME."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=100, examples=["bank"])
    source: SourceDocument
    replace: bool = Field(False, description="replace the existing one of this name")


class ShownSource(BaseModel):
    name: str
    source: dict[str, Any] = Field(description="a description")
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str

    @classmethod
    def of(cls, record: RegisteredSource) -> Self:
        return cls(**vars(record) | {"source": scrub_value(record.source.fields())})


class NewDestination(BaseModel):
    """An address that callbacks may go to; those below it are included."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=100, examples=["ledger"])
    url: str = Field(max_length=2000, examples=["https://ledger.example/hooks"])
    secret: str = Field(
        max_length=200,
        description="the name of the secret that signs the calls",
        json_schema_extra={"pattern": "^[A-Za-z0-9_-]{1,200}$"},
    )
    replace: bool = Field(False, description="replace the existing one of this name")


class ShownRecipe(BaseModel):
    """A recipe's latest version, and what others there are."""

    recipe_id: str
    version: int
    name: str
    hash: str
    created_at: datetime
    created_by: str
    text: str
    versions: list[RecipeSummary]


class FoundProblem(BaseModel):
    path: str = Field(description="the path in the document; empty for all of it")
    value: Any = Field(description="the value at this path")
    message: str
    suggestion: str

    @classmethod
    def of(cls, problem: RecipeProblem) -> Self:
        return cls(**_sayable(problem.facts()))


class Verdict(BaseModel):
    """The problems of a recipe. `notes` do not make it invalid: they name sources that could not be
    read.
    """

    valid: bool
    problems: list[FoundProblem]
    notes: list[str]
    needs: list[str] = Field(description="parameters that a run must give a value")


@router.get("/sources", tags=["sources"])
async def list_sources(state: State) -> list[ShownSource]:
    """Every registered source, by name."""
    async with state.database.transaction() as connection:
        return [ShownSource.of(record) for record in await entries.sources(connection)]


@router.post("/sources", status_code=201, tags=["sources"])
@needs("admin")
async def register_source(command: Commanded, response: Response, new: NewSource) -> ShownSource:
    """Register a source: from now on recipes may read it. Passwords only as secret://name."""
    record = await entries.register_source(
        command.connection, new.name, new.source, command.caller.name, new.replace
    )
    response.headers["Location"] = f"/api/sources/{record.name}"
    return ShownSource.of(record)


@router.get("/sources/{name}", tags=["sources"])
async def show_source(state: State, name: Name) -> ShownSource:
    """A registered source."""
    async with state.database.transaction() as connection:
        return ShownSource.of(await entries.source(connection, name))


@router.get("/sources/{name}/columns", tags=["sources"])
async def source_columns(state: State, name: Name) -> Inspection:
    """A source's columns with their types, its size, and what its primary key may be."""
    return await SourceInspector.of(state.settings).inspect((await _source(state, name)).source)


@router.get("/sources/{name}/preview", tags=["sources"])
async def preview_source(
    state: State, name: Name, rows: Annotated[int, Query(ge=1, le=500)] = PREVIEW_ROWS
) -> Preview:
    """A source's first rows, unchanged."""
    return await SourceInspector.of(state.settings).preview(
        (await _source(state, name)).source, rows
    )


@router.post("/sources/{name}/test", tags=["sources"])
@harmless
async def reach_source(state: State, name: Name) -> Reach:
    """Whether a source can be read from here, and if not, why."""
    found = await SourceInspector.of(state.settings).reach((await _source(state, name)).source)
    return Reach(found.reachable, scrub(found.message))


@router.post("/sources/{name}/remove", tags=["sources"])
@needs("admin")
async def remove_source(command: Commanded, name: Name) -> ShownSource:
    """Recipes can no longer use it; running runs continue."""
    return ShownSource.of(await entries.remove_source(command.connection, name))


@router.get("/recipes", tags=["recipes"])
async def list_recipes(
    state: State,
    after: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_.-]{1,100}$")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> list[RecipeSummary]:
    """The latest version of every recipe, by id; pass the last id as `after` for the next page."""
    async with state.database.transaction() as connection:
        return await entries.recipes(connection, after, limit)


@router.post("/recipes", status_code=201, tags=["recipes"])
async def save_recipe(
    state: State, command: Commanded, request: Request, response: Response
) -> SavedRecipe:
    """Save a recipe: the body is its YAML or JSON text, or JSON `{"recipe": …}`.

    Every version is kept. A recipe with the same text as the latest makes no new version: status
    200. `notes` name sources that could not be read.
    """
    sent = await asyncio.to_thread(drafts.sent, await request.body())
    connection = command.connection
    seen = await _inspected(state, connection, sent.text)
    saved = await entries.save_recipe(connection, sent.text, command.caller.name, seen)
    saved = replace(saved, notes=tuple(seen.notes))
    response.headers["Location"] = f"/api/recipes/{saved.recipe_id}/versions/{saved.version}"
    if saved.repeated:
        response.status_code = 200
    return saved


@router.post("/recipes/validate", tags=["recipes"])
@needs("viewer")
@harmless
async def validate_recipe(state: State, request: Request) -> Verdict:
    """Return every problem of a recipe at once. The body is as for saving; with `parameters` in the
    JSON form, they are filled in.
    """
    async with state.database.transaction() as connection:
        known = await entries.known_sources(connection)
    try:
        sent = await asyncio.to_thread(drafts.sent, await request.body())
    except InvalidInput as error:
        return _verdict(Judgement(None, drafts.problems_of(error)), [])
    judge = partial(drafts.judge_with_sources, sent.text, known, sent.given)
    seen = await SourceInspector.of(state.settings).columns_for(judge, known)
    judgement = await asyncio.to_thread(judge, seen)
    return await asyncio.to_thread(_verdict, judgement, seen.notes)


@router.get("/recipes/schema", tags=["recipes"])
async def recipe_schema() -> dict[str, Any]:
    """The JSON Schema of recipes, for editors and other programs."""
    return parsing.json_schema()


@router.get("/recipes/{recipe_id}", tags=["recipes"])
async def show_recipe(state: State, recipe_id: Name) -> ShownRecipe:
    """A recipe's latest version, and the list of all."""
    async with state.database.transaction() as connection:
        latest = await entries.recipe_version(connection, recipe_id)
        versions = await entries.recipe_versions(connection, recipe_id)
    return ShownRecipe(**vars(latest), versions=versions)


@router.get("/recipes/{recipe_id}/versions/{version}", tags=["recipes"])
async def show_version(state: State, recipe_id: Name, version: Version) -> RecipeVersion:
    """One version of a recipe, with its text as it was saved."""
    async with state.database.transaction() as connection:
        return await entries.recipe_version(connection, recipe_id, version)


@router.get("/destinations", tags=["destinations"])
async def list_destinations(state: State) -> list[Destination]:
    """Every address that callbacks may go to, by name."""
    async with state.database.transaction() as connection:
        return await entries.all_destinations(connection)


@router.post("/destinations", status_code=201, tags=["destinations"])
@needs("admin")
async def add_destination(command: Commanded, new: NewDestination) -> Destination:
    """Let callbacks go to an address and to those below it, signed with a secret."""
    return await entries.add_destination(
        command.connection, new.name, new.url, new.secret, command.caller.name, new.replace
    )


@router.post("/destinations/{name}/remove", tags=["destinations"])
@needs("admin")
async def remove_destination(command: Commanded, name: Name) -> Destination:
    """Runs can no longer use it for callbacks."""
    return await entries.remove_destination(command.connection, name)


async def _source(state: AppState, name: str) -> RegisteredSource:
    async with state.database.transaction() as connection:
        return await entries.source(connection, name)


async def _inspected(state: AppState, connection: Connection, text: str) -> InspectedColumns:
    """The columns that a recipe is checked against when it is saved."""
    known = await entries.known_sources(connection)

    def judge(look: parsing.ColumnLookup) -> Judgement:
        return drafts.judge_with_sources(text, known, columns=look)

    return await SourceInspector.of(state.settings).columns_for_command(connection, judge, known)


def _verdict(judgement: Judgement, notes: list[str]) -> Verdict:
    return Verdict(
        valid=not judgement.problems,
        problems=[FoundProblem.of(problem) for problem in judgement.problems],
        notes=notes,
        needs=list(judgement.needs),
    )


def _sayable(value: Any) -> Any:
    """Replaces half surrogate pairs, which an answer cannot contain."""
    if isinstance(value, dict):
        return {_sayable(key): _sayable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_sayable(item) for item in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
