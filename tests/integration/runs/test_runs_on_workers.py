"""Runs through the API and a worker: staged, matched, reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kalla.spark.session import SparkSessions
from tests.runs_kit import ROWS, RunsSite, furnish, open_runs, recipe
from tests.servers import S3Server, SparkServer
from tests.worker_kit import eventually

pytestmark = pytest.mark.spark


async def test_a_table_is_staged_in_chunks_matched_and_reported(site: RunsSite) -> None:
    async with site.worker():
        run = await site.post("/api/runs", {"recipe": recipe(site)})
        assert run["status"] == "running"
        assert (run["recipe_id"], run["recipe_version"]) == ("invoices-and-payments", 1)
        ended = await site.until(run["run_id"], "completed", "failed")
    assert ended["status"] == "completed", ended["error"]
    assert ended["report"]["sides"]["right"]["matched"]["rows"] == ROWS * 9 // 10
    assert ended["exceptions"] == ROWS // 10 * 2
    jobs = await site.rows("SELECT type, payload::text, result::text FROM kalla.jobs")
    chunks = [json.loads(job["payload"]) for job in jobs if job["type"] == "stage_chunk"]
    assert len(chunks) == 4
    # There may be thousands: each knows its source, and not the whole recipe.
    assert {"source", "recipe"} & {name for chunk in chunks for name in chunk} == {"source"}
    metadata = json.loads((Path(ended["evidence_url"]) / "metadata.json").read_text())
    assert metadata["datasets"]["unmatched_left"]["rows"] == ROWS // 10
    (mark,) = metadata["sources"]["right"]["marks"]
    assert (mark["table"], mark["snapshot"]) == ("public.payments", None)
    results = [json.loads(job["result"]) for job in jobs if job["type"] == "stage_chunk"]
    assert mark["read_from"] < min(each["read_to"] for each in results)
    assert mark["read_to"] == max(each["read_to"] for each in results)


async def test_parameters_and_saved_versions_are_what_a_run_is_made_of(site: RunsSite) -> None:
    first = await site.post("/api/runs", {"recipe": recipe(site)})
    again = await site.post(
        "/api/runs",
        {"recipe_id": first["recipe_id"], "version": 1, "parameters": {"slack": "5.00"}},
    )
    assert again["recipe_version"] == 1
    assert again["recipe_hash"] != first["recipe_hash"]
    async with site.worker():
        ended = await site.until(again["run_id"], "completed", "failed")
    assert ended["exceptions"] == 0
    listed = await site.get("/api/runs", recipe_id=first["recipe_id"])
    assert [run["run_id"] for run in listed["runs"]] == [again["run_id"], first["run_id"]]


async def test_under_a_snapshot_one_job_stages_every_slice(site: RunsSite) -> None:
    async with site.worker():
        run = await site.post("/api/runs", {"recipe": recipe(site, consistency="snapshot")})
        ended = await site.until(run["run_id"], "completed", "failed")
    assert ended["status"] == "completed", ended["error"]
    jobs = await site.rows("SELECT type, result FROM kalla.jobs ORDER BY job_id")
    assert [job["type"] for job in jobs if job["type"].startswith("stage")] == ["stage_plan"]
    (plan,) = (job["result"] for job in jobs if job["type"] == "stage_plan")
    assert (plan["chunks"], plan["chunks_done"], plan["rows"]) == (4, 4, ROWS)
    metadata = json.loads((Path(ended["evidence_url"]) / "metadata.json").read_text())
    assert metadata["sources"]["right"]["marks"] == [plan["mark"]]
    assert None not in plan["mark"].values()


async def test_two_runs_of_the_same_give_the_same_digests(site: RunsSite) -> None:
    async with site.worker():
        ids = [
            (await site.post("/api/runs", {"recipe": recipe(site, **right)}))["run_id"]
            for right in ({}, {"chunk_threshold_rows": 90, "max_parallel_chunks": 3})
        ]
        ended = [await site.until(each, "completed", "failed") for each in ids]
    metadata = [
        json.loads((Path(each["evidence_url"]) / "metadata.json").read_text()) for each in ended
    ]
    one, other = (
        {name: facts["digest"] for name, facts in each["datasets"].items()} for each in metadata
    )
    assert one == other
    lanes = await site.rows(
        "SELECT run_id, count(DISTINCT running_key) AS lanes, count(*) > 3 AS queued"
        " FROM kalla.jobs WHERE type = 'stage_chunk' GROUP BY run_id ORDER BY run_id"
    )
    assert [tuple(row.values())[1:] for row in lanes] == [(0, True), (3, True)]


async def test_a_table_that_is_read_direct_is_not_staged(site: RunsSite) -> None:
    async with site.worker():
        run = await site.post("/api/runs", {"recipe": recipe(site, read="direct")})
        ended = await site.until(run["run_id"], "completed", "failed")
    assert ended["status"] == "completed", ended["error"]
    assert ended["exceptions"] == ROWS // 10 * 2
    jobs = await site.rows("SELECT type FROM kalla.jobs WHERE run_id = %s", run["run_id"])
    assert [job["type"] for job in jobs] == ["exec"]
    metadata = json.loads((Path(ended["evidence_url"]) / "metadata.json").read_text())
    (mark,) = metadata["sources"]["right"]["marks"]
    assert mark["table"] == "public.payments"
    assert None not in mark.values()


async def test_rows_are_staged_and_evidence_is_kept_on_s3(
    database_url: str,
    spark_server: SparkServer,
    spark: SparkSessions,
    s3_server: S3Server,
    bucket: str,
    bank: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    urls = {"staging": f"{bucket}/staging", "evidence": f"{bucket}/evidence"}
    storage = s3_server.settings.model_copy(update=urls)
    async with open_runs(database_url, spark_server, spark, tmp_path / "data", storage) as site:
        await furnish(site, bank, monkeypatch)
        async with site.worker():
            run = await site.post("/api/runs", {"recipe": recipe(site)})
            ended = await site.until(run["run_id"], "completed", "failed")
            assert ended["status"] == "completed", ended["error"]

            async def tidied() -> bool:
                return s3_server.storage.folders(f"{bucket}/staging") == []

            await eventually(tidied, 60)
        staged = await site.rows("SELECT result FROM kalla.jobs WHERE type = 'stage_chunk'")
    assert ended["evidence_url"].startswith(f"{bucket}/evidence/run-{run['run_id']}/")
    assert s3_server.storage.holds(f"{ended['evidence_url']}/metadata.json")
    assert ended["report"]["sides"]["right"]["matched"]["rows"] == ROWS * 9 // 10
    assert len(ended["report"]["largest_exceptions"]) == 5
    assert all(row["result"]["files"][0].startswith(bucket) for row in staged)
