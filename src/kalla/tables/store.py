"""The state of dynamic tables in Postgres: definitions, ticks, pins, the refresh history."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from kalla.database import Connection
from kalla.errors import NotFound
from kalla.settings import Retention
from kalla.statements import load
from kalla.tables.incremental.cost import Sample
from kalla.tables.model import Format, SourceDefinition, TableDefinition
from kalla.tables.sources.snapshots import Pin

sql = load("kalla.tables", "store.sql")

ERRORS_TO_SUSPEND = 5


@dataclass(frozen=True)
class Source:
    name: str
    location: str
    format: Format
    key: list[str]
    watermark: str | None
    mirror_job: int | None
    mirrored_at: datetime | None
    job_status: str | None  # of the newest look
    job_error: str | None
    changed_at: datetime
    changed_by: str

    @property
    def definition(self) -> SourceDefinition:
        return SourceDefinition(
            self.name, self.location, self.format, False, tuple(self.key), self.watermark
        )


@dataclass(frozen=True)
class Table:
    """A dynamic table and its state."""

    table_id: int
    name: str
    definition: dict[str, Any]
    query: str
    hash: str
    columns: list[str]
    reads: list[str]
    version: int
    state: str
    state_reason: str
    errors: int
    frontier: dict[str, Any] | None
    data_version: int | None
    delta_id: str | None
    data_time: datetime | None
    row_count: int | None
    last_tick: float | None
    requested: str | None
    lag_seconds: float | None
    last_error: str | None
    changed_at: datetime
    changed_by: str

    @property
    def target_lag(self) -> float | None:
        lag: float | None = self.definition["lag_seconds"]
        return lag

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Table:
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Tick:
    tick_id: int
    pins: dict[str, dict[str, Any]]
    pinned_at: datetime


@dataclass(frozen=True)
class Entry:
    """One table's part in a tick."""

    table_id: int
    name: str
    status: str
    forced: bool
    data_version: int | None
    job_id: int | None
    job_status: str | None
    job_error: str | None


async def sources(connection: Connection) -> dict[str, Source]:
    rows = await (await connection.execute(sql.sources)).fetchall()
    return {row["name"]: Source(**row) for row in rows}


async def tables(connection: Connection) -> dict[str, Table]:
    rows = await (await connection.execute(sql.tables)).fetchall()
    return {row["name"]: Table.from_row(row) for row in rows}


async def table(connection: Connection, name: str) -> Table:
    found = (await tables(connection)).get(name.lower())
    if found is None:
        raise NotFound(f"there is no dynamic table {name}: `kalla tables list` shows all")
    return found


async def lock_graph(connection: Connection) -> None:
    await connection.execute(sql.lock_graph)


async def lock_graph_for_command(connection: Connection) -> None:
    """Raises LockNotAvailable when the turn does not come in a moment. Idle times under the lock
    may be long."""
    await connection.execute(sql.wait_briefly)
    await lock_graph(connection)
    await connection.execute(sql.wait_for_rows)
    await connection.execute(sql.be_patient)


async def may_advance(connection: Connection) -> bool:
    (row,) = await (await connection.execute(sql.may_advance)).fetchall()
    return bool(row["mine"])


async def put_source(connection: Connection, given: SourceDefinition, by: str) -> None:
    fields = {
        "name": given.name,
        "location": given.location,
        "format": given.format,
        "key": list(given.key),
        "watermark": given.watermark,
        "by": by,
    }
    await connection.execute(sql.put_source, fields)


async def registered(connection: Connection) -> dict[str, str]:
    """The documents of registered sources, by name."""
    rows = await (await connection.execute(sql.registered)).fetchall()
    return {row["name"]: row["document"] for row in rows}


async def set_mirror_job(connection: Connection, name: str, job_id: int | None) -> None:
    await connection.execute(sql.set_mirror_job, {"name": name, "job_id": job_id})


async def set_mirrored(
    connection: Connection, name: str, job_id: int, mirrored_at: datetime
) -> None:
    await connection.execute(
        sql.set_mirrored, {"name": name, "job_id": job_id, "mirrored_at": mirrored_at}
    )


async def put_table(
    connection: Connection,
    given: TableDefinition,
    query: str,
    columns: Sequence[str],
    reads: Collection[str],
    by: str,
    known: Table | None,
) -> None:
    fields = {
        "name": given.name,
        "definition": Jsonb(given.fields()),
        "query": query,
        "hash": given.hash,
        "columns": list(columns),
        "reads": sorted(reads),
        "by": by,
        "limit": ERRORS_TO_SUSPEND,
    }
    statement = sql.insert_table if known is None else sql.update_table
    (row,) = await (await connection.execute(statement, fields)).fetchall()
    await connection.execute(
        sql.insert_version, {**row, "definition": fields["definition"], "by": by}
    )


async def drop_table(connection: Connection, name: str) -> None:
    await connection.execute(sql.delete_table, {"name": name})


async def rename(connection: Connection, old: str, new: str) -> None:
    await connection.execute(sql.rename, {"old": old, "new": new})


async def set_state(connection: Connection, name: str, state: str, reason: str) -> None:
    await connection.execute(sql.set_state, {"name": name, "state": state, "reason": reason})


async def request(connection: Connection, name: str, how: str) -> None:
    await connection.execute(sql.request, {"name": name, "how": how})


async def set_trouble(
    connection: Connection, table_ids: Sequence[int], reason: str, pinned_at: datetime
) -> None:
    await connection.execute(
        sql.set_trouble,
        {"table_ids": list(table_ids), "reason": reason, "pinned_at": pinned_at},
    )


async def clock(connection: Connection) -> datetime:
    (row,) = await (await connection.execute(sql.clock)).fetchall()
    now: datetime = row["now"]
    return now


@dataclass(frozen=True)
class GraphState:
    """Equal for two reads without an event in between that makes a table due."""

    tables: int
    changed_at: datetime | None
    last_tick_at: datetime | None
    active: int
    requested: int
    open_ticks: int

    @property
    def idle(self) -> bool:
        return self.requested == 0 and self.open_ticks == 0


async def graph_state(connection: Connection) -> GraphState:
    (row,) = await (await connection.execute(sql.graph_state)).fetchall()
    return GraphState(**row)


async def busy(connection: Connection) -> set[int]:
    rows = await (await connection.execute(sql.busy)).fetchall()
    return {row["table_id"] for row in rows}


async def open_tick(
    connection: Connection,
    table_ids: Sequence[int],
    forced: Sequence[int],
    pins: Mapping[str, Pin],
    pinned_at: datetime,
) -> int:
    """Pin the sources for these tables, in this transaction."""
    document = Jsonb({name: pin.as_json() for name, pin in pins.items()})
    cursor = await connection.execute(sql.open_tick, {"pins": document, "pinned_at": pinned_at})
    (row,) = await cursor.fetchall()
    fields = {"tick_id": row["tick_id"], "table_ids": list(table_ids), "forced": list(forced)}
    await connection.execute(sql.join_tick, fields)
    await connection.execute(sql.mark_ticked, {"pinned_at": pinned_at, **fields})
    tick_id: int = row["tick_id"]
    return tick_id


async def open_ticks(connection: Connection, tick_id: int | None = None) -> list[Tick]:
    cursor = await connection.execute(sql.open_ticks, {"tick_id": tick_id})
    return [Tick(**row) for row in await cursor.fetchall()]


async def entries(connection: Connection, tick_id: int) -> dict[str, Entry]:
    cursor = await connection.execute(sql.tick_tables, {"tick_id": tick_id})
    return {row["name"]: Entry(**row) for row in await cursor.fetchall()}


async def set_entry(
    connection: Connection,
    tick_id: int,
    table_id: int,
    status: str,
    data_version: int | None = None,
    job_id: int | None = None,
) -> None:
    await connection.execute(
        sql.set_entry,
        {
            "tick_id": tick_id,
            "table_id": table_id,
            "status": status,
            "data_version": data_version,
            "job_id": job_id,
        },
    )


async def close_tick(connection: Connection, tick_id: int) -> None:
    await connection.execute(sql.close_tick, {"tick_id": tick_id})


async def advance(
    connection: Connection, table_id: int, data_time: datetime, frontier: Mapping[str, Any]
) -> None:
    await connection.execute(
        sql.advance, {"table_id": table_id, "data_time": data_time, "frontier": Jsonb(frontier)}
    )


async def stand_for(connection: Connection, tables: Sequence[Table], moment: datetime) -> None:
    """Records that the rows of these tables are those of this moment, too."""
    if tables:
        ids, versions = [each.table_id for each in tables], [each.version for each in tables]
        fields = {"table_ids": ids, "versions": versions, "moment": moment}
        await connection.execute(sql.stand_for, fields)


async def refreshed(
    connection: Connection,
    table_id: int,
    data_time: datetime,
    frontier: Mapping[str, Any],
    data_version: int,
    delta_id: str,
    row_count: int | None,
) -> None:
    await connection.execute(
        sql.refreshed,
        {
            "table_id": table_id,
            "data_time": data_time,
            "frontier": Jsonb(frontier),
            "data_version": data_version,
            "delta_id": delta_id,
            "row_count": row_count,
        },
    )


async def count_error(connection: Connection, table_id: int, error: str) -> None:
    reason = f"{ERRORS_TO_SUSPEND} refreshes in a row failed: {error}"
    await connection.execute(
        sql.count_error, {"table_id": table_id, "limit": ERRORS_TO_SUSPEND, "reason": reason}
    )


async def record(connection: Connection, **fields: Any) -> None:
    """One line of the refresh history; missing fields are empty."""
    empty = dict.fromkeys(
        (
            "predicted_seconds", "seconds", "rows_deleted", "rows_inserted", "row_count", "error",
            "changed_rows", "affected_keys",
        )
    )  # fmt: skip
    await connection.execute(sql.record, {**empty, **fields})


async def history(connection: Connection, name: str, limit: int = 20) -> list[dict[str, Any]]:
    cursor = await connection.execute(sql.history, {"name": name, "limit": limit})
    return await cursor.fetchall()


async def versions(connection: Connection, name: str) -> list[dict[str, Any]]:
    return await (await connection.execute(sql.versions, {"name": name})).fetchall()


async def samples(connection: Connection, table_id: int) -> tuple[Sample, ...]:
    """The costs of earlier refreshes, the newest first."""
    rows = await (await connection.execute(sql.samples, {"table_id": table_id})).fetchall()
    return tuple(Sample(**row) for row in rows)


async def durations(connection: Connection) -> dict[int, float]:
    """The 95th percentile of the last twenty refreshes, by table."""
    rows = await (await connection.execute(sql.durations)).fetchall()
    return {row["table_id"]: float(row["p95"]) for row in rows}


async def sweep(connection: Connection, retention: Retention) -> None:
    """Remove closed ticks and old lines of the refresh history."""
    await connection.execute(sql.sweep_ticks)
    await connection.execute(sql.sweep_refreshes, {"seconds": retention.finished_seconds})
