"""One app a module, over the series that the module names."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.query_kit import query_site
from tests.servers import PostgresServer
from tests.web_kit import Site


@pytest_asyncio.fixture(scope="module")
async def site(
    request: pytest.FixtureRequest,
    postgres_server: PostgresServer,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Site]:
    """With the module's SERIES written, and its METADATA if it has some."""
    told = vars(request.module)
    name = postgres_server.create(migrated_template)
    folder = tmp_path_factory.mktemp("metrics")
    try:
        url = postgres_server.url(name)
        async with query_site(url, folder, told["SERIES"], told.get("METADATA")) as opened:
            yield opened
    finally:
        postgres_server.drop(name)
