"""What tests of the Query page share: series of each kind it must show, and a visit to it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import httpx
from playwright.async_api import Browser, Locator, Page

from kalla.query.labels.label_sets import Labels
from kalla.web.tokens.tokens import Role
from tests.metrics_kit import Points, named
from tests.web_kit import Site

END = 1_700_000_000  # what is asked for ends here, so that answers never change
AT = "2023-11-14T22:13:20Z"
HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
REQUESTS = "sum by (job) (rate(http_requests_total[5m]))"


@dataclass(frozen=True)
class Place:
    """A served site, whose store is only read."""

    site: Site
    address: str
    role: Role = "viewer"

    @property
    def entrance(self) -> str:
        """A login link, to which the page to go to is added."""
        return f"{self.address}/login?token={self.site.tokens[self.role]}&next="

    async def asked(self, path: str, **values: str | int) -> Any:
        headers = {"Authorization": f"Bearer {self.site.tokens['viewer']}"}
        async with httpx.AsyncClient(base_url=self.address, headers=headers) as client:
            answer = await client.get(f"/api/v1/{path}", params=values, timeout=300)
        return answer.raise_for_status().json()["data"]


def series() -> dict[Labels, Points]:
    """An hour of samples every 30 s, of each kind that a page must show."""
    times = range((END - 3600) * 1000, END * 1000 + 1, 30_000)
    found: dict[Labels, Points] = {
        named("http_requests_total", job=job, code=code): [
            (at, float(index * (3 + len(job)) * int(code) // 100)) for index, at in enumerate(times)
        ]
        for job in ("api", "worker")
        for code in ("200", "500")
    }
    for host in range(120):
        found[named("load", host=f"host-{host:03}")] = [(at, host / 7) for at in times]
    found[named("paused", host="a")] = [
        (at, 2.5) for index, at in enumerate(times) if not 40 <= index < 80
    ]
    for kind, value in (("nan", math.nan), ("up", math.inf), ("down", -math.inf), ("one", 1e21)):
        found[named("odd", kind=kind)] = [(at, value) for at in times]
    found[named("hostile", text=HOSTILE, note='a "quoted"\nline')] = [(END * 1000, 1.0)]
    return found


@asynccontextmanager
async def visiting(browser: Browser, place: Place, path: str) -> AsyncIterator[Page]:
    """A page after the login; any error of its scripts fails the test, and so does a breach of the
    content security policy. That the API refuses an expression is no error of the page."""
    context = await browser.new_context(
        locale="en-GB", timezone_id="Europe/Berlin", viewport={"width": 1280, "height": 800}
    )
    errors: list[str] = []
    page = await context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda message: (
            errors.append(message.text)
            if message.type == "error"
            and "the server responded with a status of 4" not in message.text
            else None
        ),
    )
    await page.goto(place.entrance + quote(path))
    yield page
    await context.close()
    assert not errors


def link(expr: str, **values: str) -> str:
    return f"/query?{urlencode({'expr': expr, 'end': AT, **values})}"


@dataclass(frozen=True)
class Picture:
    """The canvas of a graph: colours of lines, and the strokes that a line is cut into."""

    pixels: str
    colors: tuple[str, ...]
    strokes: int


def lines(page: Page, number: int) -> Locator:
    """The plot, when it is drawn with that many lines."""
    return page.locator(f'.plot[data-lines="{number}"]:has(canvas)')


async def picture(page: Page) -> Picture:
    found = await page.evaluate(_PICTURE)
    return Picture(found["pixels"], tuple(found["colors"]), found["strokes"])


# Colours with a hue are lines; grid, axes and numbers are grey. A stroke is a run of columns with
# a pixel of a line.
_PICTURE = """() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(() => {
  const canvas = document.querySelector(".plot canvas");
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const colors = {};
  const columns = new Array(width).fill(false);
  for (let at = 0; at < data.length; at += 4) {
    const [red, green, blue, alpha] = data.slice(at, at + 4);
    if (alpha < 255 || Math.max(red, green, blue) - Math.min(red, green, blue) < 40) continue;
    columns[(at / 4) % width] = true;
    const color = `${red},${green},${blue}`;
    colors[color] = (colors[color] || 0) + 1;
  }
  resolve({
    pixels: canvas.toDataURL(),
    colors: Object.keys(colors).filter((color) => colors[color] > 40).sort(),
    strokes: columns.filter((is, column) => is && !columns[column - 1]).length,
  });
})))"""
