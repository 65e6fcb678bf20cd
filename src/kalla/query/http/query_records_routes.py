"""REST of running queries and of query workers; what KEDA reads to scale the workers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal, cast

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel

from kalla.query.dispatch.dispatcher import Dispatcher
from kalla.query.dispatch.query_records import QueryRecord, WorkRecord
from kalla.query.dispatch.worker_connection import WorkerConnection
from kalla.query.http.query_routes import Queries
from kalla.web.access import GuardedRoute, harmless, needs

router = APIRouter(route_class=GuardedRoute, tags=["query"])

QueryId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
WorkerState = Literal["accepting", "busy", "draining", "away"]


class WorkUnitFacts(BaseModel):
    """One work unit of a query; seconds that are not known yet are 0."""

    work_id: str
    leaf: int
    shard: int
    state: str
    worker: str
    attempts: int
    cache_hit: bool | None
    wait_seconds: float
    run_seconds: float
    ready_to_fetch_seconds: float
    fetch_seconds: float
    bytes: int
    rows: int

    @classmethod
    def of(cls, work: WorkRecord) -> WorkUnitFacts:
        own = {name: getattr(work, name) for name in cls.model_fields if name != "leaf"}
        return cls(leaf=work.leaf_id, **own)


class WorkCount(BaseModel):
    """Work units of one worker in one state; no worker: they wait for one."""

    worker: str
    state: str
    units: int


class QueryFacts(BaseModel):
    """A query; `stage` is what it does now, or how it ended."""

    query_id: str
    expression: str
    kind: Literal["instant", "range", "series"]
    user: str
    started_at: datetime
    seconds: float
    stage: str
    live: bool
    reason: str
    leaves: int
    bytes: int
    rows: int
    retries: int
    work: list[WorkCount]

    @classmethod
    def of(cls, record: QueryRecord) -> QueryFacts:
        return cls(
            query_id=record.query_id,
            expression=record.expression,
            kind=record.kind,
            user=record.user,
            started_at=datetime.fromtimestamp(record.started_at, UTC),
            seconds=round(record.seconds, 6),
            stage=record.stage,
            live=record.ended is None,
            reason=record.reason,
            leaves=record.leaves,
            bytes=record.bytes,
            rows=record.rows,
            retries=record.retries,
            work=[
                WorkCount(worker=worker, state=state, units=units)
                for worker, state, units in record.by_worker()
            ],
        )


class QueryWorkerFacts(BaseModel):
    """A query worker as this API process sees it."""

    worker: str
    address: str
    state: WorkerState
    problem: str
    running: int
    queue_depth: int
    cache_bytes: int
    spool_bytes: int
    budget_bytes: int
    memory_bytes: int
    affinity: float | None
    heartbeat_seconds: float

    @classmethod
    def of(cls, connection: WorkerConnection, affinity: float | None) -> QueryWorkerFacts:
        status = connection.status
        state: WorkerState = "away"
        if connection.is_open:
            state = "accepting" if status.accepting_work else "busy"
            state = "draining" if status.draining else state
        return cls(
            worker=connection.worker_id or connection.address,
            address=connection.address,
            state=state,
            problem=connection.problem,
            running=status.running,
            queue_depth=status.queue_depth,
            cache_bytes=status.cache_bytes,
            spool_bytes=status.spool_bytes,
            budget_bytes=status.budget_bytes,
            memory_bytes=status.memory_bytes,
            affinity=affinity,
            heartbeat_seconds=round(connection.round_trip, 6),
        )


class QueryQueue(BaseModel):
    """For KEDA's metrics-api trigger: work units that wait, and those that run."""

    queue_depth: int
    oldest_age_seconds: float
    running: int


def dispatcher_of_app(request: Request) -> Dispatcher:
    return cast(Dispatcher, request.app.state.dispatcher)


def workers_of(dispatcher: Dispatcher) -> list[QueryWorkerFacts]:
    found = [
        QueryWorkerFacts.of(one, dispatcher.workers.affinity(one.worker_id))
        for one in dispatcher.workers.connections
    ]
    return sorted(found, key=lambda one: (one.worker, one.address))


@router.get("/api/queries")
async def list_queries(queries: Queries) -> list[QueryFacts]:
    """Queries of this API process: the running ones, then the last 200 that ended."""
    return [QueryFacts.of(one) for one in queries.dispatcher.records.all()]


@router.get("/api/queries/{query_id}/work")
async def list_work_units(queries: Queries, query_id: QueryId) -> list[WorkUnitFacts]:
    """The work units of a query."""
    return [WorkUnitFacts.of(one) for one in list(queries.record(query_id).work)]


@router.delete("/api/queries/{query_id}")
@harmless
@needs("operator")
async def kill_query(queries: Queries, query_id: QueryId) -> QueryFacts:
    """End a query and its work on all workers."""
    return QueryFacts.of(queries.kill(query_id))


@router.post("/api/queries/{query_id}/kill")
@harmless
@needs("operator")
async def kill_query_by_post(queries: Queries, query_id: QueryId) -> QueryFacts:
    """The same, for forms."""
    return QueryFacts.of(queries.kill(query_id))


@router.get("/api/query-workers")
async def list_query_workers(request: Request) -> list[QueryWorkerFacts]:
    """The query workers that this API process knows."""
    return workers_of(dispatcher_of_app(request))


@router.get("/monitor/queries")
async def query_queue(request: Request) -> QueryQueue:
    """Work units that wait, the age of the oldest, and those that run."""
    depth, age, running = dispatcher_of_app(request).queue()
    return QueryQueue(queue_depth=depth, oldest_age_seconds=round(age, 3), running=running)
