"""How a room plugs its work in: a handler's two halves, and the context its first half gets."""

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
    """What `run` may ask and report while it works. Safe to use from its thread."""

    def __init__(self, inputs: tuple[Any, ...] = ()) -> None:
        self.inputs = inputs  # results of the jobs that came through the gate which opened this one
        self._ended = threading.Event()
        self._reason = ""
        self._progress: dict[str, Any] | None = None
        self._acts: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def progress(self, **facts: Any) -> None:
        """Say how far the work is; the next heartbeat carries it."""
        try:
            document(facts)  # here: heartbeats share a statement that a bad report would break
        except ValueError as error:
            raise ValueError(f"the progress {error}") from None
        self._progress = facts

    def check(self) -> None:
        """Raise Cancelled once the job is no longer ours. Long loops call it often."""
        if self._ended.is_set():
            raise Cancelled(self._reason)

    def wait(self, seconds: float) -> None:
        """Sleep, but end at once with Cancelled when the job is taken away."""
        self._ended.wait(seconds)
        self.check()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def on_end(self, act: Callable[[], None]) -> None:
        """Have `act` called, in its own thread, when the job is taken away: to interrupt Spark."""
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
        """The newest progress not yet carried by a heartbeat."""
        facts, self._progress = self._progress, None
        return facts

    def put_back(self, facts: dict[str, Any] | None) -> None:
        """The heartbeat did not arrive: keep its progress, unless there is a newer one."""
        self._progress = self._progress or facts


class Handler(Protocol):
    """`run` moves data, in a thread, and touches no database. `settle` writes state.

    The worker calls run, then in one transaction: the fenced completion, settle, the follow-ups.
    """

    def run(self, job: Job, context: Context) -> Outcome: ...

    async def settle(self, connection: Connection, job: Job, outcome: Outcome) -> None: ...


class Stateless:
    """For handlers whose result is all there is to keep; their completions share transactions."""

    async def settle(self, connection: Connection, job: Job, outcome: Outcome) -> None:
        """Nothing to write beside the job's own row. Final: see `settles`."""


def settles(handler: Handler) -> bool:
    return not isinstance(handler, Stateless)
