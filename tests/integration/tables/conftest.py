"""A site with dynamic tables on a worker and a real Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kalla.spark.session import SparkSessions
from tests.runs_kit import open_runs, spark_settings
from tests.servers import SparkServer
from tests.tables_kit import TablesSite


@pytest.fixture(scope="module")
def sessions(spark_server: SparkServer) -> Iterator[SparkSessions]:
    sessions = SparkSessions(spark_settings(spark_server))
    yield sessions
    sessions.close()


@pytest.fixture
async def site(
    database_url: str, spark_server: SparkServer, sessions: SparkSessions, tmp_path: Path
) -> AsyncIterator[TablesSite]:
    async with open_runs(database_url, spark_server, sessions, tmp_path / "data") as runs:
        yield TablesSite(runs)
