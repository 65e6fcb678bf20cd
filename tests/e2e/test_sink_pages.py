"""The page of a pipeline in a real browser: the mapping is inferred, tried and saved."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.browser import FAINT, chromium
from tests.integration.sinks.test_sinks_routes import document
from tests.sinks_kit import Servers, event
from tests.web_kit import open_site

pytestmark = pytest.mark.browser


@pytest.mark.timeout(240)
async def test_a_mapping_is_inferred_tried_and_saved_in_the_browser(
    database_url: str, sink_servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KALLA_SECRET_ADMIN", sink_servers.clickhouse.password)
    topic = sink_servers.create_topic(1)
    values: list[bytes | None] = [event(number, id=number) for number in range(40)]
    sink_servers.produce(topic, [*values, b"nonsense"])
    body = document(sink_servers, topic, create=True, user="kalla", password="secret://admin")
    async with open_site(database_url) as site, chromium() as browser:
        async with site.client("admin") as client:
            made = await client.post("/api/pipelines", json=body)
            assert made.status_code == 201, made.text
        async with site.served() as address:
            page = await browser.new_page()
            problems: list[str] = []
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on(
                "console",
                lambda said: problems.append(said.text) if said.type == "error" else None,
            )
            await page.goto(f"{address}/login?token={site.tokens['admin']}")
            await page.goto(f"{address}/sinks/{topic}/mapping")
            rows = page.locator("#mapping-rows tr")
            await expect(rows).to_have_count(5)
            await page.get_by_role("button", name="Preview").click()
            # The first samples of a process load compiled code.
            preview = page.locator("#preview")
            await expect(preview).to_contain_text("40 rows, 1 refused", timeout=60_000)
            await rows.nth(4).get_by_role("button", name="Remove").click()
            await page.get_by_role("button", name="Save as a new version").click()
            await expect(page.locator("#mapping-note")).to_contain_text("version 2")
            await page.goto(f"{address}/sinks/{topic}/filters")
            await page.fill("#filters", "id < 10")
            await page.get_by_role("button", name="Test").click()
            await expect(page.locator("#preview")).to_contain_text("30 left out by filters")
            await page.goto(f"{address}/sinks/{topic}/run")
            await page.fill("[name=replicas]", "3")
            await page.get_by_role("button", name="Set").click()
            await expect(page.locator("#notices")).to_contain_text("Workers follow")
            await page.get_by_role("button", name="Start").click()
            await expect(page.locator("#sink_state .badge")).to_have_text("waiting for a worker")
            await expect(page.get_by_role("button", name="Stop")).to_be_visible()
            for tab in (
                "run",
                "kafka",
                "clickhouse",
                "mapping",
                "dead-letters",
                "proof",
                "timeline",
            ):
                await page.goto(f"{address}/sinks/{topic}/{tab}")
                await expect(page.locator(".tabs [aria-current]")).to_have_count(1)
                assert await page.evaluate(FAINT) == []
            await page.goto(f"{address}/sinks/{topic}/proof")
            await expect(page.locator("[data-tables]")).to_contain_text("10,000 inserts")
            assert problems == []
