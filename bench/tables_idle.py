"""What the scheduler costs where nothing changes: processor time of it and of Postgres, in cores.

Every table reads a source of its own, so each one is a group by itself, which is the dearest case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from psycopg.types.json import Jsonb
from pydantic import SecretStr

from kalla import database, logs
from kalla.app.job_types import job_types
from kalla.database import Database
from kalla.local import ports
from kalla.local.servers.postgres import Postgres
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Settings, Wake
from kalla.settings import Spark as SparkSettings
from kalla.spark.session import SparkSessions
from kalla.tables import store
from kalla.tables.model import SourceDefinition, TableDefinition, parse
from kalla.tables.schedule.scheduler import TableScheduler
from kalla.tables.sources.snapshots import pin
from kalla.work.wake import open_channel
from tests.servers import PostgresServer, started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--lag", default="5 minutes")
    parser.add_argument("--seconds", type=float, default=300)
    chosen = parser.parse_args()
    logs.configure("warning", "text")
    with tempfile.TemporaryDirectory(prefix="kalla-bench-") as place, ExitStack() as stack:
        folder = Path(place)
        postgres = Postgres(folder / "postgres", ports.choose_free())
        stack.enter_context(started(postgres))
        server = PostgresServer(postgres.url("postgres"))
        settings = Settings(
            data_dir=folder / "data",
            database=DatabaseSettings(url=SecretStr(server.url(server.create()))),
            wake=Wake(channel="postgres"),
        )
        asyncio.run(database.migrate(settings.database))
        process = postgres.process
        assert process is not None
        used = asyncio.run(measure(chosen, folder, settings, process.pid))
    line = {
        "name": "tables_idle",
        "ours": round(used / chosen.seconds, 4),
        "unit": "cores",
        "tables": chosen.tables,
        "lag": chosen.lag,
        "seconds": chosen.seconds,
    }
    print(json.dumps(line))


async def measure(
    chosen: argparse.Namespace, folder: Path, settings: Settings, postgres: int
) -> float:
    """Processor seconds."""
    kinds = job_types(settings, SparkSessions(SparkSettings()))
    async with Database(settings.database) as database_:
        await _fill(database_, folder, chosen.tables, chosen.lag)
        wake = open_channel(settings, database_, [])
        scheduler = TableScheduler(settings, database_, kinds, wake)
        await scheduler.tick()
        began, own, servers = time.monotonic(), time.process_time(), _seconds(postgres)
        while time.monotonic() < began + chosen.seconds:
            await scheduler.tick()
            await asyncio.sleep(1)
        used = time.process_time() - own + _seconds(postgres) - servers
        async with database_.transaction() as connection:
            late = [
                each.name
                for each in (await store.tables(connection)).values()
                if (each.lag_seconds or 0.0) > (each.target_lag or 0.0)
            ]
            (row,) = await (
                await connection.execute("SELECT count(*) AS n FROM kalla.ticks")
            ).fetchall()
    if late or row["n"]:
        raise SystemExit(f"{len(late)} tables are late, {row['n']} ticks were made")
    return used


async def _fill(database_: Database, folder: Path, tables: int, lag: str) -> None:
    """Tables as they are after a refresh."""
    write_deltalake(folder / "rows", pa.table({"a": [1]}))
    text = "".join(
        f"CREATE SOURCE s{n} LOCATION '{folder}/rows';"
        f" CREATE DYNAMIC TABLE t{n} TARGET_LAG = '{lag}' AS SELECT a FROM s{n};"
        for n in range(tables)
    )
    pinned = pin("rows", str(folder / "rows"), "delta").as_json()
    async with database_.transaction() as connection:
        for each in parse(text):
            if isinstance(each, SourceDefinition):
                await store.put_source(connection, each, "bench")
            elif isinstance(each, TableDefinition):
                source = each.name.replace("t", "s")
                await store.put_table(connection, each, each.query, ["a"], [source], "bench", None)
                frontier = {"definition": each.hash, "inputs": {source: pinned}}
                await connection.execute(
                    "UPDATE kalla.dynamic_tables SET frontier = %s, data_version = 0,"
                    " delta_id = 'd', data_time = kalla.clock(), last_tick_at = kalla.clock()"
                    " WHERE name = %s",
                    (Jsonb(frontier), each.name),
                )


def _seconds(postgres: int) -> float:
    """Of a server and its children, those that ended included."""
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text("utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == postgres:
            ticks += int(fields[11]) + int(fields[12])
        if entry.parent.name == str(postgres):
            ticks += sum(int(each) for each in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
