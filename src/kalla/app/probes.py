"""/health, /ready and /metrics, on a port of their own and without a token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def create_probes(
    registry: CollectorRegistry,
    problems: Callable[[], list[str]],
    absences: Callable[[], Awaitable[list[str]]],
) -> Starlette:
    """`problems` are what a restart cures (/health), `absences` what waiting cures (/ready)."""

    async def health(_: Request) -> Response:
        return _answer(problems())

    async def ready(_: Request) -> Response:
        return _answer([*problems(), *await absences()])

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[Route("/health", health), Route("/ready", ready), Route("/metrics", metrics)]
    )


def _answer(reasons: list[str]) -> Response:
    if reasons:
        return JSONResponse({"status": "unavailable", "reasons": reasons}, status_code=503)
    return JSONResponse({"status": "ok"})
