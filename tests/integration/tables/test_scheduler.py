"""The scheduler against a real database: which tables get a refresh, without carrying it out."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pydantic import SecretStr

from kalla.database import Database
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Settings
from kalla.spark.sandbox import tables_read
from kalla.tables import store
from kalla.tables.model import SourceDefinition, TableDefinition, parse
from kalla.tables.schedule.scheduler import TableScheduler
from tests.work_kit import JOB_TYPES


class Silence:
    """A wake channel that nobody listens to."""

    async def nudge(self, woken: Any) -> None: ...


class Site:
    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.folder = folder
        for name in ("orders", "prices"):
            self.append(name)
        settings = Settings(data_dir=folder / "data")
        self.scheduler = TableScheduler(settings, database, JOB_TYPES, Silence())  # type: ignore[arg-type]

    def append(self, name: str) -> None:
        write_deltalake(self.folder / name, pa.table({"id": [1]}), mode="append")

    async def apply(self, text: str) -> None:
        """Over the sources `orders` and `prices`."""
        places = "".join(
            f"CREATE SOURCE {name} LOCATION '{self.folder / name}';"
            for name in ("orders", "prices")
        )
        async with self.database.transaction() as connection:
            known = await store.tables(connection)
            for each in parse(places + text):
                if isinstance(each, SourceDefinition):
                    await store.put_source(connection, each, "test")
                elif isinstance(each, TableDefinition):
                    read = tables_read(each.query, each.name)
                    await store.put_table(
                        connection, each, each.query, ["id"], read, "test", known.get(each.name)
                    )

    async def run(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        async with self.database.transaction() as connection:
            cursor = await connection.execute(statement.encode(), values)
            return await cursor.fetchall() if cursor.description else []

    async def jobs(self, name: str) -> int:
        found = await self.run(
            "SELECT 1 FROM kalla.jobs WHERE type = 'refresh' AND payload->>'name' = %s", name
        )
        return len(found)

    async def table(self, name: str) -> store.Table:
        async with self.database.transaction() as connection:
            return await store.table(connection, name)


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with Database(DatabaseSettings(url=SecretStr(database_url))) as database:
        yield Site(database, tmp_path)


async def test_a_table_does_not_wait_for_a_slow_one_that_shares_its_source(site: Site) -> None:
    await site.apply(
        "CREATE DYNAMIC TABLE fast TARGET_LAG = '5 seconds' AS SELECT id FROM orders;"
        "CREATE DYNAMIC TABLE slow TARGET_LAG = '5 seconds' AS SELECT id FROM orders"
    )
    await site.scheduler.tick()
    assert (await site.jobs("fast"), await site.jobs("slow")) == (1, 1)
    done = (await site.table("fast")).table_id
    await site.run("UPDATE kalla.tick_tables SET status = 'done' WHERE table_id = %s", done)
    await site.run(
        "UPDATE kalla.dynamic_tables SET last_tick_at = last_tick_at - interval '1 minute'"
    )
    site.append("orders")
    await site.scheduler.tick()
    assert (await site.jobs("fast"), await site.jobs("slow")) == (2, 1)


async def test_a_source_that_cannot_be_read_holds_up_its_readers_alone(site: Site) -> None:
    await site.apply(
        "CREATE DYNAMIC TABLE sold TARGET_LAG = '5 seconds' AS SELECT id FROM orders;"
        "CREATE DYNAMIC TABLE priced TARGET_LAG = DOWNSTREAM AS"
        " SELECT o.id FROM orders o JOIN prices p ON o.id = p.id;"
        "CREATE DYNAMIC TABLE reader TARGET_LAG = '5 seconds' AS SELECT id FROM priced"
    )
    shutil.move(site.folder / "prices", site.folder / "away")
    async with site.database.transaction() as connection:
        await store.request(connection, "reader", "refresh")
    await site.scheduler.tick()
    assert (await site.jobs("sold"), await site.jobs("priced")) == (1, 0)
    assert (await site.table("sold")).state_reason == ""
    for name in ("priced", "reader"):
        assert "prices is not there" in (await site.table(name)).state_reason
    # The request is carried out once the source is back.
    shutil.move(site.folder / "away", site.folder / "prices")
    await site.run(
        "UPDATE kalla.dynamic_tables SET last_tick_at = last_tick_at - interval '1 minute'"
    )
    await site.scheduler.tick()
    assert await site.jobs("priced") == 1
    assert (await site.table("reader")).state_reason == ""
