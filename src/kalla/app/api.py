"""The ASGI app: every room's routes and pages, behind one guard and one way to answer errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import JSONResponse
from starlette.staticfiles import StaticFiles

from kalla import logs
from kalla.database import AWAY, Database
from kalla.operate import overview
from kalla.operate import pages as operate_pages
from kalla.operate import routes as operate_routes
from kalla.settings import Settings
from kalla.web import login, openapi, problems
from kalla.web.access import GuardedRoute
from kalla.web.edge import Edge
from kalla.web.layout import Layout, Place
from kalla.web.live import Live
from kalla.web.parts import Parts
from kalla.work.duty import Crew
from kalla.work.kinds import Kinds
from kalla.work.wake.channel import Wake

# Room for the other fields of a submission and for a pretty-printed payload.
_BESIDE_PAYLOAD_BYTES = 64 * 1024
_log = logs.get(__name__)


def create_app(settings: Settings, kinds: Kinds, database: Database, wake: Wake) -> FastAPI:
    app = FastAPI(openapi_url=None, lifespan=_lifespan)  # its own address would need no token
    app.router.route_class = GuardedRoute
    app.state.parts = Parts(
        settings=settings,
        kinds=kinds,
        database=database,
        wake=wake,
        layout=Layout(["kalla.operate"], [Place("Work", "/", below=("/jobs/",))]),
        live=Live(database),
        crew=Crew([]),
    )
    app.add_middleware(Edge, body_bytes=settings.limits.payload_bytes + _BESIDE_PAYLOAD_BYTES)
    problems.install(app)
    app.mount("/static", StaticFiles(packages=["kalla.web"]))
    for router in (
        login.router,
        operate_routes.probes,
        operate_routes.router,
        operate_pages.router,
        _description(app),
    ):
        app.include_router(router)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    parts: Parts = app.state.parts
    await parts.database.open()
    await parts.wake.start()
    await parts.crew.start()
    await _look_at_database(parts)
    try:
        yield
    finally:
        parts.live.close()
        await parts.crew.stop()
        await parts.wake.stop()
        await parts.database.close()


async def _look_at_database(parts: Parts) -> None:
    """Say in the log what is wrong, and go on: /health and every answer say it until it is right."""
    try:
        async with parts.database.transaction() as connection:
            await overview.require_migrated(connection)
    except (*AWAY, *problems.NOT_MIGRATED) as error:
        _log.warning("the database is not ready", reason=str(error))


def _description(app: FastAPI) -> APIRouter:
    router = APIRouter(route_class=GuardedRoute, include_in_schema=False)
    document: dict[str, Any] = {}

    @router.get("/openapi.json")
    async def openapi_document() -> Response:
        if not document:
            document.update(openapi.describe(app))
        return JSONResponse(document)

    return router
