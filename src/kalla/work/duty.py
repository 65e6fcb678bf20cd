"""A duty: one thing a process keeps doing in the background, behind one start/stop interface."""

from __future__ import annotations

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence

from kalla import logs
from kalla.database import AWAY, COLLIDED, NOT_MIGRATED
from kalla.redaction import scrub

_log = logs.get(__name__)

_LONGEST_BACKOFF = 2.0
_CANCEL_SECONDS = 1.0


class Duty(ABC):
    """Starts, works until stopped, and says when it died or what troubles it."""

    name: str

    def __init__(self) -> None:
        self.trouble: str | None = None  # a server is away; the duty goes on trying
        self.death: str | None = None  # the duty ended by an error nobody foresaw
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
        try:
            await self.work()
            self.death = f"{self.name} ended by itself"
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # whatever it is, /health must tell
            self.death = f"{self.name} died: {type(error).__name__}: {scrub(str(error))}"
            _log.exception("duty died", duty=self.name)


class Periodic(Duty):
    """Does the same small thing again and again. A server that is away does not end it."""

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
            except (*AWAY, *NOT_MIGRATED, *COLLIDED) as error:
                self._away(error)
                pause = min(self.interval, backoff)
                backoff = min(backoff * 2, _LONGEST_BACKOFF)
            if pause > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), pause)

    def _away(self, error: BaseException) -> None:
        sentence = trouble_with_postgres(error)
        if self.trouble is None:
            _log.warning("duty cannot reach a server", duty=self.name, trouble=sentence)
        self.trouble = sentence

    def _recovered(self) -> None:
        if self.trouble is not None:
            _log.info("duty goes on", duty=self.name)
        self.trouble = None


class Crew:
    """The duties of one process, started in order and stopped in reverse."""

    def __init__(self, duties: Sequence[Duty]) -> None:
        self.duties = tuple(duties)

    async def start(self) -> None:
        for duty in self.duties:
            await duty.start()

    async def stop(self) -> None:
        for duty in reversed(self.duties):
            await duty.stop()

    def deaths(self) -> list[str]:
        return [duty.death for duty in self.duties if duty.death is not None]


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
