"""The operator's pages: Work (workers, queues, jobs) and one job, both live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from kalla.database import Connection
from kalla.operate import overview
from kalla.operate.api_models import Job, Queue, Worker
from kalla.operate.overview import Filter
from kalla.operate.routes import Id, OptionalId, OptionalText
from kalla.settings import ROLES
from kalla.web.access import Asking, GuardedRoute
from kalla.web.app_state import AppState, State
from kalla.web.live import clock
from kalla.web.pages import live_page
from kalla.work.job import STATUSES, Status
from kalla.work.state import jobs, presence, queues

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)

_ROWS = 50


@router.get("/")
async def landing(request: Request) -> Response:
    """Most people come for their runs; links to the jobs of old stood here."""
    return RedirectResponse(f"/work?{request.url.query}" if request.url.query else "/runs", 303)


@router.get("/work")
async def work(
    request: Request,
    state: State,
    caller: Asking,
    status: Annotated[Status | None, Query()] = None,
    queue: OptionalText = None,
    type: OptionalText = None,  # noqa: A002
    run_id: OptionalId = None,
    before: OptionalId = None,
    upkeep: OptionalText = None,
) -> Response:
    which = Filter(status, queue or None, type or None, run_id, before, upkeep == "true")
    view = WorkView(which, caller.may("operator"), state)
    return await live_page(request, view, "work.html")


@router.get("/jobs/{job_id}")
async def job(request: Request, state: State, caller: Asking, job_id: Id) -> Response:
    view = JobView(job_id, caller.may("operator"), state)
    return await live_page(request, view, "job_page.html")


@dataclass(frozen=True)
class WorkView:
    """Workers, queues, and the jobs of one filter."""

    which: Filter
    may_change: bool
    state: AppState = field(compare=False, repr=False)

    async def fragments(
        self, connection: Connection, now: datetime | None = None
    ) -> Mapping[str, str]:
        today = await clock(connection)
        depths = await queues.depths(connection, self.state.job_types.queues)
        context = {
            "now": now,
            "view": self,
            "workers": [Worker.of(record) for record in await presence.workers(connection)],
            "queues": [Line.of(Queue.of(record), today) for record in depths],
            "page": await overview.jobs(connection, self.which, _ROWS),
            "statuses": STATUSES,
            "every_role": ROLES,
            "queue_names": _with(self.which.queue, [record.queue for record in depths]),
            "type_names": _with(self.which.type, self.state.job_types.types),
        }
        return {
            name: self.state.layout.fragment(f"{name}.html", **context)
            for name in ("workers", "queues", "filters", "jobs")
        }

    @property
    def filtered(self) -> bool:
        return replace(self.which, before=None, upkeep=True) != Filter()

    def address(self, **changes: object) -> str:
        """This page with another filter. A new filter begins at its first page."""
        values = asdict(self.which) | {"before": None} | changes
        given = {name: value for name, value in values.items() if value is not None}
        given.pop("upkeep")
        if values["upkeep"]:
            given["upkeep"] = "true"
        return f"/work?{urlencode(given)}" if given else "/work"


@dataclass(frozen=True)
class JobView:
    """One job."""

    job_id: int
    may_change: bool
    state: AppState = field(compare=False, repr=False)

    async def fragments(
        self, connection: Connection, now: datetime | None = None
    ) -> Mapping[str, str]:
        record = Job.of(await jobs.get(connection, self.job_id))
        return {"job": self.state.layout.fragment("job.html", now=now, view=self, job=record)}


@dataclass(frozen=True)
class Line:
    """A queue, and the moment since which its oldest job waits."""

    queue: Queue
    since: datetime | None

    @classmethod
    def of(cls, queue: Queue, now: datetime) -> Line:
        since = None
        if queue.depth:
            # To the second: the same wait must give the same moment at every look.
            since = now - timedelta(seconds=queue.oldest_wait_seconds)
            since = (since + timedelta(seconds=0.5)).replace(microsecond=0)
        return cls(queue, since)


def _with(chosen: str | None, names: Sequence[str]) -> list[str]:
    """A choice must show what is chosen, even when there is nothing of it at the moment."""
    return sorted({*names, chosen} if chosen else names)
