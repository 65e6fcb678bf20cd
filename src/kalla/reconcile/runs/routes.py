"""REST of runs: submit, list, show, cancel, retry, and import evidence."""

from __future__ import annotations

import asyncio
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from kalla.database import Connection
from kalla.errors import Conflict, InvalidInput, NotFound, Problem
from kalla.reconcile.evidence.reading import run_report
from kalla.reconcile.registry import drafts, entries
from kalla.reconcile.registry.entries import RecipeVersion
from kalla.reconcile.registry.timed_inspection import patiently
from kalla.reconcile.runs import store, submission
from kalla.reconcile.runs.store import RunDetail, RunPage
from kalla.reconcile.runs.submission import RunRequest
from kalla.storage import Storage, is_s3
from kalla.web.access import GuardedRoute, needs
from kalla.web.app_state import State
from kalla.web.commands import Commanded
from kalla.web.storable import Document, Text
from kalla.work.job import RunStatus
from kalla.work.state import runs

router = APIRouter(prefix="/api", route_class=GuardedRoute, tags=["runs"])

RunId = Annotated[int, Path(ge=1, le=2**63 - 1)]


class RunSubmission(BaseModel):
    """A recipe, saved before or given here, and the values of its parameters."""

    model_config = ConfigDict(extra="forbid")

    recipe: Text | Document | None = Field(
        None, description="a recipe as YAML or JSON text, or as an object"
    )
    recipe_id: Text | None = Field(None, max_length=200, description="or one that is saved")
    version: int | None = Field(
        None, ge=1, description="version of the saved recipe; the latest by default"
    )
    parameters: dict[Text, Text | int | float] = Field({}, max_length=100)
    left: Text | None = Field(None, max_length=2000, description="another left source")
    right: Text | None = Field(None, max_length=2000, description="another right source")
    callback_url: Text | None = Field(
        None,
        max_length=2000,
        description="called when the run ends; below a registered destination",
    )
    callback_above: int | None = Field(
        None, ge=0, le=2**62,
        description="call only if the run has more exceptions than this, or does not complete",
    )  # fmt: skip
    priority: int = 0
    new_version: bool = Field(
        False, description="also if a schedule will run this text, as it runs the latest version"
    )


class Adoption(BaseModel):
    model_config = ConfigDict(extra="forbid")

    folder: Text = Field(
        max_length=2000,
        description="of the API's machine, or s3://",
        json_schema_extra={"pattern": "^(/|s3://)"},
    )


@router.post("/runs", status_code=201)
async def submit_run(
    state: State, command: Commanded, request: Request, response: Response, asked: RunSubmission
) -> RunDetail:
    """Validate the recipe and start a run of it, all in one transaction."""
    connection = command.connection
    sent = await asyncio.to_thread(drafts.submitted, await request.body())
    saved = await _saved(connection, asked)
    wanted = RunRequest(
        text=saved.text if saved else sent.text,
        saved=saved,
        parameters=sent.given,
        uris=_uris(asked),
        by=command.caller.name,
        callback=await submission.callback_to(connection, asked.callback_url, asked.callback_above),
        priority=asked.priority,
        new_version=asked.new_version,
    )
    run_id, woken = await submission.submit(connection, state.settings, state.job_types, wanted)
    command.woken += woken
    response.headers["Location"] = f"/api/runs/{run_id}"
    return await store.get(connection, run_id)


@router.get("/runs")
async def list_runs(
    state: State,
    status: Annotated[RunStatus | None, Query()] = None,
    recipe_id: Annotated[Text | None, Query(max_length=200)] = None,
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> RunPage:
    """Runs, newest first; pass `next_before` as `before` to get the next page."""
    async with state.database.transaction() as connection:
        return await store.listing(connection, status, recipe_id, before, limit)


@router.get("/runs/{run_id}")
async def show_run(state: State, run_id: RunId) -> RunDetail:
    """A run with its progress, and its report once it has one."""
    async with state.database.transaction() as connection:
        return await store.get(connection, run_id)


@router.post("/runs/{run_id}/cancel")
async def cancel_run(command: Commanded, run_id: RunId) -> RunDetail:
    """End a run and all its jobs."""
    detail = await store.get(command.connection, run_id)
    if detail.status != "running":
        raise Conflict(f"run {run_id} is {detail.status} already")
    await runs.cancel(command.connection, run_id, f"cancelled by {command.caller.name}")
    command.alarm = True
    return await store.get(command.connection, run_id)


@router.post("/runs/{run_id}/retry")
async def retry_run(state: State, command: Commanded, run_id: RunId) -> RunDetail:
    """Continue a failed or cancelled run: staged rows stay, the rest is tried again."""
    await store.get(command.connection, run_id)
    limit = state.settings.run.total_timeout_seconds
    try:
        command.woken += await runs.revive(command.connection, run_id, limit)
    except NotFound:  # this run is kept for longer than its jobs
        raise Conflict(
            f"run {run_id} has no jobs any more: they are removed "
            "retention.finished_seconds after its end; submit it again"
        ) from None
    return await store.get(command.connection, run_id)


@router.post("/runs/import", status_code=201)
@needs("admin")
async def import_run(
    state: State, command: Commanded, response: Response, asked: Adoption
) -> RunDetail:
    """Import evidence that `kalla reconcile` wrote, as a run; the same evidence gives one run."""
    folder, storage = _place(asked.folder), Storage.of(state.settings.storage)
    async with patiently(command.connection):
        made = await asyncio.to_thread(run_report.of_evidence, folder, storage)
        recipe = await asyncio.to_thread(run_report.recipe_of, folder, storage)
        # As runs of the same recipe on workers have it, so that they are found together.
        recipe_id = (await asyncio.to_thread(drafts.named, recipe)).recipe_id
    run_id = await store.adopted(command.connection, made)
    if run_id is None:
        by = command.caller.name
        run_id = await store.adopt(command.connection, made, recipe_id, recipe, by)
    else:
        response.status_code = 200
    response.headers["Location"] = f"/api/runs/{run_id}"
    return await store.get(command.connection, run_id)


def _place(folder: str) -> str:
    """The normalized path, by which its run is found again."""
    if is_s3(folder):
        return folder.rstrip("/") if is_s3(folder.rstrip("/")) else folder
    if not FilePath(folder).is_absolute():
        raise InvalidInput(Problem("folder", f"must be an absolute path, got {folder!r}"))
    return str(FilePath(folder))


async def _saved(connection: Connection, asked: RunSubmission) -> RecipeVersion | None:
    """The version that is asked for, unless the recipe itself is given."""
    if (asked.recipe is None) == (asked.recipe_id is None):
        raise InvalidInput(Problem("recipe", "give a recipe, or the recipe_id of a saved one"))
    if asked.recipe_id is not None:
        return await entries.recipe_version(connection, asked.recipe_id, asked.version)
    if asked.version is not None:
        raise InvalidInput(Problem("version", "is that of a saved recipe: give its recipe_id"))
    return None


def _uris(asked: RunSubmission) -> dict[str, str]:
    given = (("left", asked.left), ("right", asked.right))
    return {side: uri for side, uri in given if uri is not None}
