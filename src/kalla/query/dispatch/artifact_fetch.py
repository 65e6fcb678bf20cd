"""Fetches artifacts from query workers and checks them.

Plain connections in threads: an artifact costs the API a fifth of a millisecond, where an
asynchronous client of general use costs two, and a light query has a dozen of them.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus

import pyarrow as pa

from kalla.errors import KallaError
from kalla.query.protocol.peer_access import PeerAccess
from kalla.query.protocol.versions import checksum_of

_CONNECT_SECONDS = 3.0
_READ_SECONDS = 10.0
_THREADS = 16
_MOST_IDLE = 32  # connections kept open to each worker

Host = tuple[str, int]


class FetchProblem(KallaError):
    """An artifact expired, its worker disconnected, or it arrived damaged twice."""


class ChecksumMismatch(FetchProblem):
    """The received bytes differ from those that the worker wrote."""


class ArtifactClient:
    """Connections to all workers; `damaged` is called for each mismatch."""

    def __init__(self, access: PeerAccess, damaged: Callable[[], object]) -> None:
        self._tls = None if access.tls is None else access.tls.client_context()
        self._server_name = "" if access.tls is None else access.tls.server_name
        self._headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
        self._damaged = damaged
        self._threads = ThreadPoolExecutor(_THREADS, "artifact")
        self._lock = threading.Lock()
        self._idle: dict[Host, list[http.client.HTTPConnection]] = {}
        self._busy: dict[Host, set[http.client.HTTPConnection]] = {}
        self._closed = False

    async def fetch(self, host: Host, path: str, size: int, checksum: str) -> pa.Buffer:
        """Fetches again if the bytes arrived damaged; after that the work must be done again."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._fetch, host, path, size, checksum)

    def hang_up(self, host: Host) -> None:
        """Ends fetches from a lost worker: other fetches need the threads."""
        with self._lock:
            for connection in self._busy.get(host, ()):
                sock = connection.sock
                if sock is not None:
                    with suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)  # its thread closes it
            for connection in self._idle.pop(host, ()):
                connection.close()

    def close(self) -> None:
        for host in list(self._busy):
            self.hang_up(host)
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
            for connection in (one for some in self._idle.values() for one in some):
                connection.close()
            self._idle.clear()

    def _fetch(self, host: Host, path: str, size: int, checksum: str) -> pa.Buffer:
        try:
            return self._fetch_once(host, path, size, checksum)
        except ChecksumMismatch:
            self._damaged()
        try:
            return self._fetch_once(host, path, size, checksum)
        except ChecksumMismatch:
            self._damaged()
            raise

    def _fetch_once(self, host: Host, path: str, size: int, checksum: str) -> pa.Buffer:
        connection = self._connection(host)
        try:
            try:
                status, content = self._request(connection, path, size)
            except (http.client.BadStatusLine, ConnectionError, http.client.CannotSendRequest):
                # The worker closed a connection that was idle for long: open a new one.
                self._return_connection(host, connection, usable=False)
                connection = self._connected(host)
                status, content = self._request(connection, path, size)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise FetchProblem(f"the artifact could not be fetched: {error!r}") from error
        finally:
            self._return_connection(host, connection)
        if status != HTTPStatus.OK:
            raise FetchProblem(f"the artifact is not there (status {status})")
        if content.size != size or checksum_of(content) != checksum:
            raise ChecksumMismatch("the artifact was damaged on its way")
        return content

    def _request(
        self, connection: http.client.HTTPConnection, path: str, size: int
    ) -> tuple[int, pa.Buffer]:
        connection.request("GET", path, headers=self._headers)
        answer = connection.getresponse()
        if answer.status == HTTPStatus.OK and answer.length == size:
            content = bytearray(size)  # read into its place
            read = 0
            while more := answer.readinto(memoryview(content)[read:]):
                read += more
            answer.close()
            if read < size:
                raise http.client.IncompleteRead(b"", size - read)
            return answer.status, pa.py_buffer(content)
        return answer.status, pa.py_buffer(answer.read())

    def _connection(self, host: Host) -> http.client.HTTPConnection:
        with self._lock:
            idle = self._idle.get(host)
            connection = idle.pop() if idle else None
            if connection is not None:
                self._busy.setdefault(host, set()).add(connection)
                return connection
        return self._connected(host)

    def _connected(self, host: Host) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(*host)
        try:
            connection.sock = raw = socket.create_connection(host, _CONNECT_SECONDS)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.settimeout(_READ_SECONDS)
            if self._tls is not None:
                name = self._server_name or host[0]
                connection.sock = self._tls.wrap_socket(raw, server_hostname=name)
        except OSError as error:
            connection.close()
            raise FetchProblem(f"the query worker could not be reached: {error!r}") from error
        with self._lock:
            self._busy.setdefault(host, set()).add(connection)
        return connection

    def _return_connection(
        self, host: Host, connection: http.client.HTTPConnection, *, usable: bool = True
    ) -> None:
        with self._lock:
            self._busy[host].discard(connection)
            idle = self._idle.setdefault(host, [])
            usable = usable and connection.sock is not None and not self._closed
            if usable and len(idle) < _MOST_IDLE:
                idle.append(connection)
                return
        connection.close()
