"""Files that users send are sources until they expire, and the way from two of them to a run."""

from __future__ import annotations

import asyncio
import gzip
import os
from pathlib import Path
from unittest.mock import patch

import pytest

from kalla.database import Connection
from kalla.errors import Unavailable
from kalla.reconcile.uploads import upload_routes, upload_store
from kalla.settings import Retention, Settings
from tests.pairs_of_sources import EXAMPLES
from tests.web_kit import Site


@pytest.fixture
def folder(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the site keeps uploads."""
    place = tmp_path / "uploads"
    monkeypatch.setattr(Settings, "uploads_url", property(lambda _: str(place)))
    return place


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.glob("*/*"))


async def send(site: Site, name: str, content: bytes) -> dict[str, str]:
    async with site.client("operator") as client:
        answer = await client.post("/api/uploads", params={"name": name}, content=content)
    assert answer.status_code == 201, answer.text
    found: dict[str, str] = answer.json()
    return found


async def sweep(site: Site) -> None:
    async with site.database.transaction() as connection:
        await upload_store.sweeper(site.settings)(connection, Retention())


async def test_two_uploads_are_previewed_proposed_tried_and_run(site: Site, folder: Path) -> None:
    ledger = await send(site, "ledger.xlsx", (EXAMPLES / "ledger.xlsx").read_bytes())
    bank = await send(site, "bank export.csv", (EXAMPLES / "bank-export.csv").read_bytes())
    async with site.client("operator") as client:
        shown = (await client.get(f"/api/uploads/{bank['upload_id']}/preview?rows=2")).json()
        assert shown["csv"]["skip"] == 3
        assert shown["preview"]["rows"][0][3] == "1.482,99"
        asked = {"left": ledger["uri"], "right": bank["uri"]}
        proposed = (await client.post("/api/recipes/propose", json=asked)).json()
        assert proposed["trial"]["match_rate"] > 0.92
        assert "94.2% of the rows of ledger" in proposed["evidence"][0]
        tried = await client.post("/api/recipes/try", json={"recipe": proposed["text"]})
        assert tried.json()["rules"] == proposed["trial"]["rules"]
        run = await client.post("/api/runs", json={"recipe": proposed["text"]})
        assert run.status_code == 201, run.text
        again = (await client.post("/api/recipes/propose", json=asked)).json()
        assert 'name: "ledger and bank export 2"' in again["text"]
        profile = await client.get(f"/api/sources/upload-{bank['upload_id']}/profile")
        assert {each["name"]: each["role"] for each in profile.json()["columns"]}["Betrag"] == (
            "amount"
        )


async def test_an_upload_expires_and_is_swept_unless_it_is_saved(site: Site, folder: Path) -> None:
    gone = await send(site, "gone.csv", b"id,amount\n1,2\n")
    kept = await send(site, "kept.csv", b"id;amount\n1;2,50\n")
    async with site.client("operator") as client:
        saved = await client.post(f"/api/uploads/{kept['upload_id']}/save", json={"name": "kept"})
        assert saved.status_code == 200, saved.text
        assert saved.json()["expires_at"] is None
        source = (await client.get("/api/sources/kept")).json()["source"]
        assert source["csv"] == {"delimiter": ";", "decimal": ","}
        await site.execute(
            "UPDATE kalla.uploads SET expires_at = kalla.clock() WHERE expires_at IS NOT NULL"
        )
        assert (await client.get(f"/api/uploads/{gone['upload_id']}/preview")).status_code == 404
    assert names_in(folder) == ["gone.csv", "kept.csv"]
    await sweep(site)
    assert names_in(folder) == ["kept.csv"]
    async with site.client("admin") as client:
        twin = {"name": "twin", "source": {**source, "primary_key": ["id"]}}
        assert (await client.post("/api/sources", json=twin)).status_code == 201
        assert (await client.post("/api/sources/kept/remove")).status_code == 200
        assert (await shown(site, kept))["expires_at"] is None, "another source reads it"
        assert (await client.post("/api/sources/twin/remove")).status_code == 200
    assert (await shown(site, kept))["expires_at"] is not None


async def shown(site: Site, upload: dict[str, str]) -> dict[str, str]:
    async with site.client("viewer") as client:
        found: list[dict[str, str]] = (await client.get("/api/uploads")).json()
    return next(each for each in found if each["upload_id"] == upload["upload_id"])


async def test_files_that_no_upload_names_for_a_day_are_swept(site: Site, folder: Path) -> None:
    await send(site, "rows.csv", b"id\n1\n")
    for name in ("0011223344556677/lost.csv", "7766554433221100/of_today.csv"):
        (folder / name).parent.mkdir()
        (folder / name).write_text("id\n1\n")
    for name in (".upload-killed", ".upload-arriving"):
        (folder / name).write_text("id\n")
    for name in ("0011223344556677/lost.csv", ".upload-killed"):
        os.utime(folder / name, (0, 0))
    await sweep(site)
    assert names_in(folder) == ["of_today.csv", "rows.csv"]
    assert (folder / ".upload-arriving").exists()
    assert not (folder / ".upload-killed").exists()


async def test_an_operator_removes_an_upload_but_not_the_file_of_a_source(
    site: Site, folder: Path
) -> None:
    gone = await send(site, "gone.csv", b"id\n1\n")
    kept = await send(site, "kept.csv", b"id\n1\n")
    async with site.client("operator") as client:
        await client.post(f"/api/uploads/{kept['upload_id']}/save", json={"name": "kept"})
        assert (await client.delete(f"/api/uploads/{gone['upload_id']}")).status_code == 204
        refused = await client.delete(f"/api/uploads/{kept['upload_id']}")
        assert refused.status_code == 409, refused.text
    async with site.client("viewer") as client:
        assert (await client.delete(f"/api/uploads/{kept['upload_id']}")).status_code == 403
    assert names_in(folder) == ["kept.csv"]


async def is_waited_for(connection: Connection) -> bool:
    blocked = "SELECT 1 FROM pg_locks WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    return await (await connection.execute(blocked)).fetchone() is not None


async def test_an_upload_that_becomes_a_source_at_this_moment_is_not_removed(
    site: Site, folder: Path
) -> None:
    sent = await send(site, "rows.csv", b"id\n1\n")
    async with site.client("operator") as client, asyncio.timeout(20):
        async with site.database.transaction() as saving:
            await upload_store.keep(saving, sent["upload_id"])
            removal = asyncio.create_task(client.delete(f"/api/uploads/{sent['upload_id']}"))
            while not await is_waited_for(saving):
                await asyncio.sleep(0.01)
        assert (await removal).status_code == 409
    assert names_in(folder) == ["rows.csv"]


async def test_a_file_that_cannot_be_stored_is_no_upload(site: Site, folder: Path) -> None:
    full = patch.object(upload_routes, "_put", side_effect=Unavailable("no space is left"))
    async with site.client("operator") as client:
        with full:
            answer = await client.post("/api/uploads?name=a.csv", content=b"id\n1\n")
        assert answer.status_code == 503
        assert (await client.get("/api/uploads")).json() == []


async def test_an_operator_replaces_uploaded_sources_alone(site: Site, folder: Path) -> None:
    sent = await send(site, "rows.csv", b"id\n1\n")
    source = {"uri": str(folder.parent / "bank.csv"), "primary_key": ["id"]}
    async with site.client("admin") as client:
        added = await client.post("/api/sources", json={"name": "bank", "source": source})
        assert added.status_code == 201, added.text
    path = f"/api/uploads/{sent['upload_id']}/save"
    async with site.client("operator") as client:
        refused = await client.post(path, json={"name": "bank", "replace": True})
        assert refused.status_code == 403, refused.text
        for _ in range(2):
            saved = await client.post(path, json={"name": "own", "replace": True})
            assert saved.status_code == 200, saved.text
    async with site.client("admin") as client:
        saved = await client.post(path, json={"name": "bank", "replace": True})
        assert saved.status_code == 200, saved.text


async def test_errors_name_uploaded_files_as_people_do(site: Site, folder: Path) -> None:
    sent = await send(site, "konto.xlsx", b"\xd0\xcf\x11\xe0")
    async with site.client("operator") as client:
        for path in (
            f"/api/uploads/{sent['upload_id']}/preview",
            f"/api/sources/upload-{sent['upload_id']}/profile",
        ):
            (error,) = (await client.get(path)).json()["errors"]
            assert error["message"].startswith("konto.xlsx is an Excel file of before 2007")


@pytest.mark.parametrize(
    ("name", "content", "status", "message"),
    [
        ("rows.exe", b"MZ", 422, "its name must end in .csv"),
        ("rows.csv", b"", 422, "is empty"),
        ("../../etc/x.csv", b"id\n1\n", 201, "etc_x.csv"),
        ("выписка.csv", b"id\n1\n", 201, "file.csv"),
        ("对账单.CSV.gz", gzip.compress(b"id\n1\n", mtime=0), 201, "file.csv.gz"),
    ],
    ids=["no table", "empty", "path", "cyrillic", "chinese, packed"],
)
async def test_names_and_empty_files_are_refused_and_paths_are_none(
    site: Site, folder: Path, name: str, content: bytes, status: int, message: str
) -> None:
    async with site.client("operator") as client:
        answer = await client.post("/api/uploads", params={"name": name}, content=content)
    assert answer.status_code == status
    if status == 201:
        assert names_in(folder) == [message]
    else:
        assert message in answer.text
        assert names_in(folder) == []


async def test_a_viewer_may_not_upload_and_a_large_file_is_refused(
    site: Site, folder: Path
) -> None:
    async with site.client("viewer") as client:
        answer = await client.post("/api/uploads?name=a.csv", content=b"id\n1\n")
        assert answer.status_code == 403
    async with site.client("operator") as client:
        headers = {"Content-Length": str(3_000_000_000)}
        answer = await client.post("/api/uploads?name=a.csv", content=b"id\n1\n", headers=headers)
        assert answer.status_code == 413
        assert "uploads.bytes" in answer.text
    assert names_in(folder) == []


async def test_rows_of_a_source_are_loaded_under_filters(site: Site, folder: Path) -> None:
    sent = await send(site, "rows.csv", b"id,amount\nA,5.00\nB,15.00\nC,25.00\n")
    path = f"/api/sources/upload-{sent['upload_id']}/load-scoped"
    async with site.client("viewer") as client:
        asked = {"filters": [{"column": "amount", "op": "gte", "value": 15}]}
        found = await client.post(path, json=asked)
        assert found.json()["rows"] == [["B", "15.00"], ["C", "25.00"]]
        wrong = {"filters": [{"column": "amuont", "op": "gte", "value": 15}]}
        answer = await client.post(path, json=wrong)
        assert answer.status_code == 422
        assert "there is no column 'amuont'; there are id, amount" in answer.text
