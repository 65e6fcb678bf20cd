"""How far a match is. One in one piece tells by a small file, for its task is in another process;
what is known of any goes to whoever watches the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from kalla.errors import NotFound, Unavailable
from kalla.reconcile.plan.plan import Input
from kalla.storage import Storage

# Of a hundred parts those that a stage makes up, as they are of a match of millions of rows; where
# a side is CSV or JSON, whose texts are dearer to read and to compare; and where it fetches tables
# itself.
STAGES = {"load": 15, "match": 20, "evidence": 65}
OF_TEXTS = {"load": 21, "match": 25, "evidence": 54}
FETCHING = {"fetch": 70, "load": 4, "match": 6, "evidence": 20}

_BETWEEN_LOOKS = 0.5

SQL = "sql"  # the stage before the match, where a recipe has SQL: half of all parts

ProgressCallback = Callable[[float], None]
"""Called with how many of the hundred parts are done."""


class MatchProgress:
    """Counts what is done, by however many hands; that it begins is told, too."""

    def __init__(self, told: ProgressCallback, stages: Mapping[str, int] = STAGES) -> None:
        self._told, self._stages = told, stages
        self._done = 0.0
        self._lock = threading.Lock()
        told(0)

    def made(self, stage: str, share: float) -> None:
        """A share of a stage, of which all add up to one."""
        with self._lock:
            self._done += self._stages[stage] * share
            self._told(self._done)


def stages(inputs: Sequence[Input]) -> Mapping[str, int]:
    """What the stages of a match of these make up."""
    if any(each.connector is not None for each in inputs):
        return FETCHING
    return OF_TEXTS if any(each.format in ("csv", "json") for each in inputs) else STAGES


def no_progress(_: float) -> None:
    """For a match that nobody waits for."""


def progress_file(url: str, storage: Storage) -> ProgressCallback:
    """Writes it down; a reader sees one number or another, never half of one."""

    def tell(done: float) -> None:
        with suppress(Unavailable):  # nobody sees how far it is for a while
            storage.write_text(url, f"{done:.1f}")

    return tell


@contextmanager
def follow_progress_file(url: str, storage: Storage, told: ProgressCallback) -> Iterator[None]:
    """Passes on what is written there while the body waits for the match, and at its end.

    If the body fails, its reason is the one that counts.
    """
    left = threading.Event()

    def follow() -> None:
        last, is_over = "", False
        while not is_over:
            is_over = left.wait(_BETWEEN_LOOKS)
            found = ""
            with suppress(NotFound, Unavailable):
                found = storage.read_text(url)
            if found and found != last:
                last = found
                told(float(found))

    with ThreadPoolExecutor(1, "progress") as pool:
        following = pool.submit(follow)
        try:
            yield
        finally:
            left.set()
        following.result()


class Account:
    """All that is known of a match under way. Spark and the match tell it from their threads."""

    def __init__(self, tell: Callable[..., None], **facts: Any) -> None:
        """`tell` is called with all facts whenever some are new."""
        self._tell = tell
        self._facts = facts
        self._began = self._reached = monotonic()
        self._lock = threading.Lock()

    def reach(self, stage: str, done: int, of: int) -> None:
        """So many parts are done. It begins when the first part does: until then Spark may have
        to start a process for it."""
        with self._lock:
            if not done:
                self._began = monotonic()
            self._reach(stage=stage, parts_done=done, parts=of)

    def tasks(self, done: int, of: int) -> None:
        """Spark's, of the query that runs; how far SQL is, only these say."""
        with self._lock:
            if self._facts.get("stage") == SQL:
                self._reach(parts_done=self._facts["parts"] * done // (2 * of))
            self._say(tasks_done=done, tasks=of)

    def _reach(self, **facts: Any) -> None:
        self._reached = monotonic()
        self._say(**facts)

    def _say(self, **facts: Any) -> None:
        # As durations: the clocks of those who read it may differ from ours.
        seconds, since = self._reached - self._began, monotonic() - self._reached
        self._facts |= facts | {"seconds": round(seconds, 3), "since": round(since, 3)}
        self._tell(**self._facts)
