"""The interface of job handlers: their two halves, and the context of the first half."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, Protocol

from kalla.database import Connection
from kalla.errors import Cancelled
from kalla.work.document import document
from kalla.work.job import Job, Outcome


class Context:
    """What `run` can query and report while it works. Thread-safe."""

    def __init__(self, inputs: tuple[Any, ...] = ()) -> None:
        self.inputs = inputs  # results of the jobs that came through the gate which opened this one
        self._ended = threading.Event()
        self._reason = ""
        self._progress: dict[str, Any] | None = None
        self._acts: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def progress(self, **facts: Any) -> None:
        """Reports progress; the next heartbeat stores it."""
        try:
            # checked here: heartbeats share a statement that a bad report would break
            document(facts)
        except ValueError as error:
            raise ValueError(f"the progress {error}") from None
        self._progress = facts

    def check(self) -> None:
        """Raises Cancelled once this worker has lost the job. Long loops call it often."""
        if self._ended.is_set():
            raise Cancelled(self._reason)

    def wait(self, seconds: float) -> None:
        """Sleeps, but raises Cancelled at once when the job is lost."""
        self._ended.wait(seconds)
        self.check()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def on_end(self, act: Callable[[], None]) -> None:
        """Calls `act` in its own thread when the job is lost: to interrupt Spark."""
        context = contextvars.copy_context()  # its log lines name the job, too
        with self._lock:
            self.check()
            self._acts.append(lambda: context.run(act))

    def end(self, reason: str) -> None:
        """Called by the worker: the job was cancelled, lost or handed back."""
        with self._lock:
            self._reason = self._reason or reason
            self._ended.set()
            acts, self._acts = self._acts, []
        for act in acts:
            threading.Thread(target=act, name="interrupt", daemon=True).start()

    def take_progress(self) -> dict[str, Any] | None:
        """The newest progress that no heartbeat has stored yet."""
        facts, self._progress = self._progress, None
        return facts

    def put_back(self, facts: dict[str, Any] | None) -> None:
        """The heartbeat failed: keeps its progress, unless there is a newer one."""
        self._progress = self._progress or facts


class Handler(Protocol):
    """`run` moves data, in a thread, and touches no database. `settle` writes state.

    The worker calls run, then in one transaction: the fenced completion, settle, the follow-ups.
    """

    def run(self, job: Job, context: Context) -> Outcome: ...

    async def settle(self, connection: Connection, job: Job, outcome: Outcome) -> None: ...


class Stateless:
    """For handlers that store only a result; their completions share transactions."""

    async def settle(self, connection: Connection, job: Job, outcome: Outcome) -> None:
        """Writes nothing in addition to the job's row. Final: see `settles`."""


def settles(handler: Handler) -> bool:
    return not isinstance(handler, Stateless)
