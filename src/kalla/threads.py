"""The same work on many things, in several threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def spread(
    work: Callable[[Given], Made], given: Iterable[Given], threads: int, name: str = ""
) -> Iterator[Made]:
    """The results in the order of what was given; only so much is taken ahead as keeps all busy.

    After an error nothing more is begun, and what runs is waited for.
    """
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(threads, name) as pool:
        try:
            for each in given:
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(work, each))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each_left in waiting:
                each_left.cancel()
