"""Query workers and a dispatcher in a thread with an event loop of its own, for tests without one.

A fleet answers as an API does: work units go through the coordinator, gRPC, Parquet and HTTP.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import SecretStr

from kalla.query.discovery.static import StaticList
from kalla.query.dispatch.dispatcher import Dispatcher
from kalla.query.dispatch.query_records import QueryRecord
from kalla.query.dispatch.worker_source import WorkerSource
from kalla.query.evaluate.evaluation import Limits
from kalla.query.protocol.peer_access import PeerAccess
from kalla.query.store.segments import Segment
from kalla.query.store.series_table import SeriesTable
from kalla.query.worker.server import QueryWorkerServer
from kalla.settings import Query, QueryWorker, Settings
from kalla.settings import Storage as StorageSettings
from tests.query_kit import query_worker

Found = TypeVar("Found")

TOKEN = "a token that API and workers share"


class NoClock:
    left = 60.0

    def check(self) -> None: ...


@dataclass
class Fleet:
    """Three workers that share a folder of segments."""

    folder: Path
    loop: asyncio.AbstractEventLoop
    dispatcher: Dispatcher
    workers: list[QueryWorkerServer]

    def run(self, work: Coroutine[Any, Any, Found]) -> Found:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def source(
        self, written: list[Segment], shards: int, limits: Limits | None = None
    ) -> WorkerSource:
        """These segments as an API's query sees them."""
        record = QueryRecord("a test", "ann")
        self.run(self._opened(record))
        listed = Counter(one.shard for one in written)
        return WorkerSource(
            self.dispatcher,
            record,
            written,
            listed,
            shards,
            limits or Limits(seconds=60.0),
            SeriesTable(),
            NoClock(),
        )

    async def _opened(self, record: QueryRecord) -> None:
        self.dispatcher.open_query(record)


@contextmanager
def fleet(folder: Path, count: int = 3) -> Iterator[Fleet]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fleet", daemon=True)
    thread.start()
    opened = _fleet(folder, loop, count)

    async def enter() -> Fleet:
        return await opened.__aenter__()

    async def leave() -> None:
        await opened.__aexit__(None, None, None)

    try:
        found = asyncio.run_coroutine_threadsafe(enter(), loop).result(60)
        deadline = time.monotonic() + 60
        while len(found.dispatcher.workers.open) < count:
            assert time.monotonic() < deadline, "the workers did not join"
            threading.Event().wait(0.02)
        yield found
        asyncio.run_coroutine_threadsafe(leave(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@asynccontextmanager
async def _fleet(folder: Path, loop: asyncio.AbstractEventLoop, count: int) -> AsyncIterator[Fleet]:
    settings = Settings(
        storage=StorageSettings(metrics=str(folder)),
        query=Query(token=SecretStr(TOKEN)),
        query_worker=QueryWorker(threads=2),
    )
    async with AsyncWorkers(settings, count) as workers:
        addresses = StaticList(tuple(worker.address for worker in workers))
        dispatcher = Dispatcher(addresses, PeerAccess(TOKEN))
        await dispatcher.start()
        try:
            yield Fleet(folder, loop, dispatcher, workers)
        finally:
            await dispatcher.close()


class AsyncWorkers:
    def __init__(self, settings: Settings, count: int) -> None:
        self._opened = [query_worker(settings, name=f"worker-{number}") for number in range(count)]

    async def __aenter__(self) -> list[QueryWorkerServer]:
        return [await one.__aenter__() for one in self._opened]

    async def __aexit__(self, *_: object) -> None:
        for one in self._opened:
            await one.__aexit__(None, None, None)
