"""The Query page in a real browser, on a real store: completion, table, graph, explain, links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route, expect

from kalla.query.http.query_page import vocabulary
from kalla.query.promql.features import Features
from tests import commands_kit
from tests.browser import FAINT, chromium
from tests.metrics_kit import commit, named
from tests.query_kit import query_site
from tests.query_page_kit import (
    AT,
    END,
    HOSTILE,
    REQUESTS,
    Place,
    lines,
    link,
    picture,
    series,
    visiting,
)
from tests.servers import PostgresServer
from tests.web_kit import until

pytestmark = pytest.mark.browser


@pytest_asyncio.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    expect.set_options(timeout=60_000)  # queries are answered, and by a busy machine
    async with chromium() as started:
        yield started
    expect.set_options(timeout=5_000)


@pytest_asyncio.fixture(scope="module")
async def place(
    postgres_server: PostgresServer,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Place]:
    name = postgres_server.create(migrated_template)
    folder = tmp_path_factory.mktemp("metrics")
    try:
        async with (
            query_site(postgres_server.url(name), folder, series()) as site,
            site.served() as address,
        ):
            place = Place(site, address)
            await place.asked("query", query=REQUESTS, time=END)  # the first one compiles
            yield place
    finally:
        postgres_server.drop(name)


async def test_what_is_typed_is_completed_and_run(browser: Browser, place: Place) -> None:
    async with visiting(browser, place, "/query") as page:
        editor = page.get_by_role("combobox", name="PromQL expression")
        options = page.locator("#choices [role=option]")
        await expect(editor).to_be_focused()
        await editor.press_sequentially("rat")
        await expect(options.first).to_contain_text("rate")
        await editor.press("Enter")
        await expect(editor).to_have_value("rate()")
        await editor.press_sequentially("requ")
        await expect(options.first).to_contain_text("http_requests_total")
        await expect(editor).to_have_attribute("aria-expanded", "true")
        await expect(editor).to_have_attribute("aria-activedescendant", "choice-0")
        await editor.press("Tab")
        await expect(editor).to_have_value("rate(http_requests_total)")
        await editor.press_sequentially("{")
        await expect(options).to_have_text(["codelabel", "joblabel"])
        await editor.press("ArrowDown")
        await editor.press("Enter")
        await expect(options).to_contain_text(["api", "worker"])
        await editor.press("ArrowUp")  # the last one
        await editor.press("Enter")
        await editor.press_sequentially("}[")
        await expect(page.locator("#choices")).to_be_hidden()
        await editor.press("Control+Space")
        await expect(options.first).to_contain_text("1m")
        await editor.press("Escape")
        await expect(editor).to_have_attribute("aria-expanded", "false")
        await editor.press_sequentially("5m]")
        await expect(editor).to_have_value('rate(http_requests_total{job="worker"}[5m])')
        await page.get_by_label("At", exact=True).fill(str(END))
        await editor.focus()
        await editor.press("Control+Enter")
        await expect(page.locator("#said")).to_contain_text("2 series")
        await expect(page.locator(".answers tbody th").first).to_have_text(
            '{code="200", job="worker"}'
        )


async def test_alternatives_of_a_regular_expression_are_completed_one_by_one(
    browser: Browser, place: Place
) -> None:
    async with visiting(browser, place, link("http_requests_total{code=~'200|'}")) as page:
        editor, options = page.locator("#expr"), page.locator("#choices [role=option]")
        await editor.press("End")
        for _ in range(2):
            await editor.press("ArrowLeft")
        await editor.press_sequentially("5")
        await expect(options).to_have_text(["500 "])
        await editor.press("Enter")
        await expect(editor).to_have_value("http_requests_total{code=~'200|500'}")


async def test_completion_forgets_what_was_typed_over(browser: Browser, place: Place) -> None:
    """Answers that arrive late belong to a question nobody asks any more."""
    async with visiting(browser, place, "/query") as page:
        editor, options = page.locator("#expr"), page.locator("#choices [role=option]")
        held: list[Route] = []

        async def hold(route: Route) -> None:
            held.append(route)

        async def asked() -> bool:
            return bool(held)

        await page.route("**/api/v1/label/job/values*", hold)
        async with page.expect_event("requestfailed"):
            await editor.press_sequentially('http_requests_total{job="')
            await until(asked, "the values are asked for", 30)
            await editor.press_sequentially('api", co')
        await expect(options).to_have_text(["codelabel"])


async def test_the_table_has_the_values_of_the_api(browser: Browser, place: Place) -> None:
    for expr in ("odd", REQUESTS, "topk(3, load)"):
        told = (await place.asked("query", query=expr, time=END))["result"]
        async with visiting(browser, place, link(expr)) as page:
            values = page.locator(".answers .value")
            await expect(values).to_have_text([one["value"][1] for one in told])
            labels = await page.locator(".answers tbody th").all_text_contents()
            assert [label.split("{")[0] for label in labels] == [
                one["metric"].get("__name__", "") for one in told
            ]
            for label, one in zip(labels, told, strict=True):
                for name, value in one["metric"].items():
                    assert name == "__name__" or f'{name}="{value}"' in label
    async with visiting(browser, place, link("paused[90s]")) as page:
        await expect(page.locator(".points li")).to_have_text(
            [f"2.5 @ {END - back}.000" for back in (60, 30, 0)]
        )
    async with visiting(browser, place, link("6 * 7")) as page:
        await expect(page.locator(".answers .value")).to_have_text("42")


async def test_a_line_is_drawn_for_each_series_and_the_legend_hides_it(
    browser: Browser, place: Place
) -> None:
    async with visiting(browser, place, link(REQUESTS, tab="graph", range="30m")) as page:
        legend = page.locator(".legend button")
        await expect(lines(page, 2)).to_be_visible()
        both = await picture(page)
        await expect(legend).to_have_text(['{job="api"}', '{job="worker"}'])
        await legend.first.press("Enter")
        await expect(lines(page, 1)).to_be_visible()
        await expect(legend.first).to_have_attribute("aria-pressed", "false")
        assert len((await picture(page)).colors) < len(both.colors)
        await page.get_by_role("button", name="Show all").click()
        await expect(lines(page, 2)).to_be_visible()
        told = (await place.asked("query", query=REQUESTS, time=END))["result"]
        await page.locator(".plot").focus()
        await page.keyboard.press("End")
        tip = page.locator(".tip")
        await expect(tip).to_contain_text("14 Nov 2023, 23:13")
        assert [float(text) for text in await tip.locator("b").all_inner_texts()] == pytest.approx(
            sorted((float(one["value"][1]) for one in told), reverse=True)
        )
        await expect(page.locator(".graph-note")).to_have_text(
            "Times in Europe/Berlin, a point every 7s"
        )


async def test_missing_points_are_gaps_and_odd_ones_are_told(
    browser: Browser, place: Place
) -> None:
    async with visiting(browser, place, link("paused", tab="graph")) as page:
        await expect(lines(page, 1)).to_be_visible()
        assert (await picture(page)).strokes == 2
    async with visiting(browser, place, link("odd", tab="graph", step="60")) as page:
        await expect(lines(page, 4)).to_be_visible()
        await expect(page.locator(".graph-note")).to_contain_text("183 points NaN or infinite")
        await page.locator(".plot").hover()
        await expect(page.locator(".tip-line b")).to_have_text(["+Inf", "1e+21", "-Inf", "NaN"])


async def test_of_many_series_the_first_hundred_are_drawn(browser: Browser, place: Place) -> None:
    async with visiting(browser, place, link("load", tab="graph")) as page:
        await expect(lines(page, 100)).to_be_visible()
        await expect(page.locator(".graph-note")).to_contain_text(
            "The first 100 of 120 series are drawn"
        )


async def test_a_part_of_the_graph_is_looked_at_closer(browser: Browser, place: Place) -> None:
    async with visiting(browser, place, link("load", tab="graph", range="1h")) as page:
        await expect(lines(page, 100)).to_be_visible()
        box = await page.locator(".plot").bounding_box()
        assert box is not None
        middle = box["y"] + 100
        await page.mouse.move(box["x"] + box["width"] / 2, middle)
        await page.mouse.down()
        await page.mouse.move(box["x"] + box["width"] - 20, middle, steps=4)
        await page.mouse.up()
        await page.wait_for_url(lambda url: "range=1h" not in url)
        asked = parse_qs(urlsplit(page.url).query)
        assert asked["end"][0] < AT
        assert asked["range"][0].startswith(("29m", "30m", "31m"))
        await expect(page.locator("#range")).to_have_value(asked["range"][0])


async def test_a_link_shows_the_same_to_somebody_else(browser: Browser, place: Place) -> None:
    async with visiting(browser, place, "/query") as page:
        await page.locator("#expr").fill(REQUESTS)
        await page.get_by_role("tab", name="Graph").click()
        await page.get_by_label("To", exact=True).fill(
            "2023-11-14 23:13:20"
        )  # by the browser's clock
        await page.get_by_label("To", exact=True).press("Enter")
        await page.get_by_label("Range", exact=True).select_option("15m")
        await page.get_by_label("Step", exact=True).fill("45s")
        await page.get_by_label("Step", exact=True).press("Enter")
        await page.wait_for_url("**step=45s*")
        await expect(page.locator(".graph-note")).to_contain_text("a point every 45s")
        await expect(lines(page, 2)).to_be_visible()
        drawn = await picture(page)
        shared = page.url.removeprefix(place.address)
    assert parse_qs(urlsplit(shared).query) == {
        "expr": [REQUESTS], "tab": ["graph"], "range": ["15m"], "end": [AT], "step": ["45s"],
    }  # fmt: skip
    async with visiting(browser, place, shared) as page:
        await expect(lines(page, 2)).to_be_visible()
        assert await picture(page) == drawn
        await expect(page.locator("#expr")).to_have_value(REQUESTS)
        await expect(page.get_by_label("From", exact=True)).to_have_value("2023-11-14 22:58:20")
        await expect(page.get_by_label("Step", exact=True)).to_have_value("45s")


async def test_what_is_typed_and_not_run_is_not_lost(browser: Browser, place: Place) -> None:
    async with visiting(browser, place, link("load")) as page:
        await expect(page.locator("#said")).to_contain_text("120 series")
        await page.locator("#expr").fill("odd")
        await page.get_by_role("tab", name="Graph").click()
        await expect(lines(page, 4)).to_be_visible()
        await expect(page.locator("#expr")).to_have_value("odd")
        await page.locator("#expr").fill("paused")
        await page.get_by_label("Range", exact=True).select_option("15m")
        await expect(lines(page, 1)).to_be_visible()
        await expect(page.locator("#expr")).to_have_value("paused")


async def test_a_copied_link_holds_the_moment(browser: Browser, place: Place) -> None:
    async with visiting(browser, place, "/query?expr=vector(time())&range=15m") as page:
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await expect(page.locator("#said")).to_contain_text("1 series")
        value = await page.locator(".answers .value").inner_text()
        await page.get_by_role("button", name="Copy link").click()
        await expect(page.locator("#said")).to_have_text("Link copied")
        await page.goto(await page.evaluate("navigator.clipboard.readText()"))
        await expect(page.locator(".answers .value")).to_have_text(value)


async def test_back_and_forward_go_through_what_was_asked(browser: Browser, place: Place) -> None:
    async with visiting(browser, place, link("load")) as page:
        await page.evaluate("window.stillHere = true")
        await expect(page.locator("#said")).to_contain_text("120 series")
        await page.locator("#expr").fill("odd")
        await page.locator("#expr").press("Shift+Enter")
        await expect(page.locator("#said")).to_contain_text("4 series")
        await page.get_by_role("tab", name="Table").press("ArrowRight")
        await expect(page.get_by_role("tab", name="Graph")).to_be_focused()
        await expect(lines(page, 4)).to_be_visible()
        await page.go_back()
        await expect(page.locator(".answers tbody tr")).to_have_count(4)
        await page.go_back()
        await expect(page.locator("#expr")).to_have_value("load")
        await expect(page.locator(".answers tbody tr")).to_have_count(120)
        await page.go_forward()
        await expect(page.locator("#expr")).to_have_value("odd")
        await expect(page.locator(".answers tbody tr")).to_have_count(4)
        assert await page.evaluate("window.stillHere")


async def test_an_error_is_told_with_its_place(browser: Browser, place: Place) -> None:
    expr = "sum(load) +\n  rate(load{host=})"
    async with visiting(browser, place, link(expr)) as page:
        problem = page.locator(".problem")
        await expect(problem).to_contain_text("2:18: parse error: unexpected")
        line, caret = (await page.locator(".problem .place").inner_text()).split("\n")
        assert line[caret.index("^")] == "}"
        await expect(page.locator("#mirror .wrong")).to_have_text("}")
        await page.locator("#expr").press("End")
        await page.locator("#expr").press_sequentially(" ")
        await expect(page.locator("#mirror .wrong")).to_have_count(0)
    async with visiting(browser, place, link("load * on(host) load{host=~'['}")) as page:
        await expect(page.locator(".problem")).to_be_visible()
    async with visiting(browser, place, link("load", tab="graph", step="1ms")) as page:
        await expect(page.locator(".problem")).to_contain_text("11,000 points")


async def test_warnings_stand_beside_the_answer(browser: Browser, place: Place) -> None:
    expr = "quantile(7, load) or rate(load[5m])"
    async with visiting(browser, place, link(expr)) as page:
        remarks = page.locator(".remarks li")
        await expect(remarks.nth(0)).to_contain_text("quantile value should be between 0 and 1")
        await expect(remarks.nth(1)).to_contain_text("metric might not be a counter")
        await expect(page.locator(".answers tbody tr").first).to_be_visible()


async def test_an_answer_is_explained(browser: Browser, place: Place) -> None:
    async with visiting(browser, place, link(REQUESTS, tab="graph")) as page:
        await expect(lines(page, 2)).to_be_visible()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(urlsplit(request.url).path))
        await page.get_by_role("tab", name="Explain").click()
        stages = page.get_by_role("region", name="Time per stage")
        for stage in ("parse", "snapshot", "plan", "leaves", "evaluation"):
            await expect(stages.get_by_role("rowheader", name=stage)).to_be_visible()
        leaf = page.get_by_role("region", name="Leaves").locator(".leaf")
        await expect(leaf).to_have_count(1)
        await expect(leaf.locator(".leaf-text")).to_have_text(REQUESTS)
        told = await place.asked(
            "query_range", query=REQUESTS, start=END - 3600, end=END, step=14, explain="true"
        )
        read = told["explain"]["read"]
        assert read["segments"] > 0
        figures = page.locator(".figures")
        await expect(figures.get_by_text("Segments touched").locator("xpath=..")).to_contain_text(
            str(read["segments"])
        )
        await expect(leaf).to_contain_text(f"segments pruned{read['segments_pruned']}")
        await expect(leaf).to_contain_text(f"rows{read['rows']}")
        assert "/api/v1/query_range" not in asked  # the graph's answer brought it along
        assert "of=graph" in page.url
        await page.get_by_label("Of the", exact=True).select_option("table")
        await expect(page.locator("#said")).to_contain_text("2 series")
        assert asked.count("/api/v1/query") == 1


async def test_a_query_under_way_is_cancelled(
    browser: Browser, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with visiting(browser, place, link("load")) as page:
        said, cancel = page.locator("#said"), page.get_by_role("button", name="Cancel")
        await expect(said).to_contain_text("120 series")
        await expect(cancel).to_be_disabled()

        async def never(*_: object) -> None:
            await asyncio.Event().wait()

        async def under_way() -> bool:
            return bool(place.site.app.state.queries.running == 1)

        async def ended() -> bool:
            return bool(place.site.app.state.queries.running == 0)

        monkeypatch.setattr(place.site.app.state.metric_store, "listing", never)
        await page.get_by_role("button", name="Run").click()
        await expect(said).to_contain_text("Running…")
        await until(under_way, "the query runs", 30)
        await cancel.click()
        await expect(said).to_contain_text("Cancelled after")
        await expect(cancel).to_be_disabled()
        await until(ended, "the server has ended it too", 30)
        monkeypatch.undo()
        await page.get_by_role("button", name="Run").click()
        await expect(said).to_contain_text("120 series")


async def test_a_query_is_killed_by_button_and_by_command(
    browser: Browser, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(place.site.app.state.metric_store, "listing", never)
    environment = {"KALLA_API_URL": place.address, "KALLA_API_TOKEN": place.site.tokens["operator"]}
    typing = commands_kit.Place(tmp_path, environment, 0)
    operator = replace(place, role="operator")
    async with (
        visiting(browser, operator, "/queries") as page,
        place.site.client("viewer") as client,
    ):
        for asked in ("1 + killed_by_button", "1 + killed_by_command"):
            answer = asyncio.create_task(client.get("/api/v1/query", params={"query": asked}))
            row = page.locator("tr", has_text=asked)
            await expect(row).to_contain_text("snapshot")
            if "button" in asked:
                await row.get_by_role("button", name="Kill").click()
            else:
                query_id = (await row.get_attribute("data-key") or "").removeprefix("query-")
                done = await asyncio.to_thread(typing.run, "query", "kill", query_id)
                assert f"The query {query_id} was ended." in done.stdout, done.stderr
            assert (await answer).status_code == 499
            await expect(row.locator(".badge")).to_have_text("cancelled")
            await expect(row.get_by_role("button", name="Kill")).to_have_count(0)


async def test_hostile_labels_stay_text(browser: Browser, place: Place) -> None:
    async with visiting(browser, place, link("hostile")) as page:
        await expect(page.locator(".answers tbody th")).to_contain_text(
            'note="a \\"quoted\\"\\nline", text="<script>'
        )
        await page.get_by_role("tab", name="Graph").click()
        await expect(page.locator(".legend")).to_contain_text("onerror")
        await page.locator("#expr").fill('hostile{text="')
        await page.locator("#expr").press("Control+Space")
        await page.locator("#choices [role=option]").click()
        await page.locator("#expr").press_sequentially("}")
        await page.locator("#expr").press("Control+Enter")
        await expect(page.locator(".legend button")).to_have_count(1)
        await page.goto(place.address + link(HOSTILE))
        await expect(page.locator(".problem")).to_be_visible()
        await expect(page).to_have_title("Query · Kalla")


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
async def test_the_query_page_fits_and_is_readable(
    browser: Browser, place: Place, width: int, scheme: str
) -> None:
    """Nothing is wider than the window, and no text fades into its ground (WCAG AA)."""
    context = await browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": width, "height": 800},
    )
    page = await context.new_page()
    for path, shown in (
        (link("hostile"), ".answers"),
        (link("load{host=}"), ".problem .place"),
        (link("quantile(7, load) or rate(load[5m])"), ".remarks"),
        (link(f"hostile or {REQUESTS}", tab="graph"), ".legend button"),
        (link(f"{REQUESTS} / on(job) sum by (job) (http_requests_total)", tab="explain"), ".leaf"),
    ):
        await page.goto(place.entrance + quote(path))
        await expect(page.locator(shown).first).to_be_visible()
        if "tab=graph" in path:
            await page.locator(".legend button").first.click()
            await page.locator(".plot").hover()
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert await page.evaluate(FAINT) == [], path
    await context.close()


async def test_an_empty_store_says_how_to_get_metrics_in(
    browser: Browser, database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with (
        query_site(database_url, tmp_path_factory.mktemp("metrics"), {}) as site,
        site.served() as address,
    ):
        place = Place(site, address)
        async with visiting(browser, place, "/query") as page:
            guide = page.locator(".guide")
            await expect(guide).to_contain_text(f"url: {address}/api/v1/write")
            await expect(guide).to_contain_text("kalla metrics import")
            await commit(site.app.state.metric_store, {named("up"): [(END * 1000, 1.0)]})
            await page.locator("#expr").press_sequentially("u")
            await expect(page.locator("#choices [role=option]").first).to_contain_text("up")
            await page.locator("#expr").fill("up")
            await page.get_by_label("At", exact=True).fill(str(END))
            await page.get_by_role("button", name="Run").click()
            await expect(page.locator(".answers .value")).to_have_text("1")


def test_only_what_is_switched_on_is_offered() -> None:
    words = {kind: {name for name, _ in found} for kind, found in vocabulary(Features()).items()}
    every = {
        kind: {name for name, _ in found} for kind, found in vocabulary(Features.every()).items()
    }
    assert {"rate", "histogram_quantile"} <= words["function"] < every["function"]
    assert (
        {"sum", "topk"} <= words["aggregation"] == every["aggregation"] - {"limitk", "limit_ratio"}
    )
    assert "histogram_avg" not in every["function"]  # it reads native histograms alone
    assert dict(vocabulary(Features())["function"])["label_replace"] == (
        "(vector, text, text, text, text)"
    )
