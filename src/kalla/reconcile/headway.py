"""How far a match in one piece is: its task is in another process, so it tells by a small file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

# Of a hundred parts those that a stage makes up, as they are of a match of millions of rows.
STAGES = {"load": 15, "match": 20, "evidence": 65}

_BETWEEN_LOOKS = 0.5

Told = Callable[[float], None]
"""Called with how many of the hundred parts are done."""


class Headway:
    """Counts what is done, by however many hands; that it begins is told, too."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._done = 0.0
        self._lock = threading.Lock()
        told(0)

    def made(self, stage: str, share: float) -> None:
        """A share of a stage, of which all add up to one."""
        with self._lock:
            self._done += STAGES[stage] * share
            self._told(self._done)


def unheard(_: float) -> None:
    """For a match that nobody waits for."""


def told_in(path: Path) -> Told:
    """Writes it down; a reader sees one number or another, never half of one."""

    def tell(done: float) -> None:
        unfinished = path.with_name(f"{path.name}-{os.getpid()}")
        unfinished.write_text(f"{done:.1f}")
        unfinished.rename(path)

    return tell


@contextmanager
def followed(path: Path, told: Told) -> Iterator[None]:
    """Passes on what is written there while the body waits for the match, and at its end."""
    left = threading.Event()

    def follow() -> None:
        last, is_over = "", False
        while not is_over:
            is_over = left.wait(_BETWEEN_LOOKS)
            found = path.read_text() if path.exists() else ""
            if found != last:
                last = found
                told(float(found))

    with ThreadPoolExecutor(1, "headway") as pool:
        following = pool.submit(follow)
        try:
            yield
        finally:
            left.set()
            following.result()
