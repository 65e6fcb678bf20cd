"""Artifacts are fetched whole or not at all, and one worker does not block the others."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from kalla.query.dispatch.artifact_fetch import ArtifactClient, FetchProblem
from kalla.query.protocol.peer_access import PeerAccess
from kalla.query.protocol.versions import checksum_of

CONTENT = bytes(range(250)) * 4
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(CONTENT)

Host = tuple[str, int]


@contextmanager
def worker(serve: Callable[[socket.socket], object]) -> Iterator[Host]:
    """Serves each connection in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                opened.append(connection)
                threading.Thread(target=_served, args=(serve, connection), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in opened:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def _served(serve: Callable[[socket.socket], object], connection: socket.socket) -> None:
    with suppress(OSError), connection:
        serve(connection)


def whole(connection: socket.socket) -> None:
    while connection.recv(65536):
        connection.sendall(HEAD + CONTENT)


def broken_off(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(HEAD + CONTENT[:300])


@pytest.fixture
def mismatches() -> list[int]:
    return []


@pytest.fixture
def client(mismatches: list[int]) -> Iterator[ArtifactClient]:
    opened = ArtifactClient(PeerAccess(), lambda: mismatches.append(1))
    yield opened
    opened.close()


async def fetched(client: ArtifactClient, host: Host) -> bytes:
    client.joined(host)
    stop = threading.Event()
    content = await client.fetch(host, "/artifacts/a", len(CONTENT), checksum_of(CONTENT), stop)
    return bytes(content)


async def test_a_transfer_that_breaks_off_is_not_a_damaged_artifact(
    client: ArtifactClient, mismatches: list[int]
) -> None:
    with worker(broken_off) as host, pytest.raises(FetchProblem, match="IncompleteRead"):
        await fetched(client, host)

    assert mismatches == []


async def test_bytes_damaged_once_are_fetched_again(
    client: ArtifactClient, mismatches: list[int]
) -> None:
    sent: list[int] = []

    def damaged_once(connection: socket.socket) -> None:
        while connection.recv(65536):
            connection.sendall(HEAD + (CONTENT if sent else bytes(len(CONTENT))))
            sent.append(1)

    with worker(damaged_once) as host:
        assert await fetched(client, host) == CONTENT

    assert (len(sent), len(mismatches)) == (2, 1)


async def test_a_worker_that_never_answers_leaves_threads_to_others(client: ArtifactClient) -> None:
    with worker(lambda connection: connection.recv(1) and threading.Event().wait(60)) as silent:
        waiting = [asyncio.create_task(fetched(client, silent)) for _ in range(32)]
        with worker(whole) as host:
            async with asyncio.timeout(5):  # less than the time that a read may take
                assert await fetched(client, host) == CONTENT
        client.hang_up(silent)
        ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(one) for one in ended} == {FetchProblem}


async def test_a_lost_worker_is_not_dialled_again(client: ArtifactClient) -> None:
    dialled: list[int] = []

    def serve(connection: socket.socket) -> None:
        dialled.append(1)
        connection.recv(65536)
        threading.Event().wait(60)

    with worker(serve) as host:
        asking = asyncio.create_task(fetched(client, host))
        while not dialled:
            await asyncio.sleep(0.01)
        client.hang_up(host)
        with pytest.raises(FetchProblem):
            await asking
    assert len(dialled) == 1


async def test_a_connection_that_the_worker_closed_while_idle_is_dialled_again(
    client: ArtifactClient,
) -> None:
    def once(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(HEAD + CONTENT)

    with worker(once) as host:
        assert await fetched(client, host) == CONTENT
        assert await fetched(client, host) == CONTENT


async def test_the_transfer_of_a_query_that_has_ended_stops(client: ArtifactClient) -> None:
    size = 64 << 20
    sent: list[int] = []

    def endless(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(size >> 16):
            connection.sendall(bytes(1 << 16))
            sent.append(1 << 16)
            stop.set()

    stop = threading.Event()
    with worker(endless) as host:
        client.joined(host)
        with pytest.raises(FetchProblem, match="the query has ended"):
            await client.fetch(host, "/artifacts/a", size, "", stop)
    assert sum(sent) < size
