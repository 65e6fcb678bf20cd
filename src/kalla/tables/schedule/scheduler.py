"""The scheduler of dynamic tables: opens due ticks and queues ready tables of open ones.

It runs in every worker and in the API; the lock on the graph makes it idempotent.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kalla import logs
from kalla.database import Connection, Database
from kalla.settings import Settings
from kalla.tables import store
from kalla.tables.refresh.payload import RefreshPayload
from kalla.tables.schedule.due import due_tables, graph_of, next_due_at
from kalla.tables.schedule.plan import effective_lags, ordered
from kalla.tables.schedule.source_versions import Newest, SourceVersions
from kalla.tables.sources.snapshots import Pin
from kalla.tables.store import Entry, GraphState, Table, Tick
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
        self._sources = SourceVersions(self._folder, database, job_types, wake)

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
            # After the requests were read, and before the pins: rows of this moment answer them.
            now = await store.clock(connection)
        tables = await self._usable(stored)
        if self._gauges is not None:
            self._gauges.set(tables)
        if not stored:
            return None
        self._state, self._next_due = state, next_due_at(tables, durations)
        unchanged: list[Table] = []
        if due := due_tables(tables, sources, busy, durations, now.timestamp()):
            names = {name for wanted in due for name in wanted}
            newest = await self._sources.newest(tables, sources, names, now)
            for wanted in due:
                opened = partial(self._open, tables, newest, wanted, now)
                unchanged += await self._aside.attempt(tuple(wanted), opened) or []
        async with self._database.transaction() as connection:
            await store.stand_for(connection, unchanged, now)
            ticks = [tick.tick_id for tick in await store.open_ticks(connection)]
        for tick_id in ticks:
            advanced = partial(self._database.retrying, partial(self._advance, tick_id=tick_id))
            if woken := await self._aside.attempt(tick_id, advanced):
                await self._wake.nudge(woken)
        return None

    async def _usable(self, stored: Mapping[str, Table]) -> dict[str, Table]:
        """The tables that can be scheduled; one whose definition cannot be read is set aside."""
        return {
            name: table
            for name, table in stored.items()
            if await self._aside.attempt(name, partial(_is_readable, table))
        }

    async def _open(
        self, tables: Mapping[str, Table], newest: Newest, wanted: Sequence[str], now: datetime
    ) -> list[Table]:
        """Opens a tick for those wanted tables whose sources can all be read; each source has one
        pin for all of them. Returns the tables where nothing changed: they need no tick."""
        reasons = newest.reasons(tables, wanted)
        for reason in set(reasons.values()) - {""}:
            troubled = [tables[name].table_id for name in reasons if reasons[name] == reason]
            async with self._database.transaction() as connection:
                await store.set_trouble(connection, troubled, reason, now)
        names = [name for name in wanted if name not in reasons]
        if not names:
            return []
        read = {each for name in names for each in tables[name].reads}
        pins = {name: newest.pins[name] for name in read & newest.pins.keys()}
        moment = min([now, *(newest.moments[name] for name in read & newest.moments.keys())])
        if moment == now and self._stand_at(pins, tables, names):
            return [tables[name] for name in names]
        table_ids = [tables[name].table_id for name in names]
        async with self._database.transaction() as connection:
            await store.lock_graph(connection)
            current = await store.tables(connection)
            same = all(
                name in current
                and (current[name].last_tick, current[name].requested)
                == (tables[name].last_tick, tables[name].requested)
                for name in names
            )
            # Another scheduler was first, or the graph changed since: the next poll decides.
            if not same or set(table_ids) & await store.busy(connection):
                return []
            forced = [current[name].table_id for name in names if current[name].requested == "full"]
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

    async def _advance(self, connection: Connection, tick_id: int) -> Woken:
        """Queues the tables whose upstream tables are ready, in one open tick."""
        if not await store.may_advance(connection):
            return Counter()  # another scheduler does so
        await store.lock_graph(connection)
        tables = await store.tables(connection)
        new: list[tuple[Table, NewJob]] = []
        for tick in await store.open_ticks(connection, tick_id):  # none: it was closed
            entries = await store.entries(connection, tick_id)
            for name in [each for each in ordered(graph_of(tables)) if each in entries]:
                entry = entries[name]
                if entry.status == "queued" and entry.job_status in (None, "failed", "cancelled"):
                    entries[name] = await _fail(connection, tick, entry)
                elif entry.status == "waiting":
                    step = await self._step(connection, tick, tables, entries, tables[name])
                    if isinstance(step, NewJob):
                        new.append((tables[name], step))
                    else:
                        entries[name] = step
            await store.close_tick(connection, tick_id)
        inserted = await jobs.insert(connection, self._job_types, [job for _, job in new])
        for (table, _), job_id in zip(new, inserted.job_ids, strict=True):
            await store.set_entry(connection, tick_id, table.table_id, "queued", None, job_id)
        return inserted.woken

    async def _step(
        self,
        connection: Connection,
        tick: Tick,
        tables: Mapping[str, Table],
        entries: Mapping[str, Entry],
        table: Table,
    ) -> NewJob | Entry:
        """The job of a table that can be refreshed now, or its entry, with its new status if it has
        one; without a change the table is done at once."""
        entry = entries[table.name]
        above = [entries[name] for name in table.reads if name in entries]
        inputs = {name: tick.pins[name] for name in table.reads if name in tick.pins}
        for each in above:
            inputs[each.name] = _input(self._folder, tables[each.name], each.data_version)
        if (
            table.state == "suspended"
            or any(each.status in ("failed", "skipped") for each in above)
            or inputs.keys() != set(table.reads)
        ):
            return await _set(connection, tick, entry, "skipped")
        if any(each.status != "done" for each in above):
            return entry
        frontier = {"definition": table.hash, "inputs": inputs}
        if table.frontier == frontier and not entry.forced:
            await store.advance(connection, table.table_id, tick.pinned_at, frontier)
            return await _set(connection, tick, entry, "done", table.data_version)
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


def location(folder: str, name: str) -> str:
    """The location of a dynamic table's Delta table."""
    return str(Path(folder) / name)


def _input(folder: str, table: Table, data_version: int | None) -> dict[str, Any]:
    """The pin of a table that another one reads."""
    place = location(folder, table.name)
    return Pin("delta", place, data_version or 0, table.delta_id or "").as_json()


async def _set(
    connection: Connection, tick: Tick, entry: Entry, status: str, data_version: int | None = None
) -> Entry:
    await store.set_entry(connection, tick.tick_id, entry.table_id, status, data_version)
    return replace(entry, status=status, data_version=data_version)


async def _fail(connection: Connection, tick: Tick, entry: Entry) -> Entry:
    """The job was cancelled, or its attempts are used up: a lost worker is not a query error."""
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
    return await _set(connection, tick, entry, "failed")
