"""The scheduler of dynamic tables: opens due ticks and queues ready tables of open ones.

It runs in every worker and in the API; the lock on the graph makes it idempotent.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kalla import logs
from kalla.database import Connection, Database
from kalla.errors import InvalidInput, Problem
from kalla.settings import Settings
from kalla.tables import store
from kalla.tables.refresh.payload import RefreshPayload
from kalla.tables.schedule.pins import PinCache
from kalla.tables.schedule.plan import (
    BASE_SECONDS,
    components,
    effective_lags,
    is_due,
    next_due,
    ordered,
    path_seconds,
    period_seconds,
    upstream,
)
from kalla.tables.sources import mirrors
from kalla.tables.sources.snapshots import Pin
from kalla.tables.store import Entry, GraphState, Source, Table, Tick
from kalla.work.job import NewJob
from kalla.work.job_type import JobTypes
from kalla.work.service import Periodic, SetAside
from kalla.work.state import jobs
from kalla.work.state.job_insertion import Woken
from kalla.work.wake.channel import Wake

INTERVAL = 1.0
JOB_TYPE = "refresh"

_SCHEDULED_BY = {
    "cardinality_threshold",
    "deduplication",
    "initialize",
    "lag_seconds",
    "strategy",
    "strict",
}

_log = logs.get(__name__)


class TableGauges(Collector):
    """Lag and target of every table, as of the newest read."""

    def __init__(self) -> None:
        self._tables: Mapping[str, Table] = {}
        self._looked_at = 0.0

    def set(self, tables: Mapping[str, Table]) -> None:
        self._tables = tables
        self._looked_at = time.monotonic()

    def collect(self) -> Iterable[Metric]:
        lag = GaugeMetricFamily("kalla_table_lag_seconds", "Age of the rows", labels=["table"])
        target = GaugeMetricFamily(
            "kalla_table_target_lag_seconds",
            "TARGET_LAG, or what readers of the table need",
            labels=["table"],
        )
        targets = effective_lags(
            graph_of(self._tables), {name: each.target_lag for name, each in self._tables.items()}
        )
        for name, table in self._tables.items():
            if table.lag_seconds is not None:
                lag.add_metric([name], table.lag_seconds + time.monotonic() - self._looked_at)
            if (wanted := targets[name]) is not None:
                target.add_metric([name], wanted)
        return [lag, target]


class TableScheduler(Periodic):
    def __init__(
        self,
        settings: Settings,
        database: Database,
        job_types: JobTypes,
        wake: Wake,
        gauges: TableGauges | None = None,
    ) -> None:
        super().__init__("table scheduler", INTERVAL)
        self._gauges = gauges
        self._folder = settings.tables_folder
        self._database = database
        self._job_types = job_types
        self._wake = wake
        self._aside = SetAside("table scheduler")
        self._state: GraphState | None = None
        self._next_due = 0.0
        self._pins = PinCache()

    async def tick(self) -> float | None:
        async with self._database.transaction() as connection:
            state = await store.graph_state(connection)
            now = await store.clock(connection)
            if state == self._state and state.idle and now.timestamp() < self._next_due:
                return None
            stored = await store.tables(connection)
            sources = await store.sources(connection)
            busy = await store.busy(connection)
            durations = await store.durations(connection)
        tables = await self._usable(stored)
        if self._gauges is not None:
            self._gauges.set(tables)
        if not stored:
            return None
        self._state, self._next_due = state, next_due_at(tables, durations)
        unchanged: list[Table] = []
        for wanted in due_tables(tables, sources, busy, durations, now.timestamp()):
            opened = partial(self._open, tables, sources, wanted, now)
            unchanged += await self._aside.attempt(tuple(wanted), opened) or []
        async with self._database.transaction() as connection:
            await store.stand_for(connection, unchanged, now)
            ticks = [tick.tick_id for tick in await store.open_ticks(connection)]
        for tick_id in ticks:
            advanced = partial(self._database.retrying, partial(self._advance, tick_id=tick_id))
            if woken := await self._aside.attempt(tick_id, advanced):
                await self._wake.nudge(woken)
        async with self._database.transaction() as connection:
            await store.sweep(connection)
        return None

    async def _usable(self, stored: Mapping[str, Table]) -> dict[str, Table]:
        """The tables that can be scheduled; one whose definition cannot be read is set aside."""
        return {
            name: table
            for name, table in stored.items()
            if await self._aside.attempt(name, partial(_is_readable, table))
        }

    async def _open(
        self,
        tables: Mapping[str, Table],
        sources: Mapping[str, Source],
        wanted: Sequence[str],
        now: datetime,
    ) -> list[Table]:
        """Pin every source that the wanted tables read, once, for all of them. Returns the tables
        where nothing changed: they need no tick."""
        read = sorted({each for name in wanted for each in tables[name].reads} & sources.keys())
        table_ids = [tables[name].table_id for name in wanted]
        try:
            mirrored = await self._mirrored([sources[name] for name in read], tables, wanted, now)
            if mirrored is None:
                return []  # a look at a registered table is under way
            moment = min(now, mirrored)
            pins = await asyncio.to_thread(
                self._pins.of, self._folder, [sources[name] for name in read]
            )
        except InvalidInput as error:
            async with self._database.transaction() as connection:
                await store.set_trouble(connection, table_ids, str(error), now)
            return []
        if moment == now and self._stand_at(pins, tables, wanted):
            return [tables[name] for name in wanted]
        async with self._database.transaction() as connection:
            await store.lock_graph(connection)
            current = await store.tables(connection)
            same = all(
                name in current and current[name].last_tick == tables[name].last_tick
                for name in wanted
            )
            # Another scheduler was first, or the graph changed since: the next poll decides.
            if not same or set(table_ids) & await store.busy(connection):
                return []
            forced = [
                current[name].table_id for name in wanted if current[name].requested == "full"
            ]
            # The clock was read before the pins: the rows are at least as new as they claim.
            await store.open_tick(connection, table_ids, forced, pins, moment)
        return []

    def _stand_at(
        self, pins: Mapping[str, Pin], tables: Mapping[str, Table], wanted: Sequence[str]
    ) -> bool:
        """Whether the rows of all these tables are those of the pins, with no refresh requested."""
        given = {name: each.as_json() for name, each in pins.items()}
        for name in wanted:
            table = tables[name]
            inputs = {read: given[read] for read in table.reads if read in given}
            for read in table.reads:
                if read in tables:
                    inputs[read] = _input(self._folder, tables[read], tables[read].data_version)
            if (
                table.state != "active"
                or table.state_reason
                or table.requested
                or table.frontier != {"definition": table.hash, "inputs": inputs}
            ):
                return False
        return True

    async def _mirrored(
        self,
        read: Sequence[Source],
        tables: Mapping[str, Table],
        wanted: Sequence[str],
        now: datetime,
    ) -> datetime | None:
        """The time of the mirrors, once all are newer than the last tick; otherwise submits them.
        Raises InvalidInput where the newest mirroring failed.
        """
        moments = [now]
        last = max((tables[name].last_tick or 0.0 for name in wanted), default=0.0)
        for source in [each for each in read if each.format == "registered"]:
            if source.mirrored_at is not None and source.mirrored_at.timestamp() > last:
                moments.append(source.mirrored_at)
                continue
            if source.job_status in ("pending", "claimed"):
                return None
            if source.job_status in ("failed", "cancelled"):
                async with self._database.transaction() as connection:
                    await store.set_mirror_job(connection, source.name, None)
                raise InvalidInput(
                    Problem(source.name, source.job_error or "mirroring it was cancelled")
                )
            async with self._database.transaction() as connection:
                await store.lock_graph(connection)
                newest = (await store.sources(connection)).get(source.name)
                if newest is None or newest.mirror_job != source.mirror_job:
                    return None  # another scheduler was first
                documents = await store.registered(connection)
                asked = mirrors.payload(source.definition, documents, self._folder, now)
                job = NewJob(
                    mirrors.JOB_TYPE,
                    asked.model_dump(mode="json"),
                    running_key=f"mirror-{source.name}",
                )
                inserted = await jobs.insert(connection, self._job_types, [job])
                await store.set_mirror_job(connection, source.name, inserted.job_ids[0])
            await self._wake.nudge(inserted.woken)
            return None
        return min(moments)

    async def _advance(self, connection: Connection, tick_id: int) -> Woken:
        """Queues the tables whose upstream tables are ready, in one open tick."""
        await store.lock_graph(connection)
        tables = await store.tables(connection)
        new: list[tuple[Table, NewJob]] = []
        for tick in await store.open_ticks(connection, tick_id):  # none: it was closed
            entries = await store.entries(connection, tick_id)
            for name in [each for each in ordered(graph_of(tables)) if each in entries]:
                entry = entries[name]
                if entry.status == "queued" and entry.job_status in (None, "failed", "cancelled"):
                    await _fail(connection, tick, entry)
                elif entry.status == "waiting":
                    job = await self._ready(connection, tick, tables, entries, tables[name])
                    if job is not None:
                        new.append((tables[name], job))
                entries = await store.entries(connection, tick_id)
            await store.close_tick(connection, tick_id)
        inserted = await jobs.insert(connection, self._job_types, [job for _, job in new])
        for (table, _), job_id in zip(new, inserted.job_ids, strict=True):
            await store.set_entry(connection, tick_id, table.table_id, "queued", None, job_id)
        return inserted.woken

    async def _ready(
        self,
        connection: Connection,
        tick: Tick,
        tables: Mapping[str, Table],
        entries: Mapping[str, Entry],
        table: Table,
    ) -> NewJob | None:
        """The job of a table that can be refreshed now; without a change it is done at once."""
        above = [entries[name] for name in table.reads if name in entries]
        if table.state == "suspended" or any(
            each.status in ("failed", "skipped") for each in above
        ):
            await store.set_entry(connection, tick.tick_id, table.table_id, "skipped")
            return None
        if any(each.status != "done" for each in above):
            return None
        inputs = {name: tick.pins[name] for name in table.reads if name in tick.pins}
        for each in above:
            inputs[each.name] = _input(self._folder, tables[each.name], each.data_version)
        if inputs.keys() != set(table.reads):
            await store.set_entry(connection, tick.tick_id, table.table_id, "skipped")
            return None
        entry = entries[table.name]
        frontier = {"definition": table.hash, "inputs": inputs}
        if table.frontier == frontier and not entry.forced:
            await store.advance(connection, table.table_id, tick.pinned_at, frontier)
            await store.set_entry(
                connection, tick.tick_id, table.table_id, "done", table.data_version
            )
            return None
        definition = table.definition
        payload = RefreshPayload(
            name=table.name,
            table_id=table.table_id,
            tick=tick.tick_id,
            location=location(self._folder, table.name),
            query=table.query,
            definition=table.hash,
            inputs=inputs,
            strategy=definition["strategy"],
            strict=definition["strict"],
            deduplication=definition["deduplication"],
            cardinality_threshold=definition["cardinality_threshold"],
            forced=entry.forced,
            samples=await store.samples(connection, table.table_id),
            rows=table.row_count,
        )
        # Never two refreshes of one table at once.
        return NewJob(
            JOB_TYPE, payload.model_dump(mode="json"), running_key=f"refresh-{table.table_id}"
        )


async def _is_readable(table: Table) -> bool:
    """Whether the definition has the fields that the scheduler needs; raises its problem."""
    lag = table.definition.get("lag_seconds")
    if not (lag is None or isinstance(lag, int | float)):
        raise TypeError(f"lag_seconds of {table.name} is {type(lag).__name__}")
    if missing := _SCHEDULED_BY - table.definition.keys():
        raise ValueError(f"the definition of {table.name} lacks {', '.join(sorted(missing))}")
    return True


def next_due_at(tables: Mapping[str, Table], durations: Mapping[int, float]) -> float:
    """When the first table is due, without other events."""
    periods = _periods(tables, durations)
    return min(
        (
            next_due(
                table.changed_at.timestamp()
                if table.last_tick is None and table.definition["initialize"] == "ON_SCHEDULE"
                else table.last_tick,
                period,
            )
            for name, table in tables.items()
            if table.state == "active" and (period := periods[name]) is not None
        ),
        default=math.inf,
    )


def _periods(
    tables: Mapping[str, Table], durations: Mapping[int, float]
) -> dict[str, float | None]:
    """How often each table is refreshed; None: on demand only."""
    graph = graph_of(tables)
    lags = effective_lags(graph, {name: each.target_lag for name, each in tables.items()})
    own = {name: durations.get(each.table_id, 0.0) for name, each in tables.items()}
    path = path_seconds(graph, own)
    return {
        name: None if lag is None else period_seconds(lag, path[name]) or BASE_SECONDS
        for name, lag in lags.items()
    }


def due_tables(
    tables: Mapping[str, Table],
    sources: Mapping[str, Source],
    busy: set[int],
    durations: Mapping[int, float],
    now: float,
) -> list[list[str]]:
    """The tables to refresh now, with all that they read, one list for each component."""
    graph = graph_of(tables)
    periods = _periods(tables, durations)
    found = []
    read = {name: frozenset(each.reads) & sources.keys() for name, each in tables.items()}
    for component in components(graph, read):
        due = []
        for name in component:
            table, period = tables[name], periods[name]
            if table.state == "suspended":
                continue
            if table.requested or (
                period is not None
                and is_due(now, table.last_tick, period)
                and not (table.last_tick is None and _waits_for_schedule(table, now, period))
            ):
                due.append(name)
        wanted = upstream(graph, due)
        if wanted and not any(tables[name].table_id in busy for name in wanted):
            found.append([name for name in ordered(graph) if name in wanted])
    return found


def graph_of(tables: Mapping[str, Table]) -> dict[str, frozenset[str]]:
    return {name: frozenset(each.reads) & tables.keys() for name, each in tables.items()}


def location(folder: str, name: str) -> str:
    """The location of a dynamic table's Delta table."""
    return str(Path(folder) / name)


def _waits_for_schedule(table: Table, now: float, period: float) -> bool:
    """INITIALIZE = ON_SCHEDULE: the first refresh is at the first tick after it was made."""
    if table.definition["initialize"] == "ON_CREATE":
        return False
    return not is_due(now, table.changed_at.timestamp(), period)


def _input(folder: str, table: Table, data_version: int | None) -> dict[str, Any]:
    """The pin of a table that another one reads."""
    place = location(folder, table.name)
    return Pin("delta", place, data_version or 0, table.delta_id or "").as_json()


async def _fail(connection: Connection, tick: Tick, entry: Entry) -> None:
    """The job was cancelled, or its attempts are used up: lost workers count as no query error."""
    await store.set_entry(connection, tick.tick_id, entry.table_id, "failed")
    fields: dict[str, Any] = {
        "table_id": entry.table_id,
        "tick_id": tick.tick_id,
        "job_id": entry.job_id or 0,
        "status": "failed",
        "strategy": "",
        "reason": "",
        "error": entry.job_error or f"the job was {entry.job_status or 'removed'}",
    }
    await store.record(connection, **fields)
    _log.warning("a refresh failed", table=entry.name, tick=tick.tick_id)
