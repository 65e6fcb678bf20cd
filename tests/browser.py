"""The system's own Chromium, kept from calling home. Missing, it skips a test or fails it in CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, async_playwright

_QUIET = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    executable = shutil.which("chromium")
    if executable is None:
        reason = "Chromium is not installed: apt-get install chromium"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, args=_QUIET)
        yield browser
        await browser.close()
