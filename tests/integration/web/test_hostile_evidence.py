"""Evidence that comes from elsewhere is bounded and checked before anything is made of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.evidence_kit import invoices_and_payments, make_evidence
from tests.web_kit import PAGE, Site

pytestmark = [pytest.mark.attack, pytest.mark.timeout(60)]

Document = dict[str, Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_evidence(tmp_path_factory.mktemp("made") / "run", *invoices_and_payments(30))


@pytest.fixture
def folder(whole: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "hostile"))


def changed(folder: Path, change: Callable[[Document], object]) -> None:
    document = json.loads((folder / "metadata.json").read_text())
    change(document)
    (folder / "metadata.json").write_text(json.dumps(document))


def figures(document: Document) -> Document:
    states: Document = document["sources"]["left"]["states"]
    found: Document = next(iter(states.values()))
    return found


HOSTILE: dict[str, Callable[[Document], object]] = {
    "a huge amount": lambda document: figures(document).update(amount="1E+200000000"),
    "a tiny amount": lambda document: figures(document).update(amount="1E-200000000"),
    "no number": lambda document: figures(document).update(amount="NaN"),
    "an amount of many digits": lambda document: figures(document).update(amount="1" * 100_000),
    "a huge amount of a currency": lambda document: figures(document).update(
        currencies={"EUR": "1E+200000000"}
    ),
    "more rows than there are": lambda document: figures(document).update(rows=10**300),
    "fewer rows than none": lambda document: figures(document).update(rows=-1),
    "rows of many states": lambda document: document["sources"]["left"].update(
        states={f"state {number}": {"rows": 10**15} for number in range(15)}
    ),
    "very many states": lambda document: document["sources"]["left"].update(
        states={f"state {number}": {"rows": 1} for number in range(10_000)}
    ),
    "unreadable rows without measure": lambda document: document["sources"]["left"].update(
        rows_that_filters_could_not_read=10**300
    ),
    "fewer unreadable rows than none": lambda document: document["sources"]["left"].update(
        rows_that_filters_could_not_read=-(10**300)
    ),
    "doubled keys without measure": lambda document: document["sources"]["left"].update(
        rows_with_doubled_or_null_keys=10**300
    ),
    "the last year": lambda document: document.update(started_at="9999-12-31T23:59:59Z"),
    "the first year": lambda document: document.update(started_at="0001-01-01T00:00:00Z"),
}


async def imported(site: Site, folder: Path) -> tuple[int, Any]:
    async with site.client("admin") as client:
        answer = await client.post("/api/runs/import", json={"folder": str(folder)})
    return answer.status_code, answer.json()


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
async def test_what_no_run_writes_is_refused(
    site: Site, folder: Path, change: Callable[[Document], object]
) -> None:
    changed(folder, change)
    status, problem = await imported(site, folder)
    assert (status, "is damaged" in problem["detail"]) == (409, True), problem


@pytest.mark.parametrize("bad", ["\0", "\ud800"], ids=["a NUL", "half a character"])
async def test_what_postgres_cannot_store_is_replaced(site: Site, folder: Path, bad: str) -> None:
    changed(folder, lambda document: document["recipe"].update(name=f"may{bad}june"))
    status, run = await imported(site, folder)
    assert (status, run["name"]) == (201, "may\ufffdjune")
    async with site.client("viewer") as client:
        for path in (
            f"/runs/{run['run_id']}",
            "/runs",
            f"/api/runs/{run['run_id']}/evidence/matched",
        ):
            assert (await client.get(path, headers=PAGE)).status_code == 200, path


async def test_an_amount_of_the_rows_that_is_none_is_refused(site: Site, folder: Path) -> None:
    (file,) = (folder / "unmatched_left").iterdir()
    rows = pq.read_table(file)
    amounts = rows.schema.get_field_index("amount")
    hostile = ["1E+200000000"] * rows.num_rows
    pq.write_table(rows.set_column(amounts, "amount", [hostile]), file)
    status, problem = await imported(site, folder)
    assert status in (409, 503), problem


@pytest.mark.parametrize("name", ["metadata.json", "unmatched_left"])
async def test_a_pipe_is_refused_and_not_waited_for(site: Site, folder: Path, name: str) -> None:
    file = folder / name
    if file.is_dir():
        (file,) = file.iterdir()
    file.unlink()
    os.mkfifo(file)
    status, problem = await imported(site, folder)
    assert (status, "is not a file" in problem["detail"]) == (409, True), problem


async def test_metadata_of_any_size_are_not_read(site: Site, folder: Path) -> None:
    with (folder / "metadata.json").open("r+b") as file:
        file.truncate(200 << 20)  # a hole, which takes no room
    status, problem = await imported(site, folder)
    assert (status, "has more than" in problem["detail"]) == (409, True), problem
