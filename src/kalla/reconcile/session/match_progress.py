"""The progress of a match. A match in one task reports through a small file, because the task runs
in another process; the progress is shown with the run.
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
    """Counts what is done, in several threads; also reports the start."""

    def __init__(
        self, progress_callback: ProgressCallback, stages: Mapping[str, int] = STAGES
    ) -> None:
        self._progress_callback, self._stages = progress_callback, stages
        self._done = 0.0
        self._lock = threading.Lock()
        progress_callback(0)

    def made(self, stage: str, share: float) -> None:
        """Adds a share of a stage; the shares of a stage add up to one."""
        with self._lock:
            self._done += self._stages[stage] * share
            self._progress_callback(self._done)


def stages(inputs: Sequence[Input]) -> Mapping[str, int]:
    """The weights of the stages of a match of these inputs."""
    if any(each.connector is not None for each in inputs):
        return FETCHING
    return OF_TEXTS if any(each.format in ("csv", "json") for each in inputs) else STAGES


def no_progress(_: float) -> None:
    """The callback of a match without an observer."""


def progress_file(url: str, storage: Storage) -> ProgressCallback:
    """Writes progress to a file; a reader sees one number or another, never a part of one."""

    def report(done: float) -> None:
        with suppress(Unavailable):  # progress is not visible for a while
            storage.write_text(url, f"{done:.1f}")

    return report


@contextmanager
def follow_progress_file(
    url: str, storage: Storage, progress_callback: ProgressCallback
) -> Iterator[None]:
    """Passes the file's progress on while the body waits for the match, and at its end.

    If the body fails, its error is raised.
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
                progress_callback(float(found))

    with ThreadPoolExecutor(1, "progress") as pool:
        following = pool.submit(follow)
        try:
            yield
        finally:
            left.set()
        following.result()


class Account:
    """The current facts of a running match. Spark and the match report them from their threads."""

    def __init__(self, callback: Callable[..., None], **facts: Any) -> None:
        """Calls `callback` with all facts whenever some have changed."""
        self._callback = callback
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
            self._update(tasks_done=done, tasks=of)

    def _reach(self, **facts: Any) -> None:
        self._reached = monotonic()
        self._update(**facts)

    def _update(self, **facts: Any) -> None:
        # As durations: the clocks of those who read it may differ from ours.
        seconds, since = self._reached - self._began, monotonic() - self._reached
        self._facts |= facts | {"seconds": round(seconds, 3), "since": round(since, 3)}
        self._callback(**self._facts)
