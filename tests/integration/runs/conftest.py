"""A site with a table and files to reconcile, on a worker and a real Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from kalla.spark.session import SparkSessions
from tests.runs_kit import ROWS, RunsSite, furnish, open_runs, spark_settings
from tests.servers import PostgresServer, SparkServer


@pytest.fixture(scope="module")
def bank(postgres_server: PostgresServer) -> Iterator[str]:
    name = postgres_server.create()
    url = postgres_server.url(name)
    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE TABLE payments (id bigint PRIMARY KEY, ref text, amount numeric(12, 2))"
        )
        connection.execute(
            "INSERT INTO payments SELECT n, 'INV-' || n, n + CASE WHEN n % 10 = 0 THEN 5 ELSE 0 END"
            f" FROM generate_series(1, {ROWS}) AS n".encode()
        )
    yield url
    postgres_server.drop(name)


@pytest.fixture(scope="module")
def spark(spark_server: SparkServer) -> Iterator[SparkSessions]:
    sessions = SparkSessions(spark_settings(spark_server))
    yield sessions
    sessions.close()


@pytest.fixture
async def site(
    database_url: str,
    spark_server: SparkServer,
    spark: SparkSessions,
    bank: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[RunsSite]:
    async with open_runs(database_url, spark_server, spark, tmp_path / "data") as site:
        await furnish(site, bank, monkeypatch)
        yield site
