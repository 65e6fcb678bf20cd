"""The app on one database that every test of this folder finds emptied: making one takes longer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.servers import PostgresServer
from tests.web_kit import Site, open_site


@pytest.fixture(scope="session")
def site_database(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    name = postgres_server.create(migrated_template)
    try:
        yield postgres_server.url(name)
    finally:
        postgres_server.drop(name)


@pytest_asyncio.fixture
async def site(site_database: str) -> AsyncIterator[Site]:
    async with open_site(site_database) as opened:
        yield opened
