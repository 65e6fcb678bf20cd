"""Queries on query workers that are processes of their own, killed, stopped and drained mid-query.

A worker that is stopped (SIGSTOP) holds the work it was given, so that a fault meets it there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from kalla.local import ports
from kalla.query.dispatch.dispatcher import Dispatcher
from tests.integration.query.http_requests import END, SERIES, START, STEP
from tests.metrics_kit import metrics_settings
from tests.query_kit import api_site
from tests.servers import PostgresServer
from tests.web_kit import Site, until

KALLA = [sys.executable, "-m", "kalla.cli.main"]
QUERY: dict[str, str | int] = {
    "query": "sum by (zone) (rate(http_requests_total[1m])) + on () group_left temperature",
    "start": START,
    "end": END,
    "step": STEP,
}


@dataclass
class WorkerProcess:
    """`kalla query-worker` on ports of its own; it can be started again under its name."""

    name: str
    folder: Path
    metrics: Path
    control: int = field(default_factory=ports.choose_free)
    artifacts: int = field(default_factory=ports.choose_free)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        kept = {key: text for key, text in os.environ.items() if not key.startswith("KALLA_")}
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *KALLA,
                    "query-worker",
                    f"--port={self.control}",
                    f"--artifact-port={self.artifacts}",
                    f"--name={self.name}",
                ],
                env=kept
                | {
                    "KALLA_STORAGE_METRICS": str(self.metrics),
                    "KALLA_DATA_DIR": str(self.folder),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(30)


@dataclass
class Cluster:
    """An API in this process over three worker processes."""

    site: Site
    workers: dict[str, WorkerProcess]

    @property
    def dispatcher(self) -> Dispatcher:
        found: Dispatcher = self.site.app.state.dispatcher
        return found

    async def answer(self) -> Any:
        async with self.site.client("viewer") as client:
            answer = await client.get("/api/v1/query_range", params=QUERY, timeout=120)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]["result"]

    async def joined(self, *names: str) -> None:
        await self.until(lambda: set(names) <= set(self.dispatcher._workers), f"{names} joined")

    async def until(self, condition: Callable[[], object], what: str) -> None:
        async def asked() -> bool:
            return bool(condition())

        await until(asked, what, 90)

    def holding(self, name: str) -> bool:
        """Whether a worker was given work that it has not done."""
        return any(
            one.worker == name and one.state in ("assigned", "accepted")
            for record in self.dispatcher.records.live.values()
            for one in record.work
        )

    async def until_metric(self, name: str, of: str, wanted: float) -> None:
        async def asked() -> bool:
            return await self.metric(name, of) == wanted

        await until(asked, f"{name} of {of} is {wanted:g}", 30)

    async def metric(self, name: str, of: str) -> float:
        async with httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{self.workers[of].artifacts}/metrics"
            lines = (await client.get(url, timeout=30)).text.splitlines()
        [value] = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
        return float(value)


@pytest_asyncio.fixture(scope="module")
async def cluster(
    postgres_server: PostgresServer,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Cluster]:
    name = postgres_server.create(migrated_template)
    folder = tmp_path_factory.mktemp("workers")
    workers = {
        one: WorkerProcess(one, folder, folder / "metrics") for one in ("alpha", "beta", "gamma")
    }
    try:
        for worker in workers.values():
            worker.start()
        settings = metrics_settings(postgres_server.url(name), folder / "metrics", shards=8)
        addresses = ",".join(f"127.0.0.1:{one.control}" for one in workers.values())
        query = settings.query.model_copy(update={"workers": addresses, "discovery_seconds": 0.5})
        settings = settings.model_copy(update={"query": query})
        async with api_site(settings, SERIES) as site:
            opened = Cluster(site, workers)
            await opened.joined(*workers)
            await opened.answer()  # the first one loads the engine
            yield opened
    finally:
        for worker in workers.values():
            worker.end()
        postgres_server.drop(name)


@asynccontextmanager
async def stopped_mid_query(
    cluster: Cluster, name: str
) -> AsyncIterator[tuple[Awaitable[Any], WorkerProcess]]:
    """A query under way, of which a stopped worker holds a part; all workers are back after it."""
    worker = cluster.workers[name]
    worker.signal(signal.SIGSTOP)
    asking = asyncio.create_task(cluster.answer())
    try:
        await cluster.until(lambda: cluster.holding(name), "the stopped worker was given work")
        yield asking, worker
    finally:
        if worker.process is None or worker.process.poll() is not None:
            worker.start()
        else:
            worker.signal(signal.SIGCONT)
        await cluster.joined(*cluster.workers)


async def test_a_query_is_spread_over_the_workers(cluster: Cluster) -> None:
    await cluster.answer()
    [record, *_] = cluster.dispatcher.records.ended

    assert len({one.worker for one in record.work}) > 1
    assert {one.state for one in record.work} == {"fetched"}
    assert record.ending == "answered"


async def test_a_killed_worker_s_work_is_done_elsewhere_at_once(cluster: Cluster) -> None:
    wanted = await cluster.answer()
    before = cluster.dispatcher.metrics.disconnects._value.get()
    async with stopped_mid_query(cluster, "alpha") as (asking, worker):
        worker.signal(signal.SIGKILL)
        assert worker.process is not None
        worker.process.wait(30)
        assert await asking == wanted
        assert cluster.dispatcher.metrics.disconnects._value.get() > before
    [record, *_] = cluster.dispatcher.records.ended
    assert record.retries > 0


async def test_a_silent_worker_s_work_is_done_elsewhere(cluster: Cluster) -> None:
    wanted = await cluster.answer()
    async with stopped_mid_query(cluster, "beta") as (asking, _):
        assert await asking == wanted
    [record, *_] = cluster.dispatcher.records.ended
    assert "beta" not in {one.worker for one in record.work}


async def test_a_worker_that_comes_back_has_its_identity_and_its_work(cluster: Cluster) -> None:
    await cluster.answer()
    [before, *_] = cluster.dispatcher.records.ended
    async with stopped_mid_query(cluster, "gamma") as (asking, _):
        await asking
    await cluster.answer()
    [after, *_] = cluster.dispatcher.records.ended

    placed = [{one.shard: one.worker for one in each.work} for each in (before, after)]
    assert placed[0] == placed[1]


async def test_sigterm_drains_and_ends_with_zero(cluster: Cluster) -> None:
    wanted = await cluster.answer()
    worker = cluster.workers["alpha"]
    asked = [asyncio.create_task(cluster.answer()) for _ in range(4)]
    worker.signal(signal.SIGTERM)
    assert worker.process is not None
    code = await asyncio.to_thread(worker.process.wait, 60)
    try:
        assert code == 0
        assert await asyncio.gather(*asked) == [wanted] * 4
        assert await cluster.answer() == wanted
    finally:
        worker.start()
        await cluster.joined(*cluster.workers)


async def test_a_query_that_is_killed_ends_its_work_and_says_so(cluster: Cluster) -> None:
    async with (
        stopped_mid_query(cluster, "beta") as (asking, _),
        cluster.site.client("operator") as operator,
        cluster.site.client("viewer") as viewer,
    ):
        [live] = [one for one in (await viewer.get("/api/queries")).json() if one["live"]]
        path = f"/api/queries/{live['query_id']}"
        assert (await viewer.delete(path)).status_code == 403
        assert (await operator.delete(path)).status_code == 200
        with pytest.raises(AssertionError, match="canceled"):
            await asking
        assert (await operator.delete(path)).status_code == 404
    listed = {one["query_id"]: one for one in await _queries(cluster)}
    assert listed[live["query_id"]]["stage"] == "cancelled"


async def _queries(cluster: Cluster) -> list[dict[str, Any]]:
    async with cluster.site.client("viewer") as client:
        found: list[dict[str, Any]] = (await client.get("/api/queries")).json()
    return found


async def test_workers_and_the_queue_are_told(cluster: Cluster) -> None:
    async with cluster.site.client("viewer") as client:
        workers = (await client.get("/api/query-workers")).json()
        queue = (await client.get("/monitor/queries")).json()
        page = await client.get("/query-workers", headers={"Accept": "text/html"})
        queries = await client.get("/queries", headers={"Accept": "text/html"})
    assert {one["worker"] for one in workers} == set(cluster.workers)
    assert {one["state"] for one in workers} == {"accepting"}
    assert queue == {"queue_depth": 0, "oldest_age_seconds": 0, "running": 0}
    assert "alpha" in page.text
    assert "rate(http_requests_total[1m])" in queries.text


async def test_explain_tells_the_work_units(cluster: Cluster) -> None:
    await cluster.answer()
    async with cluster.site.client("viewer") as client:
        answer = await client.get("/api/v1/query_range", params={**QUERY, "explain": "true"})
    units = answer.json()["data"]["explain"]["work_units"]

    assert {one["worker"] for one in units} <= set(cluster.workers)
    assert {one["cache"] for one in units} == {"hit"}
    assert all(one["bytes"] > 0 and one["retries"] == 0 for one in units)


async def test_an_api_without_workers_says_so(
    cluster: Cluster, postgres_server: PostgresServer
) -> None:
    settings = cluster.site.settings
    gone = f"127.0.0.1:{ports.choose_free()}"
    query = settings.query.model_copy(update={"workers": gone, "worker_wait_seconds": 0.5})
    async with api_site(settings.model_copy(update={"query": query}), {}) as site:
        site.tokens.update(cluster.site.tokens)
        async with site.client("viewer") as client:
            answer = await client.get("/api/v1/query_range", params=QUERY)
    assert answer.status_code == 503
    assert answer.json()["errorType"] == "unavailable"
    assert "no query worker took work within 0.5 s" in answer.json()["error"]


async def test_two_apis_share_workers_and_one_that_ends_leaves_them_idle(cluster: Cluster) -> None:
    wanted = await cluster.answer()
    async with api_site(cluster.site.settings, {}) as site:
        other = Cluster(site, cluster.workers)
        await other.joined(*cluster.workers)
        site.tokens.update(cluster.site.tokens)
        both = await asyncio.gather(*(one.answer() for one in (cluster, other) for _ in range(3)))
        assert both == [wanted] * 6
        assert await cluster.metric("kalla_query_worker_streams", "alpha") == 2
    for name in cluster.workers:
        await cluster.until_metric("kalla_query_worker_streams", name, 1)
        assert await cluster.metric("kalla_query_worker_running", name) == 0
    assert await cluster.answer() == wanted
