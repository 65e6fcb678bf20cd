"""`kalla api`, `jobs`, `queues`, `workers` and `token` as a person types them."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from kalla.local import ports
from tests.browser import chromium
from tests.commands_kit import Place, a_place
from tests.servers import PostgresServer
from tests.waiting import until


@pytest.fixture(scope="module")
def place(
    postgres_server: PostgresServer,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:
    name = postgres_server.create(migrated_template)
    folder = tmp_path_factory.mktemp("place")
    backoff = {"KALLA_JOBS_PROBE_BACKOFF_SECONDS": "0.1"}
    made = a_place(folder, postgres_server.url(name), "operator", **backoff)
    try:
        yield made
    finally:
        postgres_server.drop(name)


@pytest.fixture(scope="module")
def served(place: Place) -> Iterator[Place]:
    with place.served():
        yield place


def submitted(place: Place, *arguments: str) -> int:
    found = json.loads(place.ok("jobs", "submit", "probe", "--format", "json", *arguments))
    return int(found["job_id"])


def test_a_job_that_completes_ends_the_wait_with_its_result(served: Place) -> None:
    done = served.run("jobs", "submit", "probe", "--sleep", "0.1", "--wait")
    assert done.returncode == 0, done.stderr
    assert "waits in exec" in done.stdout
    assert "has completed" in done.stdout
    assert '"seconds"' in done.stdout


def test_a_job_that_fails_ends_the_wait_with_code_1_and_its_error(served: Place) -> None:
    done = served.run("jobs", "submit", "probe", "--fail", "--max-attempts", "1", "--wait")
    assert done.returncode == 1
    assert "has failed" in done.stdout
    assert "asked to fail" in done.stderr


def test_a_job_that_fails_twice_completes_at_last(served: Place) -> None:
    done = served.run("jobs", "submit", "probe", "--fail-times", "2", "--wait", "--format", "json")
    job = json.loads(done.stdout)
    assert (done.returncode, job["status"]) == (0, "completed")
    assert [attempt["ending"] for attempt in job["attempts"]] == ["failed", "failed"]


def test_jobs_are_listed_shown_cancelled_and_retried(served: Place, tmp_path: Path) -> None:
    payload = tmp_path / "payload.json"
    payload.write_text('{"sleep": 60}')
    job_id = submitted(served, "--payload", f"@{payload}", "--priority", "3", "--delay", "3600")
    listed = served.ok("jobs", "list", "--status", "pending", "--limit", "5")
    assert str(job_id) in listed
    shown = served.ok("jobs", "show", str(job_id))
    assert '{"sleep": 60}' in shown
    assert "priority    3" in shown
    assert "is cancelled" in served.ok("jobs", "cancel", str(job_id))
    refused = served.run("jobs", "cancel", str(job_id))
    assert refused.returncode == 2
    assert refused.stderr == f"Job {job_id} is cancelled already\n"
    assert "is pending again" in served.ok("jobs", "retry", str(job_id))
    served.ok("jobs", "cancel", str(job_id))
    served.ok("jobs", "cancel", str(submitted(served, "--delay", "3600")))  # there is a second page
    document = json.loads(served.ok("jobs", "list", "--limit", "1", "--format", "json"))
    assert document["next_before"] == document["jobs"][0]["job_id"]
    assert "Newer" not in served.ok("jobs", "list", "--before", str(document["next_before"]))


def test_an_idempotency_key_submits_once(served: Place) -> None:
    first = submitted(served, "--idempotency-key", "monday", "--delay", "3600")
    assert submitted(served, "--idempotency-key", "monday", "--delay", "3600") == first


def test_a_dedupe_key_that_waits_already_is_told(served: Place) -> None:
    arguments = ("jobs", "submit", "probe", "--dedupe-key", "d", "--delay", "3600")
    served.ok(*arguments)
    assert "waited already under the same dedupe key" in served.ok(*arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["prob"], "type: there is no job type 'prob'; did you mean 'probe'?"),
        (["probe", "--timeout", "-3"], "timeout_seconds: must be greater than 0"),
        (["probe", "--payload", "{"], "payload: is not JSON"),
        (["probe", "--payload", "[1]"], "payload: must be a JSON object"),
        (["probe", "--payload", "@nowhere.json"], "payload: cannot be read"),
        (["probe", "--payload", '{"password": "x"}'], "payload.password: holds a secret"),
        (["probe", "--max-attempts", "0", "--queue", "X"], "max_attempts: must be"),
    ],
)
def test_bad_input_is_refused_by_field(served: Place, arguments: list[str], words: str) -> None:
    done = served.run("jobs", "submit", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_that_is_not_there_is_code_2(served: Place) -> None:
    done = served.run("jobs", "show", "999999")
    assert (done.returncode, done.stderr) == (2, "There is no job 999999\n")


def test_queues_are_listed_paused_and_resumed(served: Place) -> None:
    assert "exec is paused" in served.ok("queues", "pause", "exec")
    assert "paused" in served.ok("queues", "list")
    assert "exec is open again" in served.ok("queues", "resume", "exec")
    queues = json.loads(served.ok("queues", "list", "--format", "json"))
    queue = next(each for each in queues if each["queue"] == "exec")
    assert (queue["queue"], queue["paused"]) == ("exec", False)


def test_workers_are_listed(served: Place) -> None:
    (worker,) = json.loads(served.ok("workers", "list", "--format", "json"))
    assert worker["concurrency"] == 4
    assert worker["worker"] in served.ok("workers", "list")


def test_what_roles_need_and_why_is_shown_listed_and_explained(served: Place) -> None:
    roles = json.loads(served.ok("scaling", "show", "--format", "json"))
    assert roles["exec"]["current"] == 1
    assert roles["exec"]["reason"] in served.ok("scaling", "show")

    def decisions() -> list[dict[str, Any]]:
        listed = served.ok("scaling", "list", "--role", "exec", "--format", "json")
        found: list[dict[str, Any]] = json.loads(listed)
        return found

    until(decisions, "the API has recorded a decision")
    newest = decisions()[0]
    assert {each["role"] for each in decisions()} == {"exec"}
    assert newest["reason"] in served.ok("scaling", "list")
    decision_id = str(newest["decision_id"])
    explained = served.ok("scaling", "explain", decision_id)
    assert f"workers {newest['current']} -> {newest['desired']}: {newest['reason']}" in explained
    assert f"  concurrency: {newest['inputs']['concurrency']}" in explained
    assert f"  scale_down_step: {newest['policy']['scale_down_step']}" in explained
    as_json = json.loads(served.ok("scaling", "explain", decision_id, "--format", "json"))
    assert as_json["inputs"] == newest["inputs"]
    done = served.run("scaling", "explain", "999999")
    assert (done.returncode, done.stderr) == (2, "There is no scaling decision 999999\n")


def test_tokens_are_listed_and_revoked_without_an_api(place: Place) -> None:
    place.ok("token", "create", "--name", "bob", "--role", "viewer", "--expires-days", "1")
    tokens = json.loads(place.ok("token", "list", "--format", "json"))
    (bob,) = [token for token in tokens if token["name"] == "bob"]
    assert bob["valid"]
    assert "is revoked" in place.ok("token", "revoke", str(bob["token_id"]))
    assert "revoked" in place.ok("token", "list")
    refused = place.run("token", "create", "--name", "", "--role", "viewer")
    assert (refused.returncode, "name: must have" in refused.stderr) == (2, True)
    assert place.run("token", "revoke", "999").returncode == 2


def test_what_stands_in_the_way_is_one_sentence(served: Place, tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{ports.choose_free()}"
    away = served.run("jobs", "list", KALLA_API_URL=nobody)
    assert away.returncode == 2
    assert away.stderr.startswith(f"The API at {nobody} does not answer")
    assert "kalla up" in away.stderr
    no_token = served.run("jobs", "list", KALLA_API_TOKEN="")
    assert "No token is set" in no_token.stderr
    wrong = served.run("jobs", "list", KALLA_API_TOKEN="kalla_wrong")
    assert "unknown, expired or revoked" in wrong.stderr
    viewer = served.ok("token", "create", "--name", "v", "--role", "viewer").strip()
    weak = served.run("queues", "pause", "exec", KALLA_API_TOKEN=viewer)
    assert "needs the role operator" in weak.stderr
    no_database = served.run(
        "token", "list", KALLA_DATABASE_URL="postgresql://kalla:hunter2@127.0.0.1:1/x"
    )
    assert "Postgres does not answer" in no_database.stderr
    assert "hunter2" not in no_database.stderr


def test_a_port_that_is_taken_is_named(served: Place) -> None:
    with served.running("api", "--port", str(served.port)) as process:
        assert process.wait(60) == 1
    told = (served.folder / "api.log").read_text("utf-8")
    assert f"Cannot listen on 127.0.0.1:{served.port}" in told
    assert "set api.port" in told


def test_the_api_starts_before_postgres_and_stops_on_sigterm(place: Place) -> None:
    port = ports.choose_free()
    url = "postgresql://kalla:hunter2@127.0.0.1:1/x"
    early = Place(place.folder, place.environment | {"KALLA_DATABASE_URL": url}, port)

    def status() -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10):
                return 200
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    with early.running("api", "--port", str(port)) as process:
        until(lambda: status() == 503, "the API answers 503", 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.browser
async def test_a_page_finds_its_killed_api_again(place: Place) -> None:
    lone = Place(place.folder, dict(place.environment), ports.choose_free())
    lone.environment["KALLA_API_URL"] = f"http://127.0.0.1:{lone.port}"
    token = lone.environment["KALLA_API_TOKEN"]
    async with chromium() as browser:
        page = await browser.new_page()
        link = page.locator("#link")
        with lone.api() as process:
            await page.goto(f"{lone.environment['KALLA_API_URL']}/login?token={token}")
            await page.goto(f"{lone.environment['KALLA_API_URL']}/work")
            await expect(link).to_have_text("Live")
            process.kill()
            process.wait()
            await expect(link).to_contain_text("Connection lost, trying again, figures from")
        with lone.api():
            await expect(link).to_have_text("Live", timeout=30_000)
            job_id = submitted(lone, "--delay", "3600")
            await expect(page.locator(f'tr[data-key="job-{job_id}"]')).to_be_visible()
