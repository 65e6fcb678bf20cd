"""A service: one thing a process keeps doing in the background, behind one start/stop interface."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from kalla import logs
from kalla.database import AWAY, COLLIDED, NOT_MIGRATED
from kalla.redaction import scrub

_log = logs.get(__name__)
Result = TypeVar("Result")

_LONGEST_BACKOFF = 2.0
_CANCEL_SECONDS = 1.0
_SETTLED_SECONDS = 60.0  # a service that has worked for so long begins again at once
_ASIDE_SECONDS = 600.0


# What passes by itself: a server is away, or two transactions met.
FORESEEN = (*AWAY, *NOT_MIGRATED, *COLLIDED)


class Service(ABC):
    """Starts, works until stopped, and says when it died or what troubles it."""

    name: str

    def __init__(self) -> None:
        self.trouble: str | None = None  # a server is away; the service goes on trying
        self.death: str | None = None  # the service ended by an error nobody foresaw
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._live(), name=self.name)

    async def stop(self) -> None:
        if self._task is not None:
            await end(self._task)
            self._task = None

    @abstractmethod
    async def work(self) -> None:
        """Runs until it is cancelled. To return, or to raise anything else, is to die."""

    async def _live(self) -> None:
        """Work, and begin again after an error that nobody foresaw: what one row, one message or
        one server causes must not end a service, nor the process with it."""
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
            except BaseException as error:  # whatever it is, /health must tell
                self.death = f"{self.name} died: {type(error).__name__}: {scrub(str(error))}"
                _log.exception("service died", service=self.name)
                return
            if time.monotonic() - began > _SETTLED_SECONDS:
                backoff = 0.1
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, _LONGEST_BACKOFF)

    def _failed(self, error: Exception) -> None:
        sentence = f"{self.name} failed: {type(error).__name__}: {scrub(str(error))}"
        if self.trouble != sentence:
            _log.exception("service failed and tries again", service=self.name)
        self.trouble = sentence


class Periodic(Service):
    """Does the same small thing again and again. Nothing that goes wrong in it ends it: a server
    that is away, or a row nobody foresaw, is told, and it tries again."""

    def __init__(self, name: str, interval: float) -> None:
        super().__init__()
        self.name = name
        self.interval = interval
        self._hurry = asyncio.Event()

    @abstractmethod
    async def tick(self) -> float | None:
        """Do it once; may return seconds until the next time, if sooner than the interval."""

    def hurry(self) -> None:
        """Do it now instead of at the next interval."""
        self._hurry.set()

    async def work(self) -> None:
        backoff = 0.1
        while True:
            self._hurry.clear()
            try:
                sooner = await self.tick()
                # Some jitter, so that many processes do not ask in step.
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
        sentence = trouble_with_postgres(error)
        if self.trouble is None:
            _log.warning("service cannot reach a server", service=self.name, trouble=sentence)
        self.trouble = sentence

    def _recovered(self) -> None:
        if self.trouble is not None:
            _log.info("service goes on", service=self.name)
        self.trouble = None


class SetAside:
    """Rows that a service cannot handle. Each is told, left alone for a while and tried again; it
    holds up no other."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._until: dict[Hashable, float] = {}  # by what it is, in monotonic seconds

    def current(self) -> set[Hashable]:
        now = time.monotonic()
        self._until = {row: until for row, until in self._until.items() if until > now}
        return set(self._until)

    async def attempt(self, row: Hashable, act: Callable[[], Awaitable[Result]]) -> Result | None:
        """What it gives; None for a row that is set aside now or was before."""
        if row in self.current():
            return None
        try:
            return await act()
        except FORESEEN:
            raise
        except Exception:
            _log.exception("a row is set aside", service=self._service, row=row)
            self._until[row] = time.monotonic() + _ASIDE_SECONDS
            return None


async def each_step(steps: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """All of them, also when one fails: its error is raised at the end."""
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
    connection is what psycopg raises, and whoever goes on trying after that would do so for ever.
    """
    while going := [task for task in tasks if not task.done()]:
        for task in going:
            task.cancel()
        await asyncio.wait(going, timeout=_CANCEL_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


def trouble_with_postgres(error: BaseException) -> str:
    reason = scrub(str(error)).strip() or type(error).__name__
    if isinstance(error, NOT_MIGRATED):
        return f"the database is not migrated, run `kalla migrate`: {reason}"
    return f"Postgres does not answer: {reason}"
