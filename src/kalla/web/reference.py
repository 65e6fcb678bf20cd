"""The API's description as a page of our own: the usual ones load scripts from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from kalla.web import openapi
from kalla.web.access import GuardedRoute
from kalla.web.app_state import State


@dataclass(frozen=True)
class Input:
    """Something a caller may say: in the path, the query, a header or the body."""

    name: str
    place: str
    kind: str
    required: bool
    description: str


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    group: str
    description: str
    role: str | None
    inputs: tuple[Input, ...]
    answer: str


def describing(app: FastAPI) -> APIRouter:
    """/openapi.json for programs and /docs for people."""
    router = APIRouter(route_class=GuardedRoute, include_in_schema=False)
    cached: dict[str, Any] = {}

    def document() -> dict[str, Any]:
        if not cached:
            cached.update(openapi.describe(app))
        return cached

    @router.get("/openapi.json")
    async def as_json() -> Response:
        return JSONResponse(document())

    @router.get("/docs")
    async def as_page(request: Request, state: State) -> Response:
        found = list(operations(document()))
        return HTMLResponse(state.layout.render("reference.html", request, operations=found))

    return router


def operations(document: Mapping[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield Operation(
                method=method.upper(),
                path=path,
                group=operation["tags"][0],
                description=operation.get("description") or f"{operation['summary']}.",
                role=operation.get("x-role"),
                inputs=tuple(_inputs(document, operation)),
                answer=_answer(operation),
            )


def _inputs(document: Mapping[str, Any], operation: Mapping[str, Any]) -> Iterator[Input]:
    for item in operation.get("parameters", []):
        yield Input(
            item["name"],
            item["in"],
            _kind(item["schema"]),
            item["required"],
            item.get("description", ""),
        )
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema")
    if schema is not None:
        model = _model(document, schema)
        for name, field in model.get("properties", {}).items():
            required = name in model.get("required", [])
            yield Input(name, "body", _kind(field), required, field.get("description", ""))


def _model(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a body: by its name, inline, or the one beside null of a body one may omit."""
    for part in schema.get("anyOf", [schema]):
        if "$ref" in part:
            model: Mapping[str, Any] = document["components"]["schemas"][_name(part)]
            return model
    return schema


def _answer(operation: Mapping[str, Any]) -> str:
    for status, response in operation["responses"].items():
        if status.startswith("2"):
            content = response.get("content", {}).get("application/json")
            return f"{status} {_kind(content['schema'])}" if content else status
    return ""


def _kind(schema: Mapping[str, Any]) -> str:
    """A schema in a word or two."""
    if "$ref" in schema:
        return _name(schema)
    if "anyOf" in schema:
        return " or ".join(_kind(part) for part in schema["anyOf"] if part.get("type") != "null")
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    return str(schema.get("type", "anything"))


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]
