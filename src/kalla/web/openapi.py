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
    "description": "The same key with the same request is carried out once and answered alike.",
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
    return document


def _complete(operation: dict[str, Any], method: str, endpoint: object) -> None:
    operation["responses"].pop("422", None)
    operation["responses"]["4XX"] = _PROBLEM
    operation["responses"]["5XX"] = _PROBLEM
    role = role_for(endpoint, [method])
    if role is not None:
        operation["security"] = [{"token": []}]
        operation["x-role"] = role
        if method == "POST" and not is_harmless(endpoint):
            operation.setdefault("parameters", []).append(_KEY)
