"""The query workers that an API knows."""

from __future__ import annotations

import asyncio

from kalla.query.dispatch.worker_connection import WorkerConnection
from kalla.query.dispatch.worker_pool import WorkerPool


class Erratic:
    """A discovery that fails in a way nobody expects, and works afterwards."""

    def __init__(self) -> None:
        self.calls = 0

    async def addresses(self) -> list[str]:
        self.calls += 1
        if self.calls == 1:
            raise ValueError("label empty or too long")
        return ["10.0.0.1:9321"]


async def test_an_unexpected_error_of_discovery_does_not_end_it() -> None:
    dialled: list[str] = []
    found = asyncio.Event()

    def dial(address: str) -> WorkerConnection:
        dialled.append(address)
        found.set()
        return None  # type: ignore[return-value]

    discovering = asyncio.create_task(WorkerPool(Erratic(), 0.01, dial).discover_regularly())
    try:
        async with asyncio.timeout(10):
            await found.wait()
        assert dialled == ["10.0.0.1:9321"]
    finally:
        discovering.cancel()
