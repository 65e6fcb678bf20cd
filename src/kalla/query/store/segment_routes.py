"""REST of segments: check them, and drop one that is damaged."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field, StrictInt

from kalla import logs
from kalla.query.store import catalogue
from kalla.query.store.metric_store import MetricStore
from kalla.query.store.segments import Segment
from kalla.web.access import GuardedRoute, harmless, needs
from kalla.web.app_state import State
from kalla.web.commands import Commanded

router = APIRouter(prefix="/api/metrics/segments", route_class=GuardedRoute, tags=["metrics"])

SegmentId = Annotated[int, Path(ge=1, le=2**63 - 1)]
_log = logs.get(__name__)


class SegmentFacts(BaseModel):
    """A segment in the catalogue; times are milliseconds. A series has a row for each two hours."""

    segment_id: int
    path: str
    shard: int
    level: int
    rows: int
    samples: int
    min_time: int
    max_time: int
    bytes: int

    @classmethod
    def of(cls, segment: Segment) -> SegmentFacts:
        return cls(**{name: getattr(segment, name) for name in cls.model_fields})


class SegmentProblem(BaseModel):
    segment: SegmentFacts
    problem: str


class CheckRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    after: StrictInt = Field(0, ge=0, le=2**63 - 1, description="a `next_after`, or 0 to begin")


class CheckedSegments(BaseModel):
    """Of some segments: how many are sound, and errors of the others."""

    sound: int
    damaged: list[SegmentProblem]
    left: int
    next_after: int | None


@router.post("/check")
@harmless
async def check_segments(request: Request, asked: CheckRequest) -> CheckedSegments:
    """Read segments whole, some at a time; pass `next_after` as `after` to go on."""
    store = cast(MetricStore, request.app.state.metric_store)
    found = await store.check(asked.after)
    damaged = [
        SegmentProblem(segment=SegmentFacts.of(each.segment), problem=each.problem)
        for each in found.verdicts
        if each.problem
    ]
    sound = len(found.verdicts) - len(damaged)
    return CheckedSegments(sound=sound, damaged=damaged, left=found.left, next_after=found.last)


@router.get("/{segment_id}")
async def show_segment(state: State, segment_id: SegmentId) -> SegmentFacts:
    """The catalogue entry of a segment."""
    async with state.database.transaction() as connection:
        return SegmentFacts.of(await catalogue.segment(connection, segment_id))


@router.post("/{segment_id}/drop")
@needs("admin")
async def drop_segment(command: Commanded, segment_id: SegmentId) -> SegmentFacts:
    """Drop a segment and its samples; returns what is lost."""
    facts = SegmentFacts.of(await catalogue.drop(command.connection, segment_id))
    _log.warning("a segment is dropped", by=command.caller.name, **facts.model_dump())
    return facts
