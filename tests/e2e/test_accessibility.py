"""axe finds nothing serious on any page: for screen readers, weak eyes and keyboards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser

from kalla.reconcile.evidence.reading import run_report
from kalla.reconcile.runs import store
from kalla.work.job import NewJob
from kalla.work.state import jobs
from tests.browser import chromium
from tests.evidence_kit import invoices_and_payments, make_evidence
from tests.web_kit import Site, open_site

pytestmark = pytest.mark.browser


@pytest_asyncio.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as started:
        yield started


@pytest_asyncio.fixture
async def site(database_url: str) -> AsyncIterator[Site]:
    async with open_site(database_url) as opened:
        yield opened


async def save_recipe(site: Site, folder: Path) -> None:
    async with site.client("admin") as client:
        for name in ("ledger", "bank"):
            (folder / f"{name}.csv").write_text("id,ref,amount\n1,a,2.50\n2,b,3.50\n")
            source = {"uri": str(folder / f"{name}.csv"), "primary_key": ["id"]}
            await client.post("/api/sources", json={"name": name, "source": source})
        conditions = [{"left": "ref", "op": "eq", "right": "ref"}]
        recipe = {
            "name": "plain",
            "sources": {"left": {"uri": "source://ledger"}, "right": {"uri": "source://bank"}},
            "rules": [{"name": "r", "conditions": conditions}],
        }
        saved = await client.post("/api/recipes", json={"recipe": recipe})
        assert saved.status_code == 201, saved.text
        await client.post("/api/recipes", json={"recipe": recipe | {"accept_suggested": True}})
        cron = {"recipe_id": "plain", "cron": "0 7 * * 1-5"}
        assert (await client.post("/api/schedules", json=cron)).status_code == 201


@pytest.mark.timeout(300)
async def test_axe_finds_nothing_serious(browser: Browser, site: Site, tmp_path: Path) -> None:
    evidence = make_evidence(tmp_path / "run", *invoices_and_payments(60))
    async with site.database.transaction() as connection:
        report = run_report.of_evidence(evidence)
        run_id = await store.adopt(connection, report, "x", "name: x", "ann")
        await connection.execute(
            "UPDATE kalla.reconciliations SET status = 'failed', report = NULL,"
            " evidence_url = NULL, error = 'it broke: see https://kalla.test' WHERE run_id = %s",
            [run_id],
        )
        whole = await store.adopt(connection, report, "x", "name: x", "ann")
    await save_recipe(site, tmp_path)
    (job_id,) = await site.submit(NewJob("probe", payload={"sleep": 5}))
    (job,) = await site.claim(1)
    async with site.database.transaction() as connection:
        await jobs.fail(connection, job, "it broke", "Traceback", permanent=True)
    paths = (
        "/runs", f"/runs/{whole}", f"/runs/{run_id}", f"/runs/{whole}?part=unmatched_left",
        "/work", f"/jobs/{job_id}", "/query", "/queries", "/query-workers", "/docs",
        "/scaling", "/tables", "/sinks", "/nowhere",
        "/start", "/sources", "/sources/ledger", "/recipes", "/recipes/plain", "/settings",
        f"/runs/{whole}?part=unmatched_left&exception=left:INV-00001",
        "/recipes/plain?version=2&against=1", "/login",
    )  # fmt: skip
    context = await browser.new_context(bypass_csp=True)  # axe is a script of ours, and of no page
    found = list[str]()
    async with site.served() as address:
        page = await context.new_page()
        await page.goto(f"{address}/login?token={site.tokens['admin']}")
        for path in paths:
            await page.goto(address + path)
            if path == "/recipes/plain":
                await page.locator("#trial table").wait_for()
            if path == "/start":
                for side, source in (("left", "ledger"), ("right", "bank")):
                    await page.select_option(f"#{side}-source", source)
                await page.locator("#trial table").wait_for()
            if path == "/sources/ledger":
                await page.locator("#profile table").wait_for()
            if "exception" in path:
                await page.locator("#exception table").wait_for()
            if "against" in path:
                await page.locator("pre.diff").wait_for()
            violations = (await Axe().run(page)).response["violations"]
            found += [
                f"{path}: {each['id']}: {each['nodes'][0]['html'][:200]}"
                for each in violations
                if each["impact"] in ("serious", "critical")
            ]
    await context.close()
    assert found == []
