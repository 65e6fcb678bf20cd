"""REST of dynamic tables."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from psycopg.errors import LockNotAvailable

from kalla.database import Connection
from kalla.errors import Conflict, InvalidInput, NotAllowed, Problem
from kalla.secrets import Vault
from kalla.spark.sandbox import hold, tables_read
from kalla.tables import store
from kalla.tables.definitions import ApplyPlan, ColumnsOf, plan_apply
from kalla.tables.delta import housekeeping
from kalla.tables.http.api_models import (
    Explanation,
    NewName,
    RefreshRequest,
    Select,
    ShownRefresh,
    ShownStep,
    ShownTable,
    ShownVersion,
    Statements,
    Submitted,
)
from kalla.tables.http.explanation import shown_steps, shown_versions, strategy_notes
from kalla.tables.model import Definition, SourceDefinition, parse
from kalla.tables.schedule.due import graph_of
from kalla.tables.schedule.lag_reason import lateness
from kalla.tables.schedule.pins import pin_source
from kalla.tables.schedule.plan import (
    BASE_SECONDS,
    downstream,
    effective_lags,
    path_seconds,
    period_seconds,
    upstream,
)
from kalla.tables.schedule.scheduler import location
from kalla.tables.sources import mirrors, snapshots
from kalla.tables.sources.snapshots import Pin
from kalla.tables.store import Source, Table
from kalla.web.access import GuardedRoute
from kalla.web.app_state import AppState, State
from kalla.web.commands import Busy, Commanded
from kalla.work.job import NewJob
from kalla.work.state import jobs

router = APIRouter(prefix="/api/tables", route_class=GuardedRoute, tags=["tables"])

Name = Annotated[str, Path(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]


@router.post("/apply")
async def apply(state: State, command: Commanded, given: Statements) -> list[ShownStep]:
    """Create and change tables; the answer is the executed plan."""
    connection = command.connection
    await _lock_graph(connection)
    definitions = await asyncio.to_thread(parse, given.sql)
    tables, sources = await store.tables(connection), await store.sources(connection)
    if not command.caller.may("admin"):
        _refuse_new_sources(definitions, sources)
    columns_of = await _columns_of(state, connection)
    plan = await asyncio.to_thread(plan_apply, definitions, sources, tables, columns_of)
    if not given.dry_run:
        await _carry_out(connection, plan, tables, command.caller.name)
        for name in plan.dropped:
            await _remove(state, connection, name)
    durations = await store.durations(connection)
    return shown_steps(plan, tables, durations)


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
async def history(
    state: State, name: Name, limit: Annotated[int, Query(ge=1, le=500)] = 20
) -> list[ShownRefresh]:
    """The newest refreshes first."""
    async with state.database.transaction() as connection:
        table = await store.table(connection, name)
        found = await store.history(connection, table.name, limit)
    return [ShownRefresh(**{key: row[key] for key in ShownRefresh.model_fields}) for row in found]


@router.get("/{name}/lineage")
async def lineage(state: State, name: Name) -> dict[str, Any]:
    """The tables and sources that it reads and that read it, directly or not."""
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
    """Refresh a table and its upstream tables with the next tick, whatever its lag."""
    table = await store.table(command.connection, name)
    if table.state == "suspended":
        raise Conflict(f"{table.name} is suspended: `kalla tables resume {table.name}` first")
    names = {table.name}
    if asked.full and asked.upstream:
        names = upstream(graph_of(await store.tables(command.connection)), names)
    # The rows are those of this request once their data time is later than this.
    now = await store.clock(command.connection)
    for each in sorted(names):
        await store.request(command.connection, each, "full" if asked.full else "refresh")
    return {"name": table.name, "asked_at": now.isoformat()}


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
    await _lock_graph(connection)
    table = await store.table(connection, name)
    tables = await store.tables(connection)
    if readers := sorted(each.name for each in tables.values() if table.name in each.reads):
        raise Conflict(f"{table.name} is read by {', '.join(readers)}: drop them first")
    await _remove(state, connection, table.name)
    return {"name": table.name}


@router.post("/{name}/rename")
async def rename(state: State, command: Commanded, name: Name, given: NewName) -> dict[str, str]:
    """Give a table another name and move its rows; refused while another one reads it."""
    connection = command.connection
    await _lock_graph(connection)
    table, new = await store.table(connection, name), given.name.lower()
    tables, sources = await store.tables(connection), await store.sources(connection)
    if readers := sorted(each.name for each in tables.values() if table.name in each.reads):
        raise Conflict(
            f"{table.name} is read by {', '.join(readers)}, whose SQL names it: drop them first"
        )
    if new in tables or new in sources:
        raise Conflict(f"there is a table or source {new} already: choose another name")
    if table.table_id in await store.busy(connection):
        raise Conflict(f"{table.name} is being refreshed: try again when that has ended")
    await store.rename(connection, table.name, new)
    folder = state.settings.tables_folder
    await asyncio.to_thread(_move, location(folder, table.name), location(folder, new))
    return {"name": new}


@router.get("/{name}/explain")
async def explain(state: State, name: Name) -> Explanation:
    """Which strategies the query allows, why not the others, and how often it is due."""
    async with state.database.transaction() as connection:
        table = await store.table(connection, name)
        tables, sources = await store.tables(connection), await store.sources(connection)
        shown = next(e for e in await shown_tables(connection, state) if e.name == table.name)
    columns = await asyncio.to_thread(
        _input_columns, state.settings.tables_folder, table, tables, sources
    )
    notes, keys = await asyncio.to_thread(strategy_notes, table.query, columns)
    return Explanation(
        name=table.name,
        strategy=shown.strategy,
        strategies=notes,
        keys=[table.columns[place] for place in keys],
        period_seconds=shown.period_seconds,
        why=shown.why,
    )


@router.get("/{name}/versions")
async def versions(state: State, name: Name) -> list[ShownVersion]:
    """Every version of the definition, the newest first, with what changed in its SQL."""
    async with state.database.transaction() as connection:
        table = await store.table(connection, name)
        found = await store.versions(connection, table.name)
    return await asyncio.to_thread(shown_versions, found)


@router.post("/query", status_code=202)
async def query(state: State, command: Commanded, asked: Select) -> Submitted:
    """Run a SELECT over tables and sources on a worker; the job's result has the rows."""
    connection = command.connection
    tables, sources = await store.tables(connection), await store.sources(connection)
    read = await asyncio.to_thread(tables_read, asked.query, "query")
    if unknown := sorted(read - tables.keys() - sources.keys()):
        raise InvalidInput(Problem("query", f"there is no table {', '.join(unknown)}"))
    inputs, columns = await asyncio.to_thread(_newest, state, read, tables, sources)
    held = await asyncio.to_thread(hold, asked.query, columns, "query", {})
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
                period_seconds=None
                if lag is None
                else period_seconds(lag, duration) or BASE_SECONDS,
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


async def _lock_graph(connection: Connection) -> None:
    try:
        await store.lock_graph_for_command(connection)
    except LockNotAvailable:
        raise Busy("another change of the tables is being made") from None


def _refuse_new_sources(definitions: Sequence[Definition], sources: Mapping[str, Source]) -> None:
    """Before Kalla looks at a source, in a dry run too: the plan shows its columns."""
    for given in definitions:
        if isinstance(given, SourceDefinition):
            known = sources.get(given.name)
            if known is None or known.definition.place != given.place:
                raise NotAllowed(
                    "a source defines a location that Kalla reads: this needs the role admin"
                )


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


async def _columns_of(state: AppState, connection: Connection) -> ColumnsOf:
    documents = await store.registered(connection)
    now = await store.clock(connection)
    folder = state.settings.tables_folder

    def columns(source: SourceDefinition) -> tuple[str, ...]:
        if source.format == "registered":
            asked = mirrors.payload(source, documents, folder, now)
            return mirrors.mirror_columns(asked, Vault(state.settings).resolve)
        return snapshots.columns(snapshots.pin(source.name, source.location, source.format))

    return columns


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
            pinned = pin_source(state.settings.tables_folder, sources[name])
        inputs[name] = pinned.as_json()
        columns[name] = list(snapshots.columns(pinned))
    return inputs, columns


def _pin_of(state: AppState, table: Table) -> Pin:
    place = location(state.settings.tables_folder, table.name)
    return Pin("delta", place, table.data_version or 0, table.delta_id or "")


async def _remove(state: AppState, connection: Connection, name: str) -> None:
    await store.drop_table(connection, name)
    folder = location(state.settings.tables_folder, name)
    await asyncio.to_thread(housekeeping.drop, folder)


def _move(old: str, new: str) -> None:
    housekeeping.drop(new)
    if FilePath(old).exists():
        FilePath(old).rename(new)


def _input_columns(
    folder: str, table: Table, tables: dict[str, Table], sources: dict[str, Source]
) -> dict[str, list[str]]:
    found = {}
    for name in table.reads:
        if name in tables:
            found[name] = list(tables[name].columns)
        else:
            pinned = pin_source(folder, sources[name])
            found[name] = list(snapshots.columns(pinned))
    return found
