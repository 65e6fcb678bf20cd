"""What the routes of dynamic tables refuse, such as places that an operator may not name, links and
pipes; and that they wait for what takes long."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from kalla.database import Connection
from kalla.tables import store
from kalla.tables.definitions import ColumnsOf
from kalla.tables.http import routes
from kalla.tables.sources import mirrors
from tests.web_kit import Site, until

pytestmark = pytest.mark.attack


def reading(folder: Path) -> str:
    return (
        f"CREATE SOURCE x LOCATION '{folder}' FORMAT CSV;"
        " CREATE DYNAMIC TABLE t TARGET_LAG = '1 hour' AS SELECT nope FROM x"
    )


@pytest.mark.parametrize("dry_run", [True, False])
async def test_an_operator_learns_nothing_about_a_folder_that_no_admin_named(
    site: Site, tmp_path: Path, dry_run: bool
) -> None:
    (tmp_path / "secret.csv").write_text("top_secret_column\n1\n")
    body = {"sql": reading(tmp_path), "dry_run": dry_run}
    async with site.client("operator") as client:
        refused = await client.post("/api/tables/apply", json=body)
    assert refused.status_code == 403, refused.text
    assert "top_secret_column" not in refused.text
    async with site.client("admin") as client:
        looked = await client.post("/api/tables/apply", json=body)
    assert "top_secret_column" in looked.text


@pytest.mark.parametrize("kind", ["link", "pipe"])
async def test_a_source_does_not_follow_a_link_out_of_its_folder_nor_wait_for_a_pipe(
    site: Site, tmp_path: Path, kind: str
) -> None:
    outside, folder = tmp_path / "outside.csv", tmp_path / "in"
    outside.write_text("top_secret_column\n1\n")
    folder.mkdir()
    if kind == "link":
        (folder / "x.csv").symlink_to(outside)
    else:
        os.mkfifo(folder / "x.csv")
    async with site.client("admin") as client:
        answer = await client.post("/api/tables/apply", json={"sql": reading(folder)}, timeout=10)
    assert answer.status_code == 422, answer.text
    assert "top_secret_column" not in answer.text
    assert ("leads out of" if kind == "link" else "is not a file") in answer.text


async def test_an_apply_takes_its_turn_and_may_look_at_a_source_for_as_long_as_that_takes(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.csv").write_text("nope\n1\n")
    body = {"sql": reading(tmp_path), "dry_run": True}
    patience: list[int] = []
    columns_of = routes._columns_of

    async def looking(state: Any, connection: Connection) -> ColumnsOf:
        for setting in ("lock_timeout", "idle_in_transaction_session_timeout"):
            found = await connection.execute(
                "SELECT setting::int AS ms FROM pg_settings WHERE name = %s", [setting]
            )
            patience.extend(row["ms"] for row in await found.fetchall())
        return await columns_of(state, connection)

    monkeypatch.setattr(routes, "_columns_of", looking)

    async def waits() -> bool:
        row = await site.one(
            "SELECT count(*) AS n FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event = 'advisory'"
        )
        return bool(row["n"])

    async with site.client("admin") as client:
        async with site.database.transaction() as other:
            await store.lock_graph(other)
            answer = asyncio.create_task(client.post("/api/tables/apply", json=body))
            await until(waits, "the command waits for its turn", 4)
        assert (await answer).status_code == 200, (await answer).text
    assert patience[0] == 0
    assert patience[1] > mirrors._LOOK_SECONDS * 1000
