"""A task of Spark that goes on after its cancel: the embedded server says so, and is restarted."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import SecretStr
from pyspark.errors import PySparkException

from kalla.local import ports, spark
from kalla.settings import Spark as SparkSettings
from kalla.spark.session import connect
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.attack]

# Past the sandbox, which bounds the text: Java tries for hours, and hears no interrupt.
SEARCH = "SELECT regexp_like(repeat('x', 20000 + CAST(id AS INT)), '.*.*.*y') AS hit FROM range(2)"


def seconds_of(server: spark.Spark) -> float:
    """The CPU that the server and its children have taken."""
    assert server.process is not None
    parent = psutil.Process(server.process.pid)
    everyone = [parent, *parent.children(recursive=True)]
    return float(sum(each.cpu_times().user for each in everyone))


@pytest.mark.timeout(400)
def test_a_pattern_that_outlives_its_cancel_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "_OUTLIVING_SECONDS", 3)
    server = spark.Spark(tmp_path, ports.choose_free(), cores=1, memory="1g", brief=True)
    server.start()
    try:
        settings = SparkSettings(remote=server.remote, token=SecretStr(server.token))
        session = connect(settings)
        begun, ended = threading.Event(), threading.Event()

        def watch(stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:
            if inflight_tasks:
                begun.set()

        session.registerProgressHandler(watch)  # type: ignore[arg-type]

        def search() -> None:
            session.addTag("poison")
            with pytest.raises(PySparkException):
                session.sql(SEARCH).collect()
            ended.set()

        thread = threading.Thread(target=search)
        thread.start()
        # Cancelled too early, it would end in Spark's compiler, which hears an interrupt.
        until(begun.is_set, "the task has begun", 60)
        spent = seconds_of(server)
        until(lambda: seconds_of(server) > spent + 8, "Java searches", 90)
        until(lambda: bool(session.interruptTag("poison")) or ended.is_set(), "it is cancelled", 60)
        assert ended.wait(60)
        thread.join()
        found = list[str]()

        def ails() -> bool:
            if ailment := server.ailment():
                found.append(ailment)
            return bool(found)

        until(ails, "the server says that a task goes on", 90)
        assert found == ["ran a task for 3 s after it was cancelled"]
        session.client.close()  # at its end the process would ask the stopped server for minutes
    finally:
        server.stop(lambda: True)
