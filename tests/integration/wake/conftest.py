"""Servers of these tests' own, which may be killed, and channels to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import nats
import pytest
import pytest_asyncio
from nats.js import JetStreamContext
from pydantic import SecretStr

from kalla.database import Database
from kalla.local import ports
from kalla.local.servers.nats import Nats
from kalla.local.servers.postgres import Postgres
from kalla.settings import Database as DatabaseSettings
from kalla.work.services.depth import Depth
from kalla.work.wake import NatsWake, PostgresWake, Wake
from tests.servers import UNSAFE_BUT_FAST, started
from tests.wake_kit import (
    QUEUES,
    Channel,
    Scene,
    at,
)
from tests.work_kit import connect


@pytest.fixture(scope="module")
def own_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    """One that may be killed: the shared server of the other tests may not."""
    server = Nats(tmp_path_factory.mktemp("wake"), ports.choose_free())
    with started(server):
        yield server


@pytest.fixture(scope="module")
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    folder = tmp_path_factory.mktemp("wake")
    server = Postgres(folder, ports.choose_free(), options=UNSAFE_BUT_FAST)
    with started(server):
        yield server


@pytest_asyncio.fixture
async def nats_channel(own_nats: Nats) -> AsyncIterator[Channel]:
    await _forget_streams(own_nats)

    async def new() -> Wake:
        return NatsWake(at(own_nats), QUEUES)

    channel = Channel(own_nats, own_nats.url, new)
    try:
        yield channel
    finally:
        await _finish(channel)


@pytest_asyncio.fixture
async def postgres_channel(own_postgres: Postgres) -> AsyncIterator[Channel]:
    async with AsyncExitStack() as stack:

        async def new() -> Wake:
            settings = DatabaseSettings(url=SecretStr(own_postgres.url("postgres")))
            return PostgresWake(await stack.enter_async_context(Database(settings)))

        channel = Channel(own_postgres, own_postgres.url(), new)
        try:
            yield channel
        finally:
            await _finish(channel)


@pytest.fixture(params=["nats", "postgres"])
def channel(request: pytest.FixtureRequest) -> Channel:
    found: Channel = request.getfixturevalue(f"{request.param}_channel")
    return found


async def _finish(channel: Channel) -> None:
    for wake in channel.made:
        await wake.stop()
    if not channel.server.running:
        await channel.start_server()


async def _forget_streams(server: Nats) -> None:
    async with await nats.connect(server.url) as client:
        for stream in await client.jetstream().streams_info():
            await client.jetstream().delete_stream(stream.config.name or "")


@pytest_asyncio.fixture
async def scene(nats_channel: Channel, own_nats: Nats, database_url: str) -> AsyncIterator[Scene]:
    settings = DatabaseSettings(url=SecretStr(database_url))
    async with Database(settings) as database, await connect(database_url) as connection:
        wake = await nats_channel.open()
        yield Scene(nats_channel, own_nats, wake, connection, Depth(database, wake, 3))


@pytest_asyncio.fixture
async def stream(own_nats: Nats) -> AsyncIterator[JetStreamContext]:
    """Somebody else's hand in our stream."""
    async with await nats.connect(own_nats.url) as client:
        yield client.jetstream()
