"""The most memory that this process and all below it hold at once, sampled."""

from __future__ import annotations

import threading
from collections.abc import Collection
from types import TracebackType

import psutil

_BETWEEN = 0.1


class Peak:
    """Summed over processes, so that pages they share count more than once: never too little.

    Processes of others, which only wait for their turn, can be left out with all below them.
    """

    def __init__(self, left_out: Collection[int] = ()) -> None:
        self.mebibytes = 0
        self._left_out = left_out
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process()
        while True:
            total, left_out = 0, set(self._left_out)
            for process in (own, *own.children(recursive=True)):  # children after their parents
                try:
                    if process.pid in left_out or process.ppid() in left_out:
                        left_out.add(process.pid)
                    else:
                        total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue  # it ended between being listed and being asked
            self.mebibytes = max(self.mebibytes, total >> 20)
            if self._done.wait(_BETWEEN):
                return
