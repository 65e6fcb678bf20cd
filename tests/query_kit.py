"""The app over a metric store with samples in it, for tests of what asks for them."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from kalla.app.api import create_app
from kalla.app.job_types import job_types as all_job_types
from kalla.app.serving import bind, serving
from kalla.database import Database
from kalla.query.labels.label_sets import Labels
from kalla.query.store.catalogue import Metadata
from kalla.query.store.metric_store import MetricStore
from kalla.query.worker.server import QueryWorkerServer
from kalla.settings import Settings
from kalla.spark.session import SparkSessions
from kalla.web.tokens import tokens
from kalla.web.tokens.tokens import ROLES
from tests.metrics_kit import Points, metrics_settings, spread
from tests.web_kit import Bell, Site


@asynccontextmanager
async def query_site(
    url: str,
    folder: Path,
    series: Mapping[Labels, Points],
    metadata: Mapping[str, Metadata] | None = None,
    **metrics: Any,
) -> AsyncIterator[Site]:
    """The app on a migrated database, with these series written."""
    settings = metrics_settings(url, folder, **metrics)
    async with (
        query_worker(settings) as worker,
        api_site(with_workers(settings, worker), series, metadata) as site,
    ):
        site.query_workers.append(worker)
        yield site


@asynccontextmanager
async def query_worker(settings: Settings, **own: Any) -> AsyncIterator[QueryWorkerServer]:
    """A query worker on ports of its own, in this process."""
    given = {"port": 0, "artifact_port": 0, "name": uuid4().hex, **own}
    with tempfile.TemporaryDirectory() as folder:
        section = settings.query_worker.model_copy(update={"folder": folder, **given})
        settings = settings.model_copy(update={"query_worker": section})
        listener = bind("127.0.0.1", section.artifact_port, "query_worker.artifact_port")
        worker = QueryWorkerServer(settings, listener)
        async with serving(worker.http(), listener), worker.serving():
            yield worker


def with_workers(settings: Settings, *workers: QueryWorkerServer) -> Settings:
    addresses = ",".join(worker.address for worker in workers)
    query = settings.query.model_copy(update={"workers": addresses})
    return settings.model_copy(update={"query": query})


@asynccontextmanager
async def api_site(
    settings: Settings,
    series: Mapping[Labels, Points],
    metadata: Mapping[str, Metadata] | None = None,
) -> AsyncIterator[Site]:
    """The app with these series written; its query workers are those of the settings."""
    kinds = all_job_types(settings, SparkSessions(settings.spark))
    database = Database(settings.database)
    app = create_app(settings, kinds, database, bell := Bell())
    async with app.router.lifespan_context(app):
        site = Site(app, settings, kinds, database, bell, {})
        async with database.transaction() as connection:
            for role in ROLES:
                site.tokens[role] = await tokens.create(connection, role, role)
        store: MetricStore = app.state.metric_store
        await store.commit(spread(series, await store.shards()), metadata)
        yield site
