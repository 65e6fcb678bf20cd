"""The threads in which handlers run. Plain functions over data block; the event loop must not."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable

import structlog

from kalla.work.job import Outcome
from kalla.work.job_slots import HeldJob
from kalla.work.job_type import JobTypes

Ended = tuple[HeldJob, Outcome | BaseException]


class Runners:
    """Up to `count` threads, started as they are needed. `on_ended` is called on the event loop.

    The threads are daemons: one that hangs in foreign code cannot keep the process from ending.
    """

    def __init__(
        self, job_types: JobTypes, worker: str, count: int, on_ended: Callable[[list[Ended]], None]
    ) -> None:
        self._job_types = job_types
        self._worker = worker
        self._count = count
        self._on_ended = on_ended
        self._inbox: queue.SimpleQueue[HeldJob | None] = queue.SimpleQueue()
        self._ended: deque[Ended] = deque()
        self._reported = False
        self._threads: list[threading.Thread] = []
        self._running = 0
        self._context: contextvars.Context | None = None
        self._loop = asyncio.get_running_loop()

    def run(self, held: HeldJob) -> None:
        # The claims' context names the worker: log lines about the end must name it too.
        self._context = self._context or contextvars.copy_context()
        self._running += 1
        if self._running > len(self._threads) < self._count:
            name = f"job-{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._inbox.put(held)

    def stop(self) -> None:
        """Let idle threads end. Busy ones end with their job, or with the process."""
        for _ in self._threads:
            self._inbox.put(None)

    def _serve(self) -> None:
        while (held := self._inbox.get()) is not None:
            job = held.job
            ending: Outcome | BaseException
            with structlog.contextvars.bound_contextvars(
                worker=self._worker, job=job.job_id, run=job.run_id, fence=job.fence
            ):
                try:
                    held.context.check()
                    ending = self._job_types.handler(job.type).run(job, held.context)
                    if not isinstance(ending, Outcome):
                        raise TypeError(f"the handler of {job.type} returned no Outcome")
                except BaseException as error:  # a handler may raise anything; the job's row tells
                    ending = error
            self._ended.append((held, ending))
            # One call into the loop carries all that ended before the loop gets to it.
            if not self._reported:
                self._reported = True
                try:
                    self._loop.call_soon_threadsafe(self._deliver, context=self._context)
                except RuntimeError:  # the loop is closed: the process is ending, the fence decides
                    return

    def _deliver(self) -> None:
        self._reported = False
        ended: list[Ended] = []
        while self._ended:
            ended.append(self._ended.popleft())
        self._running -= len(ended)
        if ended:
            self._on_ended(ended)
