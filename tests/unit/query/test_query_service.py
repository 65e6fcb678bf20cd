"""Queries of one process end when they are told to, whatever they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import structlog

from kalla.query.discovery.static import StaticList
from kalla.query.dispatch.dispatcher import Dispatcher
from kalla.query.engine import Engine
from kalla.query.evaluate.sample_source import MemorySource, SeriesBatch
from kalla.query.promql.query_errors import Stopped
from kalla.query.service.query_request import QueryOptions, instant
from kalla.query.service.query_service import QueryService, Store
from kalla.settings import Metrics, Settings


async def never() -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def service() -> AsyncIterator[QueryService]:
    dispatcher = Dispatcher(StaticList(()))
    await dispatcher.start()
    settings = Settings(metrics=Metrics(query_concurrency=1))
    opened = QueryService(settings, cast(Store, None), dispatcher)
    yield opened
    await opened.close()
    await dispatcher.close()


async def test_a_killed_query_that_waits_for_its_turn_ends_at_once(service: QueryService) -> None:
    records = service.dispatcher.records
    async with asyncio.timeout(10):
        await service._free.acquire()  # another query runs
        asking = asyncio.create_task(service.ask(instant("up", 0, QueryOptions()), never()))
        while not records.live:
            await asyncio.sleep(0.01)
        [query_id] = records.live

        service.kill(query_id)

        with pytest.raises(Stopped, match="query was canceled in query execution"):
            await asking
    assert records.live == {}
    [ended] = records.ended
    assert (ended.ending, ended.reason) == ("cancelled", "query was canceled in query execution")


class Observed(MemorySource):
    """Notes what log lines of the threads that read it would carry."""

    contexts: list[dict[str, Any]]

    def select(self, *given: Any) -> SeriesBatch:
        self.contexts.append(structlog.contextvars.get_contextvars())
        return super().select(*given)


async def test_log_lines_of_a_query_s_threads_carry_its_id(service: QueryService) -> None:
    source = Observed({}, shards=3)
    source.contexts = []
    engine = Engine(source, workers=2)

    with structlog.contextvars.bound_contextvars(query_id="one"):
        await service._in_thread(lambda: engine.instant("up + down", 0))

    assert source.contexts == [{"query_id": "one"}] * 6
