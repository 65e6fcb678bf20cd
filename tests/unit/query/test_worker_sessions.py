"""The control streams of a query worker: what is not read ends, what changes is sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from kalla import release
from kalla.errors import VersionSkew
from kalla.query.dispatch.worker_connection import WorkerConnection
from kalla.query.promql.query_errors import Stopped
from kalla.query.protocol import control_pb2 as pb
from kalla.query.protocol.peer_access import PeerAccess
from kalla.query.protocol.versions import PROTOCOL_VERSION
from kalla.query.worker import sessions as sessions_module
from kalla.query.worker.artifact_spool import Spool
from kalla.query.worker.disk_budget import DiskBudget
from kalla.query.worker.metrics import WorkerMetrics
from kalla.query.worker.sessions import Sessions
from kalla.query.worker.work_table import WorkTable


class Context:
    """A stream without metadata."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise ConnectionError(f"{code.name}: {details}")


class Waiting:
    """Work that ends when it is stopped."""

    def run(self, _: Any, stop: threading.Event) -> Any:
        stop.wait(60)
        raise Stopped("query was canceled in query execution")


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    spool = Spool(tmp_path / "9322", DiskBudget(1000), 30, 600)
    table = WorkTable(cast(Any, Waiting()), spool, WorkerMetrics(), 1, 2)
    yield Sessions("w", 9322, PeerAccess(), table)
    await table.close()


async def opened(sessions: Sessions, *messages: pb.ToWorker) -> AsyncIterator[pb.ToApi]:
    async def incoming() -> AsyncIterator[pb.ToWorker]:
        version = release.version()
        yield pb.ToWorker(
            hello=pb.Hello(protocol_version=PROTOCOL_VERSION, api_id="a", kalla_version=version)
        )
        for message in messages:
            yield message
        while True:
            await asyncio.sleep(0.2)
            yield pb.ToWorker(heartbeat=pb.Heartbeat(sequence=1))

    async for message in sessions.control(incoming(), cast(Any, Context())):
        yield message


async def test_the_stream_of_an_api_that_does_not_read_is_closed(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions_module, "_MOST_MESSAGES", 4)
    stream = opened(sessions)
    async with asyncio.timeout(10):
        assert (await anext(stream)).HasField("welcome")
        [session] = sessions._open
        for sequence in range(6):
            sessions._put(session, pb.ToApi(heartbeat=pb.Heartbeat(sequence=sequence)))

        assert len([message async for message in stream]) <= 6
    assert sessions.count == 0


async def test_an_api_of_another_version_is_refused_with_a_sentence_that_names_both(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions_module, "version", lambda: "0.2.0")
    with pytest.raises(
        ConnectionError,
        match=r"FAILED_PRECONDITION: this query worker is Kalla 0\.2\.0, but the API is Kalla 0\.1",
    ):
        await anext(opened(sessions))


class Answering:
    """A stream of a query worker that answers with these messages."""

    def __init__(self, *messages: pb.ToApi) -> None:
        self._messages = iter(messages)

    async def read(self) -> Any:
        return next(self._messages, grpc.aio.EOF)


async def test_a_query_worker_of_another_version_is_refused_by_the_api() -> None:
    welcome = pb.Welcome(protocol_version=PROTOCOL_VERSION, worker_id="w", kalla_version="0.2.0")
    connection = WorkerConnection("127.0.0.1:1", "a", PeerAccess(), cast(Any, None))
    try:
        with pytest.raises(VersionSkew, match=r"but the query worker is Kalla 0\.2\.0"):
            await connection._listen(cast(Any, Answering(pb.ToApi(welcome=welcome))))
    finally:
        await connection.close()


async def test_a_full_worker_says_at_once_when_it_takes_work_again(sessions: Sessions) -> None:
    keys = [pb.WorkKey(query_id="q", leaf_id=0, work_id=f"w{number}") for number in range(2)]
    assign = [pb.ToWorker(assign=pb.AssignWork(key=key)) for key in keys]
    cancel = pb.ToWorker(cancel=pb.CancelWork(key=keys[1]))
    stream = opened(sessions, *assign, cancel)
    accepting: list[bool] = []
    async with asyncio.timeout(10):
        async for message in stream:
            if message.HasField("status"):
                accepting.append(message.status.accepting_work)
            if accepting[-1:] == [True] and False in accepting:
                break
    assert accepting == [True, False, True]
