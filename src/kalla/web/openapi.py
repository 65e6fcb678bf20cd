"""The API's description: roles, keys and problems are stated once, for every operation alike."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts

from kalla.web.access import is_harmless, role_for
from kalla.web.problems import ProblemDetails

_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "The same key with the same request is executed once and gets the same answer.",
}
_PROBLEM = {
    "description": "A problem, as RFC 9457 describes",
    "content": {
        "application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}
    },
}


def describe(app: FastAPI) -> dict[str, Any]:
    document: dict[str, Any] = get_openapi(
        title="Kalla",
        version=metadata.version("kalla"),
        summary="Runs data work on autoscaled workers and proves what it did.",
        routes=app.routes,
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for superseded in ("HTTPValidationError", "ValidationError"):
        schemas.pop(superseded, None)
    own = ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= own.pop("$defs") | {"ProblemDetails": own}
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for route in iter_route_contexts(app.routes):
        for method in route.methods or ():
            operation = document["paths"].get(route.path_format, {}).get(method.lower())
            if operation is not None:
                _complete(operation, method, route.endpoint)
    _write_out(document)
    return document


def _write_out(node: Any) -> None:
    """FastAPI writes bounds as floats, which cannot hold the largest 64-bit integer."""
    if isinstance(node, dict):
        for name in ("minimum", "maximum"):
            bound = node.get(name)
            if isinstance(bound, float) and bound.is_integer():
                node[name] = min(int(bound), 2**63 - 1)
        for item in node.values():
            _write_out(item)
    elif isinstance(node, list):
        for item in node:
            _write_out(item)


def _complete(operation: dict[str, Any], method: str, endpoint: object) -> None:
    operation["responses"].pop("422", None)
    operation["responses"].setdefault("4XX", _PROBLEM)
    operation["responses"].setdefault("5XX", _PROBLEM)
    role = role_for(endpoint, [method])
    if role is not None:
        operation["security"] = [{"token": []}]
        operation["x-role"] = role
        if method == "POST" and not is_harmless(endpoint):
            operation.setdefault("parameters", []).append(_KEY)
