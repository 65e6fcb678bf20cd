"""`kalla tables` against the API, without a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from kalla.cli import tables as tables_command
from kalla.errors import Conflict
from tests.web_kit import Site, open_site


@pytest.fixture
async def site(
    database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[Site]:
    async with open_site(database_url) as site, site.served() as address:
        monkeypatch.setenv("KALLA_API_URL", address)
        monkeypatch.setenv("KALLA_API_TOKEN", site.tokens["admin"])
        write_deltalake(tmp_path / "orders", pa.table({"id": [1], "day": ["mon"]}))
        (tmp_path / "shop.sql").write_text(
            f"CREATE SOURCE orders LOCATION '{tmp_path}/orders';\n"
            "CREATE DYNAMIC TABLE days TARGET_LAG = DOWNSTREAM AS"
            " SELECT day, count(*) AS n FROM orders GROUP BY day;\n"
            "CREATE DYNAMIC TABLE busy TARGET_LAG = '1 minute' AS"
            " SELECT day FROM days WHERE n > 1 -- no semicolon"
        )
        await command("apply", str(tmp_path))
        yield site


async def command(*arguments: str) -> str:
    def invoke() -> str:
        runner = CliRunner()
        return runner.invoke(tables_command.app, arguments, catch_exceptions=False).output

    return await asyncio.to_thread(invoke)


async def test_tables_are_managed_by_command(site: Site, tmp_path: Path) -> None:
    assert "unchanged" in await command("apply", str(tmp_path / "shop.sql"), "--dry-run")
    listed = await command("list")
    assert "days" in listed
    assert "DOWNSTREAM" in listed
    assert "the first refresh has not ended yet" in await command("show", "busy")
    explained = await command("explain", "days")
    assert "adds signed changes" in explained
    assert "recomputed by day" in explained
    assert "has not been refreshed yet" in await command("history", "days")
    assert "read by busy" in await command("lineage", "days")
    await command("suspend", "days")
    assert "waits for days: suspended" in await command("list")
    with pytest.raises(Conflict, match="is suspended: `kalla tables resume days`"):
        await command("refresh", "days")
    await command("resume", "days")
    assert "with the next tick" in await command("refresh", "days", "--full")
    assert "busy is good now" in await command("rename", "busy", "good")
    with pytest.raises(Conflict, match="is read by good"):
        await command("drop", "days")
    await command("drop", "good")
    await command("drop", "days")
    assert "No dynamic tables yet" in await command("list")


async def test_waiting_for_a_refresh_passes_over_one_that_began_before(
    site: Site, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = [
        (
            "UPDATE kalla.dynamic_tables SET data_time = kalla.clock() - interval '1 hour',"
            " row_count = 1"
        ),
        "UPDATE kalla.dynamic_tables SET data_time = kalla.clock(), row_count = 2",
    ]

    def pause(_seconds: float) -> None:
        with psycopg.connect(database_url) as connection:
            connection.execute(updates.pop(0).encode())

    clock: Any = SimpleNamespace(sleep=pause, monotonic=time.monotonic)
    monkeypatch.setattr(tables_command, "time", clock)
    assert "days has 2 rows." in await command("refresh", "days", "--full", "--wait")
