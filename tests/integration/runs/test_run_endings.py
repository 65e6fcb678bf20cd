"""How runs end: concluded, told, tidied, cancelled, failed and retried."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import urlsplit

import psycopg
import pytest

from kalla.database import Connection
from kalla.reconcile.runs import run_completion, store
from kalla.reconcile.runs.run_completion import Conclusions
from kalla.work.state import runs
from tests.runs_kit import ROWS, SIGNING_KEY, RunsSite, recipe
from tests.web_kit import Bell
from tests.worker_kit import eventually

pytestmark = pytest.mark.spark


@dataclass
class Hook:
    """A destination that remembers its calls; the first of them it answers with these codes."""

    codes: list[int] = field(default_factory=list)
    calls: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.calls.append((dict(self.headers), body))
            self.send_response(hook.codes.pop(0) if hook.codes else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Answer)
    hook.url = f"http://127.0.0.1:{server.server_port}/hooks"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield hook
    server.shutdown()
    thread.join()
    server.server_close()


async def test_staged_rows_are_removed_and_the_evidence_that_counts_stays(site: RunsSite) -> None:
    run = await site.post("/api/runs", {"recipe": recipe(site)})
    run_id = run["run_id"]
    evidence = Path(site.settings.evidence_url) / f"run-{run_id}"
    lost, later = evidence / "1-1-lost", evidence / "1-99-later"
    for folder in (lost, later):
        await asyncio.to_thread(folder.mkdir, parents=True)
    async with site.worker():
        ended = await site.until(run_id, "completed", "failed")
        await tidied(site)
    assert not (Path(site.settings.staging_url) / f"run-{run_id}").exists()
    assert (Path(ended["evidence_url"]) / "metadata.json").exists()
    assert not lost.exists()
    assert later.exists(), "an attempt that began after the look is not the look's business"


async def test_a_retried_run_keeps_its_evidence_when_the_first_ending_is_tidied(
    site: RunsSite,
) -> None:
    body = recipe(site)
    file = Path(body["sources"]["left"]["uri"])
    elsewhere = file.with_suffix(".away")
    await asyncio.to_thread(file.rename, elsewhere)
    async with site.worker():
        run_id = (await site.post("/api/runs", {"recipe": body}))["run_id"]
        await site.until(run_id, "failed")
        await asyncio.to_thread(elsewhere.rename, file)
        await site.post(f"/api/runs/{run_id}/retry", status=200)
        ended = await site.until(run_id, "completed")
        await tidied(site)
        # A day later what the first ending had in mind comes due.
        await site.rows(
            "UPDATE kalla.reconciliations SET tidy_at = kalla.clock() - interval '1 day',"
            " finished_at = finished_at - interval '2 days' RETURNING run_id"
        )
        await tidied(site, 2)
    assert (Path(ended["evidence_url"]) / "metadata.json").exists()


async def tidied(site: RunsSite, times: int = 1) -> None:
    async def done() -> bool:
        rows = await site.rows("SELECT status FROM kalla.jobs WHERE type = 'tidy'")
        return [row["status"] for row in rows] == ["completed"] * times

    await eventually(done, 60)


async def test_an_ending_is_told_once_signed_and_until_it_is_heard(
    site: RunsSite, hook: Hook
) -> None:
    await site.post("/api/destinations", {"name": "hook", "url": hook.url, "secret": "hook"})
    hook.codes = [500, 302]
    async with site.worker(), site.worker():
        body = {"recipe": recipe(site), "callback_url": f"{hook.url}/kalla"}
        run = await site.post("/api/runs", body)
        await site.until(run["run_id"], "completed", "failed")

        async def heard() -> bool:
            rows = await site.rows("SELECT status FROM kalla.jobs WHERE type = 'callback'")
            return [row["status"] for row in rows] == ["completed"]

        await eventually(heard, 60)
    assert len(hook.calls) == 3
    headers, body_sent = hook.calls[-1]
    told = json.loads(body_sent)
    assert (told["run_id"], told["status"]) == (run["run_id"], "completed")
    assert told["exceptions"] == ROWS // 10 * 2
    at, signature = (each.partition("=")[2] for each in headers["Kalla-Signature"].split(","))
    expected = hmac.new(SIGNING_KEY.encode(), f"{at}.".encode() + body_sent, hashlib.sha256)
    assert hmac.compare_digest(signature, expected.hexdigest())
    assert len({headers["Kalla-Delivery"] for headers, _ in hook.calls}) == 1
    assert SIGNING_KEY not in str(await site.rows("SELECT payload::text FROM kalla.jobs"))


async def test_nobody_but_a_registered_destination_is_called(site: RunsSite, hook: Hook) -> None:
    body = {"recipe": recipe(site), "callback_url": hook.url}
    problem = await site.post("/api/runs", body, status=422)
    assert "callback_url" in str(problem)
    assert await site.rows("SELECT FROM kalla.runs") == []


async def test_a_cancelled_run_stops_its_jobs_and_says_so(
    site: RunsSite, bank: str, hook: Hook
) -> None:
    await site.post("/api/destinations", {"name": "hook", "url": hook.url, "secret": "hook"})
    body = {"recipe": recipe(site), "callback_url": hook.url}
    run_id = (await site.post("/api/runs", body))["run_id"]
    async with await psycopg.AsyncConnection.connect(bank) as holder:
        await holder.execute("LOCK TABLE payments IN ACCESS EXCLUSIVE MODE")
        async with site.worker():

            async def staging() -> bool:
                run = await site.get(f"/api/runs/{run_id}")
                return bool(run["progress"]["stage"] == "staging")

            await eventually(staging, 60)
            await site.post(f"/api/runs/{run_id}/cancel", status=200)
            await holder.rollback()
            ended = await site.until(run_id, "cancelled")
            assert ended["error"] == "cancelled by admin"

            async def told() -> bool:
                return bool(hook.calls)

            await eventually(told, 60)
    assert json.loads(hook.calls[0][1])["status"] == "cancelled"
    assert (await site.post(f"/api/runs/{run_id}/cancel", status=409))["status"] == 409


async def test_a_run_that_fails_says_why_and_can_be_retried(site: RunsSite) -> None:
    body = recipe(site)
    file = Path(body["sources"]["left"]["uri"])
    elsewhere = file.with_suffix(".away")
    await asyncio.to_thread(file.rename, elsewhere)
    async with site.worker():
        run_id = (await site.post("/api/runs", {"recipe": body}))["run_id"]
        failed = await site.until(run_id, "failed")
        assert "invoices.csv does not exist" in failed["error"]
        await asyncio.to_thread(elsewhere.rename, file)
        again = await site.post(f"/api/runs/{run_id}/retry", status=200)
        assert (again["status"], again["error"]) == ("running", None)
        ended = await site.until(run_id, "completed")
    assert ended["error"] is None
    staged = await site.rows("SELECT fence FROM kalla.jobs WHERE type = 'stage_chunk'")
    assert {row["fence"] for row in staged} == {1}, "what was staged is not staged again"


async def test_an_ending_is_concluded_once_by_however_many_look(site: RunsSite, hook: Hook) -> None:
    await site.post("/api/destinations", {"name": "hook", "url": hook.url, "secret": "hook"})
    body = {"recipe": recipe(site), "callback_url": hook.url}
    run_id = (await site.post("/api/runs", body))["run_id"]
    await site.post(f"/api/runs/{run_id}/cancel", status=200)
    services = [Conclusions(site.database, site.job_types, Bell()) for _ in range(4)]
    await asyncio.gather(*(service.tick() for service in services))
    for service in services:
        await service.tick()
    calls = "SELECT payload FROM kalla.jobs WHERE type = 'callback'"
    assert len(await site.rows(calls)) == 1
    await site.post(f"/api/runs/{run_id}/retry", status=200)
    await site.post(f"/api/runs/{run_id}/cancel", status=200)
    await asyncio.gather(*(service.tick() for service in services))
    deliveries = {row["payload"]["delivery"] for row in await site.rows(calls)}
    assert len(deliveries) == 2, "a second ending is told too"
    await site.rows("DELETE FROM kalla.runs RETURNING run_id")
    assert (await site.get(f"/api/runs/{run_id}"))["status"] == "cancelled", "it outlives its jobs"


async def test_an_error_that_looks_like_a_secret_stops_no_conclusion(
    site: RunsSite, hook: Hook
) -> None:
    await site.post("/api/destinations", {"name": "hook", "url": hook.url, "secret": "hook"})
    body = {"recipe": recipe(site), "callback_url": hook.url}
    run_id = (await site.post("/api/runs", body))["run_id"]
    await site.rows(
        "UPDATE kalla.runs SET status = 'failed', finished_at = kalla.clock(),"
        " error = 'line 3: Bearer abcdefgh12345678 https://x:y@z' RETURNING run_id"
    )
    await Conclusions(site.database, site.job_types, Bell()).tick()
    assert (await site.get(f"/api/runs/{run_id}"))["status"] == "failed"
    (call,) = await site.rows("SELECT payload FROM kalla.jobs WHERE type = 'callback'")
    assert call["payload"]["body"]["status"] == "failed"
    assert "abcdefgh" not in str(call)


async def test_what_a_run_is_made_of_is_not_submitted_past_it(site: RunsSite) -> None:
    for kind in ("stage_plan", "stage_chunk", "exec", "callback", "tidy"):
        problem = await site.post("/api/jobs", {"type": kind, "payload": {}}, status=422)
        assert "not submitted by themselves" in str(problem)


async def test_a_run_whose_jobs_vanished_is_failed_not_running_for_ever(site: RunsSite) -> None:
    run_id = (await site.post("/api/runs", {"recipe": recipe(site)}))["run_id"]
    await site.rows("DELETE FROM kalla.runs RETURNING run_id")
    await Conclusions(site.database, site.job_types, Bell()).tick()
    run = await site.get(f"/api/runs/{run_id}")
    assert (run["status"], run["finished_at"] is not None) == ("failed", True)


@pytest.mark.parametrize("escaped", [True, False], ids=["in an escape", "as it is"])
async def test_a_name_that_no_job_may_hold_is_refused_where_it_comes_in(
    site: RunsSite, escaped: bool
) -> None:
    body = recipe(site) | {"name": f"bearer\t{'abc123' * 4}"}
    given = json.dumps(body) if escaped else body
    problem = await site.post("/api/runs", {"recipe": given}, status=422)
    assert "secret in the clear" in str(problem)


async def test_a_run_whose_call_no_job_may_hold_is_concluded_and_holds_up_no_other(
    site: RunsSite, hook: Hook
) -> None:
    """Its name once ended the service in every process, also after restarts."""
    await site.post("/api/destinations", {"name": "hook", "url": hook.url, "secret": "hook"})
    body = {"recipe": recipe(site), "callback_url": f"{hook.url}/kalla"}
    bad = (await site.post("/api/runs", body))["run_id"]
    good = (await site.post("/api/runs", {"recipe": recipe(site)}))["run_id"]
    await site.rows(
        f"UPDATE kalla.reconciliations SET name = 'bearer abc123abc123abc1' WHERE run_id = {bad}"
        " RETURNING run_id"
    )
    await site.rows("DELETE FROM kalla.runs RETURNING run_id")
    await Conclusions(site.database, site.job_types, Bell()).tick()
    for run_id in (bad, good):
        assert (await site.get(f"/api/runs/{run_id}"))["finished_at"] is not None


async def test_a_run_that_cannot_be_concluded_is_set_aside(
    site: RunsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable, bad, good = [
        (await site.post("/api/runs", {"recipe": recipe(site)}))["run_id"] for _ in range(3)
    ]
    await site.rows(
        "UPDATE kalla.reconciliations SET report = '{\"name\": 1}'"
        f" WHERE run_id = {unreadable} RETURNING run_id"
    )
    await site.rows("DELETE FROM kalla.runs RETURNING run_id")
    conclude, tried = store.conclude, list[int]()

    async def breaking(connection: Connection, run: store.Ended) -> None:
        tried.append(run.run_id)
        if run.run_id == bad:
            await connection.execute("SELECT 1 / 0")
        await conclude(connection, run)

    monkeypatch.setattr(store, "conclude", breaking)
    conclusions = Conclusions(site.database, site.job_types, Bell())
    await conclusions.tick()
    await conclusions.tick()
    assert tried == [bad, good]
    assert (await site.get(f"/api/runs/{good}"))["finished_at"] is not None


async def test_no_secret_is_in_a_job_a_row_or_the_evidence(
    site: RunsSite, bank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Postgres here trusts anybody, so any value will do; it must be nowhere but in the environment.
    secret = urlsplit(bank).password or "hunter2-in-the-clear"
    monkeypatch.setenv("KALLA_SECRET_BANK", secret)
    body = recipe(site, uri=f"postgresql://reader:{secret}@127.0.0.1/bank")
    problem = await site.post("/api/runs", {"recipe": body}, status=422)
    assert secret not in str(problem)
    async with site.worker():
        run_id = (await site.post("/api/runs", {"recipe": recipe(site)}))["run_id"]
        ended = await site.until(run_id, "completed", "failed")
    assert ended["status"] == "completed", ended["error"]
    for table in ("jobs", "reconciliations", "recipes", "sources"):
        rows = await site.rows(f"SELECT t::text FROM kalla.{table} t")
        assert rows
        assert secret not in str(rows)
    assert secret not in (Path(ended["evidence_url"]) / "metadata.json").read_text()


async def test_evidence_made_elsewhere_is_shown_as_a_run(site: RunsSite, tmp_path: Path) -> None:
    async with site.worker():
        run = await site.post("/api/runs", {"recipe": recipe(site)})
        ended = await site.until(run["run_id"], "completed", "failed")
    elsewhere = shutil.copytree(ended["evidence_url"], tmp_path / "elsewhere")
    taken = await site.post("/api/runs/import", {"folder": f"{elsewhere}/"})
    assert taken["run_id"] != run["run_id"]
    assert taken["recipe_id"] == ended["recipe_id"], "runs of one recipe are found together"
    assert taken["report"]["sides"] == ended["report"]["sides"]
    async with site.database.transaction() as connection:
        assert await store.evidence_url(connection, taken["run_id"]) == str(elsewhere)
    assert (await site.post("/api/runs/import", {"folder": "/nowhere"}, status=404))[
        "status"
    ] == 404


TIDY = "SELECT status FROM kalla.jobs WHERE type = 'tidy'"


async def cancelled_and_due(site: RunsSite) -> tuple[int, Conclusions]:
    """A cancelled run whose staged rows are about to be removed."""
    run_id = (await site.post("/api/runs", {"recipe": recipe(site)}))["run_id"]
    await site.post(f"/api/runs/{run_id}/cancel", status=200)
    conclusions = Conclusions(site.database, site.job_types, Bell())
    await conclusions.tick()
    past = "tidy_at = kalla.clock() - interval '1 day', finished_at = finished_at"
    await site.rows(f"UPDATE kalla.reconciliations SET {past} RETURNING run_id")
    return run_id, conclusions


async def test_a_removal_that_cannot_be_submitted_is_tried_again(
    site: RunsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, conclusions = await cancelled_and_due(site)
    await site.rows("UPDATE kalla.runs SET finished_at = 'epoch' RETURNING run_id")
    due = "SET tidy_at = kalla.clock() - interval '1 day', finished_at = 'epoch'"
    await site.rows(f"UPDATE kalla.reconciliations {due} RETURNING run_id")
    with monkeypatch.context() as broken:
        broken.setattr(run_completion, "tidying", Mock(side_effect=ValueError("broken")))
        await conclusions.tick()
    (row,) = await site.rows(
        "SELECT tidy_at > kalla.clock() AS later FROM kalla.reconciliations"
        f" WHERE run_id = {run_id}"
    )
    assert row["later"]


@pytest.mark.attack
async def test_a_removal_that_waits_does_not_touch_a_run_that_was_retried(site: RunsSite) -> None:
    run_id, conclusions = await cancelled_and_due(site)
    await conclusions.tick()
    assert [row["status"] for row in await site.rows(TIDY)] == ["pending"]
    await site.post(f"/api/runs/{run_id}/retry", status=200)
    assert [row["status"] for row in await site.rows(TIDY)] == ["cancelled"]
    await conclusions.tick()
    assert len(await site.rows(TIDY)) == 1, "a run that goes on is not tidied"


@pytest.mark.attack
async def test_a_run_is_not_retried_while_its_staged_rows_are_removed(site: RunsSite) -> None:
    run_id, conclusions = await cancelled_and_due(site)
    await conclusions.tick()
    await site.rows(
        "UPDATE kalla.jobs SET status = 'claimed', worker = 'w', claimed_at = kalla.clock(),"
        " heartbeat_at = kalla.clock() WHERE type = 'tidy' RETURNING job_id"
    )
    problem = await site.post(f"/api/runs/{run_id}/retry", status=409)
    assert "is being removed" in problem["detail"]
    await site.rows("DELETE FROM kalla.jobs WHERE type = 'tidy' RETURNING job_id")


@pytest.mark.attack
async def test_a_run_that_is_being_retried_is_not_tidied(site: RunsSite) -> None:
    run_id, conclusions = await cancelled_and_due(site)
    async with site.database.transaction() as retrying:
        await runs.revive(retrying, run_id, 3600)
        await conclusions.tick()  # does not wait for the retry, and does not overtake it
        async with site.database.transaction() as other:
            assert await (await other.execute(TIDY.encode())).fetchall() == []
