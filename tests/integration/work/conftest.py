"""Two workers' connections, an onlooker's, and the database's clock, all on this test's database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from pydantic import SecretStr

from kalla.database import Connection, Database
from kalla.settings import Database as DatabaseSettings
from tests.work_kit import Clock, Waiting, connect


@pytest_asyncio.fixture
async def a(database_url: str) -> AsyncIterator[Connection]:
    async with await connect(database_url) as connection:
        yield connection


@pytest_asyncio.fixture
async def b(database_url: str) -> AsyncIterator[Connection]:
    async with await connect(database_url) as connection:
        yield connection


@pytest_asyncio.fixture
async def onlooker(database_url: str) -> AsyncIterator[Connection]:
    async with await connect(database_url) as connection:
        yield connection


@pytest_asyncio.fixture
async def clock(onlooker: Connection) -> Clock:
    clock = Clock(onlooker)
    await clock.install()
    return clock


@pytest_asyncio.fixture
async def pool(database_url: str) -> AsyncIterator[Database]:
    async with Database(DatabaseSettings(url=SecretStr(database_url))) as database:
        yield database


@pytest.fixture
def waiting(onlooker: Connection) -> Waiting:
    return Waiting(onlooker)
