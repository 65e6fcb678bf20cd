"""Tables of a registered PostgreSQL database as sources of dynamic tables."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.tables_kit import TablesSite
from tests.worker_kit import eventually

pytestmark = pytest.mark.spark


@pytest.fixture
async def shop(
    site: TablesSite, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    """A table of orders, registered as `erp`."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE public.shop (id int PRIMARY KEY, day text, amount numeric(12,2),"
            " changed int NOT NULL)"
        )
        connection.execute("INSERT INTO shop VALUES (1, 'mon', 5.00, 1), (2, 'tue', 7.50, 2)")
        parts = urlsplit(database_url)
        monkeypatch.setenv("KALLA_SECRET_ERP", parts.password or "")
        table = {
            "uri": f"postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}",
            "table": "public.shop",
            "password": "secret://erp",
            "primary_key": ["id"],
        }
        await site.runs.post("/api/sources", {"name": "erp", "source": table})
        yield connection


def statements(options: str = "") -> str:
    return f"""
    CREATE SOURCE orders REGISTERED 'erp'{options};
    CREATE DYNAMIC TABLE daily TARGET_LAG = '4 seconds' REFRESH_STRATEGY = DELTA AS
        SELECT day, sum(amount) AS total, count(*) AS n FROM orders GROUP BY day;
    """


async def totals(site: TablesSite) -> list[list[str]]:
    job = await site.runs.post(
        "/api/tables/query", {"query": "SELECT day, total FROM daily ORDER BY day"}, status=202
    )
    rows: list[list[str]] = (await site.result(job["job_id"]))["rows"]
    return rows


async def test_snapshots_of_a_registered_table_are_compared(site: TablesSite, shop: Any) -> None:
    await site.apply(statements())
    async with site.worker():
        await site.refreshed("daily")
        assert await totals(site) == [["mon", "5.00"], ["tue", "7.50"]]
        shop.execute("DELETE FROM shop WHERE id = 1")
        shop.execute("UPDATE shop SET amount = 8.00 WHERE id = 2")
        shop.execute("INSERT INTO shop VALUES (3, 'wed', 1.00, 3)")
        await site.refreshed("daily")
        assert await totals(site) == [["tue", "8.00"], ["wed", "1.00"]]
        # A tick by an older mirror may come before the one that answers the request.
        strategies = [each["strategy"] for each in await site.history("daily")]
        assert next(each for each in strategies if each != "NO_DATA") == "DELTA"
        assert (await site.audit("daily"))["equal"]
        shop.execute("DROP TABLE shop")

        async def said() -> bool:
            return "orders" in (await site.table("daily"))["why"]

        await eventually(said, 60)


async def test_rows_after_the_watermark_replace_those_of_their_key(
    site: TablesSite, shop: Any
) -> None:
    await site.apply(statements(" KEY (id) WATERMARK changed"))
    async with site.worker():
        await site.refreshed("daily")
        # What did not raise the watermark is not seen; what did replaces the row of its key.
        shop.execute("UPDATE shop SET amount = 100.00 WHERE id = 1")
        shop.execute("UPDATE shop SET day = 'mon', changed = 5 WHERE id = 2")
        shop.execute("INSERT INTO shop VALUES (3, 'wed', 1.00, 6)")
        await site.refreshed("daily")
        assert await totals(site) == [["mon", "12.50"], ["wed", "1.00"]]


async def test_what_is_not_registered_or_has_no_such_key_is_refused(
    site: TablesSite, shop: Any
) -> None:
    for sql, message in (
        ("CREATE SOURCE o REGISTERED 'nothing'", "there is no registered source nothing"),
        ("CREATE SOURCE o REGISTERED 'erp' KEY (nothing)", "has no column nothing"),
    ):
        answer = await site.runs.client.post("/api/tables/apply", json={"sql": sql})
        assert (answer.status_code, message in answer.text) == (422, True), answer.text
