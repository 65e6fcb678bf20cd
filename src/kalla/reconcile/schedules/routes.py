"""REST of schedules: which recipe runs when, and who is notified of its exceptions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.registry import entries
from kalla.reconcile.schedules import schedule_store
from kalla.reconcile.schedules.schedule_store import Missed, NewSchedule, Schedule
from kalla.web.access import GuardedRoute
from kalla.web.app_state import State
from kalla.web.commands import Commanded
from kalla.web.storable import Text

router = APIRouter(prefix="/api/schedules", route_class=GuardedRoute, tags=["schedules"])

ScheduleId = Annotated[int, Path(ge=1, le=2**63 - 1)]


class AskedSchedule(BaseModel):
    """When the latest version of a recipe is run."""

    model_config = ConfigDict(extra="forbid")

    recipe_id: Text = Field(max_length=200)
    cron: Text = Field(
        max_length=100,
        description="minute hour day month weekday, by the clock of the time zone",
        examples=["0 7 * * 1-5"],
    )
    time_zone: Text = Field("UTC", max_length=64, examples=["Europe/Berlin"])
    missed: Missed = Field(
        "once", description="times that passed while Kalla was down: run once for all, or skip them"
    )
    notify_url: Text | None = Field(
        None, max_length=2000, description="called after a run; below a registered destination"
    )
    notify_above: int | None = Field(
        None, ge=0, le=2**62, description="only if there are more exceptions than this"
    )


@router.get("")
async def list_schedules(
    state: State, recipe_id: Annotated[Text | None, Query(max_length=200)] = None
) -> list[Schedule]:
    """Every schedule, or those of a recipe, with the result of the last time."""
    async with state.database.transaction() as connection:
        return await schedule_store.listing(connection, recipe_id)


@router.post("", status_code=201)
async def create_schedule(command: Commanded, response: Response, asked: AskedSchedule) -> Schedule:
    """Run the latest version of a recipe at certain times."""
    if asked.notify_above is not None and asked.notify_url is None:
        raise InvalidInput(Problem("notify_above", "needs notify_url"))
    await entries.recipe_version(command.connection, asked.recipe_id)
    if asked.notify_url is not None:
        await entries.destination_for(command.connection, asked.notify_url)
    made = await schedule_store.create(
        command.connection, NewSchedule(**asked.model_dump()), command.caller.name
    )
    response.headers["Location"] = f"/api/schedules/{made.schedule_id}"
    return made


@router.get("/{schedule_id}")
async def show_schedule(state: State, schedule_id: ScheduleId) -> Schedule:
    """One schedule."""
    async with state.database.transaction() as connection:
        return await schedule_store.get(connection, schedule_id)


@router.post("/{schedule_id}/pause")
async def pause_schedule(command: Commanded, schedule_id: ScheduleId) -> Schedule:
    """Start no runs until it is resumed; times in between are not run later."""
    return await schedule_store.pause(command.connection, schedule_id, is_paused=True)


@router.post("/{schedule_id}/resume")
async def resume_schedule(command: Commanded, schedule_id: ScheduleId) -> Schedule:
    """Go on with the next time."""
    return await schedule_store.pause(command.connection, schedule_id, is_paused=False)


@router.delete("/{schedule_id}", status_code=204)
async def remove_schedule(command: Commanded, schedule_id: ScheduleId) -> None:
    """Remove it; the runs it has started stay."""
    await schedule_store.remove(command.connection, schedule_id)
