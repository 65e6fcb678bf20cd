"""Connections that say nothing, or say it slowly, deny nobody the API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from kalla.app.connection_limits import ConnectionLimits, most_connections
from kalla.app.serving import bind, serving
from kalla.settings import Settings

pytestmark = pytest.mark.attack


async def hello(request: Request) -> Response:
    return PlainTextResponse((await request.body()).decode() or "hello")


@asynccontextmanager
async def served(limits: ConnectionLimits) -> AsyncIterator[int]:
    listener = bind("127.0.0.1", 0, "api.port")
    app = Starlette(routes=[Route("/", hello, methods=["GET", "POST"])])
    port = listener.getsockname()[1]
    async with serving(app, listener, limits):
        yield port


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def opened(port: int, number: int) -> AsyncIterator[list[Stream]]:
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(number)]
    try:
        yield streams
    finally:
        for _, writer in streams:
            writer.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(20):
            return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_silent_connections_give_way_to_who_asks() -> None:
    async with (
        served(ConnectionLimits(connections=20, head_seconds=600)) as port,
        opened(port, 60),
        httpx.AsyncClient() as client,
    ):
        answers = [await client.get(f"http://127.0.0.1:{port}/") for _ in range(5)]
    assert [answer.text for answer in answers] == ["hello"] * 5


async def test_a_connection_that_asks_nothing_is_closed_in_time() -> None:
    limits = ConnectionLimits(head_seconds=0.2)
    async with served(limits) as port, opened(port, 3) as streams:
        _, writer = streams[0]
        writer.write(b"GET / HTTP/1.1\r\nHost:")  # and never the rest
        await writer.drain()
        assert all([await ended(reader) for reader, _ in streams])
    assert not limits.silent


async def test_half_a_second_request_is_closed_in_time() -> None:
    async with served(ConnectionLimits(head_seconds=0.2)) as port, opened(port, 1) as streams:
        ((reader, writer),) = streams
        writer.write(b"GET / HTTP/1.1\r\nHost: kalla\r\n\r\n")
        assert b"hello" in await reader.readuntil(b"hello")
        writer.write(b"GET / HTTP/1.1\r\n")
        assert await ended(reader)


async def test_a_body_that_stops_is_closed_in_time() -> None:
    async with served(ConnectionLimits(body_seconds=0.2)) as port, opened(port, 1) as streams:
        ((reader, writer),) = streams
        writer.write(b"POST / HTTP/1.1\r\nHost: kalla\r\nContent-Length: 10\r\n\r\nabc")
        assert await ended(reader)


async def test_a_body_that_comes_in_pieces_is_read() -> None:
    async with served(ConnectionLimits(body_seconds=5)) as port, httpx.AsyncClient() as client:

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(5):
                yield b"piece "
                await asyncio.sleep(0.01)

        answer = await client.post(f"http://127.0.0.1:{port}/", content=pieces())
    assert answer.text == "piece " * 5


def test_the_bound_leaves_files_for_the_rest() -> None:
    assert 0 < most_connections() < 65_536


def test_metrics_are_bound_to_this_machine_whatever_the_api_is_bound_to() -> None:
    settings = Settings.model_validate({"api": {"host": "0.0.0.0"}})
    assert settings.api.metrics_host == "127.0.0.1"
