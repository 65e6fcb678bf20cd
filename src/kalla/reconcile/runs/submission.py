"""Submits runs: fills in the recipe, saves it and starts the run in the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from kalla.database import Connection
from kalla.errors import Conflict
from kalla.plurals import counted
from kalla.reconcile.evidence.reading import run_report
from kalla.reconcile.plan.plan import recipe_hash
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import SIDES
from kalla.reconcile.registry import drafts, entries
from kalla.reconcile.registry.entries import RecipeVersion
from kalla.reconcile.registry.timed_inspection import SourceInspector, in_patience
from kalla.reconcile.runs import store
from kalla.reconcile.runs.handlers import first_jobs
from kalla.reconcile.runs.store import Callback, NewReconciliation
from kalla.settings import Settings
from kalla.work.job_type import JobTypes
from kalla.work.state import runs
from kalla.work.state.job_insertion import Woken

KIND = "reconcile"


@dataclass(frozen=True)
class RunRequest:
    """A recipe by its text; `saved` is the version that it is, if it is in the library."""

    text: str
    saved: RecipeVersion | None
    parameters: Mapping[str, str]
    uris: Mapping[str, str]
    by: str
    callback: Callback | None = None
    priority: int = 0
    new_version: bool = False  # also where a schedule will run it


async def submit(
    connection: Connection, settings: Settings, job_types: JobTypes, request: RunRequest
) -> tuple[int, Woken]:
    """The number of the run, and whom to wake once the transaction has committed."""
    known = await entries.known_sources(connection)
    filling = (request.text, known, request.parameters, request.uris)
    look = SourceInspector.of(settings)
    seen = await look.columns_for_command(connection, partial(drafts.ready, *filling), known)
    async with in_patience(connection):
        recipe = await entries.prepare(*filling, seen)
    if request.saved is None and not request.new_version:
        await _demand_unscheduled(connection, request.text)
    # A run names the version it used, whatever was saved while its sources were looked at.
    kept = request.saved or await entries.save_recipe(
        connection, request.text, request.by, uris=request.uris
    )
    new = NewReconciliation(
        name=recipe.name,
        recipe_id=kept.recipe_id,
        recipe_version=kept.version,
        recipe_hash=recipe_hash(recipe),
        recipe=parsing.write(recipe.model_copy(update={"parameters": {}})),
        sources={
            side: run_report.place(recipe.sources[side].uri, recipe.sources[side].table)
            for side in SIDES
        },
        submitted_by=request.by,
        callback=request.callback,
    )
    jobs, gates = first_jobs(recipe, request.priority)
    limit = settings.run.total_timeout_seconds
    run_id, woken = await runs.create(connection, job_types, KIND, jobs, gates, limit)
    await store.create(connection, run_id, new)
    return run_id, woken


async def _demand_unscheduled(connection: Connection, text: str) -> None:
    """A schedule runs the latest version: a run must not change that by the way."""
    latest = await entries.replaced_version(connection, text)
    if latest is None:
        return
    scheduled = await entries.schedules_of(connection, latest.recipe_id)
    if scheduled:
        raise Conflict(
            f"this makes version {latest.version + 1} of {latest.recipe_id}, which"
            f" {counted(scheduled, 'schedule')} will run: give the recipe another name, or say"
            " new_version (--new-version)"
        )


async def callback_to(
    connection: Connection, url: str | None, above: int | None = None
) -> Callback | None:
    """A call about a run's ending; with `above`, only about more exceptions than that."""
    if url is None:
        return None
    destination = await entries.destination_for(connection, url)
    return Callback(url, destination.secret, above)
