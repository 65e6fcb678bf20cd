"""The ASGI app: every room's routes and pages, behind one guard and one way to answer errors."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from kalla import logs
from kalla.app.kinds import kinds as all_kinds
from kalla.app.probes import create_probes
from kalla.app.serving import address_of, bind, serving
from kalla.database import AWAY, NOT_MIGRATED, Database
from kalla.operate import overview
from kalla.operate import pages as operate_pages
from kalla.operate import routes as operate_routes
from kalla.query import pages as query_pages
from kalla.query.prometheus import refusals, write_routes
from kalla.query.prometheus import routes as query_routes
from kalla.query.prometheus import stream as query_stream
from kalla.query.prometheus.asking import Queries
from kalla.query.store import routes as store_routes
from kalla.query.store.intake import Intake
from kalla.query.store.store import MetricStore
from kalla.query.store.upkeep import Upkeep
from kalla.reconcile import pages as reconcile_pages
from kalla.reconcile import routes as reconcile_routes
from kalla.reconcile.conclusion import Conclusions
from kalla.reconcile.evidence import routes as evidence_routes
from kalla.reconcile.library import routes as library_routes
from kalla.settings import ROLES, Settings
from kalla.spark.session import SparkSessions
from kalla.web import commands, login, problems, reference
from kalla.web.access import GuardedRoute
from kalla.web.door import Door
from kalla.web.edge import Edge
from kalla.web.layout import Layout, Place
from kalla.web.live import Live
from kalla.web.parts import Parts
from kalla.work.duty import Crew
from kalla.work.kinds import Kinds
from kalla.work.metrics import Metrics
from kalla.work.wake import open_channel
from kalla.work.wake.channel import Wake
from kalla.work.worker import absences, background

PLACES = (
    Place("Runs", "/runs", below=("/runs/",)),
    Place("Query", "/query"),
    Place("Work", "/", below=("/jobs/",)),
    Place("API", "/docs"),
)

# Room for the other fields of a submission and for a pretty-printed payload.
_BESIDE_PAYLOAD_BYTES = 64 * 1024
_log = logs.get(__name__)


async def run_api(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    listener = bind(settings.api.host, settings.api.port, "api.port")
    database = Database(settings.database, name="kalla api")
    wake = open_channel(settings, database, ROLES)
    kinds = all_kinds(settings, SparkSessions(settings.spark))
    metrics = Metrics()
    app = create_app(settings, kinds, database, wake, metrics)
    parts: Parts = app.state.parts
    queries: Queries = app.state.queries
    probes = create_probes(metrics.registry, parts.crew.deaths, lambda: absences(database, wake))
    beside = bind(settings.api.host, settings.api.metrics_port, "api.metrics_port")
    async with (
        app.router.lifespan_context(app),
        serving(app, listener),
        serving(probes, beside),
    ):
        _log.info("serving", address=address_of(listener))
        queries.warm()
        await stopping.wait()
        # The server waits for open answers, and a followed page would never end by itself.
        parts.live.close()
        queries.stop()


def create_app(
    settings: Settings,
    kinds: Kinds,
    database: Database,
    wake: Wake,
    metrics: Metrics | None = None,
) -> FastAPI:
    """With `metrics` the process also runs the duties that workers may be too few for."""
    sweeps = (commands.sweep,)
    duties = (
        [
            *background(settings, database, wake, metrics, sweeps),
            Conclusions(database, kinds, wake),
            Upkeep(settings, database, kinds, wake),
        ]
        if metrics
        else []
    )
    app = FastAPI(openapi_url=None, lifespan=_lifespan)  # its own address would need no token
    app.router.route_class = GuardedRoute
    app.state.parts = Parts(
        settings=settings,
        kinds=kinds,
        database=database,
        wake=wake,
        layout=Layout(["kalla.operate", "kalla.reconcile", "kalla.query"], PLACES),
        live=Live(database),
        crew=Crew(duties),
        door=Door(database),
    )
    app.state.metric_store = MetricStore(settings, database)
    app.state.intake = Intake(app.state.metric_store, settings.metrics)
    app.state.queries = Queries(settings, app.state.metric_store)
    app.add_middleware(
        Edge,
        body_bytes=settings.limits.payload_bytes + _BESIDE_PAYLOAD_BYTES,
        roomy=dict.fromkeys(
            write_routes.WRITE_PATHS, (settings.metrics.write_bytes, "metrics.write_bytes")
        ),
    )
    problems.install(app)
    refusals.install(app)
    app.mount("/static", StaticFiles(packages=[("kalla.web", "static")]))
    for router in (
        write_routes.router,  # asked for most often: routes are tried in this order
        login.router,
        operate_routes.probes,
        operate_routes.router,
        operate_pages.router,
        reconcile_routes.router,
        library_routes.router,
        evidence_routes.router,
        reconcile_pages.router,
        query_routes.router,
        store_routes.router,
        query_stream.router,
        query_pages.router,
        reference.describing(app),
    ):
        app.include_router(router)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    parts: Parts = app.state.parts
    await parts.database.open()
    await parts.wake.start()
    await parts.crew.start()
    looking = asyncio.create_task(_look_at_database(parts))  # serving does not wait for Postgres
    try:
        yield
    finally:
        looking.cancel()
        parts.live.close()
        await parts.crew.stop()
        await app.state.queries.close()
        await app.state.intake.close()
        await app.state.metric_store.close()
        await parts.wake.stop()
        await parts.database.close()


async def _look_at_database(parts: Parts) -> None:
    """Say in the log what is wrong, and go on: every answer says it until it is right."""
    try:
        async with parts.database.transaction() as connection:
            await overview.require_migrated(connection)
    except (*AWAY, *NOT_MIGRATED) as error:
        _log.warning("the database is not ready", reason=str(error))
