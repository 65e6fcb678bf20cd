"""Problem details: what of an error a caller is told, and what not."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from fastapi.exceptions import RequestValidationError
from psycopg_pool import PoolTimeout
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from kalla.errors import Conflict, InvalidInput, Lost, NotFound, Problem, Unavailable
from kalla.reconcile.runs.routes import RunSubmission
from kalla.web import problems


def request(**headers: str) -> Request:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request(
        {"type": "http", "method": "GET", "path": "/api/x", "query_string": b"", "headers": raw}
    )


def told(error: Exception) -> dict[str, Any]:
    answer = problems.answer(request(), error)
    assert answer.media_type == "application/problem+json"
    body: dict[str, Any] = json.loads(bytes(answer.body))
    assert body["status"] == answer.status_code
    return body


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (NotFound("there is no job 3"), 404, "urn:kalla:problem:not-found"),
        (Conflict("it is done"), 409, "urn:kalla:problem:conflict"),
        (Unavailable("NATS is away"), 503, "urn:kalla:problem:unavailable"),
        (psycopg.OperationalError("secret words"), 503, "urn:kalla:problem:unavailable"),
        (PoolTimeout("secret words"), 503, "urn:kalla:problem:unavailable"),
        (psycopg.errors.UndefinedTable("secret words"), 503, "urn:kalla:problem:unavailable"),
        (HTTPException(405), 405, "about:blank"),
        (Lost("secret words"), 500, "urn:kalla:problem:lost"),
        (RuntimeError("secret words"), 500, "about:blank"),
    ],
)
def test_every_error_has_its_status_and_tells_no_internals(
    error: Exception, status: int, kind: str
) -> None:
    body = told(error)
    assert (body["status"], body["type"]) == (status, kind)
    assert body["title"]
    assert "secret words" not in json.dumps(body)


def test_every_field_is_named() -> None:
    body = told(InvalidInput(Problem("type", "is unknown"), Problem("", "is a mess")))
    assert body["errors"] == [
        {"field": "type", "message": "is unknown"},
        {"field": "", "message": "is a mess"},
    ]
    assert body["detail"] == "type: is unknown; is a mess"


def test_a_field_called_password_does_not_hide_what_is_wrong_with_it() -> None:
    body = told(InvalidInput(Problem("payload.password", "holds a secret in the clear")))
    assert body["detail"] == "payload.password: holds a secret in the clear"


def test_what_was_sent_is_never_repeated() -> None:
    error = RequestValidationError(
        [
            {
                "type": "string_type",
                "loc": ("body", "queue"),
                "msg": "Input should be a valid string",
                "input": {"password": "hunter2"},
            }
        ]
    )
    body = told(error)
    assert body["errors"] == [{"field": "queue", "message": "must be a valid string"}]
    assert "hunter2" not in json.dumps(body)


def _asked(model: type[BaseModel], body: object) -> RequestValidationError:
    try:
        model.model_validate(body)
    except ValidationError as error:
        found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        return RequestValidationError(found, body=body)
    raise AssertionError("it is valid")


def test_a_value_of_several_kinds_has_one_place_and_one_sentence() -> None:
    """Pydantic names each kind as if it were a field of the document."""
    body = {"recipe": 5, "parameters": {"a": [1], "int": None}, "priority": "x", "more": 1}
    found = told(_asked(RunSubmission, body))["errors"]
    assert found == [
        {"field": "recipe", "message": "must be a valid string or a valid dictionary"},
        *(
            {
                "field": f"parameters.{name}",
                "message": "must be a valid string or a valid integer or a valid number",
            }
            for name in ("a", "int")
        ),
        {
            "field": "priority",
            "message": "must be a valid integer, unable to parse string as an integer",
        },
        {"field": "more", "message": "there is no such field"},
    ]
    query = [
        {
            "type": "literal_error",
            "loc": ("query", "format", kind),
            "msg": f"Input should be {kind}",
        }
        for kind in ("'json'", "'csv'")
    ]
    errors = told(RequestValidationError(query))["errors"]
    assert errors == [{"field": "format", "message": "must be 'json' or 'csv'"}]


def test_a_field_that_is_missing_is_named_where_it_belongs() -> None:
    class Inner(BaseModel):
        name: str

    class Outer(BaseModel):
        parts: list[Inner]
        one: Inner

    found = told(_asked(Outer, {"parts": [{"name": "a"}, {}]}))["errors"]
    assert [each["field"] for each in found] == ["parts.1.name", "one"]


def test_a_secret_in_a_message_is_masked() -> None:
    body = told(NotFound("there is no source postgresql://ann:hunter2@db"))
    assert "hunter2" not in body["detail"]


def test_people_and_programs_are_told_apart() -> None:
    page = request(accept="text/html")
    assert not problems.wants_page(page)  # below /api/ nobody is a person
    page.scope["path"] = "/jobs/3"
    assert problems.wants_page(Request(page.scope))
    assert not problems.wants_page(request(accept="text/event-stream"))
