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
from kalla.settings import Retention, Settings
from kalla.spark.sandbox import tables_read
from kalla.tables import store
from kalla.tables.model import SourceDefinition, TableDefinition, parse
from kalla.tables.schedule.scheduler import TableScheduler
from tests.work_kit import JOB_TYPES, Silence


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


async def test_a_table_that_reads_an_unreadable_one_says_so(site: Site) -> None:
    await site.apply(
        "CREATE DYNAMIC TABLE sold TARGET_LAG = '5 seconds' AS SELECT id FROM orders;"
        "CREATE DYNAMIC TABLE reader TARGET_LAG = '5 seconds' AS SELECT id FROM sold"
    )
    await site.run(
        "UPDATE kalla.dynamic_tables SET definition = definition - 'strict' WHERE name = 'sold'"
    )
    await site.scheduler.tick()
    assert (await site.table("reader")).state_reason == "sold cannot be scheduled: see the log"


async def test_a_mirror_of_before_a_request_does_not_answer_it(site: Site) -> None:
    await site.apply(
        "CREATE DYNAMIC TABLE sold TARGET_LAG = '1 hour' INITIALIZE = ON_SCHEDULE"
        " AS SELECT id FROM orders"
    )
    write_deltalake(site.folder / "data/tables/_mirrors/orders", pa.table({"id": [1]}))
    mirrored = "UPDATE kalla.table_sources SET format = 'registered', mirrored_at = kalla.clock()"
    await site.run(mirrored)
    async with site.database.transaction() as connection:
        await store.request(connection, "sold", "full")
    await site.scheduler.tick()
    # Every row is recomputed once, and the rows of after the request follow.
    assert (await site.jobs("sold"), (await site.table("sold")).requested) == (1, "refresh")
    await site.run("UPDATE kalla.tick_tables SET status = 'done'")
    await site.run(mirrored)
    await site.scheduler.tick()
    assert (await site.jobs("sold"), (await site.table("sold")).requested) == (2, None)
    ticks = await site.run("SELECT forced FROM kalla.tick_tables ORDER BY tick_id")
    assert [row["forced"] for row in ticks] == [True, False]


async def test_the_history_keeps_its_newest_lines_and_the_last_recomputations(site: Site) -> None:
    await site.apply("CREATE DYNAMIC TABLE sold TARGET_LAG = '1 hour' AS SELECT id FROM orders")
    table_id = (await site.table("sold")).table_id
    await site.run(
        "INSERT INTO kalla.refreshes (table_id, tick_id, job_id, status, strategy, reason, seconds,"
        " finished_at) SELECT %s, n, n, 'completed', CASE WHEN n <= 5 THEN 'FULL' ELSE 'DELTA' END,"
        " CASE WHEN n = 1 THEN 'the first refresh' ELSE '' END, n,"
        " kalla.clock() - interval '1 year' FROM generate_series(1, 100) n",
        table_id,
    )
    async with site.database.transaction() as connection:
        before = await store.samples(connection, table_id)
        await store.sweep(connection, Retention())
        after = await store.samples(connection, table_id)
    left = [row["tick_id"] for row in await site.run("SELECT tick_id FROM kalla.refreshes")]
    assert sorted(left) == [3, 4, 5, *range(51, 101)]
    assert [each.seconds for each in after] == [*range(100, 90, -1), 5, 4, 3]
    assert before == after


async def test_a_table_that_a_person_suspended_stays_so_when_an_option_changes(site: Site) -> None:
    text = "CREATE OR REPLACE DYNAMIC TABLE sold TARGET_LAG = '{}' AS SELECT {} FROM orders"

    async def state() -> str:
        return (await site.table("sold")).state

    await site.apply(text.format("1 hour", "id"))
    async with site.database.transaction() as connection:
        await store.set_state(connection, "sold", "suspended", "by ann")
    await site.apply(text.format("2 hours", "id"))
    assert (await state(), (await site.table("sold")).state_reason) == ("suspended", "by ann")
    await site.apply(text.format("2 hours", "id + 1 AS id"))
    assert await state() == "active"
    async with site.database.transaction() as connection:
        for _ in range(store.ERRORS_TO_SUSPEND):
            await store.count_error(
                connection, (await store.table(connection, "sold")).table_id, "x"
            )
    assert await state() == "suspended"
    await site.apply(text.format("3 hours", "id + 1 AS id"))
    assert await state() == "active"


async def test_the_first_refresh_on_schedule_waits_for_a_tick(site: Site) -> None:
    await site.apply(
        "CREATE DYNAMIC TABLE later TARGET_LAG = '2 days' INITIALIZE = ON_SCHEDULE AS"
        " SELECT id FROM orders"
    )
    await site.scheduler.tick()
    assert await site.jobs("later") == 0
    await site.run("UPDATE kalla.dynamic_tables SET changed_at = changed_at - interval '3 days'")
    await site.scheduler.tick()
    assert await site.jobs("later") == 1
