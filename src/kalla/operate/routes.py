"""REST for operators: jobs, queues, workers, tokens, and the probe that says how all is."""

from __future__ import annotations

import asyncio
import difflib
from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel

from kalla.database import AWAY, NOT_MIGRATED
from kalla.errors import NotFound, Unavailable
from kalla.operate import overview
from kalla.operate.api_models import Health, Job, JobPage, Queue, SubmittedJob, Worker
from kalla.operate.overview import Filter
from kalla.operate.submission import Submission
from kalla.settings import ROLES
from kalla.web.access import GuardedRoute, needs
from kalla.web.app_state import AppState, State
from kalla.web.commands import NOT_KEPT, Command, Commanded
from kalla.web.storable import Text
from kalla.web.tokens import login_links, tokens
from kalla.web.tokens.tokens import TokenRecord
from kalla.work.job import Status
from kalla.work.state import jobs, presence, queues

probes = APIRouter(route_class=GuardedRoute, tags=["probes"])
router = APIRouter(prefix="/api", route_class=GuardedRoute)

Id = Annotated[int, Path(ge=1, le=2**63 - 1)]
OptionalId = Annotated[int | None, Query(ge=1, le=2**63 - 1)]
OptionalText = Annotated[Text | None, Query()]

_HEALTH_SECONDS = 3.0


@probes.get("/health", responses={503: {"model": Health}})
@needs(None)
async def health(state: State, response: Response) -> Health:
    """Whether the API can do its work: 503 while Postgres does not answer or a service has died."""
    fatal = [*state.services.deaths()]
    if error_message := await _postgres_error(state):
        fatal.append(error_message)
    if fatal:
        response.status_code = 503
    lesser = [f"wake-ups: {state.wake.error_message}"] if state.wake.error_message else []
    return Health(
        status="away" if fatal else "ok", troubles=[*fatal, *lesser], version=version("kalla")
    )


@router.get("/jobs", tags=["jobs"])
async def list_jobs(
    state: State,
    status: Annotated[Status | None, Query()] = None,
    queue: OptionalText = None,
    type: OptionalText = None,  # noqa: A002
    run_id: OptionalId = None,
    before: OptionalId = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    upkeep: bool = True,
) -> JobPage:
    """Jobs, newest first; pass `next_before` as `before` to get the next page. With `upkeep=false`
    without the jobs that Kalla submits to clear up."""
    which = Filter(status, queue, type, run_id, before, upkeep)
    async with state.database.transaction() as connection:
        return await overview.jobs(connection, which, limit)


@router.post("/jobs", status_code=201, tags=["jobs"])
async def submit_job(
    state: State, command: Commanded, response: Response, submission: Submission
) -> SubmittedJob:
    """Submit one job. A waiting job with the same `dedupe_key` stands for it instead."""
    state.job_types.require_submittable(submission.type)
    inserted = await jobs.insert(command.connection, state.job_types, [submission.job()])
    command.woken += inserted.woken
    (job_id,) = inserted.job_ids
    response.headers["Location"] = f"/api/jobs/{job_id}"
    record = await jobs.get(command.connection, job_id)
    return SubmittedJob.of(record, repeated=inserted.repeated[0])


@router.get("/jobs/{job_id}", tags=["jobs"])
async def show_job(state: State, job_id: Id) -> Job:
    """A job with its payload, result, error and the attempts that did not complete."""
    async with state.database.transaction() as connection:
        return Job.of(await jobs.get(connection, job_id))


@router.post("/jobs/{job_id}/cancel", tags=["jobs"])
async def cancel_job(command: Commanded, job_id: Id) -> Job:
    """Cancel a waiting or running job; one that belongs to a run takes the whole run with it."""
    record = await jobs.cancel(command.connection, job_id, by=command.caller.name)
    command.alarm = True
    return Job.of(record)


@router.post("/jobs/{job_id}/retry", tags=["jobs"])
async def retry_job(state: State, command: Commanded, job_id: Id) -> Job:
    """Let a failed or cancelled job wait again; one that belongs to a run revives the whole run."""
    limit = state.settings.run.total_timeout_seconds
    command.woken += await jobs.retry(command.connection, job_id, limit)
    return Job.of(await jobs.get(command.connection, job_id))


@router.get("/queues", tags=["queues"])
async def list_queues(state: State) -> list[Queue]:
    """Every queue that has something in it or that a known job type goes to."""
    async with state.database.transaction() as connection:
        found = await queues.depths(connection, state.job_types.queues)
    return [Queue.of(record) for record in found]


@router.post("/queues/{queue}/pause", tags=["queues"])
async def pause_queue(state: State, command: Commanded, queue: Annotated[Text, Path()]) -> Queue:
    """Nothing of this queue is claimed until it is resumed; running jobs go on."""
    await _queue(state, command, queue)
    await queues.pause(command.connection, queue, by=command.caller.name)
    return await _queue(state, command, queue)


@router.post("/queues/{queue}/resume", tags=["queues"])
async def resume_queue(state: State, command: Commanded, queue: Annotated[Text, Path()]) -> Queue:
    """Let workers claim from this queue again."""
    await _queue(state, command, queue)
    await queues.resume(command.connection, queue)
    command.woken[queue] += 1  # whoever wakes looks for more; `depth` adds the others
    return await _queue(state, command, queue)


@router.get("/workers", tags=["workers"])
async def list_workers(state: State) -> list[Worker]:
    """Every worker that was seen of late, with its state and how many jobs it holds."""
    async with state.database.transaction() as connection:
        return [Worker.of(record) for record in await presence.workers(connection)]


# Tokens are created by `kalla token create` alone: an answer with a token in it would have to be
# remembered for its Idempotency-Key, in the clear.
@router.get("/tokens", tags=["tokens"])
@needs("admin")
async def list_tokens(state: State) -> list[TokenRecord]:
    """Every token there was, without the token itself; `kalla token create` makes new ones."""
    async with state.database.transaction() as connection:
        return await tokens.listing(connection)


class LoginLink(BaseModel):
    """The code of a link: `/login?code=…` logs a browser in, once."""

    code: str


@router.post("/login-links", status_code=201, tags=["tokens"])
@needs("admin")
async def create_login_link(command: Commanded, response: Response) -> LoginLink:
    """Make a link that logs one browser in as the caller, once; the session expires."""
    response.headers["Cache-Control"] = NOT_KEPT  # the code would stand in the clear
    caller = command.caller
    return LoginLink(code=await login_links.create(command.connection, caller.name, caller.role))


@router.post("/tokens/{token_id}/revoke", tags=["tokens"])
@needs("admin")
async def revoke_token(command: Commanded, token_id: Id) -> TokenRecord:
    """Make a token useless, at once."""
    return await tokens.revoke(command.connection, token_id)


async def _queue(state: AppState, command: Command, queue: str) -> Queue:
    """Refuses a queue nobody has heard of: most likely it is a slip of the pen."""
    found = await queues.depths(command.connection, {*state.job_types.queues, *ROLES})
    for record in found:
        if record.queue == queue:
            return Queue.of(record)
    names = [record.queue for record in found]
    near = difflib.get_close_matches(queue, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
    raise NotFound(f"there is no queue {queue!r}; {hint}")


async def _postgres_error(state: AppState) -> str | None:
    try:
        async with asyncio.timeout(_HEALTH_SECONDS), state.database.transaction() as connection:
            await overview.require_migrated(connection)
    except Unavailable as error:
        return str(error)
    except NOT_MIGRATED:
        return "the database is not migrated: run `kalla migrate`"
    except (TimeoutError, *AWAY):
        return "Postgres does not answer"
    return None
