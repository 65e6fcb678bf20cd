"""Real servers for tests, started once. A missing one skips at a desk and fails in CI.

KALLA_TEST_POSTGRES, KALLA_TEST_NATS and KALLA_TEST_SPARK name servers to use instead.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import nats
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pyarrow import fs
from pydantic import SecretStr

from kalla import database
from kalla.errors import NotInstalled
from kalla.local import ports
from kalla.local.process import Server
from kalla.local.servers.nats import Nats
from kalla.local.servers.postgres import Postgres
from kalla.local.servers.s3 import S3
from kalla.local.servers.spark import Spark
from kalla.settings import Database
from kalla.settings import Storage as StorageSettings
from kalla.storage import Storage

# A test's database need not survive a power cut.
UNSAFE_BUT_FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "300",
}


@dataclass(frozen=True)
class PostgresServer:
    """A Postgres on which tests make databases of their own."""

    admin_url: str

    def url(self, name: str) -> str:
        head, _, tail = self.admin_url.partition("://")
        authority = tail.split("/", 1)[0]
        return f"{head}://{authority}/{name}"

    def create(self, template: str | None = None) -> str:
        """A new database's name."""
        name = f"test_{uuid4().hex[:12]}"
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template:
            statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
        self._execute(statement)
        return name

    def drop(self, name: str) -> None:
        self._execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(statement)


@dataclass(frozen=True)
class SparkServer:
    remote: str
    token: str


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    if given := os.environ.get("KALLA_TEST_POSTGRES"):
        assert conninfo_to_dict(given)
        yield PostgresServer(given)
        return
    folder = tmp_path_factory.mktemp("postgres")
    server = Postgres(folder, ports.choose_free(), options=UNSAFE_BUT_FAST)
    with started(server):
        yield PostgresServer(server.url("postgres"))


@pytest.fixture(scope="session")
def migrated_template(postgres_server: PostgresServer) -> Iterator[str]:
    """The name of a migrated, empty database, for copying."""
    name = postgres_server.create()
    try:
        settings = Database(url=SecretStr(postgres_server.url(name)))
        in_thread(database.migrate(settings))
        yield name
    finally:
        postgres_server.drop(name)


@pytest.fixture
def database_url(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    """A migrated database of this test's own."""
    name = postgres_server.create(migrated_template)
    try:
        yield postgres_server.url(name)
    finally:
        postgres_server.drop(name)


@pytest.fixture
def empty_database_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database nobody has migrated."""
    name = postgres_server.create()
    try:
        yield postgres_server.url(name)
    finally:
        postgres_server.drop(name)


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a NATS with JetStream."""
    if given := os.environ.get("KALLA_TEST_NATS"):
        yield given
        return
    server = Nats(tmp_path_factory.mktemp("nats"), ports.choose_free())
    with started(server):
        yield server.url


@pytest.fixture
def nats_url(nats_server: str) -> str:
    """A NATS without streams."""
    in_thread(_delete_streams(nats_server))
    return nats_server


@pytest.fixture(scope="session")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkServer]:
    """A Spark Connect server; takes ten seconds and more to start, so mark the test `spark`."""
    if given := os.environ.get("KALLA_TEST_SPARK"):
        yield SparkServer(given, os.environ.get("SPARK_CONNECT_AUTHENTICATE_TOKEN", ""))
        return
    server = Spark(tmp_path_factory.mktemp("spark"), ports.choose_free(), memory="1g")
    with started(server):
        yield SparkServer(server.remote, server.token)


@dataclass(frozen=True)
class S3Server:
    """An S3 on which tests make buckets of their own."""

    settings: StorageSettings

    @property
    def storage(self) -> Storage:
        return Storage.of(self.settings)

    def create(self) -> str:
        """A new bucket's name."""
        name = f"test-{uuid4().hex[:12]}"
        maker = fs.S3FileSystem(
            access_key=self.settings.s3_access_key.get_secret_value(),
            secret_key=self.settings.s3_secret_key.get_secret_value(),
            endpoint_override=self.settings.s3_endpoint,
            region=self.settings.s3_region,
            allow_bucket_creation=True,
        )
        maker.create_dir(name)
        return name


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3(tmp_path_factory.mktemp("s3"), ports.choose_free())
    with started(server):
        yield S3Server(server.settings)


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    """The URL of an empty bucket of this test's own."""
    return f"s3://{s3_server.create()}"


@contextmanager
def started(server: Server) -> Iterator[None]:
    with required():
        server.start()
    try:
        yield
    finally:
        server.stop()


@contextmanager
def required() -> Iterator[None]:
    """A part that is not installed skips the test at a desk and fails it in CI."""
    try:
        yield
    except NotInstalled as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


def in_thread(coroutine: Any) -> Any:
    """Run a coroutine from a fixture without touching the event loop of the tests."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


async def _delete_streams(url: str) -> None:
    client = await nats.connect(url, connect_timeout=5, allow_reconnect=False)
    try:
        context = client.jetstream()
        for stream in await context.streams_info():
            assert stream.config.name
            await context.delete_stream(stream.config.name)
    finally:
        await client.close()
