"""Writes every error below /api/v1 in Prometheus' format, those of the access guard too."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from kalla.query.http.response_json import compact, encoded
from kalla.query.promql.lexer import go_quote
from kalla.query.promql.query_errors import BadRequest, ParseFailed, QueryError
from kalla.web import problems
from kalla.web.access import GuardedRoute

_BELOW = "/api/v1/"
_TYPES = {
    400: "bad_data",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "bad_data",
    413: "bad_data",
    422: "bad_data",
    503: "unavailable",
}
_SHAPE = {
    "type": "object",
    "required": ["status", "errorType", "error"],
    "properties": {
        "status": {"const": "error"},
        "errorType": {"type": "string"},
        "error": {"type": "string"},
    },
}
# How the OpenAPI document describes them, instead of problem details.
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": "A refusal, as Prometheus has it",
        "content": {"application/json": {"schema": _SHAPE}},
    }
    for status in ("4XX", "5XX")
}
# Of what is written, Prometheus reads a plain sentence.
WRITE_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": "A refusal; of samples, in plain text",
        "content": {
            "application/json": {"schema": _SHAPE},
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}},
            "text/plain": {"schema": {"type": "string"}},
        },
    }
    for status in ("4XX", "5XX")
}
_KEPT_HEADERS = ("Retry-After", "WWW-Authenticate", "Allow")


class PrometheusRoute(GuardedRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        guarded = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                return await guarded(request)
            except Exception as error:
                return refusal(request, error)

        return answered


def install(app: FastAPI) -> None:
    """Addresses and methods that do not exist are refused alike."""

    async def handle(request: Request, error: Exception) -> Response:
        if request.url.path.startswith(_BELOW):
            return refusal(request, error)
        await problems.recognise(request)
        return problems.answer(request, error)

    app.add_exception_handler(HTTPException, handle)


def refusal(request: Request, error: Exception) -> Response:
    status, document, headers = described(request, error)
    text = compact({"status": "error", **document})
    return Response(encoded(text), status, headers, media_type="application/json")


def described(request: Request, error: Exception) -> tuple[int, dict[str, str], dict[str, str]]:
    """Status, errorType with its message, and headers; unexpected errors are logged."""
    usual = problems.answer(request, error)
    status, sentence = usual.status_code, str(json.loads(bytes(usual.body))["detail"])
    headers = {name: usual.headers[name] for name in _KEPT_HEADERS if name in usual.headers}
    if isinstance(error, RequestValidationError):
        status = 400
    if isinstance(error, ParseFailed):
        sentence = f'invalid parameter "query": {sentence}'
    if isinstance(error, BadRequest) and error.parameter:
        sentence = f"invalid parameter {go_quote(error.parameter)}: {sentence}"
    kind = error.kind if isinstance(error, QueryError) else _TYPES.get(status, "internal")
    return status, {"errorType": kind, "error": sentence}, headers
