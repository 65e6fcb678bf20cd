"""A connection to NATS that reconnects whenever it is lost.

nats-py could reconnect by itself, but then it sends messages that were queued meanwhile: stale
wake-ups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import nats.errors
from nats.aio.client import Client

from kalla import logs
from kalla.errors import Unavailable
from kalla.redaction import scrub
from kalla.work.service import end

AWAY = (nats.errors.Error, OSError, TimeoutError, Unavailable)
PATIENCE = 1  # at most this many seconds a caller waits for an answer

_RETRY_SECONDS = 0.25
_PING_SECONDS = 2  # two without an answer, and the line is cut

_log = logs.get(__name__)


class NatsConnection:
    """`prepare` is called with each new connection before anybody else may use it."""

    def __init__(self, url: str, prepare: Callable[[Client], Awaitable[None]]) -> None:
        self._servers = [server.strip() for server in url.split(",")]
        self._prepare = prepare
        self._reconnecting: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._ended = asyncio.Event()
        self.client: Client | None = None
        self.error_message: str | None = f"NATS at {self._address} has not answered yet"
        self.lost_before = False

    async def open(self) -> None:
        """Returns when the first try has succeeded or failed."""
        self._reconnecting = asyncio.create_task(self._keep())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._tried.wait(), PATIENCE)

    async def close(self) -> None:
        if self._reconnecting is not None:
            await end(self._reconnecting)
        self.client = None

    def ready(self) -> Client:
        if self.client is None:
            raise Unavailable(self.error_message or "NATS is unreachable")
        return self.client

    def drop(self, error: BaseException) -> None:
        """Closes a connection that a caller found dead before the ping did."""
        self._lose(error)
        self._ended.set()

    def describe(self, error: BaseException | None) -> str:
        if error is None:
            return "the connection was closed"
        return scrub(str(error) or type(error).__name__).removeprefix("nats: ").rstrip(".")

    async def _keep(self) -> None:
        while True:
            self._ended.clear()
            failures: list[BaseException] = []
            client = Client()
            try:
                await self._connect(client, failures)
                await self._prepare(client)
                self._find(client)
                # The callback is not certain to be called; the state is certain to change.
                while not client.is_closed and not self._ended.is_set():
                    await _within(_RETRY_SECONDS, self._ended.wait())
                if self.client is not None:
                    self._lose(client.last_error)
            except Exception as error:  # whatever the client raises, the next try must come
                self._lose(failures[0] if failures else error)
            finally:
                await _within(PATIENCE, client.close())
            self._tried.set()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _connect(self, client: Client, failures: list[BaseException]) -> None:
        async def failed(error: Exception) -> None:
            failures.append(error)

        async def closed() -> None:
            self._ended.set()

        async with asyncio.timeout(PATIENCE * 3):
            await client.connect(
                self._servers,
                name="kalla",
                error_cb=failed,
                closed_cb=closed,
                allow_reconnect=False,
                connect_timeout=PATIENCE,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                ping_interval=_PING_SECONDS,
                max_outstanding_pings=2,
            )

    def _find(self, client: Client) -> None:
        self.client = client
        self.error_message = None
        self._tried.set()
        _log.info("NATS answers", address=self._address)

    def _lose(self, error: BaseException | None) -> None:
        if self.client is not None or not self._tried.is_set():
            _log.warning("NATS is unreachable", address=self._address, reason=self.describe(error))
        self.client = None
        self.lost_before = True
        self.error_message = f"NATS at {self._address} is unreachable: {self.describe(error)}"

    @property
    def _address(self) -> str:
        """Without the part before the @: a token there could not be recognised as a secret."""
        return ", ".join(server.rpartition("://")[2].rpartition("@")[2] for server in self._servers)


async def _within(seconds: float, action: Awaitable[object]) -> None:
    """Waits for it with a time limit; ignores its result."""
    task = asyncio.ensure_future(action)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
        elif not task.cancelled():
            task.exception()
