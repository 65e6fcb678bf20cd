"""The jobs a worker holds, from the claim until they are settled or their thread ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kalla.work.handler import Context
from kalla.work.job import Job

_ABANDONED = 1_000  # remembered until the reaper has long taken them


@dataclass(eq=False)
class HeldJob:
    """One claimed job in this process."""

    job: Job
    context: Context
    since: float = field(default_factory=time.monotonic)
    lost: float | None = None  # when it was found to be lost
    ended: bool = False  # its thread is done; the outcome may still be on its way to Postgres
    returning: bool = False  # a drain is handing it back
    cut_short: bool = False  # and its thread has stopped without an outcome

    def lose(self, reason: str) -> None:
        if self.lost is None:
            self.lost = time.monotonic()
            self.context.end(reason)


class JobSlots:
    """At most `concurrency` jobs. A lost job keeps its slot until its thread has ended."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self._held: dict[int, HeldJob] = {}
        self._abandoned: deque[Job] = deque(maxlen=_ABANDONED)
        self._changed = asyncio.Event()

    def __iter__(self) -> Iterator[HeldJob]:
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    @property
    def free(self) -> int:
        return self.concurrency - len(self._held)

    def ours(self) -> list[HeldJob]:
        return [held for held in self._held.values() if held.lost is None]

    def by_type(self) -> Counter[str]:
        return Counter(held.job.type for held in self._held.values())

    def longest_seconds(self) -> float:
        now = time.monotonic()
        return max((now - held.since for held in self._held.values()), default=0.0)

    def stuck_seconds(self) -> float:
        """How long the oldest thread of a lost job has continued after the loss."""
        now = time.monotonic()
        return max((now - held.lost for held in self._held.values() if held.lost), default=0.0)

    def take(self, jobs: Iterable[HeldJob]) -> None:
        for held in jobs:
            # A job that was lost and claimed again may meet its old thread here: both have a slot.
            self._held[id(held)] = held

    def drop(self, held: HeldJob) -> None:
        self._held.pop(id(held), None)
        self._changed.set()

    def abandon(self, held: HeldJob) -> None:
        """Abandons a job whose end cannot be stored: it gets no more heartbeats, so the reaper
        takes it and counts a failure. Handed back, it would return for ever.
        """
        self._abandoned.append(held.job)
        self.drop(held)

    def known(self) -> list[Job]:
        """The claims that this worker knows: those it holds, and those it has abandoned."""
        return [*(held.job for held in self._held.values()), *self._abandoned]

    def changed(self) -> None:
        self._changed.set()

    async def wait_for_change(self) -> None:
        """Until some job has left its slot or its thread has stopped."""
        self._changed.clear()
        await self._changed.wait()
