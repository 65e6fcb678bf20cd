"""Live pages: what changes is sent, what does not is not, and one poller serves everybody."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from kalla.web import live
from kalla.work.job import NewJob
from kalla.work.state import jobs
from tests.web_kit import PAGE, Site, until

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "INTERVAL", 0.05)
    monkeypatch.setattr(live, "BEAT_SECONDS", 0.3)


class Followed:
    """A page's stream, as a browser hears it."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def event(self, name: str) -> dict[str, Any]:
        """The next event of this name."""
        async with asyncio.timeout(10):
            async for line in self._lines:
                if line == f"event: {name}":
                    data: dict[str, Any] = json.loads(
                        (await anext(self._lines)).removeprefix("data: ")
                    )
                    return data
        raise AssertionError(f"the stream ended without {name}")

    async def end(self) -> None:
        """The stream's own end; one that was broken off raises instead."""
        async for _ in self._lines:
            pass

    async def change(self, fragment: str) -> str:
        """The next new content of a fragment."""
        while True:
            fragments = (await self.event("change"))["fragments"]
            if fragment in fragments:
                return str(fragments[fragment])


@contextlib.asynccontextmanager
async def followed(
    site: Site, address: str, path: str, role: Any = "viewer"
) -> AsyncIterator[Followed]:
    headers = {"Authorization": f"Bearer {site.tokens[role]}", "Accept": "text/event-stream"}
    async with (
        httpx.AsyncClient(timeout=10) as client,
        client.stream("GET", address + path, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        yield Followed(answer.aiter_lines())


async def test_a_new_job_appears_without_asking_again(site: Site) -> None:
    async with site.served() as address, followed(site, address, "/work") as page:
        assert "No jobs yet" in await page.change("jobs")
        (job_id,) = await site.submit(NewJob("probe"))
        assert f"/jobs/{job_id}" in await page.change("jobs")
        await site.claim()
        assert "claimed" in await page.change("jobs")


async def test_a_job_page_follows_its_job(site: Site) -> None:
    (job_id,) = await site.submit(NewJob("probe", max_attempts=1))
    async with site.served() as address, followed(site, address, f"/jobs/{job_id}") as page:
        assert "pending" in await page.change("job")
        (job,) = await site.claim()
        assert "running" in await page.change("job")
        async with site.database.transaction() as connection:
            await jobs.fail(connection, job, HOSTILE, HOSTILE)
        html = await page.change("job")
        assert "failed" in html
        assert "<script>" not in html
        assert "&lt;script&gt;" in html


async def test_what_did_not_change_is_not_sent_again(site: Site) -> None:
    await site.submit(NewJob("probe"))
    async with site.served() as address, followed(site, address, "/work") as page:
        first = await page.event("change")
        assert first["fragments"].keys() == {"workers", "queues", "filters", "jobs"}
        await page.event("beat")
        await site.execute("UPDATE kalla.jobs SET status = 'cancelled', stopped_at = kalla.clock()")
        second = await page.event("change")
        assert second["fragments"].keys() == {"queues", "jobs"}


async def test_a_filter_holds_for_the_stream_too(site: Site) -> None:
    (job_id,) = await site.submit(NewJob("probe"))
    async with site.served() as address, followed(site, address, "/work?status=failed") as page:
        assert "No job fits this filter" in await page.change("jobs")
        await site.execute("UPDATE kalla.jobs SET status = 'failed'")
        assert f"/jobs/{job_id}" in await page.change("jobs")


async def test_viewers_are_shown_no_buttons(site: Site) -> None:
    await site.submit(NewJob("probe"))
    async with site.served() as address:
        async with followed(site, address, "/work", "operator") as page:
            assert "/cancel" in await page.change("jobs")
        async with followed(site, address, "/work", "viewer") as page:
            assert "<button" not in await page.change("jobs")
    async with site.client("viewer") as client:
        assert "data-command" not in (await client.get("/work", headers=PAGE)).text


async def test_the_poller_runs_only_while_somebody_looks_and_looks_once_for_all(site: Site) -> None:
    hub = site.app.state.kalla.live
    assert not hub.polling
    async with site.served() as address:
        async with (
            followed(site, address, "/work") as one,
            followed(site, address, "/work") as two,
            followed(site, address, "/work?status=failed") as other,
        ):
            for page in (one, two, other):
                await page.change("jobs")
            assert hub.polling
            assert hub.watched == 2

        async def at_rest() -> bool:
            return not hub.polling and hub.watched == 0

        await until(at_rest, "the poller rests")


async def test_a_database_that_goes_away_is_told_and_so_is_its_return(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    async with site.served() as address, followed(site, address, "/work") as page:
        await page.change("jobs")
        real = live.clock

        async def away(_: Any) -> Any:
            raise psycopg.OperationalError("server closed the connection")

        monkeypatch.setattr(live, "clock", away)
        assert (await page.event("trouble"))["message"] == "Postgres does not answer"
        monkeypatch.setattr(live, "clock", real)
        assert (await page.event("trouble"))["message"] is None


async def test_a_revoked_token_ends_the_stream_it_had_opened(site: Site) -> None:
    async with site.served() as address, followed(site, address, "/work") as page:
        await page.change("jobs")
        await site.execute("UPDATE kalla.tokens SET revoked_at = kalla.clock()")
        await page.event("bye")


async def test_a_stopping_server_ends_its_streams_instead_of_breaking_them_off(site: Site) -> None:
    async with contextlib.AsyncExitStack() as reading:
        async with site.served() as address:
            page = await reading.enter_async_context(followed(site, address, "/work"))
            await page.change("jobs")
        await page.end()


async def test_a_command_is_seen_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "INTERVAL", 60.0)
    async with site.served() as address, followed(site, address, "/work") as page:
        await page.change("queues")
        async with site.client("operator") as client:
            await client.post("/api/queues/exec/pause")
        assert "paused" in await page.change("queues")


async def test_the_page_and_its_stream_show_the_same(site: Site) -> None:
    await site.submit(NewJob("probe", payload={"fail": HOSTILE}))
    (job,) = await site.claim()
    async with site.database.transaction() as connection:
        await jobs.fail(connection, job, HOSTILE, HOSTILE, permanent=True)
    async with site.client("operator") as client:
        for path in ("/work", f"/jobs/{job.job_id}"):
            text = (await client.get(path, headers=PAGE)).text
            assert "<script>alert" not in text
            assert "<img" not in text
            assert "&lt;img src=x onerror" in text
