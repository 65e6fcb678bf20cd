"""Evidence that `kalla reconcile` wrote, taken in as runs: found by recipe, each once, in order."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.evidence_kit import invoices_and_payments, make_evidence
from tests.web_kit import Site


@pytest.fixture(scope="module")
def april(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("april") / "run"
    return at(Path(make_evidence(folder, *invoices_and_payments(60))), "2026-04-30T12:00:00Z")


@pytest.fixture
def may(tmp_path: Path) -> Path:
    """A month later one more invoice is paid."""
    left, right = invoices_and_payments(60)
    paid = [*right, ("PAY-late", "R-00010", "170")]
    return at(Path(make_evidence(tmp_path / "may", left, paid)), "2026-05-31T12:00:00Z")


def at(evidence: Path, moment: str) -> Path:
    file = evidence / "metadata.json"
    facts = json.loads(file.read_text())
    file.write_text(json.dumps(facts | {"started_at": moment}))
    return evidence


async def taken(site: Site, folder: Path | str, status: int = 201) -> dict[str, Any]:
    async with site.client("admin") as client:
        answer = await client.post("/api/runs/import", json={"folder": str(folder)})
    assert answer.status_code == status, answer.text
    run: dict[str, Any] = answer.json()
    return run


async def test_runs_of_one_recipe_are_found_by_the_id_that_the_library_gives_it(
    site: Site, april: Path, may: Path
) -> None:
    first, second = await taken(site, april), await taken(site, may)
    assert first["recipe_id"] == "invoices-and-payments"
    async with site.client("viewer") as client:
        found = (await client.get("/api/runs", params={"recipe_id": first["recipe_id"]})).json()
    assert [run["run_id"] for run in found["runs"]] == [second["run_id"], first["run_id"]]


async def test_the_same_evidence_is_one_run_however_often_it_is_imported(
    site: Site, april: Path
) -> None:
    first = await taken(site, april)
    assert (await taken(site, f"{april}/", status=200))["run_id"] == first["run_id"]


async def test_two_imports_of_one_folder_at_once_are_one_run(site: Site, april: Path) -> None:
    async with site.client("admin") as client:
        body = {"folder": str(april)}
        posts = [client.post("/api/runs/import", json=body) for _ in range(3)]
        answers = await asyncio.gather(*posts)
    assert sorted(each.status_code for each in answers) == [200, 200, 201]
    assert len({each.json()["run_id"] for each in answers}) == 1


async def test_a_folder_that_was_written_anew_is_another_run(
    site: Site, april: Path, may: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(april, tmp_path / "evidence")
    first = await taken(site, folder)
    shutil.rmtree(folder)
    shutil.copytree(may, folder)
    assert (await taken(site, folder))["run_id"] != first["run_id"]


async def test_the_page_compares_from_the_run_that_started_first_whichever_was_imported_first(
    site: Site, april: Path, may: Path
) -> None:
    later, earlier = (await taken(site, may))["run_id"], (await taken(site, april))["run_id"]
    async with site.client("viewer") as client:
        for run, other in ((later, earlier), (earlier, later)):
            page = (await client.get(f"/runs/{run}", params={"against": other})).text
            assert f"From run {earlier} to run {later}." in page
            row = re.search(r"newly matched</th><td[^>]*>(\d+)<", page)
            assert row
            assert row[1] == "1"


async def test_choosing_no_run_to_compare_with_compares_with_none(site: Site, april: Path) -> None:
    """As the form sends it where there are no scripts."""
    run_id = (await taken(site, april))["run_id"]
    async with site.client("viewer") as client:
        answer = await client.get(f"/runs/{run_id}?part=matched&against=")
        wrong = await client.get(f"/runs/{run_id}?against=0")
    assert (answer.status_code, wrong.status_code) == (200, 422)


async def test_the_page_tells_how_long_a_run_took_from_when_it_was_submitted(
    site: Site, april: Path
) -> None:
    """As the list does; the evidence knows of its match alone."""
    run_id = (await taken(site, april))["run_id"]
    await site.execute("UPDATE kalla.reconciliations SET created_at = finished_at - interval '95s'")
    async with site.client("viewer") as client:
        page = (await client.get(f"/runs/{run_id}")).text
    assert "<dt>Took</dt><dd>1 min 35 s</dd>" in page


async def test_the_page_of_an_imported_run_tells_who_imported_it_and_of_no_jobs(
    site: Site, april: Path
) -> None:
    run = await taken(site, april)
    async with site.client("viewer") as client:
        page = (await client.get(f"/runs/{run['run_id']}")).text
    assert "<dt>Imported</dt><dd>by admin</dd>" in page
    assert ">Jobs</a>" not in page
