"""Trap 17: a password never reaches a job's payload, a page, an answer or a log."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
import structlog
from psycopg.types.json import Jsonb

from kalla import logs
from kalla.web.tokens import tokens
from kalla.work.job import NewJob
from tests.web_kit import PAGE, Site

PASSWORD = "hunter2hunter2"
URL = f"postgresql://reader:{PASSWORD}@db.internal/books"


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Everything at the lowest level, as `kalla api` would write it."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers, root.level
    stream = io.StringIO()
    logs.configure("debug", "json", stream)
    yield stream
    structlog.configure(**before)
    root.handlers, root.level = handlers, level


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"fail": URL}, "payload.fail"),
        ({"password": PASSWORD}, "payload.password"),
        ({"source": {"api_key": PASSWORD}}, "payload.source.api_key"),
        ({"sources": [{"uri": URL}]}, "payload.sources[0].uri"),
    ],
)
async def test_a_password_in_a_payload_is_refused_and_not_repeated(
    site: Site, payload: dict[str, object], field: str
) -> None:
    body = {"type": "probe", "payload": payload}
    async with site.client("operator") as client:
        answer = await client.post("/api/jobs", json=body, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 422
    messages = [item["message"] for item in answer.json()["errors"] if item["field"] == field]
    assert any("holds a secret in the clear" in message for message in messages)
    assert PASSWORD not in answer.text
    assert await site.count() == 0
    assert (await site.one("SELECT count(*) AS n FROM kalla.idempotency"))["n"] == 0


async def test_a_password_that_got_in_is_shown_nowhere(site: Site) -> None:
    """By an older version, a handler's result, a library's error: the border masks it."""
    (job_id,) = await site.submit(NewJob("probe"))
    document = Jsonb({"uri": URL, "password": PASSWORD, "note": f"password={PASSWORD}"})
    await site.execute(
        "UPDATE kalla.jobs SET status = 'failed', payload = %s, result = %s, progress = %s,"
        " error = %s, traceback = %s, dedupe_key = %s WHERE job_id = %s",
        *(document, document, document, f"cannot reach {URL}", f"File x\n{URL}", URL, job_id),
    )
    await site.execute(
        "INSERT INTO kalla.attempts (job_id, fence, ending, error) VALUES (%s, 1, 'failed', %s)",
        *(job_id, f"cannot reach {URL}"),
    )
    async with site.client("operator") as client:
        answers = [
            await client.get("/api/jobs"),
            await client.get(f"/api/jobs/{job_id}"),
            await client.get("/work", headers=PAGE),
            await client.get(f"/jobs/{job_id}", headers=PAGE),
            await client.post(f"/api/jobs/{job_id}/retry", headers={"Idempotency-Key": "k"}),
        ]
    for answer in answers:
        assert answer.status_code == 200
        assert "***" in answer.text
        assert PASSWORD not in answer.text
    remembered = await site.one("SELECT convert_from(body, 'UTF8') AS body FROM kalla.idempotency")
    assert PASSWORD not in remembered["body"]


async def test_no_token_and_no_password_reaches_the_log(site: Site, logged: io.StringIO) -> None:
    async with site.database.transaction() as connection:
        token = await tokens.create(connection, "ann", "operator")

    @site.app.post("/api/broken")
    async def broken() -> None:
        raise RuntimeError(f"cannot reach {URL} with {token}")

    async with site.client() as client:
        bearer = {"Authorization": f"Bearer {token}"}
        await client.get(f"/login?token={token}&next={URL}", headers=PAGE)
        await client.post("/login", data={"token": token}, headers=PAGE)
        await client.post("/api/jobs", json={"payload": {"password": PASSWORD}}, headers=bearer)
        assert (await client.post("/api/broken", headers=bearer)).status_code == 500
    lines = logged.getvalue()
    assert "/login" in lines
    assert "cannot reach" in lines
    assert PASSWORD not in lines
    assert token not in lines
