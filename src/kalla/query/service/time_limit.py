"""The time limit of a query, and the time that each of its stages took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from kalla.query.dispatch.query_records import QueryRecord
from kalla.query.promql.query_errors import Stopped, TimedOut

Result = TypeVar("Result")


class TimeLimit:
    """The time that a query may take."""

    def __init__(self, asked: float | None, most: float) -> None:
        self._until = time.monotonic() + (most if asked is None else min(asked, most))

    @property
    def left(self) -> float:
        return self._until - time.monotonic()

    async def within(self, work: Awaitable[Result], where: str) -> Result:
        try:
            async with asyncio.timeout(self.left):
                return await work
        except TimeoutError:
            raise TimedOut(f"query timed out in {where}") from None


class Stopwatch(TimeLimit):
    """The time a query may take, and the stages it went through."""

    def __init__(self, asked: float | None, most: float, record: QueryRecord) -> None:
        super().__init__(asked, most)
        self.record = record
        self._mark = time.monotonic()
        self.stages: list[tuple[str, float]] = []

    def check(self) -> None:
        if self.record.stop.is_set():
            raise Stopped("query was canceled in query execution")
        if self.left < 0:
            raise TimedOut("query timed out in query execution")

    def stage(self, name: str, following: str) -> None:
        """What was done since the last one had this name; `following` begins."""
        self.record.stage = following
        now = time.monotonic()
        self.stages.append((name, now - self._mark))
        self._mark = now
