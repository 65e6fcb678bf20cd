"""The ASGI app: every room's routes and pages, behind one guard and one way to answer errors."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from kalla import logs
from kalla.app import sinks
from kalla.app.connection_limits import raise_file_limit
from kalla.app.job_types import job_types as all_job_types
from kalla.app.probes import create_probes
from kalla.app.release_check import check_release
from kalla.app.serving import address_of, bind, serving
from kalla.database import AWAY, NOT_MIGRATED, Database
from kalla.operate import overview
from kalla.operate import pages as operate_pages
from kalla.operate import routes as operate_routes
from kalla.query.dispatch.dispatcher import dispatcher_of
from kalla.query.dispatch.metrics import QueryGauges
from kalla.query.http import (
    error_responses,
    query_records_pages,
    query_records_routes,
    query_routes,
    response_json,
    write_routes,
)
from kalla.query.http import event_stream as query_stream
from kalla.query.http import query_page as query_pages
from kalla.query.service.query_service import QueryService
from kalla.query.store import segment_routes as store_routes
from kalla.query.store.ingest.intake import Intake
from kalla.query.store.maintenance.upkeep import Upkeep
from kalla.query.store.metric_store import MetricStore
from kalla.reconcile.propose import proposal_routes
from kalla.reconcile.registry import routes as library_routes
from kalla.reconcile.runs import evidence_routes, registry_pages
from kalla.reconcile.runs import pages as reconcile_pages
from kalla.reconcile.runs import routes as reconcile_routes
from kalla.reconcile.runs.run_completion import Conclusions
from kalla.reconcile.schedules import routes as schedule_routes
from kalla.reconcile.schedules import schedule_store
from kalla.reconcile.schedules.run_scheduler import RunScheduler
from kalla.reconcile.uploads import upload_routes, upload_store
from kalla.scaling import pages as scaling_pages
from kalla.scaling import routes as scaling_routes
from kalla.scaling.decision_service import ScalingDecisions, ScalingGauges
from kalla.settings import ROLES, Settings
from kalla.spark.session import SparkSessions
from kalla.tables import store as table_store
from kalla.tables.http import pages as tables_pages
from kalla.tables.http import routes as tables_routes
from kalla.tables.schedule.scheduler import TableGauges, TableScheduler
from kalla.web import commands, login, problems, reference
from kalla.web.access import GuardedRoute
from kalla.web.app_state import AppState
from kalla.web.layout import Layout, Place
from kalla.web.live import Live
from kalla.web.middleware import RequestMiddleware
from kalla.web.tokens import login_links
from kalla.web.tokens.token_lookup import TokenLookup
from kalla.work.job_type import JobTypes
from kalla.work.metrics import Metrics
from kalla.work.service import ServiceGroup
from kalla.work.wake import open_channel
from kalla.work.wake.channel import Wake
from kalla.work.worker import absences, background

_ROOMS_WITH_PAGES = ("operate", "reconcile", "query", "tables", "scaling", "sinks")
PLACES = (
    Place("Runs", "/runs", below=("/runs/", "/start")),
    Place("Sources", "/sources", below=("/sources/",)),
    Place("Recipes", "/recipes", below=("/recipes/",)),
    Place("Tables", "/tables", below=("/tables/",)),
    *sinks.places(),
    Place("Query", "/query", below=("/queries", "/query-workers")),
    Place("Work", "/work", below=("/jobs/",)),
    Place("Scaling", "/scaling"),
    Place("Settings", "/settings", role="admin"),
    Place("API", "/docs"),
)

# Room for the other fields of a submission and for a pretty-printed payload.
_BESIDE_PAYLOAD_BYTES = 64 * 1024
_log = logs.get(__name__)


async def run_api(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    raise_file_limit()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    listener = bind(settings.api.host, settings.api.port, "api.port")
    database = Database(settings.database, name="kalla api")
    wake = open_channel(settings, database, ROLES)
    job_types = all_job_types(settings, SparkSessions(settings.spark))
    metrics = Metrics()
    app = create_app(settings, job_types, database, wake, metrics)
    state: AppState = app.state.kalla
    queries: QueryService = app.state.queries
    probes = create_probes(
        metrics.registry, state.services.deaths, lambda: absences(database, wake)
    )
    beside = bind(settings.api.metrics_host, settings.api.metrics_port, "api.metrics_port")
    async with (
        app.router.lifespan_context(app),
        serving(app, listener),
        serving(probes, beside),
    ):
        _log.info("serving", address=address_of(listener))
        queries.warm(response_json.encoded_answer)
        # Beside serving: while Postgres is away, pages say so.
        checking = asyncio.create_task(check_release(database, "this API", stopping))
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait([checking, stopped], return_when=asyncio.FIRST_EXCEPTION)
        stopping.set()
        # The server waits for open answers, and a followed page would never end by itself.
        state.live.close()
        queries.stop()
        await asyncio.gather(checking, stopped)


def create_app(
    settings: Settings,
    job_types: JobTypes,
    database: Database,
    wake: Wake,
    metrics: Metrics | None = None,
) -> FastAPI:
    """With `metrics` the process also runs the services that workers may be too few for."""
    sweeps = (
        commands.sweep,
        login_links.sweep,
        upload_store.sweeper(settings),
        schedule_store.sweep,
        table_store.sweep,
    )
    scaling_gauges = ScalingGauges()
    table_gauges = TableGauges()
    if metrics:
        metrics.registry.register(scaling_gauges)
        metrics.registry.register(table_gauges)
    services = (
        [
            *background(settings, database, wake, metrics, sweeps),
            Conclusions(database, job_types, wake),
            RunScheduler(settings, database, job_types, wake),
            Upkeep(settings, database, job_types, wake),
            TableScheduler(settings, database, job_types, wake, table_gauges),
            ScalingDecisions(settings, database, scaling_gauges),
        ]
        if metrics
        else []
    )
    app = FastAPI(openapi_url=None, lifespan=_lifespan)  # its own address would need no token
    app.router.route_class = GuardedRoute
    app.state.kalla = AppState(
        command_places=asyncio.Semaphore(max(1, settings.database.pool_size - 3)),
        settings=settings,
        job_types=job_types,
        database=database,
        wake=wake,
        layout=Layout(
            [f"kalla.{room}" for room in _ROOMS_WITH_PAGES],
            PLACES,
        ),
        live=Live(database),
        services=ServiceGroup(services),
        token_lookup=TokenLookup(database),
    )
    app.state.metric_store = MetricStore(settings, database)
    app.state.intake = Intake(app.state.metric_store, settings.metrics)
    app.state.dispatcher = dispatcher_of(settings)
    if metrics:
        metrics.registry.register(QueryGauges(app.state.dispatcher.metrics.registry))
    app.state.queries = QueryService(settings, app.state.metric_store, app.state.dispatcher)
    app.add_middleware(
        RequestMiddleware,
        body_bytes=settings.limits.payload_bytes + _BESIDE_PAYLOAD_BYTES,
        roomy=dict.fromkeys(
            write_routes.WRITE_PATHS, (settings.metrics.write_bytes, "metrics.write_bytes")
        )
        | {upload_routes.UPLOAD_PATH: (settings.uploads.bytes, "uploads.bytes")},
    )
    problems.install(app)
    error_responses.install(app)
    app.mount("/static", StaticFiles(packages=[("kalla.web", "static")]))
    for router in (
        write_routes.router,  # asked for most often: routes are tried in this order
        login.router,
        operate_routes.probes,
        operate_routes.router,
        operate_pages.router,
        scaling_routes.router,
        scaling_pages.router,
        reconcile_routes.router,
        proposal_routes.router,  # before /recipes/{id}
        library_routes.router,
        upload_routes.router,
        schedule_routes.router,
        evidence_routes.router,
        reconcile_pages.router,
        registry_pages.router,
        *sinks.routers(),
        query_routes.router,
        store_routes.router,
        query_stream.router,
        query_pages.router,
        query_records_routes.router,
        query_records_pages.router,
        tables_routes.router,
        tables_pages.router,
        reference.describing(app),
    ):
        app.include_router(router)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: AppState = app.state.kalla
    await state.database.open()
    await state.wake.start()
    await state.services.start()
    await app.state.dispatcher.start()
    looking = asyncio.create_task(_look_at_database(state))  # serving does not wait for Postgres
    try:
        yield
    finally:
        looking.cancel()
        state.live.close()
        await state.services.stop()
        await app.state.queries.close()
        await app.state.dispatcher.close()
        await app.state.intake.close()
        await app.state.metric_store.close()
        await state.wake.stop()
        await state.database.close()


async def _look_at_database(state: AppState) -> None:
    """Say in the log what is wrong, and go on: every answer says it until it is right."""
    try:
        async with state.database.transaction() as connection:
            await overview.require_migrated(connection)
    except (*AWAY, *NOT_MIGRATED) as error:
        _log.warning("the database is not ready", reason=str(error))
