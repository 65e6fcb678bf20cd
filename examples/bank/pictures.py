"""Makes the pictures of docs/tutorial.md: starts `kalla up` in a folder of its own, walks through
the pages with the two files of this folder in Chromium, and stops it. `make pictures` runs it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from kalla.local.ports import choose_free

HERE = Path(__file__).parent
IMAGES = HERE.parents[1] / "docs" / "images"
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
            walk(link(output, up))
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


def walk(login: str) -> None:
    expect.set_options(timeout=_PATIENCE)
    executable = shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1280, "height": 860}).new_page()
        page.goto(login)
        page.goto(login.partition("/login")[0] + "/start")
        page.set_input_files("#left-file", HERE / "ledger.xlsx")
        expect(page.locator("#left .state")).to_contain_text("120 rows")
        page.set_input_files("#right-file", HERE / "bank-export.csv")
        expect(page.locator("#recipe-form .rule").first).to_be_visible()
        page.evaluate("() => scrollTo(0, 0)")
        picture(page, "start")
        page.locator("#proposal").scroll_into_view_if_needed()
        page.evaluate("() => scrollTo(0, document.body.scrollHeight)")
        picture(page, "proposal")
        page.click("#run")
        expect(page.get_by_text("Rows matched", exact=True)).to_be_visible()
        picture(page, "run")
        page.goto(f"{page.url}?part=unmatched_left#evidence")
        expect(page.get_by_text("RE-2026-").first).to_be_visible()
        page.evaluate("() => scrollTo(0, document.body.scrollHeight)")
        picture(page, "exceptions")
        browser.close()


def picture(page: Page, name: str) -> None:
    page.screenshot(path=IMAGES / f"tutorial-{name}.png")


if __name__ == "__main__":
    main()
