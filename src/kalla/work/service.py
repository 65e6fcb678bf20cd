"""A service: a background task of a process, with one start/stop interface."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from kalla import logs
from kalla.database import AWAY, COLLIDED, NOT_MIGRATED, TOO_LARGE
from kalla.redaction import scrub

_log = logs.get(__name__)
Result = TypeVar("Result")

_LONGEST_BACKOFF = 2.0
_CANCEL_SECONDS = 1.0
_SETTLED_SECONDS = 60.0  # a service that has worked this long restarts at once
_ASIDE_SECONDS = 600.0
_MOST_COLLISIONS = 5


# Temporary errors: a server is unreachable, or two transactions conflict.
FORESEEN = (*AWAY, *NOT_MIGRATED, *COLLIDED)


class Service(ABC):
    """Starts, works until stopped, and reports its current error."""

    name: str

    def __init__(self) -> None:
        self.error_message: str | None = None  # a server is unreachable; the service retries
        self.death: str | None = None  # the service ended by an unexpected error
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._live(), name=self.name)

    async def stop(self) -> None:
        if self._task is not None:
            await end(self._task)
            self._task = None

    @abstractmethod
    async def work(self) -> None:
        """Runs until it is cancelled. Returning, or raising anything else, counts as a crash."""

    async def _live(self) -> None:
        """Works, and restarts after an unexpected error: one row, one message or one server must
        not end a service, nor the process.
        """
        backoff = 0.1
        while True:
            began = time.monotonic()
            try:
                await self.work()
                self.death = f"{self.name} ended by itself"
                return
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._failed(error)
            except BaseException as error:  # whatever the error, /health must report it
                self.death = f"{self.name} died: {type(error).__name__}: {scrub(str(error))}"
                _log.exception("service died", service=self.name)
                return
            if time.monotonic() - began > _SETTLED_SECONDS:
                backoff = 0.1
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, _LONGEST_BACKOFF)

    def _failed(self, error: Exception) -> None:
        sentence = f"{self.name} failed: {type(error).__name__}: {scrub(str(error))}"
        if self.error_message != sentence:
            _log.exception("service failed and tries again", service=self.name)
        self.error_message = sentence


class Periodic(Service):
    """Repeats one small task. No error ends it: an unreachable server or an unexpected row is
    reported, and it tries again.
    """

    def __init__(self, name: str, interval: float) -> None:
        super().__init__()
        self.name = name
        self.interval = interval
        self._hurry = asyncio.Event()

    @abstractmethod
    async def tick(self) -> float | None:
        """Runs the task once; may return the seconds until the next time, if less than the
        interval.
        """

    def hurry(self) -> None:
        """Runs the task now instead of at the next interval."""
        self._hurry.set()

    async def work(self) -> None:
        backoff = 0.1
        while True:
            self._hurry.clear()
            try:
                sooner = await self.tick()
                # Some jitter, so that many processes do not poll at the same time.
                pause = self.interval * random.uniform(0.9, 1.1)  # noqa: S311
                pause = pause if sooner is None else min(pause, max(sooner, 0.0))
                self._recovered()
                backoff = 0.1
            except Exception as error:
                self._failed(error)
                pause = min(self.interval, backoff)
                backoff = min(backoff * 2, _LONGEST_BACKOFF)
            if pause > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), pause)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, FORESEEN):
            self._away(error)
        else:
            super()._failed(error)

    def _away(self, error: BaseException) -> None:
        sentence = postgres_error_message(error)
        if self.error_message is None:
            _log.warning("service cannot reach a server", service=self.name, error=sentence)
        self.error_message = sentence

    def _recovered(self) -> None:
        if self.error_message is not None:
            _log.info("service has recovered", service=self.name)
        self.error_message = None


class SetAside:
    """Rows that a service cannot handle. Each is reported, skipped for a while and tried again; it
    does not block others.
    """

    def __init__(self, service: str) -> None:
        self._service = service
        self._until: dict[Hashable, float] = {}  # by what it is, in monotonic seconds
        self._collided: dict[Hashable, int] = {}  # how often, without a success between

    def current(self) -> set[Hashable]:
        now = time.monotonic()
        self._until = {row: until for row, until in self._until.items() if until > now}
        return set(self._until)

    async def attempt(self, row: Hashable, act: Callable[[], Awaitable[Result]]) -> Result | None:
        """The result; None for a row that is set aside, now or before."""
        if row in self.current():
            return None
        try:
            result = await act()
            self._collided.pop(row, None)
            return result
        except COLLIDED:
            # Another transaction was in the way; if it always is, the row itself is to blame.
            self._collided[row] = self._collided.get(row, 0) + 1
            if self._collided[row] < _MOST_COLLISIONS:
                raise
            self._set(row)
        except FORESEEN as error:
            if not isinstance(error, TOO_LARGE):
                raise
            self._set(row)
        except Exception:
            self._set(row)
        return None

    def _set(self, row: Hashable) -> None:
        """Call this in the handler of an error; the error is logged."""
        _log.exception("a row is set aside", service=self._service, row=row)
        self._until[row] = time.monotonic() + _ASIDE_SECONDS
        self._collided.pop(row, None)


async def each_step(steps: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Runs all steps, also when one fails: raises its error at the end."""
    first: Exception | None = None
    for step in steps:
        try:
            await step()
        except FORESEEN:
            raise
        except Exception as error:
            first = first or error
    if first is not None:
        raise first


class ServiceGroup:
    """The services of one process, started in order and stopped in reverse."""

    def __init__(self, services: Sequence[Service]) -> None:
        self.services = tuple(services)

    async def start(self) -> None:
        for service in self.services:
            await service.start()

    async def stop(self) -> None:
        for service in reversed(self.services):
            await service.stop()

    def deaths(self) -> list[str]:
        return [service.death for service in self.services if service.death is not None]


async def end(*tasks: asyncio.Task[None]) -> None:
    """Cancel, and again until all have ended.

    A cancel can be lost: when a connection breaks while psycopg cancels its query, the broken
    connection is what psycopg raises, and a service that retries after it would do so for ever.
    """
    while going := [task for task in tasks if not task.done()]:
        for task in going:
            task.cancel()
        await asyncio.wait(going, timeout=_CANCEL_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


def postgres_error_message(error: BaseException) -> str:
    reason = scrub(str(error)).strip() or type(error).__name__
    if isinstance(error, NOT_MIGRATED):
        return f"the database is not migrated, run `kalla migrate`: {reason}"
    return f"Postgres does not answer: {reason}"
