"""Connections of an HTTP server: a bound on their number, and time limits before anybody is known.

uvicorn alone waits for the first request of a connection without an end, so that a thousand silent
ones would take every file that a process may open.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_WANTED_FILES = 65_536
_LEAST_RATE = 16 << 10  # bytes of a body a second
_OTHER_FILES = 256  # of the database, of evidence, of segments that are being read


def raise_file_limit() -> None:
    """As many open files as the machine allows, up to some ten thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, _WANTED_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """What the process may open, without the files that it needs otherwise."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _WANTED_FILES if soft == resource.RLIM_INFINITY else min(soft, _WANTED_FILES)
    return max(files - _OTHER_FILES, files // 4)


@dataclass
class ConnectionLimits:
    """The limits of one server, and which of its connections have not sent a request yet."""

    connections: int = field(default_factory=most_connections)
    head_seconds: float = 10.0  # to send the first line and the headers of a request
    body_seconds: float = 60.0  # between pieces of a body, and for it all; more for a large one
    read_seconds: float = 60.0  # to take some of an answer, once it waits
    silent: dict[BoundedProtocol, None] = field(default_factory=dict)  # the oldest first

    def protocol(self, **arguments: Any) -> BoundedProtocol:
        return BoundedProtocol(self, **arguments)


class BoundedProtocol(H11Protocol):
    """A new connection beyond the bound takes the place of the one that is silent for longest.

    Where all have a request under way, the new one is closed.
    """

    def __init__(self, limits: ConnectionLimits, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._body_until: float | None = None  # while a body is on its way

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            oldest = next(iter(self._limits.silent), self)
            self._limits.silent.pop(oldest, None)
            oldest.transport.abort()
            if oldest is self:
                return
        self._limits.silent[self] = None
        self._expect_within(self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.silent.pop(self, None)
        self._stop_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        state = self.conn.their_state
        if state is h11.IDLE:
            # A request that has begun and whose head is not whole; a new piece gives no more time.
            if self._timer is None and self.conn.trailing_data[0]:
                self._expect_within(self._limits.head_seconds)
            return
        self._limits.silent.pop(self, None)
        self._stop_timer()
        if state is not h11.SEND_BODY:
            self._body_until = None
            return
        now = self.loop.time()
        if self._body_until is None:
            self._body_until = now + self._limits.body_seconds
        if self.cycle is None or not self.cycle.response_complete:  # what comes later is of no use
            self._body_until += len(data) / _LEAST_RATE
        # A body that stops is cut soon, however much of it came quickly.
        self._expect_within(min(self._body_until - now, self._limits.body_seconds))

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _expect_reading(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(self._limits.read_seconds, self._not_read, waiting)

    def _not_read(self, waiting: int) -> None:
        """A slow client that takes some of the answer keeps its connection."""
        if self.transport.get_write_buffer_size() < waiting:
            self._expect_reading()
        else:
            self.transport.abort()

    def _expect_within(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._too_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._timer = None
        if self.flow.read_paused:  # the app reads slowly, not the client
            if self._body_until is not None:
                self._body_until = self.loop.time() + self._limits.body_seconds
            self._expect_within(self._limits.body_seconds)
        elif not self.transport.is_closing():
            self.transport.abort()
