"""An API in this process over query workers that are processes of their own, and faults on them.

Each worker is reached through a proxy on another loopback address, so that its network can be cut.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx

from kalla.local import ports
from kalla.query.dispatch.dispatcher import Dispatcher
from kalla.settings import Settings
from tests.chaos.proxy import Proxy
from tests.integration.query.http_requests import END, SERIES, START, STEP
from tests.query_kit import api_site
from tests.web_kit import Site, until

Fault = Literal["kill", "stop", "cut", "drain"]
FAULTS: tuple[Fault, ...] = ("kill", "stop", "cut", "drain")
PROXIED = "127.0.0.2"

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
    proxies: list[Proxy] = field(default_factory=list)

    async def open_proxies(self) -> None:
        """The ports of this worker on another address, where its lines can be cut."""
        for port in (self.control, self.artifacts):
            proxy = Proxy(port)
            await proxy.start(PROXIED, port)
            self.proxies.append(proxy)

    async def close_proxies(self) -> None:
        for proxy in self.proxies:
            await proxy.stop()

    def stall(self) -> None:
        for proxy in self.proxies:
            proxy.stall()

    async def mend(self) -> None:
        """Whatever was done to it is over: it runs, and is reached."""
        for proxy in self.proxies:
            proxy.flow()
        if self.process is None or self.process.poll() is not None:
            self.start()
        else:
            self.signal(signal.SIGCONT)

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
        await self.until(lambda: set(names) <= set(self.dispatcher.workers.open), f"{names} joined")

    async def until(self, condition: Callable[[], object], what: str) -> None:
        async def asked() -> bool:
            return bool(condition())

        await self.until_true(asked, what)

    async def until_true(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        await until(condition, what, 180)

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


@asynccontextmanager
async def open_cluster(settings: Settings, folder: Path, count: int = 3) -> AsyncIterator[Cluster]:
    """Workers on the metric store of these settings, with samples in it."""
    names = ("alpha", "beta", "gamma", "delta")[:count]
    metrics = Path(settings.storage.metrics)
    workers = {one: WorkerProcess(one, folder, metrics) for one in names}
    try:
        for worker in workers.values():
            worker.start()
            await worker.open_proxies()
        addresses = ",".join(f"{PROXIED}:{one.control}" for one in workers.values())
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
            await worker.close_proxies()


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
        await worker.mend()
        await cluster.joined(*cluster.workers)


@dataclass(frozen=True)
class Seen:
    """A fault, and how long it took until no work went to that worker any more."""

    fault: Fault
    worker: str
    seconds: float


async def carry_out(cluster: Cluster, fault: Fault, name: str, wanted: Any) -> Seen:
    """The fault in the middle of a query, whose answer must stay the same; then all is well again.

    What is stopped or cut off before the query keeps the work that it was given; what is killed is
    stopped until it has some.
    """
    worker = cluster.workers[name]
    if fault == "drain":
        return await _drained(cluster, worker, wanted)
    began = time.monotonic()
    if fault == "cut":
        worker.stall()
    else:
        worker.signal(signal.SIGSTOP)
    asking = asyncio.create_task(cluster.answer())
    try:
        await cluster.until(lambda: cluster.holding(name), f"{name} was given work")
        if fault == "kill":
            began = time.monotonic()
            worker.signal(signal.SIGKILL)
        await cluster.until(lambda: name not in cluster.dispatcher.workers.open, f"{name} is lost")
        seen = Seen(fault, name, time.monotonic() - began)
        answer = await asking
        assert answer == wanted, f"after {fault} of {name}: {answer!r}"
        return seen
    finally:
        asking.cancel()
        await worker.mend()
        await cluster.joined(*cluster.workers)


async def _drained(cluster: Cluster, worker: WorkerProcess, wanted: Any) -> Seen:
    """With queries under way; until the API knows that it takes no more."""
    asked = [asyncio.create_task(cluster.answer()) for _ in range(4)]
    connection = cluster.dispatcher.workers.open[worker.name]
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    try:
        await cluster.until(
            lambda: connection.status.draining or not connection.is_open, "it drains"
        )
        seen = Seen("drain", worker.name, time.monotonic() - began)
        assert worker.process is not None
        code = await asyncio.to_thread(worker.process.wait, 60)
        assert code == 0, f"a drained worker ended with {code}"
        assert await asyncio.gather(*asked) == [wanted] * 4
        assert await cluster.answer() == wanted
        return seen
    finally:
        await worker.mend()
        await cluster.joined(*cluster.workers)
