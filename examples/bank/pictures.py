"""Makes the pictures of the documentation: starts `kalla up` in a folder of its own, walks through
the pages in Chromium with the two files of this folder, the demo and made-up metrics, and stops it.
`make pictures` runs it.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, FloatRect, Page, StorageState, expect, sync_playwright

from kalla.local.ports import choose_free

HERE = Path(__file__).parent
IMAGES = HERE.parents[1] / "docs" / "images"
RATES = "sum by (job, code) (rate(http_requests_total[5m]))"
_PATIENCE = 180_000
_PORTS = (
    "UP_POSTGRES_PORT", "UP_NATS_PORT", "UP_SPARK_PORT", "API_PORT", "API_METRICS_PORT",
    "WORKER_PORT",
)  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kalla-pictures-") as folder:
        output = Path(folder) / "output.txt"
        ports = {f"KALLA_{name}": str(choose_free()) for name in _PORTS}
        with output.open("wb") as written:
            up = subprocess.Popen(
                [sys.executable, "-m", "kalla.cli.main", "up"],
                cwd=folder, env=os.environ | ports, stdout=written, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            login = link(output, up)
            metrics = Path(folder) / "requests.om"
            metrics.write_text(requests_by_code(int(time.time())), "utf-8")
            kalla(folder, ports, "metrics", "import", str(metrics))
            kalla(folder, ports, "demo", "--folder", "demo")
            imported = kalla(folder, ports, "runs", "import", "demo/evidence")
            walk(login, re.findall(r"/runs/\d+", imported)[0])
        finally:
            up.send_signal(signal.SIGINT)
            up.wait(60)


def link(output: Path, up: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and up.poll() is None:
        if found := re.search(r"http://\S+/login\?code=\S+", output.read_text("utf-8")):
            return found[0]
        time.sleep(0.2)
    raise SystemExit(output.read_text("utf-8"))


def kalla(folder: str, ports: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "kalla.cli.main", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | ports, check=False, capture_output=True, text=True
    )
    if done.returncode not in (0, 1):  # the demo has exceptions
        raise SystemExit(f"{arguments}: {done.stdout}{done.stderr}")
    return done.stdout


def requests_by_code(now: int) -> str:
    """Two hours of a counter in OpenMetrics text, the same walk every time."""
    chance = random.Random(1)  # noqa: S311
    lines = ["# TYPE http_requests counter"]
    for job, code, usual in (
        ("api", "200", 70.0), ("api", "404", 6.0), ("worker", "200", 45.0), ("worker", "500", 3.0),
    ):  # fmt: skip
        total, rate = 0.0, usual
        for moment in range(now - 7200, now + 240, 15):
            rate = max(0.0, rate + chance.gauss(0.02 * (usual - rate), usual / 20))
            total += rate * 15
            lines.append(f'http_requests_total{{code="{code}",job="{job}"}} {total:.0f} {moment}')
    return "\n".join([*lines, "# EOF", ""])


def walk(login: str, demo: str) -> None:
    expect.set_options(timeout=_PATIENCE)
    site = login.partition("/login")[0]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        context = browser.new_context(viewport={"width": 1280, "height": 780}, locale="en-GB")
        page = context.new_page()
        page.goto(login)
        page.goto(f"{site}/start")
        page.set_input_files("#left-file", HERE / "ledger.xlsx")
        expect(page.locator("#left .state")).to_contain_text("120 rows")
        page.set_input_files("#right-file", HERE / "bank-export.csv")
        expect(page.locator("#recipe-form .rule").first).to_be_visible()
        page.evaluate("() => scrollTo(0, 0)")
        picture(page, "tutorial-start")
        page.get_by_label("up to", exact=True).first.fill("10")
        expect(page.locator("#trial")).to_contain_text("What the last edit changed")
        show(page, ".editor-head")
        picture(page, "tutorial-proposal")
        page.get_by_role("button", name="Discard changes").click()
        page.get_by_role("button", name="Save", exact=True).click()
        page.get_by_role("button", name="Keep and save").click()
        expect(page.locator("#editor-state")).to_contain_text("Saved as version 1")
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.get_by_text("Rows matched", exact=True)).to_be_visible()
        expect(page.locator("#evidence")).to_be_visible()
        picture(page, "tutorial-run")
        run = page.url
        page.goto(f"{run}?part=unmatched_left")
        page.get_by_role("link", name="RE-2026-0186", exact=True).click()
        expect(page.locator("#exception")).to_contain_text("the rule allows")
        show(page, "#exception")
        picture(page, "tutorial-exceptions")
        exception = page.url
        others(page, site)
        page.set_viewport_size({"width": 1280, "height": 1000})
        page.goto(f"{site}{demo}")
        expect(page.locator("#evidence")).to_be_visible()
        picture(page, "report")
        phone(browser, context.storage_state(), exception)
        browser.close()


def others(page: Page, site: str) -> None:
    """Every other page, with what the walk has left."""
    for name, path, there in (
        ("tutorial-runs", "/runs", "table.runs"),
        ("tutorial-sources", "/sources", "#add-source"),
        ("tutorial-source", "/sources/bank-export", "#profile svg"),
        ("tutorial-recipes", "/recipes", "tbody tr"),
        ("tutorial-recipe", "/recipes/ledger-and-bank-export", "#trial table"),
        ("tutorial-settings", "/settings", "#tokens-title"),
        ("query", f"/query?expr={quote(RATES)}&tab=graph&range=1h", "canvas"),
    ):
        page.goto(site + path)
        expect(page.locator(there).first).to_be_visible()
        picture(page, name)


def phone(browser: Browser, logged_in: StorageState, exception: str) -> None:
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, color_scheme="dark", storage_state=logged_in
    )
    page = context.new_page()
    page.goto(exception)
    expect(page.locator("#exception")).to_be_visible()
    show(page, "#exception")
    picture(page, "tutorial-phone")


def show(page: Page, selector: str) -> None:
    page.evaluate("(it) => document.querySelector(it).scrollIntoView()", selector)


def picture(page: Page, name: str) -> None:
    """What is on the screen, without the empty part of a short page."""
    bottom = "document.querySelector('main').getBoundingClientRect().bottom"
    height = page.evaluate(f"() => Math.min(innerHeight, {bottom})")
    width = page.evaluate("() => innerWidth")
    clip: FloatRect = {"x": 0, "y": 0, "width": width, "height": height}
    page.screenshot(path=IMAGES / f"{name}.png", clip=clip)


if __name__ == "__main__":
    main()
