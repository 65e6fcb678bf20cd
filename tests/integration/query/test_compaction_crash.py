"""kill -9 of a worker while it compacts: the old segments or the new ones are what there is."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kalla.local import ports
from kalla.query.store import catalogue
from kalla.settings import Settings, Storage
from kalla.spark.session import SparkSessions
from tests.commands_kit import KALLA
from tests.compaction_kit import MINUTE, START, Kept, kept_settings, levels, open_store, ticks
from tests.runs_kit import spark_settings
from tests.servers import SparkServer
from tests.work_kit import connect
from tests.worker_kit import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PATIENCE = 180.0


@contextmanager
def a_worker(settings: Settings, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real one, for compaction alone; killed at the end if it is not dead yet."""
    secret = settings.spark.token.get_secret_value()
    environment = os.environ | {
        "KALLA_DATA_DIR": str(settings.data_dir),
        "KALLA_DATABASE_URL": settings.database.url.get_secret_value(),
        "KALLA_SPARK_REMOTE": settings.spark.remote,
        "KALLA_SPARK_TOKEN": secret,
        "KALLA_STORAGE_METRICS": settings.storage.metrics,
        "KALLA_WAKE_CHANNEL": "postgres",
        "KALLA_METRICS_COMPACT_SECONDS": "0.5",
        "KALLA_JOBS_DEFAULT_TIMEOUT_SECONDS": "3",
        "KALLA_JOBS_DEFAULT_HEARTBEAT_INTERVAL": "0.5",
        "KALLA_JOBS_DEFAULT_MAX_ATTEMPTS": "20",
        "KALLA_REAPER_INTERVAL_SECONDS": "0.5",
    }
    with (folder / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            [*KALLA, "worker", "--roles", "compact", "--port", str(ports.choose_free())],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def nobody_commits(kept: Kept) -> AsyncIterator[None]:
    """Whoever wants to list segments waits until this ends."""
    url = kept.settings.database.url.get_secret_value()
    async with await connect(url) as connection, connection.transaction():
        await connection.execute(catalogue.sql.take_turns)
        yield


async def test_a_worker_killed_at_any_point_leaves_the_old_or_the_new(
    database_url: str, tmp_path: Path, spark_server: SparkServer
) -> None:
    storage = Storage(metrics=str(tmp_path / "metrics"))
    configured = kept_settings(database_url, tmp_path, storage).model_copy(
        update={"spark": spark_settings(spark_server)}
    )
    async with open_store(configured, SparkSessions(configured.spark)) as kept:
        for minute in range(9):
            await kept.write(ticks(START + minute * MINUTE, 4))
        before, olds = await kept.read(), await kept.live()

        async def job() -> dict[str, Any]:
            (found,) = await kept.rows(
                "SELECT coalesce(max(status), '') AS status, coalesce(max(fence), 0) AS fence"
                " FROM kalla.jobs WHERE type = 'compact'"
            )
            return found

        with a_worker(configured, tmp_path) as worker:

            async def claimed() -> bool:
                assert worker.poll() is None, (tmp_path / "worker.log").read_text()
                return bool((await job())["status"] == "claimed")

            await eventually(claimed, PATIENCE)
            worker.send_signal(signal.SIGKILL)  # its kernel may go on and write
            worker.wait()
        assert await kept.live() == olds
        lost = (await job())["fence"]

        async with nobody_commits(kept):
            with a_worker(configured, tmp_path) as worker:

                async def settles() -> bool:
                    """Its object is there, and it waits for its turn."""
                    assert worker.poll() is None, (tmp_path / "worker.log").read_text()
                    fence = (await job())["fence"]
                    waiting = await kept.rows(
                        "SELECT FROM pg_stat_activity WHERE application_name = 'kalla worker'"
                        " AND datname = current_database() AND wait_event = 'advisory'"
                    )
                    written = any(f"-{fence}/" in each for each in kept.files)
                    return fence > lost and bool(waiting) and written

                await eventually(settles, PATIENCE)
                worker.send_signal(signal.SIGKILL)
                worker.wait()
            assert await kept.live() == olds
            assert await kept.read() == before
        assert await kept.read() == before

        with a_worker(configured, tmp_path) as worker:

            async def swapped() -> bool:
                return await kept.live() != olds

            await eventually(swapped, PATIENCE)
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        news = await kept.live()
        assert levels(news) == [1, 1]
        assert await kept.read() == before
        (row,) = await kept.rows("SELECT count(*) AS n FROM kalla.segments")
        assert row["n"] == len(olds) + len(news), "what lost attempts wrote is not listed"
