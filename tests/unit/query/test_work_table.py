"""Work units of a query worker, executed in threads."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import structlog

from kalla.query.evaluate.evaluation import Limits
from kalla.query.promql.query_errors import Stopped
from kalla.query.protocol import control_pb2 as pb
from kalla.query.protocol.work_messages import Assignment, ListWork, assignment_message
from kalla.query.worker.artifact_spool import Spool
from kalla.query.worker.disk_budget import DiskBudget
from kalla.query.worker.metrics import WorkerMetrics
from kalla.query.worker.work_table import WorkTable


class Observed:
    """Notes what log lines of the threads that execute work would carry."""

    def __init__(self) -> None:
        self.contexts: list[dict[str, Any]] = []

    def run(self, given: Any, stop: threading.Event) -> Any:
        self.contexts.append(structlog.contextvars.get_contextvars())
        raise Stopped("query was canceled in query execution")


async def test_log_lines_of_a_work_unit_s_thread_carry_its_ids(tmp_path: Path) -> None:
    observed = Observed()
    spool = Spool(tmp_path, DiskBudget(1000), 30, 600)
    table = WorkTable(cast(Any, observed), spool, WorkerMetrics(), 1, 2)
    key = pb.WorkKey(query_id="q", leaf_id=0, work_id="w")

    given = Assignment(ListWork(((),), 0, 1), 0, 1, (), 0, Limits())

    table.assign("a session", assignment_message(key, given), lambda _: None)
    async with asyncio.timeout(10):
        while table.queued or table.running:
            await table.changed(1)
    await table.close()

    assert observed.contexts == [{"query_id": "q", "work_id": "w"}]
