"""A task of Spark that goes on after its cancel: the embedded server says so, and is restarted."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

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
        # Cancelled too early, it would not have begun: Spark tells of its tasks by their stages.
        until(begun.is_set, "the search has begun", 60)
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
