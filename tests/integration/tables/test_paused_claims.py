"""A process that is stopped at a step of its commit changes nothing once another took over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from deltalake import DeltaTable

from kalla.spark.session import connect
from kalla.tables.delta.commit import Committed, read_frontier
from kalla.tables.refresh.run import refresh
from tests.paused_claim import STEPS
from tests.runs_kit import spark_settings
from tests.servers import SparkServer
from tests.tables_shop import GROUPED, Shop

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(spark_server: SparkServer) -> Iterator[Any]:
    session = connect(spark_settings(spark_server))
    yield session
    session.stop()


@pytest.fixture
def other(spark_server: SparkServer) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.paused_claim", spark_server.remote, spark_server.token]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        _open(stream).close()


@pytest.mark.timeout(180)
def test_a_process_stopped_at_any_step_of_its_commit_changes_nothing(
    spark: Any, other: subprocess.Popen[str], tmp_path: Path
) -> None:
    shop = Shop(spark, tmp_path, GROUPED)
    shop.set("customers", [("ann", "north"), ("bob", "south")])
    shop.set("orders", [(0, "ann", "1.00")])
    shop.refresh()
    for number, step in enumerate(STEPS):
        shop.set("orders", [(number, "bob", "2.00"), (number, None, "3.00")], mode="append")
        asked = shop.payload()
        claim = 100 * asked.tick
        line = {"step": step, "payload": asked.model_dump(mode="json"), "claim": claim}
        _open(other.stdin).write(json.dumps(line) + "\n")
        _open(other.stdin).flush()
        _, status = os.waitpid(other.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"{step}: the process ended"
        # Old files go meanwhile, also those that no commit names.
        DeltaTable(tmp_path / "result").vacuum(
            retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
        )
        found = refresh(spark, asked, claim + 1, f"{claim + 1}.1")
        # What is committed already is adopted.
        assert isinstance(found, Committed) == (step == "before verifying"), step
        before = DeltaTable(tmp_path / "result").version()
        other.send_signal(signal.SIGCONT)
        assert _open(other.stdout).readline().startswith("stale: "), step
        table = DeltaTable(tmp_path / "result")
        frontier = read_frontier(table)
        assert frontier is not None
        assert (table.version(), frontier.tick) == (before, asked.tick), step
        shop.require_equal()


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
