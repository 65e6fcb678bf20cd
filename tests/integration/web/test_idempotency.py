"""An Idempotency-Key: the effect and the remembered answer commit together, once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from kalla.errors import Conflict
from kalla.web import commands
from kalla.web.access import is_harmless
from kalla.web.commands import Commanded
from kalla.work.job import NewJob
from kalla.work.state import jobs
from tests.evidence_kit import invoices_and_payments, make_evidence
from tests.web_kit import Site

PROBE = {"type": "probe", "payload": {"sleep": 1}}


def keyed(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key}


async def test_the_same_key_submits_once_and_answers_alike(site: Site) -> None:
    async with site.client("operator") as client:
        first = await client.post("/api/jobs", json=PROBE, headers=keyed("k"))
        again = await client.post("/api/jobs", json=PROBE, headers=keyed("k"))
    assert first.status_code == again.status_code == 201
    assert first.content == again.content
    assert first.headers["Location"] == again.headers["Location"]
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"
    assert await site.count() == 1
    assert site.bell.nudges == {"exec": 1}


async def test_without_a_key_everything_is_done_again(site: Site) -> None:
    async with site.client("operator") as client:
        await client.post("/api/jobs", json=PROBE)
        await client.post("/api/jobs", json=PROBE)
    assert await site.count() == 2


async def test_many_at_once_with_one_key_are_one(site: Site) -> None:
    async with site.client("operator") as client:
        answers = await asyncio.gather(
            *(client.post("/api/jobs", json=PROBE, headers=keyed("k")) for _ in range(20))
        )
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    assert sum("Idempotency-Replayed" in answer.headers for answer in answers) == 19
    assert await site.count() == 1
    assert site.bell.nudges == {"exec": 1}


async def test_the_second_of_two_at_once_waits_for_the_first_ones_answer(site: Site) -> None:
    calls = 0

    @site.app.post("/api/test")
    async def slow(command: Commanded) -> dict[str, int]:
        nonlocal calls
        calls += 1
        await command.connection.execute("SELECT pg_sleep(0.2)")
        return {"call": calls}

    async with site.client("operator") as client:
        answers = await asyncio.gather(
            *(client.post("/api/test", headers=keyed("k")) for _ in range(4))
        )
    assert [answer.json() for answer in answers] == [{"call": 1}] * 4
    assert calls == 1


@pytest.mark.attack
async def test_many_that_wait_for_a_slow_answer_hold_no_connection(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve once held the whole pool, and nobody else was answered."""
    monkeypatch.setattr(commands, "_PATIENCE", 0.2)
    begun, going_on = asyncio.Event(), asyncio.Event()

    @site.app.post("/api/test")
    async def slow(command: Commanded) -> dict[str, str]:
        begun.set()
        await going_on.wait()
        return {"is": "done"}

    async with site.client("operator") as client:
        first = asyncio.create_task(client.post("/api/test", headers=keyed("k")))
        await begun.wait()
        others = await asyncio.gather(
            *(client.post("/api/test", headers=keyed("k")) for _ in range(30)),
            *(client.get("/api/jobs") for _ in range(30)),
        )
        going_on.set()
        assert (await first).json() == {"is": "done"}
        again = await client.post("/api/test", headers=keyed("k"))
    assert [each.status_code for each in others] == [409] * 30 + [200] * 30
    assert "still being answered" in others[0].json()["detail"]
    assert again.headers["Idempotency-Replayed"] == "true"


@pytest.mark.attack
@pytest.mark.parametrize("with_keys", [False, True])
async def test_commands_that_wait_for_another_server_leave_connections_for_the_rest(
    site: Site, monkeypatch: pytest.MonkeyPatch, with_keys: bool
) -> None:
    monkeypatch.setattr(commands, "_PLACE_SECONDS", 0.2)
    going_on = asyncio.Event()

    @site.app.post("/api/test")
    async def slow(command: Commanded) -> dict[str, str]:
        await going_on.wait()
        return {"is": "done"}

    async with site.client("operator") as client, asyncio.timeout(60):
        changes = [
            asyncio.create_task(
                client.post("/api/test", headers=keyed(f"k{number}") if with_keys else {})
            )
            for number in range(30)
        ]
        refused, _ = await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
        reads = await asyncio.gather(*(client.get("/api/jobs") for _ in range(30)))
        going_on.set()
        await asyncio.wait(changes)
    assert [each.status_code for each in reads] == [200] * 30
    assert {each.result().status_code for each in refused} == {503}
    assert {each.result().status_code for each in changes} == {200, 503}


async def test_a_key_used_for_another_request_is_refused(site: Site) -> None:
    async with site.client("operator") as client:
        await client.post("/api/jobs", json=PROBE, headers=keyed("k"))
        other_body = await client.post("/api/jobs", json={"type": "probe"}, headers=keyed("k"))
        other_path = await client.post("/api/queues/exec/pause", headers=keyed("k"))
    for answer in (other_body, other_path):
        assert answer.status_code == 422
        assert [item["field"] for item in answer.json()["errors"]] == ["Idempotency-Key"]
    assert await site.count() == 1


async def test_keys_belong_to_their_caller(site: Site) -> None:
    async with site.client("operator") as one, site.client("admin") as two:
        first = await one.post("/api/jobs", json=PROBE, headers=keyed("k"))
        other = await two.post("/api/jobs", json=PROBE, headers=keyed("k"))
    assert first.json()["job_id"] != other.json()["job_id"]


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_a_key_without_measure_is_refused(site: Site, key: str) -> None:
    async with site.client("operator") as client:
        answer = await client.post("/api/jobs", json=PROBE, headers=keyed(key))
    assert answer.status_code == 422
    assert "1 to 255 characters" in answer.json()["detail"]
    assert await site.count() == 0


async def test_a_refusal_by_state_is_remembered_too(site: Site) -> None:
    (job_id,) = await site.submit(NewJob("probe"))
    await site.execute("UPDATE kalla.jobs SET status = 'completed', finished_at = kalla.clock()")
    async with site.client("operator") as client:
        path = f"/api/jobs/{job_id}/cancel"
        first = await client.post(path, headers=keyed("k"))
        await site.execute("UPDATE kalla.jobs SET status = 'pending', finished_at = NULL")
        again = await client.post(path, headers=keyed("k"))
    assert first.status_code == again.status_code == 409
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.headers["Content-Type"] == "application/problem+json"
    assert first.content == again.content
    assert site.bell.alarms == 0


async def test_a_request_that_was_not_understood_may_be_corrected_under_its_key(site: Site) -> None:
    async with site.client("operator") as client:
        bad = {"type": "probe", "timeout_seconds": -1}
        assert (await client.post("/api/jobs", json=bad, headers=keyed("k"))).status_code == 422
        good = await client.post("/api/jobs", json=PROBE, headers=keyed("k"))
    assert good.status_code == 201


async def test_an_error_undoes_the_effect_and_is_not_remembered(site: Site) -> None:
    failing = True

    @site.app.post("/api/test")
    async def submit_and_break(command: Commanded) -> dict[str, Any]:
        inserted = await jobs.insert(command.connection, site.job_types, [NewJob("probe")])
        command.woken += inserted.woken
        if failing:
            raise RuntimeError("broken")
        return {}

    async with site.client("operator") as client:
        assert (await client.post("/api/test", headers=keyed("k"))).status_code == 500
        assert await site.count() == 0
        assert not site.bell.nudges
        failing = False
        assert (await client.post("/api/test", headers=keyed("k"))).status_code == 200
    assert await site.count() == 1
    assert site.bell.nudges == {"exec": 1}


async def test_a_refusal_undoes_what_was_done_before_it(site: Site) -> None:
    @site.app.post("/api/test")
    async def submit_and_refuse(command: Commanded) -> None:
        inserted = await jobs.insert(command.connection, site.job_types, [NewJob("probe")])
        command.woken += inserted.woken
        command.alarm = True
        raise Conflict("on second thoughts, no")

    async with site.client("operator") as client:
        for headers in ({}, keyed("k"), keyed("k")):
            assert (await client.post("/api/test", headers=headers)).status_code == 409
    assert await site.count() == 0
    assert not site.bell.nudges
    assert site.bell.alarms == 0


async def test_a_crash_before_the_commit_leaves_neither_effect_nor_memory(site: Site) -> None:
    crashing = True

    @site.app.post("/api/test")
    async def submit_and_crash(command: Commanded) -> dict[str, Any]:
        await jobs.insert(command.connection, site.job_types, [NewJob("probe")])
        if crashing:
            pid = command.connection.info.backend_pid
            await site.one("SELECT pg_terminate_backend(%s)", pid)
        return {}

    async with site.client("operator") as client:
        broken = await client.post("/api/test", headers=keyed("k"))
        assert broken.status_code == 503
        assert broken.headers["Retry-After"]
        assert await site.count() == 0
        assert (await site.one("SELECT count(*) AS n FROM kalla.idempotency"))["n"] == 0
        crashing = False
        assert (await client.post("/api/test", headers=keyed("k"))).status_code == 200
    assert await site.count() == 1


async def test_transactions_that_collide_are_tried_again(site: Site) -> None:
    tries = 0
    taken = await site.one("SELECT min(token_id) AS token_id FROM kalla.tokens")

    @site.app.post("/api/test")
    async def collide(command: Commanded) -> dict[str, int]:
        nonlocal tries
        tries += 1
        token_id = taken["token_id"] if tries < 3 else 10**9
        await command.connection.execute(
            "INSERT INTO kalla.tokens (token_id, name, role, hash) OVERRIDING SYSTEM VALUE"
            " VALUES (%s, 'x', 'viewer', %s)",
            [token_id, str(tries).encode()],
        )
        return {"tries": tries}

    async with site.client("operator") as client:
        answer = await client.post("/api/test", headers=keyed("k"))
    assert answer.json() == {"tries": 3}


SIDE = {"uri": "/data/x.csv", "primary_key": ["id"]}
RULE = {"name": "r", "conditions": [{"left": "id", "op": "eq", "right": "id"}]}
KEPT = SIDE | {"uri": "source://kept"}
BODIES = {
    "/api/jobs": PROBE,
    "/api/sources": {"name": "first", "source": SIDE},
    "/api/destinations": {"name": "first", "url": "https://ledger.example", "secret": "key"},
    "/api/recipes": {"name": "may", "sources": {"left": SIDE, "right": SIDE}, "rules": [RULE]},
    "/api/runs": {
        "recipe": {"name": "may", "sources": {"left": KEPT, "right": KEPT}, "rules": [RULE]}
    },
    "/api/schedules": {"recipe_id": "may", "cron": "0 7 * * *"},
}


# These succeed only with ClickHouse or Spark beside Postgres. That they take a key is held by
# test_the_description_is_complete.
NEED_OTHER_SERVERS = ("/api/pipelines", "/api/tables")


async def test_every_post_with_an_effect_honours_the_key(site: Site, tmp_path: Path) -> None:
    """Taken from the app: a new POST is covered by being there."""
    folder = await asyncio.to_thread(make_evidence, tmp_path / "made", *invoices_and_payments(10))
    bodies = BODIES | {"/api/runs/import": {"folder": folder}}
    bodies |= {"/api/uploads/{upload_id}/save": {"name": "sent"}}
    posts = [
        str(route.path)
        for route in iter_route_contexts(site.app.routes)
        if "POST" in (route.methods or ())
        and route.path not in ("/login", "/logout", "/api/login-links")
        and not is_harmless(route.endpoint)
        and not str(route.path).startswith(NEED_OTHER_SERVERS)
    ]
    assert len(posts) >= 6
    async with site.client("admin") as client:
        await _post(client, "/api/sources", {"name": "kept", "source": SIDE}, "kept")
        for path in posts:
            address = path.format(
                job_id=await _fitting_job(site, path),
                run_id=await _fitting_run(client, path),
                queue="exec",
                token_id=await _some_token(site),
                segment_id=await _some_segment(site),
                name="first",
                schedule_id=await _some_schedule(site),
                upload_id=await _some_upload(site, tmp_path),
            )
            body = bodies.get(path)
            first = await _post(client, address, body, f"key of {path}")
            again = await _post(client, address, body, f"key of {path}")
            assert first.status_code in (200, 201), (path, first.text)
            assert first.content == again.content, path
            assert again.headers["Idempotency-Replayed"] == "true", path


@pytest.mark.attack
async def test_the_code_of_a_login_link_is_not_kept_with_its_key(site: Site) -> None:
    async with site.client("admin") as client:
        codes = [
            (await client.post("/api/login-links", headers=keyed("k"))).json()["code"]
            for _ in range(2)
        ]
    assert codes[0] != codes[1], "each answer makes a link of its own"
    row = await site.one("SELECT count(*) AS kept FROM kalla.idempotency")
    assert row["kept"] == 0


async def _post(client: httpx.AsyncClient, path: str, body: Any, key: str) -> httpx.Response:
    return await client.post(path, json=body, headers=keyed(key))


async def _fitting_job(site: Site, path: str) -> int:
    (job_id,) = await site.submit(NewJob("probe"))
    if path.endswith("/retry"):
        await site.execute("UPDATE kalla.jobs SET status = 'failed' WHERE job_id = %s", job_id)
    return job_id


async def _fitting_run(client: httpx.AsyncClient, path: str) -> int:
    made = (await client.post("/api/runs", json=BODIES["/api/runs"])).json()
    if path.endswith("/retry"):
        await client.post(f"/api/runs/{made['run_id']}/cancel")
    return int(made["run_id"])


async def _some_token(site: Site) -> int:
    row = await site.one("SELECT token_id FROM kalla.tokens WHERE name = 'viewer'")
    return int(row["token_id"])


async def _some_upload(site: Site, folder: Path) -> str:
    file = folder / "sent.csv"
    await asyncio.to_thread(file.write_text, "id,amount\n1,2\n")
    row = await site.one(
        "INSERT INTO kalla.uploads (upload_id, file_name, url, bytes, created_by)"
        " VALUES (substr(md5(random()::text), 1, 16), 'sent.csv', %s, 15, 'ann')"
        " RETURNING upload_id",
        str(file),
    )
    return str(row["upload_id"])


async def _some_schedule(site: Site) -> int | None:
    """None before a recipe is registered, which its routes come after."""
    row = await site.one("SELECT min(schedule_id) AS schedule_id FROM kalla.schedules")
    return cast(int | None, row["schedule_id"])


async def _some_segment(site: Site) -> int:
    row = await site.one(
        "INSERT INTO kalla.segments"
        " (shard, level, min_time, max_time, path, rows, samples, bytes, checksum)"
        " VALUES (0, 0, 1, 2, 'gone', 1, 1, 1, '') RETURNING segment_id"
    )
    return int(row["segment_id"])
