"""Wake-ups by Postgres itself, LISTEN and NOTIFY: no other server, and every listener wakes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from kalla import logs
from kalla.database import AWAY, Database
from kalla.redaction import scrub
from kalla.work.service import end

JOBS = "kalla_jobs"
ALARM = "kalla_alarm"

_RETRY_SECONDS = 0.25
_PATIENCE = 1.0  # at most this many seconds a caller waits for Postgres

_log = logs.get(__name__)


class PostgresWake:
    """Listens on a connection of its own, sends through the pool."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reconnecting: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._error_message: str | None = "Postgres has not been asked for wake-ups yet"
        self._lost_before = False
        self._missed = False
        self._nudged: set[str] = set()
        self._waiters: set[asyncio.Event] = set()
        self._alarm = asyncio.Event()

    async def start(self) -> None:
        self._reconnecting = asyncio.create_task(self._keep())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._tried.wait(), _PATIENCE)

    async def stop(self) -> None:
        if self._reconnecting is not None:
            await end(self._reconnecting)

    @property
    def error_message(self) -> str | None:
        return self._error_message

    async def nudge(self, waiting: Mapping[str, int]) -> None:
        queues = [queue for queue, count in waiting.items() if count > 0]
        if queues:
            await self._notify(JOBS, queues)

    async def wait(self, queues: Sequence[str], timeout: float) -> set[str]:
        deadline = asyncio.get_running_loop().time() + timeout
        stirred = asyncio.Event()
        self._waiters.add(stirred)
        try:
            while True:
                if self._missed:
                    self._missed = False
                    return set(queues)
                if nudged := self._nudged.intersection(queues):
                    self._nudged -= nudged
                    return nudged
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await stirred.wait()
                if not stirred.is_set():
                    return set()
                stirred.clear()
        finally:
            self._waiters.discard(stirred)

    async def claimed(self, claims: Mapping[str, int]) -> None:
        """Nothing to remove: a notification is consumed when it is received."""

    async def alarm(self) -> None:
        await self._notify(ALARM, [""])

    async def alarmed(self) -> None:
        await self._alarm.wait()
        self._alarm.clear()

    async def depth(self) -> Mapping[str, int]:
        return {}

    async def settle(self, waiting: Mapping[str, int]) -> None:
        """Nothing to settle: there is no depth."""

    async def _notify(self, channel: str, payloads: Sequence[str]) -> None:
        try:
            async with asyncio.timeout(_PATIENCE), self._database.transaction() as connection:
                # A notification outlives no crash anyway: its commit need not wait for the disk.
                await connection.execute(
                    "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, payload)"
                    " FROM unnest(%s::text[]) AS payload",
                    [channel, list(payloads)],
                )
        except (*AWAY, TimeoutError) as error:
            _log.warning("wake-up not sent", channel=channel, reason=_describe(error))

    async def _keep(self) -> None:
        while True:
            try:
                await self._listen()
            except Exception as error:  # whatever the error, the next try must follow
                self._lose(error)
            self._tried.set()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _listen(self) -> None:
        connection = await self._database.connect()
        try:
            await connection.execute(f"LISTEN {JOBS}")
            await connection.execute(f"LISTEN {ALARM}")
            self._find()
            async for notification in connection.notifies():
                if notification.channel == ALARM:
                    self._alarm.set()
                else:
                    self._nudged.add(notification.payload)
                    self._stir()
        finally:
            await connection.close()

    def _find(self) -> None:
        self._error_message = None
        self._tried.set()
        _log.info("listening for wake-ups")
        if self._lost_before:  # notifications sent meanwhile are lost
            self._missed = True
            self._alarm.set()
            self._stir()

    def _lose(self, error: BaseException) -> None:
        if self._error_message is None or not self._tried.is_set():
            _log.warning("no longer listening for wake-ups", reason=_describe(error))
        self._lost_before = True
        self._error_message = f"Postgres does not answer for wake-ups: {_describe(error)}"

    def _stir(self) -> None:
        for waiter in self._waiters:
            waiter.set()


def _describe(error: BaseException) -> str:
    return scrub(str(error)).strip().rstrip(".") or type(error).__name__
