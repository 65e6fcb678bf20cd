"""One disk budget for artifacts and downloaded segments: what is evicted when it fills.

Accounting only: the caller deletes the files that `admit_*` returns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from kalla.errors import KallaError

State = Literal["segment", "unacknowledged", "acknowledged"]

# What is evicted first. An artifact that was not fetched comes last: its work would be done again.
# Expired ones are deleted within a second, whatever room there is.
EVICTION_ORDER: tuple[State, ...] = ("segment", "acknowledged", "unacknowledged")


class DiskFull(KallaError):
    """The new file does not fit the budget, whatever is evicted."""


@dataclass
class Entry:
    size: int
    state: State
    used_at: int  # counts uses: the smallest was unused for longest


class DiskBudget:
    """Above the high watermark entries are evicted until the low one is reached.

    `artifact_share` of the budget is never filled by segments.
    """

    def __init__(
        self, total: int, high: float = 0.9, low: float = 0.75, artifact_share: float = 0.25
    ) -> None:
        self.total = total
        self.high = int(total * high)
        self.low = int(total * low)
        self.segment_limit = int(total * (1 - artifact_share))
        self.entries: dict[str, Entry] = {}
        self._held: Counter[State] = Counter()  # bytes of each state
        self._uses = 0

    @property
    def used(self) -> int:
        return self._held.total()

    def held(self, *states: State) -> int:
        return sum(self._held[state] for state in states)

    @property
    def spool_bytes(self) -> int:
        return self.held("unacknowledged", "acknowledged")

    @property
    def cache_bytes(self) -> int:
        return self.held("segment")

    def admit_artifact(self, name: str, size: int) -> list[str]:
        """The names of the files to delete for it."""
        if size > self.high:
            raise DiskFull(
                f"an artifact of {size} bytes does not fit query_worker.disk_bytes ({self.total})"
            )
        return self._admit(name, size, "unacknowledged", EVICTION_ORDER)

    def admit_segment(self, name: str, size: int) -> list[str] | None:
        """The same for a segment; None: it is not kept, because artifacts need the space."""
        if size > self.segment_limit:
            return None
        protected = self.held("unacknowledged")
        if protected + size > self.high:
            return None
        dropped = []
        while self.cache_bytes + size > self.segment_limit:
            dropped.append(self._drop_oldest("segment"))
        return dropped + self._admit(name, size, "segment", EVICTION_ORDER[:-1])

    def use(self, name: str) -> None:
        if name in self.entries:
            self.entries[name].used_at = self._next()

    def acknowledge(self, name: str) -> None:
        if (entry := self.entries.get(name)) is not None:
            self._held[entry.state] -= entry.size
            self._held["acknowledged"] += entry.size
            entry.state = "acknowledged"

    def remove(self, name: str) -> int:
        """The bytes that it had."""
        entry = self.entries.pop(name, None)
        if entry is None:
            return 0
        self._held[entry.state] -= entry.size
        return entry.size

    def _admit(self, name: str, size: int, state: State, order: tuple[State, ...]) -> list[str]:
        self.remove(name)
        dropped: list[str] = []
        used = self.used
        if used + size > self.high:
            for kind in order:
                for old in self._oldest_first(kind):
                    if used + size <= self.low:
                        break
                    if kind == "unacknowledged" and used + size <= self.high:
                        break  # work is not done again for the sake of the low watermark
                    used -= self.remove(old)
                    dropped.append(old)
        self.entries[name] = Entry(size, state, self._next())
        self._held[state] += size
        return dropped

    def _oldest_first(self, state: State) -> list[str]:
        found = [name for name, entry in self.entries.items() if entry.state == state]
        return sorted(found, key=lambda name: self.entries[name].used_at)

    def _drop_oldest(self, state: State) -> str:
        name = self._oldest_first(state)[0]
        self.remove(name)
        return name

    def _next(self) -> int:
        self._uses += 1
        return self._uses
