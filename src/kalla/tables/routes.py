"""REST of dynamic tables: apply, show, refresh, suspend, resume, drop, history, query, audit."""

from __future__ import annotations

import asyncio
import shutil
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from kalla.database import Connection
from kalla.errors import Conflict, InvalidInput, NotAllowed, Problem
from kalla.spark.sandbox import hold
from kalla.tables import snapshots, store
from kalla.tables.definitions import ApplyPlan, plan_apply
from kalla.tables.lag import lateness
from kalla.tables.model import SourceDefinition, parse, read_names
from kalla.tables.plan import downstream, effective_lags, path_seconds, period_seconds, upstream
from kalla.tables.scheduler import graph_of, location
from kalla.tables.snapshots import Pin
from kalla.tables.store import Source, Table
from kalla.web.access import GuardedRoute
from kalla.web.app_state import AppState, State
from kalla.web.commands import Commanded
from kalla.work import jobs
from kalla.work.job import NewJob

router = APIRouter(prefix="/api/tables", route_class=GuardedRoute, tags=["tables"])

Name = Annotated[str, Path(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]


class Statements(BaseModel):
    """CREATE DYNAMIC TABLE and CREATE SOURCE statements."""

    model_config = ConfigDict(extra="forbid")

    sql: str = Field(max_length=1_000_000)
    dry_run: bool = Field(False, description="answer the plan alone")


class ShownStep(BaseModel):
    kind: str
    name: str
    action: str
    reason: str


class ShownTable(BaseModel):
    name: str
    state: str
    target_lag_seconds: float | None = Field(description="null: DOWNSTREAM")
    effective_lag_seconds: float | None = Field(description="null: refreshed on demand only")
    lag_seconds: float | None = Field(description="age of the rows; null: never refreshed")
    late: bool
    why: str = Field(description="why it is late or not refreshed; empty: it is in time")
    attainable: bool
    rows: int | None
    version: int
    data_version: int | None
    data_time: datetime | None
    reads: list[str]
    columns: list[str]
    location: str
    query: str
    comment: str
    strategy: str


class ShownRefresh(BaseModel):
    refresh_id: int
    tick_id: int
    job_id: int
    status: str
    strategy: str
    reason: str
    predicted_seconds: float | None
    seconds: float | None
    rows_deleted: int | None
    rows_inserted: int | None
    row_count: int | None
    lag_seconds: float | None
    error: str | None
    finished_at: datetime


class RefreshRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    full: bool = Field(False, description="recompute every row")


class Select(BaseModel):
    model_config = ConfigDict(extra="forbid")

    query: str = Field(max_length=100_000)


class Submitted(BaseModel):
    job_id: int


@router.post("/apply")
async def apply(command: Commanded, given: Statements) -> list[ShownStep]:
    """Create and change tables; the answer is the plan that was carried out."""
    definitions = parse(given.sql)
    connection = command.connection
    await store.lock_graph(connection)
    tables, sources = await store.tables(connection), await store.sources(connection)
    plan = await asyncio.to_thread(plan_apply, definitions, sources, tables, _columns)
    if not given.dry_run:
        if plan.sources and not command.caller.may("admin"):
            raise NotAllowed("a source is a place that Kalla reads: this needs the role admin")
        await _carry_out(connection, plan, tables, command.caller.name)
    return [ShownStep(**vars(step)) for step in plan.steps]


@router.get("")
async def list_tables(state: State) -> list[ShownTable]:
    """Every dynamic table with its lag."""
    async with state.database.transaction() as connection:
        return await shown_tables(connection, state)


@router.get("/{name}")
async def show(state: State, name: Name) -> ShownTable:
    """One table with its lag, its columns and its query."""
    async with state.database.transaction() as connection:
        table = await store.table(connection, name)
        return next(
            each for each in await shown_tables(connection, state) if each.name == table.name
        )


@router.get("/{name}/history")
async def history(state: State, name: Name, limit: int = 20) -> list[ShownRefresh]:
    """The newest refreshes first."""
    async with state.database.transaction() as connection:
        table = await store.table(connection, name)
        found = await store.history(connection, table.name, max(1, min(limit, 500)))
    return [ShownRefresh(**{key: row[key] for key in ShownRefresh.model_fields}) for row in found]


@router.get("/{name}/lineage")
async def lineage(state: State, name: Name) -> dict[str, Any]:
    """What the table reads and what reads it, directly or not."""
    async with state.database.transaction() as connection:
        table = await store.table(connection, name)
        tables = await store.tables(connection)
    graph = graph_of(tables)
    above = upstream(graph, [table.name]) - {table.name}
    return {
        "name": table.name,
        "reads": table.reads,
        "upstream": {each: tables[each].reads for each in sorted(above)},
        "downstream": sorted(downstream(graph, table.name)),
    }


@router.post("/{name}/refresh", status_code=202)
async def refresh(command: Commanded, name: Name, asked: RefreshRequest) -> dict[str, str]:
    """Refresh a table and what it reads with the next tick, whatever its lag."""
    table = await store.table(command.connection, name)
    if table.state == "suspended":
        raise Conflict(f"{table.name} is suspended: `kalla tables resume {table.name}` first")
    await store.request(command.connection, table.name, "full" if asked.full else "refresh")
    return {"name": table.name}


@router.post("/{name}/suspend")
async def suspend(command: Commanded, name: Name) -> dict[str, str]:
    """Stop refreshing a table; those that read it wait."""
    table = await store.table(command.connection, name)
    await store.set_state(command.connection, table.name, "suspended", f"by {command.caller.name}")
    return {"name": table.name, "state": "suspended"}


@router.post("/{name}/resume")
async def resume(command: Commanded, name: Name) -> dict[str, str]:
    """Refresh a suspended table again."""
    table = await store.table(command.connection, name)
    await store.set_state(command.connection, table.name, "active", "")
    return {"name": table.name, "state": "active"}


@router.post("/{name}/drop")
async def drop(state: State, command: Commanded, name: Name) -> dict[str, str]:
    """Remove a table and its rows; refused while another one reads it."""
    connection = command.connection
    await store.lock_graph(connection)
    table = await store.table(connection, name)
    tables = await store.tables(connection)
    if readers := sorted(each.name for each in tables.values() if table.name in each.reads):
        raise Conflict(f"{table.name} is read by {', '.join(readers)}: drop them first")
    await store.drop_table(connection, table.name)
    folder = location(state.settings.tables_folder, table.name)
    await asyncio.to_thread(shutil.rmtree, folder, True)
    return {"name": table.name}


@router.post("/query", status_code=202)
async def query(state: State, command: Commanded, asked: Select) -> Submitted:
    """Run a SELECT over tables and sources on a worker; the job's result has the rows."""
    connection = command.connection
    tables, sources = await store.tables(connection), await store.sources(connection)
    read = read_names(asked.query, "query")
    if unknown := sorted(read - tables.keys() - sources.keys()):
        raise InvalidInput(Problem("query", f"there is no table {', '.join(unknown)}"))
    inputs, columns = await asyncio.to_thread(_newest, state, read, tables, sources)
    held = hold(asked.query, columns, "query", {})
    return await _submit(state, command, NewJob("table_query", {"query": held, "inputs": inputs}))


@router.post("/{name}/audit", status_code=202)
async def audit(state: State, command: Commanded, name: Name) -> Submitted:
    """Compare a table with its query run fresh at the same versions, on a worker."""
    table = await store.table(command.connection, name)
    if table.frontier is None or table.data_version is None:
        raise Conflict(f"{table.name} has no rows yet: `kalla tables refresh {table.name}`")
    if table.frontier["definition"] != table.hash:
        raise Conflict(f"{table.name} was changed and waits for its refresh")
    payload = {
        "name": table.name,
        "query": table.query,
        "table": _pin_of(state, table).as_json(),
        "inputs": table.frontier["inputs"],
    }
    return await _submit(state, command, NewJob("table_audit", payload))


async def shown_tables(connection: Connection, state: AppState) -> list[ShownTable]:
    tables = await store.tables(connection)
    durations = await store.durations(connection)
    graph = graph_of(tables)
    lags = effective_lags(graph, {name: each.target_lag for name, each in tables.items()})
    own = {name: durations.get(each.table_id, 0.0) for name, each in tables.items()}
    path = path_seconds(graph, own)
    shown = []
    for name, table in tables.items():
        lag = lags[name]
        duration = path[name]
        late, why = lateness(table, lag, duration, tables)
        shown.append(
            ShownTable(
                name=name,
                state=table.state,
                target_lag_seconds=table.target_lag,
                effective_lag_seconds=lag,
                lag_seconds=table.lag_seconds,
                late=late,
                why=why,
                attainable=lag is None or period_seconds(lag, duration) is not None,
                rows=table.row_count,
                version=table.version,
                data_version=table.data_version,
                data_time=table.data_time,
                reads=table.reads,
                columns=table.columns,
                location=location(state.settings.tables_folder, name),
                query=table.definition["query"],
                comment=table.definition["comment"],
                strategy=table.definition["strategy"],
            )
        )
    return shown


async def _carry_out(
    connection: Connection, plan: ApplyPlan, tables: dict[str, Table], by: str
) -> None:
    for source in plan.sources:
        await store.put_source(connection, source, by)
    for each in plan.tables:
        given = each.definition
        known = tables.get(given.name)
        await store.put_table(connection, given, each.query, each.columns, each.reads, by, known)
        rebuilt = known is not None and known.hash != given.hash
        if rebuilt or (known is None and given.initialize == "ON_CREATE"):
            await store.request(connection, given.name, "refresh")


async def _submit(state: AppState, command: Commanded, job: NewJob) -> Submitted:
    inserted = await jobs.insert(command.connection, state.job_types, [job])
    command.woken += inserted.woken
    return Submitted(job_id=inserted.job_ids[0])


def _columns(source: SourceDefinition) -> tuple[str, ...]:
    return snapshots.columns(snapshots.pin(source.name, source.location, source.format))


def _newest(
    state: AppState, read: frozenset[str], tables: dict[str, Table], sources: dict[str, Source]
) -> tuple[dict[str, dict[str, Any]], dict[str, list[str]]]:
    inputs, columns = {}, {}
    for name in read:
        if name in tables:
            if tables[name].data_version is None:
                raise Conflict(f"{name} has no rows yet: `kalla tables refresh {name}`")
            pinned = _pin_of(state, tables[name])
        else:
            pinned = snapshots.pin(name, sources[name].location, sources[name].format)
        inputs[name] = pinned.as_json()
        columns[name] = list(snapshots.columns(pinned))
    return inputs, columns


def _pin_of(state: AppState, table: Table) -> Pin:
    place = location(state.settings.tables_folder, table.name)
    return Pin("delta", place, table.data_version or 0, table.delta_id or "")
