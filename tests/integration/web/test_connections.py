"""Connections that say nothing, or say it slowly, deny nobody the API."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from kalla.app.connection_limits import ConnectionLimits, most_connections
from kalla.app.serving import bind, serving
from kalla.settings import Settings

pytestmark = pytest.mark.attack

LARGE = 32 << 20
large_answers: list[str] = []


async def hello(request: Request) -> Response:
    return PlainTextResponse((await request.body()).decode() or "hello")


async def refuse(_: Request) -> Response:
    return PlainTextResponse("who are you?", 401)


async def large(_: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(LARGE >> 16):
            yield b"x" * (1 << 16)
        large_answers.append("ended")  # of one that is cut off, the rest is dropped

    return StreamingResponse(pieces())


@asynccontextmanager
async def served(limits: ConnectionLimits) -> AsyncIterator[int]:
    listener = bind("127.0.0.1", 0, "api.port")
    app = Starlette(
        routes=[
            Route("/", hello, methods=["GET", "POST"]),
            Route("/refuse", refuse, methods=["POST"]),
            Route("/large", large),
        ]
    )
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


async def test_a_large_body_that_stops_is_closed_in_time() -> None:
    async with served(ConnectionLimits(body_seconds=0.3)) as port, opened(port, 1) as streams:
        ((reader, writer),) = streams
        writer.write(b"POST / HTTP/1.1\r\nHost: kalla\r\nContent-Length: 9000000\r\n\r\n")
        writer.write(b"x" * 8_000_000)  # what came quickly gives no time to a pause
        await writer.drain()
        assert await ended(reader)


@pytest.mark.parametrize("path", ["/", "/refuse"], ids=["still read", "answered already"])
async def test_a_body_that_drips_is_closed_in_time(path: str) -> None:
    async with served(ConnectionLimits(body_seconds=0.3)) as port, opened(port, 1) as streams:
        ((reader, writer),) = streams
        head = f"POST {path} HTTP/1.1\r\nHost: kalla\r\nContent-Length: 100000\r\n\r\n"
        writer.write(head.encode())
        gone = asyncio.create_task(ended_at_last(reader))
        async with asyncio.timeout(10):
            while not gone.done():
                with suppress(ConnectionError):
                    writer.write(b"x")
                    await writer.drain()
                await asyncio.sleep(0.02)


async def ended_at_last(reader: asyncio.StreamReader) -> None:
    """Whatever is answered first."""
    with suppress(ConnectionResetError):
        while await reader.read(1000):
            pass


async def test_who_asks_for_much_and_does_not_read_is_closed_in_time() -> None:
    limits = ConnectionLimits(read_seconds=0.3)
    loop = asyncio.get_running_loop()
    async with served(limits) as port, asyncio.timeout(10):
        with socket.create_connection(("127.0.0.1", port)) as deaf:
            deaf.setblocking(False)
            before = large_answers.copy()
            await loop.sock_sendall(deaf, b"GET /large HTTP/1.1\r\nHost: kalla\r\n\r\n")
            while large_answers == before:
                await asyncio.sleep(0.02)


async def test_who_reads_slowly_but_steadily_gets_all() -> None:
    async with served(ConnectionLimits(read_seconds=5)) as port, opened(port, 1) as streams:
        ((reader, writer),) = streams
        writer.write(b"GET /large HTTP/1.1\r\nHost: kalla\r\nConnection: close\r\n\r\n")
        read = 0
        async with asyncio.timeout(60):
            while piece := await reader.read(1 << 18):
                read += len(piece)
                await asyncio.sleep(0.001)
        assert read > LARGE


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
