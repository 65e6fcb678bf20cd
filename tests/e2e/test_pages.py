"""The pages in a real browser: login by link, live without reload, commands by button."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, expect

from kalla.work.job import NewJob
from kalla.work.state import jobs, presence
from kalla.work.state.presence import Announcement
from tests.browser import FAINT, chromium
from tests.web_kit import Site, open_site

pytestmark = pytest.mark.browser

HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest_asyncio.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as started:
        yield started


@pytest_asyncio.fixture
async def site(database_url: str) -> AsyncIterator[Site]:
    async with open_site(database_url) as opened:
        yield opened


@pytest_asyncio.fixture
async def address(site: Site) -> AsyncIterator[str]:
    async with site.served() as served:
        yield served


@asynccontextmanager
async def visiting(
    browser: Browser, site: Site, address: str, path: str = "/work"
) -> AsyncIterator[Page]:
    """An operator's page after the login link; any error of its scripts fails the test."""
    context = await browser.new_context(locale="en-GB")
    errors: list[str] = []
    page = await context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console", lambda message: errors.append(message.text) if message.type == "error" else None
    )
    await page.goto(f"{address}/login?token={site.tokens['operator']}&next={path}")
    await expect(page.locator("#link")).to_have_text("Live")
    yield page
    await context.close()
    assert not errors


async def test_a_login_link_leads_to_the_runs_and_leaves_no_token_behind(
    browser: Browser, site: Site, address: str
) -> None:
    async with visiting(browser, site, address, "/") as page:
        assert page.url == f"{address}/runs"
        await expect(page).to_have_title("Runs · Kalla")
        await page.get_by_role("link", name="Work").click()
        await expect(page).to_have_title("Work · Kalla")
        await expect(page.get_by_role("heading", name="Queues")).to_be_visible()
        await expect(page.get_by_text("kalla jobs submit probe --sleep 5")).to_be_visible()
        assert await page.evaluate("document.cookie") == ""
        assert site.tokens["operator"] not in await page.content()
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_label("Token")).to_be_focused()
        await page.goto(f"{address}/docs")
        assert page.url == f"{address}/login?next=/docs"
        await page.get_by_label("Token").fill(site.tokens["viewer"])
        await page.get_by_role("button", name="Log in").click()
        await page.wait_for_url(f"{address}/docs")


async def test_a_login_link_on_another_site_works(
    browser: Browser, site: Site, address: str
) -> None:
    """The browser holds a strict cookie back on the way from another site."""
    link = f"{address}/login?token={site.tokens['operator']}"
    with another_site(link) as elsewhere:
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(elsewhere)
        await page.get_by_role("link").click()
        await expect(page.locator("#link")).to_have_text("Live")
        assert page.url == f"{address}/runs"
        await context.close()


async def test_jobs_appear_and_change_without_a_reload(
    browser: Browser, site: Site, address: str
) -> None:
    async with visiting(browser, site, address) as page:
        await page.evaluate("window.stillHere = true")
        (job_id,) = await site.submit(NewJob("probe"))
        row = page.locator(f'tr[data-key="job-{job_id}"]')
        await expect(row.locator(".badge")).to_have_text("pending")
        await expect(page.locator('tr[data-key="queue-exec"] td').first).to_have_text("1")
        await site.claim()
        await expect(row.locator(".badge")).to_have_text("claimed")
        async with site.database.transaction() as connection:
            said = Announcement("w-1", "host", 1, "host:1", ["exec"], 4, 1, "0", False)
            await presence.announce(connection, said)
        await expect(page.locator('tr[data-key="worker-w-1"] .badge')).to_have_text("working")
        assert await page.evaluate("window.stillHere")


async def test_focus_selection_and_open_details_outlive_a_change(
    browser: Browser, site: Site, address: str
) -> None:
    ids = await site.submit(*(NewJob("probe") for _ in range(3)))
    async with visiting(browser, site, address) as page:
        await page.locator(f'tr[data-key="job-{ids[0]}"] .id').evaluate(
            "node => getSelection().selectAllChildren(node)"
        )
        button = page.locator(f'tr[data-key="job-{ids[0]}"] button')
        await button.focus()
        more = await site.submit(NewJob("probe"))
        await expect(page.locator(f'tr[data-key="job-{more[0]}"]')).to_be_visible()
        await site.execute("DELETE FROM kalla.jobs WHERE job_id = %s", ids[1])
        await expect(page.locator(f'tr[data-key="job-{ids[1]}"]')).to_have_count(0)
        await expect(button).to_be_focused()
        assert await page.evaluate("getSelection().toString()") == str(ids[0])

        (job,) = await site.claim(1)
        async with site.database.transaction() as connection:
            await jobs.fail(connection, job, "broken", "Traceback ...", permanent=True)
        await page.goto(f"{address}/jobs/{job.job_id}")
        await expect(page.locator("#link")).to_have_text("Live")
        await page.get_by_text("Traceback", exact=True).click()
        await site.execute("UPDATE kalla.jobs SET priority = 7 WHERE job_id = %s", job.job_id)
        await expect(page.locator(".facts").first).to_contain_text("7")
        await expect(page.get_by_text("Traceback ...")).to_be_visible()


async def test_a_job_is_cancelled_and_retried_by_button(
    browser: Browser, site: Site, address: str
) -> None:
    (job_id,) = await site.submit(NewJob("probe"))
    async with visiting(browser, site, address) as page:
        row = page.locator(f'tr[data-key="job-{job_id}"]')
        await row.get_by_role("button", name="Cancel").click()
        await expect(row.locator(".badge")).to_have_text("cancelled")
        await expect(row).to_contain_text("cancelled by operator")
        await row.get_by_role("link").click()
        await page.get_by_role("button", name="Retry").click()
        await expect(page.locator(".headline .badge")).to_have_text("pending")
        assert site.bell.alarms == 1


async def test_a_queue_is_paused_and_resumed_by_button(
    browser: Browser, site: Site, address: str
) -> None:
    async with visiting(browser, site, address) as page:
        row = page.locator('tr[data-key="queue-exec"]')
        await row.get_by_role("button", name="Pause exec").click()
        await expect(row.locator(".badge")).to_have_text("paused")
        await row.get_by_role("button", name="Resume exec").click()
        await expect(row.locator(".badge")).to_have_count(0)


async def test_what_the_server_refuses_is_told(browser: Browser, site: Site, address: str) -> None:
    (job_id,) = await site.submit(NewJob("probe"))
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(f"{address}/login?token={site.tokens['operator']}&next=/work")
    button = page.locator(f'tr[data-key="job-{job_id}"] button')
    await expect(button).to_be_visible()
    await page.evaluate("leave()")  # the page does not hear of what happens next
    await site.execute("UPDATE kalla.jobs SET status = 'completed'")
    await button.click()
    await expect(page.get_by_role("alert")).to_contain_text(f"Job {job_id} is completed already")
    await context.close()


async def test_filters_change_the_view_without_a_reload(
    browser: Browser, site: Site, address: str
) -> None:
    first, second = await site.submit(NewJob("probe"), NewJob("probe", queue="stage"))
    await site.claim()
    async with visiting(browser, site, address) as page:
        rows = page.locator("#jobs tbody tr")
        await page.evaluate("window.stillHere = true")
        await page.get_by_role("link", name="claimed").click()
        await expect(rows).to_have_count(1)
        await expect(rows).to_have_attribute("data-key", f"job-{first}")
        assert page.url == f"{address}/work?status=claimed"
        await page.get_by_role("link", name="all", exact=True).click()
        await expect(rows).to_have_count(2)
        await page.get_by_label("Queue", exact=True).select_option("stage")
        await expect(rows).to_have_count(1)
        await expect(rows).to_have_attribute("data-key", f"job-{second}")
        await page.go_back()
        await expect(rows).to_have_count(2)
        await expect(page.get_by_label("Queue", exact=True)).to_have_value("")
        (third,) = await site.submit(NewJob("probe"))
        await expect(page.locator(f'tr[data-key="job-{third}"]')).to_be_visible()
        assert await page.evaluate("window.stillHere")


async def test_a_revoked_token_leads_to_the_login(
    browser: Browser, site: Site, address: str
) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(f"{address}/login?token={site.tokens['viewer']}")
    await expect(page.locator("#link")).to_have_text("Live")
    await site.execute("UPDATE kalla.tokens SET revoked_at = kalla.clock()")
    await expect(page.get_by_label("Token")).to_be_visible(timeout=20_000)
    assert page.url == f"{address}/login?next=%2Fruns"
    await context.close()


async def test_hostile_text_stays_text(browser: Browser, site: Site, address: str) -> None:
    (job_id,) = await site.submit(NewJob("probe", payload={"fail": HOSTILE}, dedupe_key=HOSTILE))
    async with visiting(browser, site, address) as page:
        (job,) = await site.claim()
        async with site.database.transaction() as connection:
            await jobs.fail(connection, job, HOSTILE, HOSTILE, permanent=True)
        await expect(page.locator(f'tr[data-key="job-{job_id}"]')).to_contain_text("failed")
        await page.goto(f"{address}/jobs/{job_id}")
        await expect(page.locator(".error")).to_have_text(HOSTILE)
        await expect(page.locator("pre").first).to_contain_text("onerror")
        await expect(page).to_have_title(f"Job {job_id} · Kalla")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
async def test_pages_fit_and_are_readable(
    browser: Browser, site: Site, address: str, scheme: str, width: int
) -> None:
    """Nothing is wider than the window, and no text fades into its ground (WCAG AA)."""
    ids = await site.submit(*(NewJob("probe", payload={"sleep": 5}) for _ in range(4)))
    (job, *_) = await site.claim(2)
    async with site.database.transaction() as connection:
        await jobs.fail(connection, job, "x" * 300, "Traceback " * 50, permanent=True)
        await connection.execute("INSERT INTO kalla.queues VALUES ('exec', kalla.clock(), 'ann')")
    context: BrowserContext = await browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": width, "height": 800},
    )
    page = await context.new_page()
    await page.goto(f"{address}/login?token={site.tokens['operator']}")
    for path in ("/work", "/runs", f"/jobs/{ids[0]}", "/docs", "/login", "/nowhere"):
        await page.goto(address + path)
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, path
        assert await page.evaluate(FAINT) == [], path
    await context.close()


@contextmanager
def another_site(link: str) -> Iterator[str]:
    """A page of another site, to a browser's mind, with one link on it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f'<a href="{link}">Kalla</a>'.encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
