"""Two workers' connections, an onlooker's, and a clock moved by hand, on one emptied database.

The tests of this folder share a database and empty it, since making one takes longer than a test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from pydantic import SecretStr

from kalla import database
from kalla.database import Connection, Database
from kalla.settings import Database as DatabaseSettings
from tests.servers import PostgresServer, in_thread
from tests.work_kit import Clock, Waiting, connect, empty, install_clock
from tests.worker_kit import Site


@pytest.fixture(scope="session")
def store_database(postgres_server: PostgresServer) -> Iterator[str]:
    name = postgres_server.create()
    url = postgres_server.url(name)
    try:
        in_thread(database.migrate(DatabaseSettings(url=SecretStr(url))))
        in_thread(install_clock(url))
        yield url
    finally:
        postgres_server.drop(name)


@pytest_asyncio.fixture
async def store_url(store_database: str) -> str:
    """The shared database with nothing in it, and its clock set right."""
    async with await connect(store_database) as connection:
        await empty(connection)
    return store_database


@pytest_asyncio.fixture
async def a(store_url: str) -> AsyncIterator[Connection]:
    async with await connect(store_url) as connection:
        yield connection


@pytest_asyncio.fixture
async def b(store_url: str) -> AsyncIterator[Connection]:
    async with await connect(store_url) as connection:
        yield connection


@pytest_asyncio.fixture
async def onlooker(store_url: str) -> AsyncIterator[Connection]:
    async with await connect(store_url) as connection:
        yield connection


@pytest.fixture
def clock(onlooker: Connection) -> Clock:
    return Clock(onlooker)


@pytest.fixture
def waiting(onlooker: Connection) -> Waiting:
    return Waiting(onlooker)


@pytest_asyncio.fixture
async def pool(store_url: str) -> AsyncIterator[Database]:
    async with Database(DatabaseSettings(url=SecretStr(store_url))) as pool:
        yield pool


@pytest.fixture
def site(database_url: str) -> Site:
    return Site(database_url)


@pytest.fixture(params=["postgres", "nats"])
def either_site(request: pytest.FixtureRequest, database_url: str) -> Site:
    nats_url = request.getfixturevalue("nats_url") if request.param == "nats" else None
    return Site(database_url, nats_url)
