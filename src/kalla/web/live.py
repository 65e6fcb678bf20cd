"""Live pages without a reload: one poller per process, idle while no page is open.

A listener holds what it has sent, never a backlog: a slow one skips states.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from kalla import logs
from kalla.database import AWAY, Connection, Database
from kalla.errors import KallaError
from kalla.statements import load

sql = load("kalla.web", "live.sql")

INTERVAL = 1.0
BEAT_SECONDS = 5.0
_log = logs.get(__name__)

StillWelcome = Callable[[], Awaitable[bool]]


class View(Protocol):
    """The data of a page, as a value: equal views share one database query."""

    def __hash__(self) -> int: ...

    async def fragments(
        self, connection: Connection, now: datetime | None = None
    ) -> Mapping[str, str]:
        """HTML by the id of its element; with `now`, times are formatted as text already."""


@dataclass
class _Watch:
    """A view that at least one page shows."""

    listeners: set[asyncio.Event] = field(default_factory=set)
    latest: Mapping[str, str] = field(default_factory=dict)
    error_message: str | None = None

    def tell(self) -> None:
        for listener in self.listeners:
            listener.set()


class Live:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._watches: dict[View, _Watch] = {}
        self._poller: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._closed = False
        self._ahead = timedelta()  # the database's clock minus the local one

    @property
    def watched(self) -> int:
        return len(self._watches)

    @property
    def polling(self) -> bool:
        return self._poller is not None and not self._poller.done()

    def hurry(self) -> None:
        """Something was changed here: poll now instead of at the next interval."""
        self._hurry.set()

    def close(self) -> None:
        """End every stream, so that a server that stops need not wait for its browsers."""
        self._closed = True
        if self._poller is not None:
            self._poller.cancel()
        for watch in self._watches.values():
            watch.tell()

    async def stream(self, view: View, welcome: StillWelcome) -> AsyncIterator[str]:
        """Server-sent events: changes, a heartbeat without changes, or an error."""
        changed = asyncio.Event()
        watch = self._watches.setdefault(view, _Watch())
        watch.listeners.add(changed)
        if not self.polling and not self._closed:
            self._poller = asyncio.create_task(self._poll(), name="live")
        self._hurry.set()
        try:
            async with contextlib.aclosing(self._events(watch, changed, welcome)) as events:
                async for event in events:
                    yield event
        finally:
            watch.listeners.discard(changed)
            if not watch.listeners and self._watches.get(view) is watch:
                del self._watches[view]

    async def _events(
        self, watch: _Watch, changed: asyncio.Event, welcome: StillWelcome
    ) -> AsyncGenerator[str]:
        sent: dict[str, str] = {}
        error_message: str | None = None
        checked_at = time.monotonic()
        while not self._closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), BEAT_SECONDS)
            changed.clear()
            if time.monotonic() - checked_at >= BEAT_SECONDS:
                checked_at = time.monotonic()
                if not await welcome():
                    yield _event("bye", {})
                    return
            if watch.error_message != error_message:
                error_message = watch.error_message
                yield _event("trouble", {"message": error_message})
            fresh = {name: html for name, html in watch.latest.items() if sent.get(name) != html}
            if fresh:
                sent |= fresh
                yield _event("change", {"now": self._now(), "fragments": fresh})
            else:
                yield _event("beat", {"now": self._now()})

    async def _poll(self) -> None:
        while self._watches:
            self._hurry.clear()
            began = time.monotonic()
            for view, watch in list(self._watches.items()):
                await self._look(view, watch)
            # A slow database is queried less often.
            pause = max(INTERVAL, 4 * (time.monotonic() - began))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), pause)

    async def _look(self, view: View, watch: _Watch) -> None:
        before = watch.latest, watch.error_message
        try:
            async with self._database.transaction() as connection:
                self._ahead = await one_moment(connection) - datetime.now(UTC)
                watch.latest = await view.fragments(connection)
            watch.error_message = None
        except AWAY:
            watch.error_message = "Postgres does not answer"
        except KallaError as error:
            watch.error_message = str(error)
        except Exception:
            _log.exception("a view could not be shown", view=repr(view))
            watch.error_message = "this view cannot be shown; the log says why"
        if before != (watch.latest, watch.error_message):
            watch.tell()

    def _now(self) -> str:
        return (datetime.now(UTC) + self._ahead).isoformat(timespec="milliseconds")


async def one_moment(connection: Connection) -> datetime:
    """The first statement of a transaction: all later reads see one moment, which is returned."""
    await connection.execute(sql.one_moment)
    return await clock(connection)


async def clock(connection: Connection) -> datetime:
    (row,) = await (await connection.execute(sql.clock)).fetchall()
    now: datetime = row["now"]
    return now


def _event(name: str, data: Mapping[str, object]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
