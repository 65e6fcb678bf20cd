"""Bad input: a problem that names the field, and nothing half-done."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.web_kit import PAGE, Site


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"type": "prob"}, "type", "there is no job type 'prob'; did you mean 'probe'?"),
        ({}, "type", "is required"),
        ({"type": 3}, "type", "must be a valid string"),
        ({"type": "probe", "timeout_seconds": -1}, "timeout_seconds", "must be greater than 0"),
        ({"type": "probe", "timeout_seconds": 0}, "timeout_seconds", "must be greater than 0"),
        ({"type": "probe", "timeout_seconds": "soon"}, "timeout_seconds", "must be a valid number"),
        ({"type": "probe", "timeout_seconds": 0.5}, "timeout_seconds", "two heartbeats"),
        ({"type": "probe", "max_runtime_seconds": -5}, "max_runtime_seconds", "greater than 0"),
        ({"type": "probe", "max_attempts": 0}, "max_attempts", "between 1 and 1000"),
        ({"type": "probe", "priority": 1 << 40}, "priority", "between -32768 and 32767"),
        ({"type": "probe", "delay_seconds": -1}, "delay_seconds", "must be 0 to ten years"),
        ({"type": "probe", "delay_seconds": 1e300}, "delay_seconds", "must be 0 to ten years"),
        ({"type": "probe", "queue": "No Queue"}, "queue", "there is no queue"),
        ({"type": "probe", "dedupe_key": ""}, "dedupe_key", "1 to 512 characters"),
        ({"type": "probe", "dedupe_key": "a\0"}, "dedupe_key", "NUL"),
        ({"type": "probe", "running_key": "\ud800"}, "running_key", "surrogate"),
        ({"type": "probe", "timeout": 5}, "timeout", "there is no such field"),
        ({"type": "probe", "payload": []}, "payload", "must be a valid dictionary"),
        ({"type": "probe", "payload": {"sleep": -1}}, "payload.sleep", "greater than or equal"),
        ({"type": "probe", "payload": {"slep": 1}}, "payload.slep", "not permitted"),
        ({"type": "probe", "payload": {"fail": "a\0"}}, "payload", "NUL"),
        ({"type": "probe", "payload": {"fail": "\ud800"}}, "payload", "surrogate"),
        ({"type": "probe", "payload": {"fail": "x" * 270_000}}, "payload", "the limit is 262144"),
        ([], "body", "must be a valid dictionary"),
        (None, "body", "must be a valid dictionary"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict | list) else "",
)
async def test_a_bad_job_is_refused_by_field(site: Site, body: Any, field: str, words: str) -> None:
    async with site.client("operator") as client:
        answer = await client.post("/api/jobs", content=json.dumps(body), headers=JSON)
    problem = answer.json()
    assert answer.status_code == problem["status"] == 422, problem
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert problem["title"] == "The input is not valid"
    found = {item["field"]: item["message"] for item in problem["errors"]}
    assert words in found[field], problem
    assert words in problem["detail"]
    assert await site.count() == 0
    assert not site.bell.nudges


JSON = {"Content-Type": "application/json"}


async def test_every_bad_field_is_named_at_once(site: Site) -> None:
    body = {"type": "prob", "timeout_seconds": -1, "max_attempts": 0}
    async with site.client("operator") as client:
        problem = (await client.post("/api/jobs", json=body)).json()
    fields = [item["field"] for item in problem["errors"]]
    assert fields == ["type", "timeout_seconds", "max_attempts"]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"type": ', 422),
        (b"", 422),
        (b"\xff\xfe", 422),
        (b'{"type": "probe", "payload": {"fail": NaN}}', 422),
        (b'{"type": "probe", "payload": {"sleep": 1e999}}', 422),
        (b'{"type": "probe", "payload": {"a":' + b"[" * 70 + b"]" * 70 + b"}}", 422),
        (b"[" * 100_000, 422),
        (b'{"a":' * 5000, 422),
        (b'{"type": "probe", "priority": ' + b"9" * 5000 + b"}", 422),
    ],
    ids=["cut", "empty", "bytes", "nan", "huge", "deep", "deeper", "objects", "digits"],
)
async def test_a_body_that_makes_no_sense_is_refused(
    site: Site, content: bytes, status: int
) -> None:
    async with site.client("operator") as client:
        answer = await client.post("/api/jobs", content=content, headers=JSON)
    assert answer.status_code in (400, status), answer.text[:500]
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert len(answer.content) < 5000
    assert await site.count() == 0


async def test_a_body_that_never_ends_is_not_read_to_the_end(site: Site) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 50_000_000:
            sent += 65536
            yield b" " * 65536

    async with site.client("operator") as client:
        chunked = await client.post("/api/jobs", content=endless(), headers=JSON)
        declared = await client.post("/api/jobs", content=b" " * 1_000_000, headers=JSON)
    for answer in (chunked, declared):
        assert answer.status_code == 413
        assert "limits.payload_bytes" in answer.json()["detail"]
    assert sent < 1_000_000


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("before=abc", "before"),
        ("before=0", "before"),
        ("before=99999999999999999999", "before"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("status=done", "status"),
        ("run_id=-1", "run_id"),
        ("queue=a%00b", "queue"),
        ("type=%00", "type"),
    ],
)
async def test_a_broken_filter_or_cursor_is_refused_by_name(
    site: Site, query: str, field: str
) -> None:
    async with site.client("viewer") as client:
        answer = await client.get(f"/api/jobs?{query}")
    assert answer.status_code == 422
    assert [item["field"] for item in answer.json()["errors"]] == [field]


@pytest.mark.parametrize("job_id", ["abc", "0", "-1", "99999999999999999999", "1%00"])
async def test_a_job_that_cannot_be_is_refused_by_field(site: Site, job_id: str) -> None:
    async with site.client("viewer") as client:
        answer = await client.get(f"/api/jobs/{job_id}")
    assert answer.status_code == 422
    assert [item["field"] for item in answer.json()["errors"]] == ["job_id"]


async def test_what_is_not_there_is_a_problem_too(site: Site) -> None:
    async with site.client("operator") as client:
        missing = await client.get("/api/jobs/999")
        for path in ("/api/jobs/999/cancel", "/api/jobs/999/retry"):
            assert (await client.post(path)).status_code == 404
        nowhere = await client.get("/api/nowhere")
        wrong = await client.delete("/api/jobs")
    assert missing.json() == {
        "type": "urn:kalla:problem:not-found",
        "title": "Not found",
        "status": 404,
        "detail": "there is no job 999",
    }
    assert nowhere.status_code == 404
    assert wrong.status_code == 405
    assert wrong.headers["Allow"]
    for answer in (nowhere, wrong):
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json()["detail"]


async def test_an_error_nobody_foresaw_tells_an_id_and_nothing_else(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    @site.app.get("/api/broken")
    async def broken() -> None:
        raise RuntimeError("the wall behind postgresql://kalla:hunter2@db")

    async with site.client("viewer") as client:
        answer = await client.get("/api/broken")
    assert answer.status_code == 500
    assert "wall" not in answer.text
    logged = capsys.readouterr()
    assert answer.json()["id"] in logged.out + logged.err


async def test_people_see_a_page_instead(site: Site) -> None:
    async with site.client("viewer") as client:
        missing = await client.get("/jobs/999", headers=PAGE)
        broken = await client.get("/work?before=<script>alert(1)</script>", headers=PAGE)
        nowhere = await client.get("/nowhere", headers=PAGE)
    for answer, status in ((missing, 404), (broken, 422), (nowhere, 404)):
        assert answer.status_code == status
        assert answer.headers["Content-Type"].startswith("text/html")
        assert "<script>alert" not in answer.text
        assert "<nav" in answer.text  # who is logged in keeps the menu
    assert "there is no job 999" in missing.text
    assert "before" in broken.text


async def test_a_body_without_a_json_content_type_is_told_so(site: Site) -> None:
    async with site.client("operator") as client:
        bare = await client.post("/api/jobs", content=b'{"type": "probe"}')
        form = await client.post("/api/jobs", data={"type": "probe"})
        text = await client.post("/api/jobs", json="probe")
    assert (bare.status_code, form.status_code, text.status_code) == (415, 415, 422)
    assert "send `Content-Type: application/json`" in bare.json()["detail"]
    assert "is application/x-www-form-urlencoded" in form.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("OPTIONS", "/api/jobs", "GET, POST"),
        ("PUT", "/api/runs/import", "POST"),
        ("GET", "/api/runs/import", "POST"),
        ("DELETE", "/api/v1/query", "GET, POST"),
    ],
)
async def test_a_method_that_an_address_has_not_is_told_with_those_it_has(
    site: Site, method: str, path: str, allowed: str
) -> None:
    async with site.client("admin") as client:
        answer = await client.request(method, path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
