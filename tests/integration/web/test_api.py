"""The REST API: jobs, queues, workers, health, and its description."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import httpx

from kalla.work.job import NewJob, Outcome
from kalla.work.state import jobs, presence, runs
from kalla.work.state.presence import Announcement
from tests.web_kit import PAGE, Site, unready_site


async def test_a_job_is_submitted_with_its_policy_and_wakes_a_worker(site: Site) -> None:
    async with site.client("operator") as client:
        answer = await client.post(
            "/api/jobs",
            json={
                "type": "probe",
                "payload": {"sleep": 1},
                "priority": 7,
                "dedupe_key": "d",
                "running_key": "r",
                "max_attempts": 9,
            },
        )
    job = answer.json()
    assert answer.status_code == 201
    assert answer.headers["Location"] == f"/api/jobs/{job['job_id']}"
    assert job["status"] == "pending"
    assert job["queue"] == "exec"
    assert (job["priority"], job["dedupe_key"], job["running_key"]) == (7, "d", "r")
    assert (job["max_attempts"], job["timeout_seconds"]) == (9, 12)
    assert job["payload"] == {"sleep": 1}
    assert job["repeated"] is False
    assert datetime.fromisoformat(job["created_at"]).tzinfo is not None
    assert site.bell.nudges == {"exec": 1}


async def test_a_repeated_dedupe_key_stands_for_the_waiting_job(site: Site) -> None:
    body = {"type": "probe", "dedupe_key": "once"}
    async with site.client("operator") as client:
        first = (await client.post("/api/jobs", json=body)).json()
        again = (await client.post("/api/jobs", json=body)).json()
    assert again["repeated"] is True
    assert again["job_id"] == first["job_id"]
    assert await site.count() == 1


async def test_a_delayed_job_wakes_nobody(site: Site) -> None:
    async with site.client("operator") as client:
        await client.post("/api/jobs", json={"type": "probe", "delay_seconds": 60})
        queue = await _exec_queue(client)
    assert not site.bell.nudges
    assert (queue["depth"], queue["delayed"]) == (0, 1)


async def test_lists_are_filtered_and_turned_page_by_page(site: Site) -> None:
    ids = await site.submit(*(NewJob("probe") for _ in range(5)), NewJob("probe", queue="stage"))
    (claimed,) = await site.claim(1)
    async with site.client("viewer") as client:

        async def listed(**query: str | int) -> list[int]:
            page = (await client.get("/api/jobs", params=query)).json()
            return [job["job_id"] for job in page["jobs"]]

        assert await listed() == ids[::-1]
        assert await listed(status="claimed") == [claimed.job_id]
        assert await listed(queue="stage") == [ids[5]]
        assert await listed(type="probe", queue="exec", limit=2) == [ids[4], ids[3]]
        assert await listed(type="other") == []
        seen: list[int] = []
        query = {"limit": 4}
        while True:
            page = (await client.get("/api/jobs", params=query)).json()
            seen += [job["job_id"] for job in page["jobs"]]
            if page["next_before"] is None:
                break
            query["before"] = page["next_before"]
    assert seen == ids[::-1]


async def test_a_list_leaves_out_what_is_wide(site: Site) -> None:
    await site.submit(NewJob("probe", payload={"sleep": 1}))
    async with site.client("viewer") as client:
        (job,) = (await client.get("/api/jobs")).json()["jobs"]
    assert not {"payload", "result", "traceback"} & job.keys()


async def test_a_job_is_shown_with_the_attempts_that_failed(site: Site) -> None:
    (job_id,) = await site.submit(NewJob("probe", max_attempts=2))
    (job,) = await site.claim()
    async with site.database.transaction() as connection:
        await jobs.fail(connection, job, "it broke", "Traceback: ...")
        await connection.execute("UPDATE kalla.jobs SET due = true")
    (job,) = await site.claim()
    async with site.database.transaction() as connection:
        await jobs.complete_plain(connection, [(job, Outcome({"rows": 3}))])
    async with site.client("viewer") as client:
        shown = (await client.get(f"/api/jobs/{job_id}")).json()
    assert shown["status"] == "completed"
    assert shown["result"] == {"rows": 3}
    assert shown["fence"] == 2
    (attempt,) = shown["attempts"]
    assert (attempt["fence"], attempt["ending"], attempt["error"]) == (1, "failed", "it broke")
    assert attempt["worker"] == "worker-1"


async def test_cancelling_a_running_job_alarms_the_workers(site: Site) -> None:
    (job_id,) = await site.submit(NewJob("probe"))
    await site.claim()
    async with site.client("operator") as client:
        cancelled = (await client.post(f"/api/jobs/{job_id}/cancel")).json()
        again = await client.post(f"/api/jobs/{job_id}/cancel")
    assert cancelled["status"] == "cancelled"
    assert cancelled["error"] == "cancelled by operator"
    assert cancelled["stopped_at"] is None
    assert site.bell.alarms == 1
    assert again.status_code == 409
    assert again.json()["detail"] == f"job {job_id} is cancelled already"


async def test_cancelling_one_job_of_a_run_ends_the_run(site: Site) -> None:
    async with site.database.transaction() as connection:
        await runs.create(
            connection, site.job_types, "test", [NewJob("probe"), NewJob("probe")], {}, 60
        )
    async with site.client("operator") as client:
        first, second = (await client.get("/api/jobs")).json()["jobs"]
        await client.post(f"/api/jobs/{first['job_id']}/cancel")
        other = (await client.get(f"/api/jobs/{second['job_id']}")).json()
        assert other["status"] == "cancelled"
        site.bell.nudges.clear()
        await client.post(f"/api/jobs/{first['job_id']}/retry")
        other = (await client.get(f"/api/jobs/{second['job_id']}")).json()
    assert other["status"] == "pending"
    assert site.bell.nudges == {"exec": 2}


async def test_a_failed_job_is_retried_and_wakes_a_worker(site: Site) -> None:
    (job_id,) = await site.submit(NewJob("probe", max_attempts=1))
    (job,) = await site.claim()
    async with site.database.transaction() as connection:
        await jobs.fail(connection, job, "broken")
    async with site.client("operator") as client:
        retried = (await client.post(f"/api/jobs/{job_id}/retry")).json()
        too_soon = await client.post(f"/api/jobs/{job_id}/retry")
    assert (retried["status"], retried["failures"], retried["fence"]) == ("pending", 0, 1)
    assert site.bell.nudges == {"exec": 1}
    assert too_soon.status_code == 409


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(site: Site) -> None:
    await site.submit(NewJob("probe"), NewJob("probe"))
    async with site.client("operator") as client:
        paused = (await client.post("/api/queues/exec/pause")).json()
        assert (paused["paused"], paused["paused_by"], paused["depth"]) == (True, "operator", 2)
        assert await site.claim() == []
        assert not site.bell.nudges
        resumed = (await client.post("/api/queues/exec/resume")).json()
    assert resumed["paused"] is False
    assert site.bell.nudges == {"exec": 1}  # one is enough: whoever wakes looks for more
    assert len(await site.claim()) == 2


async def test_a_queue_nobody_has_heard_of_cannot_be_paused(site: Site) -> None:
    async with site.client("operator") as client:
        answer = await client.post("/api/queues/exce/pause")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "there is no queue 'exce'; did you mean exec?"
    assert (await site.one("SELECT count(*) AS n FROM kalla.queues"))["n"] == 0


async def test_queues_show_depth_and_age(site: Site) -> None:
    await site.submit(NewJob("probe"), NewJob("probe"))
    await site.claim(1)
    await site.execute("UPDATE kalla.jobs SET run_after = run_after - interval '1 hour'")
    async with site.client("viewer") as client:
        queue = await _exec_queue(client)
    assert (queue["depth"], queue["running"]) == (1, 1)
    assert 3600 <= queue["oldest_wait_seconds"] < 3700


async def test_workers_are_shown_with_their_state(site: Site) -> None:
    async with site.database.transaction() as connection:
        for name, active, draining in (("a", 0, False), ("b", 2, False), ("c", 1, True)):
            await presence.announce(
                connection,
                Announcement(name, "host", 1, "host:9090", ["exec"], 4, active, "0.1.0", draining),
            )
        await connection.execute(
            "INSERT INTO kalla.workers (worker, host, pid, address, roles, concurrency, version,"
            " seen_at) VALUES ('d', 'host', 1, '', '{exec}', 4, '', kalla.clock() - interval '1 h')"
        )
    async with site.client("viewer") as client:
        found = (await client.get("/api/workers")).json()
    states = {worker["worker"]: worker["state"] for worker in found}
    assert states == {"a": "idle", "b": "working", "c": "draining", "d": "silent"}


async def test_health_needs_no_token_and_tells_lesser_trouble(site: Site) -> None:
    async with site.client() as client:
        well = (await client.get("/health")).json()
        assert (well["status"], well["troubles"]) == ("ok", [])
        site.bell.error_message = "NATS does not answer"
        answer = await client.get("/health")
    assert answer.status_code == 200
    assert answer.json()["troubles"] == ["wake-ups: NATS does not answer"]


async def test_without_postgres_every_answer_is_503_and_names_no_password() -> None:
    url = "postgresql://kalla:hunter2@127.0.0.1:1/kalla"
    async with unready_site(url) as site, site.client() as client:
        headers = {"Authorization": "Bearer kalla_whatever"}
        health = await client.get("/health")
        answer = await client.get("/api/jobs", headers=headers)
        page = await client.get("/work", headers=headers | PAGE)
    assert health.json()["troubles"] == ["Postgres does not answer"]
    assert health.json()["status"] == "away"
    for each in (health, answer, page):
        assert each.status_code == 503
        assert "hunter2" not in each.text
    assert answer.headers["Retry-After"] == page.headers["Retry-After"] == "2"
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert page.headers["Content-Type"].startswith("text/html")


async def test_a_database_that_is_not_migrated_says_what_to_do(empty_database_url: str) -> None:
    async with unready_site(empty_database_url) as site, site.client() as client:
        health = await client.get("/health")
        headers = {"Authorization": "Bearer kalla_whatever"}
        answer = await client.get("/api/jobs", headers=headers)
    assert health.status_code == answer.status_code == 503
    assert "kalla migrate" in health.json()["troubles"][0]
    assert "kalla migrate" in answer.json()["detail"]


WITHOUT_EFFECT = {
    "/api/pipelines/infer",
    "/api/pipelines/sample",
    "/api/pipelines/{name}/audit",
    "/api/pipelines/{name}/dead-letters/test",
    "/api/pipelines/{name}/filters/test",
    "/api/pipelines/{name}/infer",
    "/api/pipelines/{name}/mapping/preview",
    "/api/queries/{query_id}/kill",
    "/api/metrics/segments/check",
    "/api/recipes/propose",
    "/api/recipes/try",
    "/api/recipes/validate",
    "/api/sources/{name}/load-scoped",
    "/api/sources/{name}/test",
    "/api/uploads",  # the same file sent again is another upload
}


async def test_the_description_is_complete(site: Site) -> None:
    async with site.client("viewer") as client:
        document = (await client.get("/openapi.json")).json()
        page = (await client.get("/docs")).text
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    assert {path for path, _, _ in operations} >= {"/health", "/api/jobs", "/api/queues"}
    for path, method, operation in operations:
        assert operation["description"], path
        shape = "application/json" if path.startswith("/api/v1/") else "application/problem+json"
        assert operation["responses"]["4XX"]["content"][shape]
        if path != "/health":
            assert operation["security"] == [{"token": []}]
        names = [item["name"] for item in operation.get("parameters", [])]
        keyed = method == "post" and path not in WITHOUT_EFFECT
        keyed = keyed and not path.startswith("/api/v1/")  # queries, and samples sent again
        assert ("Idempotency-Key" in names) == keyed, path
        assert path in page
    used = str(document).split("#/components/schemas/")[1:]
    for reference in used:
        assert reference.split("'")[0] in document["components"]["schemas"]


async def _exec_queue(client: httpx.AsyncClient) -> Any:
    queues = (await client.get("/api/queues")).json()
    return next(each for each in queues if each["queue"] == "exec")


async def test_the_landing_page_is_the_runs_and_old_links_still_lead_to_the_jobs(
    site: Site,
) -> None:
    async with site.client("viewer") as client:
        bare = await client.get("/", headers=PAGE)
        filtered = await client.get("/?status=failed", headers=PAGE)
    assert (bare.status_code, bare.headers["Location"]) == (303, "/runs")
    assert filtered.headers["Location"] == "/work?status=failed"


async def test_upkeep_is_hidden_unless_it_is_asked_for(site: Site) -> None:
    removal = {"run_id": 7, "keep": None, "fence": 1}
    (tidy,) = await site.submit(NewJob("tidy", removal))
    (probe,) = await site.submit(NewJob("probe"))
    async with site.client("viewer") as client:
        listed = {
            query: [
                job["job_id"] for job in (await client.get(f"/api/jobs?{query}")).json()["jobs"]
            ]
            for query in ("", "upkeep=false", "upkeep=false&type=tidy")
        }
        pages = {
            query: (await client.get(f"/work?{query}", headers=PAGE)).text
            for query in ("", "upkeep=true")
        }
    assert listed == {"": [probe, tidy], "upkeep=false": [probe], "upkeep=false&type=tidy": [tidy]}
    assert [f'data-key="job-{tidy}"' in page for page in pages.values()] == [False, True]


async def test_a_job_that_was_not_tried_again_says_that_its_error_is_permanent(site: Site) -> None:
    await site.submit(NewJob("probe"))
    (job,) = await site.claim(1)
    async with site.database.transaction() as connection:
        await jobs.fail(connection, job, "no such column", permanent=True)
    async with site.client("viewer") as client:
        page = (await client.get(f"/jobs/{job.job_id}", headers=PAGE)).text
        shown = (await client.get(f"/api/jobs/{job.job_id}")).json()
    assert "The error is permanent" in page
    assert shown["permanent"] is True
