"""From two messy exports to exported exceptions in a real browser, with a real worker and Spark."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.browser import FAINT, chromium
from tests.commands_kit import Place, a_place
from tests.pairs_of_sources import EXAMPLES
from tests.servers import PostgresServer, SparkServer

pytestmark = [pytest.mark.browser, pytest.mark.spark, pytest.mark.timeout(300)]

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
PATIENCE = 120_000  # milliseconds, on a busy machine


@pytest.fixture(scope="module")
def place(
    postgres_server: PostgresServer,
    migrated_template: str,
    spark_server: SparkServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:
    name = postgres_server.create(migrated_template)
    made = a_place(
        tmp_path_factory.mktemp("workbench"),
        postgres_server.url(name),
        "admin",
        KALLA_SPARK_REMOTE=spark_server.remote,
        KALLA_SPARK_TOKEN=spark_server.token,
    )
    with made.served():
        yield made
    postgres_server.drop(name)


@pytest_asyncio.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as started:
        yield started


@asynccontextmanager
async def visiting(browser: Browser, place: Place, path: str) -> AsyncIterator[Page]:
    """A page after the login; any error of its scripts fails the test."""
    context = await browser.new_context(locale="en-GB", viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    token = place.environment["KALLA_API_TOKEN"]
    await page.goto(f"http://127.0.0.1:{place.port}/login?token={token}")
    await page.goto(f"http://127.0.0.1:{place.port}{path}")
    yield page
    await context.close()
    assert not errors


async def written(page: Page) -> str:
    """The lines of the recipe's text that are drawn: the first screenful of it."""
    return "\n".join(await page.locator("#recipe-text .cm-line").all_inner_texts())


async def test_two_messy_files_become_a_run_whose_exceptions_are_exported(
    browser: Browser, place: Place, tmp_path: Path
) -> None:
    async with visiting(browser, place, "/runs") as page:
        await page.get_by_role("link", name="Reconcile two files").first.click()
        await page.set_input_files("#left-file", EXAMPLES / "ledger.xlsx")
        await page.set_input_files("#right-file", EXAMPLES / "bank-export.csv")
        left, right = page.locator("#left"), page.locator("#right")
        await expect(left).to_contain_text("120 rows, 5 columns", timeout=PATIENCE)
        await expect(right).to_contain_text("'Summe' begins a line of sums", timeout=PATIENCE)
        rule = page.locator("#recipe-form .rule").first
        await expect(rule.get_by_label("Name")).to_have_value(
            "same reference and amount", timeout=PATIENCE
        )
        await expect(page.locator("#proposal")).to_contain_text("94.2% of the rows of ledger")
        assert await page.evaluate(FAINT) == []

        # The form edits the text, whose comments stay, and the trial says what that changed.
        trial = page.locator("#trial")
        await rule.get_by_label("up to", exact=True).fill("10")
        await expect(trial).to_contain_text("before: 92.3 %", timeout=PATIENCE)
        await expect(trial).to_contain_text("What the last edit changed: 6 rows")
        await expect(trial).to_contain_text("matched by same reference and amount")
        await expect(trial).to_contain_text("bank-export rows")
        # What was typed survives a reload, with the files.
        await page.reload()
        await expect(page.locator("#earlier")).to_contain_text("ledger.xlsx and bank-export.csv")
        await page.get_by_role("button", name="Go on").click()
        await expect(rule.get_by_label("up to", exact=True)).to_have_value("10")
        await expect(left).to_contain_text("120 rows, 5 columns", timeout=PATIENCE)
        shown = await written(page)
        assert 'absolute: "10"' in shown
        assert "# not UTF-8: byte e4 in line 4" in shown
        # A problem is marked at its field and in the text.
        await rule.get_by_label("Column of ledger").first.fill("Invoice")
        wrong = rule.locator('[aria-invalid="true"]')
        await expect(wrong).to_have_value("Invoice", timeout=PATIENCE)
        await expect(rule.locator(".field-problem")).to_contain_text("Invoice no")
        await expect(page.locator("#recipe-text .cm-lintRange-error")).to_contain_text("Invoice")
        # The text edits the form.
        await page.locator("#recipe-text .cm-content").focus()
        await page.keyboard.press("Control+z")
        await expect(rule.get_by_label("Column of ledger").first).to_have_value("Invoice no")
        # What is mended is no problem any more, and a key like that of a list is a problem too.
        problems, state = page.locator("#recipe-problems li"), page.locator("#editor-state")
        await expect(wrong).to_have_count(0)
        await page.keyboard.press("Control+Home")
        await page.keyboard.insert_text("foo[bar: 1\n")
        await expect(problems).to_contain_text("foo[bar", timeout=PATIENCE)
        await page.keyboard.press("Control+z")
        await expect(problems).to_have_count(0)
        await expect(state).to_have_text("94.7 % matched")
        # Another file leaves the edited recipe alone until the new proposal is asked for.
        await page.set_input_files("#right-file", EXAMPLES / "ledger.csv")
        await expect(page.locator("#proposal-state")).to_contain_text(
            "Your own recipe still reads ledger.xlsx and bank-export.csv", timeout=PATIENCE
        )
        await expect(rule.get_by_label("up to", exact=True)).to_have_value("10")
        await page.get_by_role("button", name="Discard changes").click()
        await expect(rule.get_by_label("up to", exact=True)).to_have_value("0")
        await page.get_by_role("button", name="Run", exact=True).click()
        await page.wait_for_url(re.compile(r"/runs/\d+"))
        await expect(page.get_by_text("Rows matched", exact=True)).to_be_visible(timeout=PATIENCE)
        await expect(page.locator(".figures")).to_contain_text("92.28")
        run = page.url.rpartition("/")[2]

        await page.goto(f"{page.url}?part=unmatched_left")
        await expect(page.get_by_text("RE-2026-").first).to_be_visible(timeout=PATIENCE)
        export = tmp_path / "late.csv"
        arguments = ("runs", "export", run, "unmatched_left", "--output", str(export))
        await asyncio.to_thread(place.ok, *arguments)
        assert len(export.read_text().splitlines()) == 1 + 10

        await page.goto(page.url.partition("/runs")[0] + "/recipes/ledger-and-bank-export")
        await expect(page.get_by_role("heading", name="Versions")).to_be_visible()
        await expect(page.locator("body")).to_contain_text("completed")
        # Saving keeps the files that it reads, if wanted, as sources.
        await page.get_by_role("button", name="Save", exact=True).click()
        question = page.locator("#editor-question")
        await expect(question).to_contain_text("files that are removed on")
        await question.get_by_label("ledger.xlsx as").fill("kept-ledger")
        await question.get_by_label("bank-export.csv as").fill("kept-bank")
        await question.get_by_role("button", name="Keep and save").click()
        await expect(page.locator("h1")).to_contain_text("version 2", timeout=PATIENCE)
        await expect(page.locator("#recipe-text .cm-content")).to_contain_text("source://kept-led")
        # A file that is refused does not leave the run to the files of before.
        again = page.get_by_role("button", name="Run with these files")
        await expect(again).to_be_disabled()
        (tmp_path / "empty.csv").touch()
        await page.set_input_files("#left-file", EXAMPLES / "ledger.csv")
        await expect(again).to_be_enabled(timeout=PATIENCE)
        await page.set_input_files("#right-file", tmp_path / "empty.csv")
        await expect(right.locator(".state")).to_contain_text("is empty")
        await expect(again).to_be_disabled()
        await right.get_by_role("button", name="Clear").click()
        await expect(again).to_be_enabled()
        # What a schedule runs is not changed by a run without a question.
        await page.get_by_label("When: minute").fill("0 7 * * 1-5")
        await page.locator(".schedule-form").get_by_role("button", name="Add").click()
        await expect(page.locator(".schedule-list")).to_contain_text("0 7 * * 1-5")
        await expect(trial).to_contain_text("of all rows", timeout=PATIENCE)
        await rule.get_by_label("up to", exact=True).fill("10")
        await page.get_by_role("button", name="Run", exact=True).click()
        await expect(question).to_contain_text("1 schedule will run", timeout=PATIENCE)
        await page.get_by_role("button", name="Discard changes").click()
        # Uploads that are no sources are listed, and can be removed; a source is added and tested.
        version = page.url
        await page.goto(page.url.partition("/recipes")[0] + "/sources")
        listed = page.locator("#uploads")
        await expect(listed).to_contain_text("ledger.csv")
        await expect(page.get_by_role("link", name="kept-bank")).to_be_visible()
        page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))
        rows = listed.locator("tbody tr")
        count = await rows.count()
        await listed.get_by_role("button", name="Remove ledger.csv").first.click()
        await expect(rows).to_have_count(count - 1)
        await page.get_by_label("Name", exact=True).fill("plain")
        await page.get_by_label("Place").fill(str(EXAMPLES / "ledger.csv"))
        await page.get_by_role("button", name="Add", exact=True).click()
        await expect(page.locator("#profile")).to_contain_text("120 rows", timeout=PATIENCE)
        await page.get_by_role("button", name="Test").click()
        await expect(page.locator("#test-state")).to_contain_text("can be read")
        await page.goto(version)
        # An old version that is run stays an old version.
        await page.goto(f"{page.url}?version=1")
        async with page.expect_request("**/api/runs") as asked:
            await page.get_by_role("button", name="Run", exact=True).click()
        sent = (await asked.value).post_data_json
        assert sent == {"recipe_id": "ledger-and-bank-export", "version": 1}


async def test_cells_and_names_of_files_are_shown_as_text(
    browser: Browser, place: Place, tmp_path: Path
) -> None:
    file = tmp_path / "rows <b>.csv"
    rows = "".join(f"K-{number:04},{HOSTILE},{number}.00\n" for number in range(5))
    file.write_text(f"id,{HOSTILE},amount\n{rows}")
    async with visiting(browser, place, "/start") as page:
        left = page.locator("#left")
        await page.route("**/api/uploads?*", lambda route: route.abort())
        await page.set_input_files("#left-file", file)
        await expect(left.locator(".state")).to_contain_text("the server does not answer")
        await page.unroute("**/api/uploads?*")
        await left.get_by_role("button", name="Try again").click()
        await expect(left.locator(".state")).to_contain_text("5 rows", timeout=PATIENCE)
        await expect(page.locator("#left .found")).to_contain_text(HOSTILE)
        assert await page.locator("#left img").count() == 0
        assert await page.title() == "Reconcile two files · Kalla"
        empty = tmp_path / "empty.csv"
        empty.touch()
        await page.set_input_files("#right-file", empty)
        await expect(page.locator("#right .state")).to_contain_text("is empty", timeout=PATIENCE)
        await page.set_viewport_size({"width": 360, "height": 740})
        width = await page.evaluate("() => document.documentElement.scrollWidth")
        assert width <= 360


async def test_commands_send_profile_and_propose(place: Place) -> None:
    def commands() -> None:
        place.ok("sources", "add", "ledger", str(EXAMPLES / "ledger.xlsx"), "--upload")
        place.ok("sources", "add", "bank", str(EXAMPLES / "bank-export.csv"), "--upload")
        assert "Verwendungszweck" in place.ok("sources", "profile", "bank")
        told = place.ok("recipe", "propose", "ledger", "bank", "--output", "recipe.yaml")
        assert "matches 92.3% of the rows" in told
        assert "source://ledger" in (place.folder / "recipe.yaml").read_text()
        again = place.run("recipe", "propose", "ledger", "bank", "--output", "recipe.yaml")
        assert again.returncode == 2
        assert "exists already" in again.stderr

    await asyncio.to_thread(commands)
