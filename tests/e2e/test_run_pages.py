"""The pages of runs in a real browser: live, sorted, filtered, turned, exported, compared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, Route, expect

from kalla.reconcile.evidence.reading import run_report
from kalla.reconcile.runs import store
from kalla.reconcile.runs.store import NewReconciliation
from kalla.web.tokens.tokens import Role
from kalla.work.job import NewJob
from kalla.work.state import runs
from tests.browser import FAINT, chromium
from tests.evidence_kit import invoices_and_payments, make_evidence
from tests.web_kit import Site, open_site

pytestmark = pytest.mark.browser

HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest_asyncio.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    expect.set_options(timeout=20_000)  # evidence is read, and by a busy machine
    async with chromium() as started:
        yield started
    expect.set_options(timeout=5_000)


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> str:
    """80 invoices unpaid or paid short, 40 paid twice."""
    return make_evidence(tmp_path_factory.mktemp("run") / "run", *invoices_and_payments(400))


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
    browser: Browser, site: Site, address: str, path: str, role: Role = "operator"
) -> AsyncIterator[Page]:
    """A page after the login; any error of its scripts fails the test."""
    context = await browser.new_context(locale="en-GB")
    errors: list[str] = []
    page = await context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))

    def printed(message: ConsoleMessage) -> None:
        # A connection that a test cuts is no error of the page.
        if message.type == "error" and "net::ERR_FAILED" not in message.text:
            errors.append(message.text)

    page.on("console", printed)
    await page.goto(f"{address}/login?token={site.tokens[role]}")
    await page.goto(address + path)
    await expect(page.locator("#link")).to_have_text("Live")
    yield page
    await context.close()
    assert not errors


async def adopted(site: Site, url: str) -> int:
    async with site.database.transaction() as connection:
        return await store.adopt(connection, run_report.of_evidence(url), "x", "name: x", "ann")


async def running(site: Site, name: str = "invoices and payments") -> int:
    new = NewReconciliation(
        name, "invoices", 3, "hash", "name: x", {"left": "a.csv", "right": "b.csv"}, "ann"
    )
    async with site.database.transaction() as connection:
        run_id, _ = await runs.create(
            connection, site.job_types, "reconcile", [NewJob("probe")], {}, 600
        )
        await store.create(connection, run_id, new)
    return run_id


async def test_runs_appear_and_end_without_a_reload(
    browser: Browser, site: Site, address: str
) -> None:
    async with visiting(browser, site, address, "/runs") as page:
        await expect(page.get_by_text("kalla runs submit recipe.yaml")).to_be_visible()
        await page.evaluate("window.stillHere = true")
        run_id = await running(site)
        row = page.locator(f'tr[data-key="run-{run_id}"]')
        await expect(row.locator(".badge")).to_have_text("running")
        await page.get_by_role("link", name="failed").click()
        await expect(page.get_by_text("No run fits this filter.")).to_be_visible()
        await page.get_by_role("link", name="Show all runs").click()
        await expect(row).to_be_visible()
        await site.execute("UPDATE kalla.runs SET status = 'failed', error = 'it broke'")
        await expect(row.locator(".badge")).to_have_text("failed")
        await expect(row).to_contain_text("it broke")
        assert await page.evaluate("window.stillHere")


async def test_a_run_is_followed_to_its_report_and_evidence(
    browser: Browser, site: Site, address: str, evidence: str
) -> None:
    run_id = await running(site)
    async with visiting(browser, site, address, f"/runs/{run_id}") as page:
        await page.evaluate("window.stillHere = true")
        await expect(page.get_by_role("progressbar")).to_be_visible()
        await expect(page.get_by_role("link", name="Jobs", exact=True)).to_have_attribute(
            "href", f"/work?run_id={run_id}"
        )
        async with site.database.transaction() as connection:
            await store.settle(connection, run_id, run_report.of_evidence(evidence))
            await connection.execute("UPDATE kalla.runs SET status = 'completed'")
        await expect(page.locator(".headline .badge")).to_have_text("completed")
        await expect(page.get_by_role("progressbar")).to_have_count(0)
        await expect(page.locator(".figures")).to_contain_text("71.43")
        rules = page.get_by_role("region", name="Rules")
        await expect(rules.get_by_role("row", name="paid in parts")).to_contain_text("1:N")
        await expect(page.locator("#run .exceptions li")).to_have_count(5)
        await expect(page.locator("#run .exceptions")).to_contain_text("the rule allows up to")
        await expect(page.locator("#evidence tbody tr")).to_have_count(25)
        assert await page.evaluate("window.stillHere")


async def test_evidence_is_sorted_turned_and_filtered(
    browser: Browser, site: Site, address: str, evidence: str
) -> None:
    run_id = await adopted(site, evidence)
    async with visiting(browser, site, address, f"/runs/{run_id}") as page:
        await page.evaluate("window.stillHere = true")
        rows, keys = page.locator("#evidence tbody tr"), page.locator("#evidence tbody th")
        span = page.locator("#evidence .range")
        await expect(keys.first).to_have_text("INV-00391")  # the largest amount
        await expect(span).to_have_text("1–25 of 80 rows")
        await page.get_by_role("link", name="left key").click()
        await expect(keys.first).to_have_text("INV-00000")
        await expect(page.get_by_role("columnheader", name="left key")).to_have_attribute(
            "aria-sort", "ascending"
        )
        await page.get_by_role("link", name="Next", exact=True).click()
        await expect(span).to_have_text("26–50 of 80 rows")
        await expect(keys.first).to_have_text("INV-00121")
        await page.get_by_role("link", name="Previous").click()
        await expect(keys.first).to_have_text("INV-00000")

        await page.get_by_label("Column").select_option("amount")
        await page.get_by_label("Comparison").select_option("lt")
        await page.get_by_label("Value").fill("200")
        await page.get_by_label("Value").press("Enter")
        await expect(rows).to_have_count(4)
        await expect(page.locator(".chip")).to_contain_text("left amount is less than 200")
        await expect(page.get_by_label("Value")).to_have_value("")
        await page.get_by_label("Value").fill("nobody")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.get_by_text("No row fits this filter.")).to_be_visible()
        await page.get_by_role("link", name="Show all rows").click()
        await expect(span).to_have_text("1–25 of 80 rows")

        await page.locator("#evidence").get_by_role("link", name="Ambiguous").click()
        await expect(span).to_have_text("1–25 of 120 rows")
        await page.get_by_label("Comparison").select_option("gt")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.locator("#evidence [role=alert]")).to_contain_text(
            "gt does not fit record_key"
        )
        await page.locator(".chip").click()
        await expect(span).to_have_text("1–25 of 120 rows")

        # A match in parts is one item, with its parts below it.
        await page.get_by_role("link", name="Matched 280 matches").click()
        await expect(span).to_have_text("1–25 of 280 matches")
        await page.get_by_label("Column").select_option("cardinality")
        await page.get_by_label("Value").fill("1:N")
        await page.get_by_role("button", name="Filter").click()
        await expect(span).to_have_text("1–25 of 40 matches")
        await expect(page.locator("tr.item").first).to_contain_text("1 left to 2 right")
        await expect(page.locator("tr.part")).to_have_count(50)
        assert await page.evaluate("window.stillHere")


async def test_an_exception_opens_beside_its_closest_candidate(
    browser: Browser, site: Site, address: str, evidence: str
) -> None:
    run_id = await adopted(site, evidence)
    async with visiting(browser, site, address, f"/runs/{run_id}") as page:
        await page.evaluate("window.stillHere = true")

        async def away(route: Route) -> None:
            is_page = "text/html" in (route.request.headers.get("accept") or "")
            await (route.abort() if is_page else route.continue_())

        # A server that is away costs neither the page nor what was typed.
        await page.get_by_label("Value").fill("INV-0")
        await page.route("**/runs/*", away)
        await page.get_by_role("link", name="left key").click()
        await expect(page.locator(".notice")).to_contain_text("the page stays as it is")
        await page.unroute("**/runs/*")
        await page.get_by_role("link", name="left key").click()
        await expect(page.locator("#evidence tbody th").first).to_have_text("INV-00000")
        await expect(page.get_by_label("Value")).to_have_value("INV-0")
        await page.get_by_role("link", name="INV-00000", exact=True).click()
        panel = page.locator("#exception")
        await expect(panel.get_by_role("heading")).to_be_focused()
        await expect(panel.get_by_role("heading")).to_be_in_viewport()
        await panel.get_by_role("link", name="Close").click()
        await page.get_by_role("link", name="left amount").click()
        await page.get_by_role("link", name="INV-00391", exact=True).click()
        await expect(panel.get_by_role("heading")).to_have_text("left INV-00391")
        await expect(panel).to_contain_text(
            "differ by 5: 2,837 and 2,832; the rule allows up to 0.01"
        )
        row = panel.get_by_role("row", name="amount")
        await expect(row).to_contain_text("fails by -5")
        await expect(row.locator(".differs")).to_have_text("2,832.00 (differs)")
        await expect(panel.get_by_role("row", name="ref").locator(".differs")).to_have_count(0)
        await panel.get_by_role("link", name="Close").click()
        await expect(panel).to_have_count(0)
        ambiguous = page.locator("#evidence .tabs").get_by_role("link", name="Ambiguous")
        await ambiguous.click()
        await expect(ambiguous).to_have_attribute("aria-current", "true")
        await page.locator("#evidence tbody th a").first.click()
        await expect(panel).to_contain_text("it may belong to")
        await expect(panel.locator("thead th")).to_have_count(4)  # two candidates
        assert await page.evaluate("window.stillHere")


async def test_the_rows_that_are_shown_are_exported(
    browser: Browser, site: Site, address: str, evidence: str, tmp_path: Path
) -> None:
    run_id = await adopted(site, evidence)
    path = f"/runs/{run_id}?part=unmatched_left&filter=amount:lt:200"
    async with visiting(browser, site, address, path) as page:
        async with page.expect_download() as started:
            await page.get_by_role("link", name="CSV").click()
        download = await started.value
        assert download.suggested_filename == f"run-{run_id}-unmatched_left.csv"
        await download.save_as(tmp_path / "rows.csv")
    text = await asyncio.to_thread((tmp_path / "rows.csv").read_text, "utf-8-sig")
    assert len(text.splitlines()) == 5


async def test_two_runs_are_compared_on_the_page(
    browser: Browser, site: Site, address: str, evidence: str, tmp_path: Path
) -> None:
    left, right = invoices_and_payments(400)
    later = make_evidence(tmp_path / "later", left, [*right, ("PAY-late", "R-00390", "2830")])
    first, second = await adopted(site, evidence), await adopted(site, later)
    async with visiting(browser, site, address, f"/runs/{second}") as page:
        await page.get_by_label("with run").select_option(str(first))
        table = page.locator("#comparison")
        await expect(table).to_contain_text(f"From run {first} to run {second}.")
        await expect(table.get_by_role("row", name="newly matched")).to_contain_text("1")
        await expect(table).to_contain_text("is matched with PAY-late by 'paid in full'")
        await expect(page.get_by_label("with run")).to_have_value(str(first))


async def test_choosing_a_run_to_compare_with_keeps_the_rows_that_are_shown(
    browser: Browser, site: Site, address: str, evidence: str
) -> None:
    first, second = await adopted(site, evidence), await adopted(site, evidence)
    asked = "part=matched&sort=-left_key&filter=rule:eq:paid+in+full"
    async with visiting(browser, site, address, f"/runs/{second}?{asked}") as page:
        await page.get_by_role("link", name="Next").click()
        rows = page.locator("#evidence .range")
        await expect(rows).to_have_text("26–50 of 240 matches")
        await page.get_by_label("with run").select_option(str(first))
        await expect(page.locator("#comparison")).to_contain_text(f"From run {first} to run")
        await expect(rows).to_have_text("26–50 of 240 matches")
        await expect(page.locator(".chip")).to_have_text("rule is paid in full ×")


async def test_an_open_comparison_stays_when_the_rows_are_sorted_filtered_and_turned(
    browser: Browser, site: Site, address: str, evidence: str
) -> None:
    first, second = await adopted(site, evidence), await adopted(site, evidence)
    async with visiting(browser, site, address, f"/runs/{second}?against={first}") as page:
        rows, keys = page.locator("#evidence .range"), page.locator("#evidence tbody th")
        chosen, table = page.get_by_label("with run"), page.locator("#comparison tbody")

        async def stays() -> None:
            await expect(chosen).to_have_value(str(first))
            await expect(table.get_by_role("row", name="unchanged")).to_be_visible()

        await page.get_by_role("link", name="left key").click()
        await expect(keys.first).to_have_text("INV-00000")
        await stays()
        await page.get_by_role("link", name="Next", exact=True).click()
        await expect(rows).to_have_text("26–50 of 80 rows")
        await stays()
        await page.get_by_label("Value").fill("INV-0000")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.locator(".chip")).to_have_text("left key contains INV-0000 ×")
        await stays()
        await page.locator(".chip").click()
        await expect(rows).to_have_text("1–25 of 80 rows")
        await stays()
        await page.locator("#evidence").get_by_role("link", name="Ambiguous").click()
        await expect(rows).to_have_text("1–25 of 120 rows")
        await stays()

        # It goes when nobody is chosen, and is not asked for twice.
        await chosen.select_option("")
        await expect(page.locator("#comparison")).to_contain_text("Choose another run")
        await expect(rows).to_have_text("1–25 of 120 rows")


async def test_runs_of_the_same_recipe_are_offered_first_however_many_others_came_since(
    browser: Browser, site: Site, address: str, evidence: str
) -> None:
    first, second = await adopted(site, evidence), await adopted(site, evidence)
    await site.execute(
        "INSERT INTO kalla.reconciliations (run_id, name, recipe_id, recipe_hash, recipe, sources,"
        " submitted_by, status, created_at, finished_at) SELECT 1000 + n, 'other', 'other', '', '',"
        " '{}', 'ann', 'completed', '2026-05-31', '2026-05-31' FROM generate_series(1, 60) n"
    )
    async with visiting(browser, site, address, f"/runs/{second}") as page:
        choices = page.get_by_label("with run")
        own = choices.locator("optgroup").first
        await expect(own).to_have_attribute("label", "Runs of this recipe")
        await expect(own.locator("option")).to_have_count(1)
        await expect(own.locator("option")).to_have_attribute("value", str(first))
        await expect(choices.locator("option").last).to_contain_text("· 2026-05-31 00:00 UTC ·")


async def test_operators_cancel_and_viewers_do_not(
    browser: Browser, site: Site, address: str
) -> None:
    run_id = await running(site)
    async with visiting(browser, site, address, f"/runs/{run_id}", "viewer") as page:
        await expect(page.get_by_role("heading", name="Progress")).to_be_visible()
        await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    async with visiting(browser, site, address, f"/runs/{run_id}") as page:
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.locator(".headline .badge")).to_have_text("cancelled")
        await expect(page.locator(".error")).to_have_text("cancelled by operator")


async def test_evidence_that_is_gone_is_told_and_the_report_stays(
    browser: Browser, site: Site, address: str, evidence: str
) -> None:
    run_id = await adopted(site, evidence)
    for place in ("/nowhere", "s3://"):
        await site.execute("UPDATE kalla.reconciliations SET evidence_url = %s", place)
        async with visiting(browser, site, address, f"/runs/{run_id}") as page:
            await expect(page.locator("#evidence [role=alert]")).to_be_visible()
            await expect(page.locator(".figures")).to_contain_text("71.43")


async def test_hostile_evidence_stays_text(
    browser: Browser, site: Site, address: str, tmp_path: Path
) -> None:
    rows = [(HOSTILE, HOSTILE, "5"), ("b", "r", "1")]
    url = make_evidence(tmp_path / "run", rows, [("c", HOSTILE, "9")], name=HOSTILE)
    run_id = await adopted(site, url)
    path = f"/runs/{run_id}?part=unmatched_left"
    async with visiting(browser, site, address, path) as page:
        await expect(page.locator("#evidence tbody th").first).to_have_text(HOSTILE)
        await expect(page.locator(".headline")).to_contain_text("onerror")
        await page.get_by_label("Value").fill(HOSTILE)
        await page.get_by_role("button", name="Filter").click()
        await expect(page.locator(".chip")).to_contain_text(HOSTILE)
        await expect(page.locator("#evidence tbody tr")).to_have_count(1)
        await expect(page).to_have_title(f"Run {run_id} · Kalla")
        await page.goto(f"{address}/runs")
        await expect(page.locator("#runs")).to_contain_text("onerror")
        await expect(page).to_have_title("Runs · Kalla")


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1440, "light")])
async def test_run_pages_fit_and_are_readable(
    browser: Browser, site: Site, address: str, evidence: str, width: int, scheme: str
) -> None:
    """Nothing is wider than the window, and no text fades into its ground (WCAG AA)."""
    first, second = await adopted(site, evidence), await adopted(site, evidence)
    under_way, failed = await running(site), await running(site, "x" * 90)
    await site.execute(
        "UPDATE kalla.runs SET status = 'failed', error = %s WHERE run_id = %s", "y" * 300, failed
    )
    context = await browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": width, "height": 800},
    )
    page = await context.new_page()
    await page.goto(f"{address}/login?token={site.tokens['operator']}")
    for path in (
        "/runs",
        f"/runs/{first}?against={second}&part=matched&filter=left_key:contains:INV",
        f"/runs/{under_way}",
        f"/runs/{failed}",
    ):
        await page.goto(address + path)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert await page.evaluate(FAINT) == [], path
    await context.close()
