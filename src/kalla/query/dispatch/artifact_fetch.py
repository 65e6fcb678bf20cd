"""Fetches artifacts from query workers and checks them.

Plain connections in threads: an artifact costs the API a fifth of a millisecond, where an
asynchronous client of general use costs two, and a light query has a dozen of them.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

import pyarrow as pa

from kalla.errors import KallaError
from kalla.query.protocol.peer_access import PeerAccess
from kalla.query.protocol.versions import checksum_of

_CONNECT_SECONDS = 3.0
_READ_SECONDS = 10.0  # for the next bytes
_SLOWEST_BYTES = 1_000_000  # a second, over a whole transfer
_PIECE_BYTES = 256 << 10
_THREADS = 16
_THREADS_PER_WORKER = 8  # so that a slow worker leaves threads to others
_MOST_IDLE = 32  # connections kept open to each worker

Host = tuple[str, int]


class FetchProblem(KallaError):
    """An artifact expired, its worker disconnected, or it arrived damaged twice."""


class ChecksumMismatch(FetchProblem):
    """The received bytes differ from those that the worker wrote."""


@dataclass(frozen=True)
class _Transfer:
    path: str
    size: int
    checksum: str
    stop: threading.Event


class _Peer:
    """The connections to a worker whose control stream is open."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.lost = False
        self.idle: list[http.client.HTTPConnection] = []
        self.busy: set[http.client.HTTPConnection] = set()
        self.places = asyncio.Semaphore(_THREADS_PER_WORKER)

    def demand_there(self) -> None:
        if self.lost:
            raise FetchProblem("its query worker was lost")


class ArtifactClient:
    """Connections to all workers; `damaged` is called for each mismatch."""

    def __init__(self, access: PeerAccess, damaged: Callable[[], object]) -> None:
        self._tls = None if access.tls is None else access.tls.client_context()
        self._server_name = "" if access.tls is None else access.tls.server_name
        self._headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
        self._damaged = damaged
        self._threads = ThreadPoolExecutor(_THREADS, "artifact")
        self._lock = threading.Lock()
        self._peers: dict[Host, _Peer] = {}

    def joined(self, host: Host) -> None:
        self._peers.setdefault(host, _Peer(host))

    async def fetch(
        self, host: Host, path: str, size: int, checksum: str, stop: threading.Event
    ) -> pa.Buffer:
        """Fetches again if the bytes arrived damaged; after that the work must be done again.

        `stop` ends it: nobody waits for the artifact any more.
        """
        peer = self._peers.get(host)
        if peer is None:
            raise FetchProblem("its query worker was lost")
        async with peer.places:
            transfer = _Transfer(path, size, checksum, stop)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._fetch, peer, transfer)

    def hang_up(self, host: Host) -> None:
        """Ends fetches from a lost worker: other fetches need the threads."""
        peer = self._peers.pop(host, None)
        if peer is None:
            return
        with self._lock:
            peer.lost = True
            for connection in peer.busy:
                sock = connection.sock
                if sock is not None:
                    with suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)  # its thread closes it
            for connection in peer.idle:
                connection.close()
            peer.idle.clear()

    def close(self) -> None:
        for host in list(self._peers):
            self.hang_up(host)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, peer: _Peer, transfer: _Transfer) -> pa.Buffer:
        try:
            return self._fetch_once(peer, transfer)
        except ChecksumMismatch:
            self._damaged()
        try:
            return self._fetch_once(peer, transfer)
        except ChecksumMismatch:
            self._damaged()
            raise

    def _fetch_once(self, peer: _Peer, transfer: _Transfer) -> pa.Buffer:
        connection, reused = self._connection(peer)
        usable = False
        try:
            try:
                status, content = self._request(connection, transfer)
            except (http.client.BadStatusLine, ConnectionError, http.client.CannotSendRequest):
                if not reused:
                    raise
                # The worker closed a connection that was idle for long: open a new one.
                self._return_connection(peer, connection, usable=False)
                connection = self._connected(peer)
                status, content = self._request(connection, transfer)
            usable = True
        except (OSError, http.client.HTTPException) as error:
            raise FetchProblem(f"the artifact could not be fetched: {error!r}") from error
        finally:
            self._return_connection(peer, connection, usable=usable)
        if status != HTTPStatus.OK:
            raise FetchProblem(f"the artifact is not there (status {status})")
        if content.size != transfer.size or checksum_of(content) != transfer.checksum:
            raise ChecksumMismatch("the artifact was damaged in transit")
        return content

    def _request(
        self, connection: http.client.HTTPConnection, transfer: _Transfer
    ) -> tuple[int, pa.Buffer]:
        until = time.monotonic() + _READ_SECONDS + transfer.size / _SLOWEST_BYTES
        connection.request("GET", transfer.path, headers=self._headers)
        answer = connection.getresponse()
        if answer.status != HTTPStatus.OK or answer.length != transfer.size:
            return answer.status, pa.py_buffer(answer.read())
        content = bytearray(transfer.size)  # read into its place
        view, read = memoryview(content), 0
        while read < transfer.size:
            if transfer.stop.is_set():
                raise FetchProblem("the query has ended")
            if time.monotonic() > until:
                raise TimeoutError("the worker sends too slowly")
            more = answer.readinto(view[read : read + _PIECE_BYTES])
            if not more:
                raise http.client.IncompleteRead(b"", transfer.size - read)
            read += more
        answer.close()
        return answer.status, pa.py_buffer(content)

    def _connection(self, peer: _Peer) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it was used before."""
        with self._lock:
            if peer.idle:
                connection = peer.idle.pop()
                peer.busy.add(connection)
                return connection, True
        return self._connected(peer), False

    def _connected(self, peer: _Peer) -> http.client.HTTPConnection:
        peer.demand_there()
        connection = http.client.HTTPConnection(*peer.host)
        try:
            connection.sock = raw = socket.create_connection(peer.host, _CONNECT_SECONDS)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.settimeout(_READ_SECONDS)
            if self._tls is not None:
                name = self._server_name or peer.host[0]
                connection.sock = self._tls.wrap_socket(raw, server_hostname=name)
        except OSError as error:
            connection.close()
            raise FetchProblem(f"the query worker could not be reached: {error!r}") from error
        with self._lock:
            peer.busy.add(connection)
        try:
            peer.demand_there()  # hang_up may not have known of this connection
        except FetchProblem:
            self._return_connection(peer, connection, usable=False)
            raise
        return connection

    def _return_connection(
        self, peer: _Peer, connection: http.client.HTTPConnection, *, usable: bool
    ) -> None:
        with self._lock:
            peer.busy.discard(connection)
            usable = usable and connection.sock is not None and not peer.lost
            if usable and len(peer.idle) < _MOST_IDLE:
                peer.idle.append(connection)
                return
        connection.close()
