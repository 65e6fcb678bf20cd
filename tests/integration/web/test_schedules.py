"""Recipes that are run at certain times: each time once, and told to whom it concerns."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kalla.cli.main import application
from kalla.reconcile.runs.store import Callback
from kalla.reconcile.schedules.run_scheduler import RunScheduler
from tests.web_kit import Site

HOOK = "http://127.0.0.1:9/hooks"


@pytest.fixture
async def recipe_id(site: Site, tmp_path: Path) -> str:
    """A saved recipe over two registered files, and a destination."""
    async with site.client("admin") as client:
        for name in ("invoices", "payments"):
            file = tmp_path / f"{name}.csv"
            file.write_text("id,ref,amount\n1,a,2.50\n")
            source = {"uri": str(file), "primary_key": ["id"]}
            await client.post("/api/sources", json={"name": name, "source": source})
        hook = {"name": "hook", "url": HOOK, "secret": "hook"}
        assert (await client.post("/api/destinations", json=hook)).status_code == 201
        recipe = {
            "name": "monthly",
            "sources": {
                "left": {"uri": "source://invoices"},
                "right": {"uri": "source://payments"},
            },
            "rules": [{"name": "r", "conditions": [{"left": "ref", "op": "eq", "right": "ref"}]}],
        }
        saved = await client.post("/api/recipes", json={"recipe": recipe})
        assert saved.status_code == 201, saved.text
        return str(saved.json()["recipe_id"])


async def scheduled(site: Site, recipe_id: str, **fields: Any) -> int:
    async with site.client("operator") as client:
        asked = {"recipe_id": recipe_id, "cron": "0 * * * *", **fields}
        answer = await client.post("/api/schedules", json=asked)
        assert answer.status_code == 201, answer.text
        return int(answer.json()["schedule_id"])


async def shown(site: Site, schedule_id: int) -> dict[str, Any]:
    async with site.client("viewer") as client:
        found: dict[str, Any] = (await client.get(f"/api/schedules/{schedule_id}")).json()
        return found


async def come_due(site: Site, hours: int = 1) -> None:
    """As if the last times had come and nobody had been there."""
    await site.execute(
        "UPDATE kalla.schedules SET next_at = date_trunc('hour', kalla.clock())"
        " - make_interval(hours => %s)",
        hours - 1,
    )


def scheduler(site: Site) -> RunScheduler:
    return RunScheduler(site.settings, site.database, site.job_types, site.bell)


async def runs(site: Site) -> list[dict[str, Any]]:
    async with site.client("viewer") as client:
        found: list[dict[str, Any]] = (await client.get("/api/runs")).json()["runs"]
        return found


async def test_a_time_that_several_schedulers_see_is_run_once(site: Site, recipe_id: str) -> None:
    schedule = await scheduled(site, recipe_id, notify_url=f"{HOOK}/day", notify_above=3)
    assert await scheduler(site).tick() is None
    assert await runs(site) == [], "it is not due yet"
    await come_due(site, hours=4)
    await asyncio.gather(*(scheduler(site).tick() for _ in range(6)))
    await scheduler(site).tick()
    (run,) = await runs(site)
    assert run["recipe_id"] == recipe_id
    assert run["submitted_by"] == f"schedule {schedule} of operator"
    found = await shown(site, schedule)
    assert found["last_run_id"] == run["run_id"]
    assert "stands for 4 times" in found["last_note"]
    assert found["next_at"] > found["last_due_at"]
    row = await site.one("SELECT callback FROM kalla.reconciliations")
    assert row["callback"] == {"url": f"{HOOK}/day", "secret": "hook", "above": 3}


async def test_a_run_of_another_text_does_not_become_what_a_schedule_runs(
    site: Site, recipe_id: str, tmp_path: Path
) -> None:
    await scheduled(site, recipe_id)
    async with site.client("operator") as client:
        saved = (await client.get(f"/api/recipes/{recipe_id}")).json()["text"]
        other = {"recipe": f"# of another month\n{saved}"}
        refused = await client.post("/api/runs", json=other)
        assert refused.status_code == 409, refused.text
        assert "version 2 of monthly, which 1 schedule will run" in refused.text
        assert (await client.post("/api/runs", json={"recipe": saved})).status_code == 201
        await come_due(site)
        await scheduler(site).tick()
        assert {run["recipe_version"] for run in await runs(site)} == {1}
        asked = await client.post("/api/runs", json={**other, "new_version": True})
        assert asked.json()["recipe_version"] == 2


async def test_a_time_is_left_out_while_the_run_before_goes_on_or_if_missed_ones_are_skipped(
    site: Site, recipe_id: str
) -> None:
    schedule = await scheduled(site, recipe_id)
    await come_due(site)
    await scheduler(site).tick()
    await site.execute("DELETE FROM kalla.schedule_times WHERE run_id IS NULL")
    await site.execute("UPDATE kalla.schedule_times SET due_at = due_at - interval '1 day'")
    await come_due(site)
    await scheduler(site).tick()
    assert len(await runs(site)) == 1
    assert "was still running" in (await shown(site, schedule))["last_note"]

    skipping = await scheduled(site, recipe_id, cron="0 0 1 1 *", missed="skip")
    await site.execute(
        "UPDATE kalla.schedules SET next_at = kalla.clock() - interval '1 day'"
        " WHERE schedule_id = %s",
        skipping,
    )
    await scheduler(site).tick()
    assert len(await runs(site)) == 1
    assert "missed while Kalla was down" in (await shown(site, skipping))["last_note"]


async def test_a_run_that_cannot_begin_is_noted_and_told_and_the_schedule_goes_on(
    site: Site, recipe_id: str
) -> None:
    schedule = await scheduled(site, recipe_id, notify_url=HOOK)
    await site.execute("DELETE FROM kalla.sources WHERE name = 'payments'")
    await come_due(site)
    await scheduler(site).tick()
    found = await shown(site, schedule)
    assert found["last_run_id"] is None
    assert "not started" in found["last_note"]
    assert "payments" in found["last_note"]
    call = await site.one("SELECT payload FROM kalla.jobs WHERE type = 'callback'")
    assert call["payload"]["body"]["status"] == "not started"
    assert call["payload"]["signed_with"] == "secret://hook"


async def test_schedules_are_paused_resumed_removed_and_refused(site: Site, recipe_id: str) -> None:
    schedule = await scheduled(site, recipe_id)
    async with site.client("operator") as client:
        paused = await client.post(f"/api/schedules/{schedule}/pause")
        assert paused.json()["is_paused"] is True
        await come_due(site)
        await scheduler(site).tick()
        assert await runs(site) == []
        resumed = (await client.post(f"/api/schedules/{schedule}/resume")).json()
        await scheduler(site).tick()
        assert await runs(site) == [], "times that came meanwhile are not made up for"
        assert resumed["is_paused"] is False
        for fields, field in (
            ({"cron": "every day"}, "cron"),
            ({"time_zone": "Mars"}, "time_zone"),
            ({"notify_url": "https://elsewhere.example/"}, "callback_url"),
            ({"notify_above": 3}, "notify_above"),
        ):
            asked = {"recipe_id": recipe_id, "cron": "0 7 * * *", **fields}
            answer = await client.post("/api/schedules", json=asked)
            assert answer.status_code == 422, answer.text
            assert [each["field"] for each in answer.json()["errors"]] == [field]
        assert (await client.delete(f"/api/schedules/{schedule}")).status_code == 204
        assert (await client.get("/api/schedules")).json() == []
        gone = await client.delete(f"/api/schedules/{schedule}")
        assert gone.status_code == 404
    async with site.client("viewer") as client:
        asked = {"recipe_id": recipe_id, "cron": "0 7 * * *"}
        assert (await client.post("/api/schedules", json=asked)).status_code == 403


async def test_schedules_are_managed_by_command(
    site: Site, recipe_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KALLA_API_TOKEN", site.tokens["operator"])
    app = application(["schedules"])

    def carried_out(*arguments: str) -> str:
        return CliRunner().invoke(app, ["schedules", *arguments], catch_exceptions=False).output

    async with site.served() as address:
        monkeypatch.setenv("KALLA_API_URL", address)
        made = await asyncio.to_thread(carried_out, "add", recipe_id, "0 7 * * *", "--skip-missed")
        (number,) = re.findall(r"Schedule (\d+) runs", made)  # beside what the API logs
        assert (await shown(site, int(number)))["missed"] == "skip"
        await asyncio.to_thread(carried_out, "pause", number)
        listed = await asyncio.to_thread(carried_out, "list", "--recipe", recipe_id)
        assert "paused" in listed
        assert "monthly" in await asyncio.to_thread(carried_out, "resume", number)
        await asyncio.to_thread(carried_out, "remove", number)
        assert "No schedules yet" in await asyncio.to_thread(carried_out, "list")


def test_a_completed_run_is_news_only_above_the_threshold() -> None:
    quiet = Callback("https://x.example/", "hook", above=3)
    assert not quiet.wants("completed", 3)
    assert quiet.wants("completed", 4)
    assert quiet.wants("failed", None)
    assert Callback("https://x.example/", "hook").wants("completed", 0)
