"""The app over a metric store with samples in it, for tests of what asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kalla.app.api import create_app
from kalla.app.job_types import job_types as all_job_types
from kalla.database import Database
from kalla.query.labels.label_sets import Labels
from kalla.query.store.catalogue import Metadata
from kalla.query.store.metric_store import MetricStore
from kalla.spark.session import SparkSessions
from kalla.web import tokens
from kalla.web.tokens import ROLES
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
