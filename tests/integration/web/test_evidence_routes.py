"""Evidence through the API: pages, exports, the difference of two runs, and who may see them."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import shutil
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from kalla.cli.main import application
from kalla.errors import Conflict, InvalidInput
from kalla.reconcile.evidence.reading import run_report
from kalla.reconcile.evidence.reading.evidence_reader import reading
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.runs import evidence_routes as evidence_routes
from kalla.reconcile.runs import store
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import Storage
from tests.evidence_kit import invoices_and_payments, make_evidence
from tests.web_kit import Site


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_evidence(tmp_path_factory.mktemp("run") / "run", *invoices_and_payments(60))


async def adopted(site: Site, url: str) -> int:
    async with site.database.transaction() as connection:
        return await store.adopt(connection, run_report.of_evidence(url), "x", "name: x", "ann")


def cursor(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


async def get(site: Site, path: str, status: int = 200, **query: Any) -> Any:
    async with site.client("viewer") as client:
        answer = await client.get(path, params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_the_metadata_of_a_run_are_shown(site: Site, evidence: str) -> None:
    run_id = await adopted(site, evidence)
    found = await get(site, f"/api/runs/{run_id}/evidence")
    assert found["datasets"].keys() == set(DATASETS)


async def test_a_part_is_turned_page_by_page(site: Site, evidence: str) -> None:
    run_id = await adopted(site, evidence)
    path = f"/api/runs/{run_id}/evidence/unmatched_left"
    query: dict[str, Any] = {
        "sort": "-amount",
        "limit": 3,
        "filter": ["amount:gt:150", "difference:not_null"],
    }
    first = await get(site, path, **query)
    second = await get(site, path, **query, after=first["next"])
    again = await get(site, path, **query, before=second["previous"])
    assert (first["total"], first["first"], first["previous"]) == (5, 0, None)
    assert (second["total"], second["first"], second["next"]) == (5, 3, None)
    assert {"name": "amount", "kind": "number"} in first["columns"]
    amounts = [float(row["amount"]) for row in first["rows"] + second["rows"]]
    assert amounts == sorted(amounts, reverse=True)
    assert len(amounts) == 5
    assert again["rows"] == first["rows"]


async def test_what_is_asked_amiss_is_a_problem(site: Site, evidence: str) -> None:
    run_id = await adopted(site, evidence)
    path = f"/api/runs/{run_id}/evidence"
    for query in (
        {"filter": "nothing:eq:1"},
        {"filter": "amount"},
        {"sort": "nothing"},
        {"after": "x"},
        {"after": cursor("[" * 14_000)},
        {"after": cursor('["x", 0, "\\ud800"]')},
        {"limit": 1001},
        {"format": "pdf"},
    ):
        problem = await get(site, f"{path}/unmatched_left", 422, **query)
        assert problem["errors"], query
    await get(site, f"{path}/nothing", 422)


async def test_runs_without_evidence_say_why(site: Site) -> None:
    problem = await get(site, "/api/runs/7/evidence", 404)
    assert problem["detail"] == "there is no run 7"
    await site.execute(
        "INSERT INTO kalla.reconciliations (run_id, name, recipe_id, recipe_hash, recipe, sources,"
        " submitted_by) VALUES (7, 'n', 'n', 'h', '', '{}', 'ann')"
    )
    problem = await get(site, "/api/runs/7/evidence/matched", 409)
    assert problem["detail"] == "run 7 is running and has no evidence"
    await get(site, "/api/runs/7/diff/7", 409)


async def test_damaged_evidence_is_told_by_a_sentence(
    site: Site, evidence: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(evidence, tmp_path / "spoiled"))
    whole, spoiled = await adopted(site, evidence), await adopted(site, str(folder))
    (folder / "metadata.json").write_text("[]")
    for path in ("evidence", "evidence/matched", "evidence/matched?format=xlsx", f"diff/{whole}"):
        problem = await get(site, f"/api/runs/{spoiled}/{path}", 409)
        assert problem["detail"].startswith(f"the evidence at {folder} is damaged: ")
    async with site.client("viewer") as client:
        page = await client.get(f"/runs/{spoiled}", headers={"accept": "text/html"})
    assert page.status_code == 200
    assert "is damaged: its metadata.json is not an object" in page.text
    async with site.client("admin") as client:
        answer = await client.post("/api/runs/import", json={"folder": str(folder)})
    assert answer.status_code == 409
    assert f"the evidence at {folder} is damaged" in answer.json()["detail"]


async def test_evidence_needs_a_token(site: Site) -> None:
    async with site.client() as client:
        for path in ("evidence", "evidence/matched", "diff/2"):
            assert (await client.get(f"/api/runs/1/{path}")).status_code == 401


@pytest.mark.parametrize("style", ["csv", "parquet", "xlsx"])
async def test_exports_come_as_files(site: Site, evidence: str, style: str) -> None:
    run_id = await adopted(site, evidence)
    query = {"format": style, "filter": "record_key:startswith:INV-0001", "bom": "true"}
    async with site.client("viewer") as client:
        path = f"/api/runs/{run_id}/evidence/unmatched_left"
        answer = await client.get(path, params=query)
    assert answer.status_code == 200
    name = f'attachment; filename="run-{run_id}-unmatched_left.{style}"'
    assert answer.headers["Content-Disposition"] == name
    assert int(answer.headers["Content-Length"]) == len(answer.content)
    if style == "csv":
        assert answer.content.startswith(b"\xef\xbb\xbfrecord_key,")
        assert answer.text.count("\r\n") == 3
    elif style == "parquet":
        assert pq.read_table(io.BytesIO(answer.content)).num_rows == 2
    else:
        assert answer.content.startswith(b"PK")


async def test_an_export_leaves_nothing_behind(
    site: Site, evidence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_id = await adopted(site, evidence)
    async with site.client("viewer") as client:
        path = f"/api/runs/{run_id}/evidence/matched"
        assert (await client.get(path, params={"format": "csv"})).status_code == 200
        wrong = {"format": "csv", "filter": "x:eq:1"}
        assert (await client.get(path, params=wrong)).status_code == 422
    assert [each.name for each in os.scandir(tmp_path)] == []


async def test_two_runs_are_compared(site: Site, evidence: str, tmp_path: Path) -> None:
    left, right = invoices_and_payments(60)
    paid = [*right, ("PAY-late", "R-00010", "170")]
    a = await adopted(site, evidence)
    b = await adopted(site, make_evidence(tmp_path / "run", left, paid))
    found = await get(site, f"/api/runs/{a}/diff/{b}", examples=1)
    assert found["counts"]["left"]["newly_matched"] == 1
    assert found["counts"]["right"]["only_in_b"] == 1
    (example,) = found["examples"]["newly_matched"]
    assert (example["record_key"], example["amount"]) == ("INV-00010", "170.00")
    assert example["b"]["partners"] == "PAY-late"


async def test_no_more_than_a_few_wait_for_an_export_or_comparison(
    site: Site, evidence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await adopted(site, evidence)
    released = threading.Event()

    def slow(*_: object) -> Any:
        assert released.wait(60)
        raise Conflict("released")

    monkeypatch.setattr(evidence_routes, "compare", slow)
    monkeypatch.setattr(evidence_routes, "export", lambda *_, **__: slow())
    async with site.client("viewer") as client:
        path = f"/api/runs/{run_id}"
        asked = [client.get(f"{path}/diff/{run_id}") for _ in range(5)]
        asked += [client.get(f"{path}/evidence/matched?format=csv") for _ in range(5)]
        waiting = {asyncio.ensure_future(each) for each in asked}
        while len(waiting) > 6:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                assert each.result().status_code == 503
                assert "try again" in each.result().text
        assert (await client.get(f"{path}/evidence/matched")).status_code == 200
        released.set()
        answers = await asyncio.gather(*waiting)
    assert {answer.status_code for answer in answers} == {409}


async def test_a_comparison_ends_when_nobody_waits_for_it(
    site: Site, evidence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await adopted(site, evidence)
    begun, ended = threading.Event(), threading.Event()

    def endless(_a: str, _b: str, storage: Storage, _examples: int, bounds: Bounds) -> Any:
        try:
            with reading(storage, bounds) as reader:
                begun.set()
                reader.rows("SELECT count(*) FROM range(100000000000) a, range(100000) b")
        finally:
            ended.set()

    monkeypatch.setattr(evidence_routes, "compare", endless)
    async with site.served() as address:
        at = urlsplit(address)
        _, line = await asyncio.open_connection(at.hostname, at.port)
        line.write(
            f"GET /api/runs/{run_id}/diff/{run_id} HTTP/1.1\r\nHost: {at.netloc}\r\n"
            f"Authorization: Bearer {site.tokens['viewer']}\r\n\r\n".encode()
        )
        assert await asyncio.to_thread(begun.wait, 60)
        line.close()
        await line.wait_closed()
        assert await asyncio.to_thread(ended.wait, 60)


async def test_runs_are_exported_and_compared_by_command(
    site: Site, evidence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = str(await adopted(site, evidence))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KALLA_API_TOKEN", site.tokens["viewer"])
    app = application(["runs"])

    def carried_out(*arguments: str) -> str:
        return CliRunner().invoke(app, ["runs", *arguments], catch_exceptions=False).output

    async with site.served() as address:
        monkeypatch.setenv("KALLA_API_URL", address)
        arguments = ("export", run_id, "ambiguous", "--filter", "side:eq:left", "--sort", "-rule")
        said = await asyncio.to_thread(carried_out, *arguments, "--format", "parquet")
        told = await asyncio.to_thread(carried_out, "diff", run_id, run_id)
        with pytest.raises(InvalidInput, match="there is no column"):
            await asyncio.to_thread(carried_out, "export", run_id, "matched", "--sort", "nothing")
    assert f"run-{run_id}-ambiguous.parquet has " in said
    assert pq.read_table(tmp_path / f"run-{run_id}-ambiguous.parquet").num_rows == 6
    assert not (tmp_path / f"run-{run_id}-matched.csv").exists()
    assert "unchanged" in told
