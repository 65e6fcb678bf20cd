"""A real Spark whose task outlives its cancel asks for a restart; what stands in data cannot."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from kalla.local import ports
from kalla.local.servers import spark as spark_server_module
from kalla.local.servers.spark import Spark

pytestmark = [
    pytest.mark.spark,
    pytest.mark.attack,
    pytest.mark.skipif("KALLA_TEST_SLOW" not in os.environ, reason="takes a minute: make attack"),
]

FORGED = "Killed task 1 could not be stopped within 20000 ms"


def connected(server: Spark) -> SparkSession:
    return SparkSession.builder.remote(f"{server.remote}/;token={server.token}").create()


def cpu_seconds(server: Spark) -> float:
    assert server.process is not None
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.mark.timeout(300)
def test_a_task_that_outlives_its_cancel_asks_for_a_restart_and_a_value_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_server_module, "_OUTLIVING_SECONDS", 2)
    server = Spark(tmp_path, ports.choose_free(), memory="1g")
    server.start()
    session = connected(server)
    try:
        forged = f"2026-01-01 00:00:00 ERROR Executor: {FORGED}"
        for text in (FORGED, f"x\\n{forged}\\n"):
            with pytest.raises(PySparkException):
                session.range(2).selectExpr(f"CAST(concat('{text}', id) AS INT)").collect()
        assert FORGED in server.log.read_text("utf-8"), "Spark logs what it cannot cast"
        assert server.restart_reason() is None

        endless = "regexp_like(repeat('x', 20000 + CAST(id AS INT)), '.*.*y')"

        def outlived() -> bool:
            return server.restart_reason() is not None

        def run() -> None:
            session.addTag("endless")
            with suppress(PySparkException):
                session.range(2).selectExpr(endless).collect()

        threading.Thread(target=run, daemon=True).start()
        busy = cpu_seconds(server) + 6  # so that its tasks are in the search, and not on the way
        until(lambda: cpu_seconds(server) > busy, "it searches")
        assert session.interruptTag("endless")
        until(outlived, "it outlived its cancel")
        session.stop()
        server.stop(lambda: True)
        server.start()
        assert server.restart_reason() is None
        session = connected(server)
        assert session.sql("SELECT 1").collect()[0][0] == 1
    finally:
        session.stop()  # or Python waits for it when it ends
        server.stop(lambda: True)
