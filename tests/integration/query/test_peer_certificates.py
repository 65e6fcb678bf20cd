"""API and query workers show each other certificates; who shows none, or another's, is refused."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from kalla.app.query_worker import open_http
from kalla.app.serving import bind
from kalla.errors import StartFailed
from kalla.query.discovery.static import StaticList
from kalla.query.dispatch.dispatcher import Dispatcher
from kalla.query.dispatch.query_records import QueryRecord
from kalla.query.evaluate.evaluation import Limits
from kalla.query.protocol.peer_access import PeerAccess
from kalla.query.protocol.work_messages import Assignment, ListWork
from kalla.query.worker.server import QueryWorkerServer
from kalla.settings import Query, QueryWorker, Settings
from kalla.settings import Storage as StorageSettings
from tests.certificates_kit import Authority
from tests.web_kit import until

NAME = "query-worker.kalla"


def query_settings(authority: Authority, name: str = NAME) -> Query:
    issued = authority.issue(name)
    return Query(
        tls_authority=str(authority.certificate),
        tls_certificate=str(issued.certificate),
        tls_key=str(issued.key),
        tls_server_name=NAME,
    )


async def test_certificates_are_asked_for_on_both_ways(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    own = QueryWorker(port=0, artifact_port=0, metrics_port=0, folder=str(tmp_path), name="one")
    settings = Settings(
        storage=StorageSettings(metrics=str(tmp_path)), query=query_settings(ours), query_worker=own
    )
    listener = bind("127.0.0.1", 0, "query_worker.artifact_port")
    worker = QueryWorkerServer(settings, listener)
    artifact_port = listener.getsockname()[1]
    async with open_http(worker, listener) as probes, worker.serving():
        found = await _artifact(worker, PeerAccess.of(query_settings(ours, "api.kalla")))
        assert found
        for refused in (
            PeerAccess(),
            PeerAccess.of(query_settings(theirs, "api.elsewhere")),
            PeerAccess.of(
                query_settings(ours, "api.kalla").model_copy(update={"tls_server_name": "another"})
            ),
        ):
            assert await _problem(worker, refused)
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://{probes}/health")).status_code == 200
        trusting = ssl.create_default_context(cafile=str(ours.certificate))
        trusting.check_hostname = False
        async with httpx.AsyncClient(verify=trusting) as client:
            with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
                await client.get(f"https://127.0.0.1:{artifact_port}/artifacts/any")


async def _artifact(worker: QueryWorkerServer, access: PeerAccess) -> int:
    """The bytes of an artifact, over streams and connections with certificates."""
    dispatcher = Dispatcher(StaticList((worker.address,)), access)
    await dispatcher.start()
    try:
        record = QueryRecord("a", "ann")
        dispatcher.open_query(record)
        given = Assignment(ListWork(((),), 0, 1), 0, 1, (), 0, Limits())
        result = dispatcher.submit(record, 0, given)

        async def done() -> bool:
            return result.done()

        await until(done, "the artifact was fetched", 30)
        return int(result.result(timeout=0).size)
    finally:
        await dispatcher.close()


async def _problem(worker: QueryWorkerServer, access: PeerAccess) -> str:
    """Why the worker could not be joined."""
    dispatcher = Dispatcher(StaticList((worker.address,)), access)
    await dispatcher.start()
    try:

        async def refused() -> str:
            return next((one.problem for one in dispatcher.workers.connections), "")

        problem: str = await until(refused, "it is refused", 30)
        assert not dispatcher.workers.open
        return problem
    finally:
        await dispatcher.close()


def test_half_of_the_files_are_refused_with_what_is_missing(tmp_path: Path) -> None:
    given = query_settings(Authority(tmp_path, "ours"))
    half = given.model_copy(update={"tls_key": ""})
    with pytest.raises(StartFailed, match=r"need query\.tls_key as well"):
        PeerAccess.of(half)
    gone = given.model_copy(update={"tls_key": str(tmp_path / "gone")})
    with pytest.raises(StartFailed, match="cannot be used"):
        PeerAccess.of(gone)
