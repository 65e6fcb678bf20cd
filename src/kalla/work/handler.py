"""How a room plugs its work in: a handler's two halves, and the context its first half gets."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from kalla.database import Connection
from kalla.errors import Cancelled
from kalla.work.job import Job, Outcome


class Context:
    """What `run` may ask and report while it works. Safe to use from its thread."""

    def __init__(self, inputs: tuple[Any, ...] = ()) -> None:
        self.inputs = inputs  # results of the jobs that came through the gate which opened this one
        self._ended = threading.Event()
        self._reason = ""
        self._progress: dict[str, Any] | None = None

    def progress(self, **facts: Any) -> None:
        """Say how far the work is; the next heartbeat carries it."""
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

    def end(self, reason: str) -> None:
        """Called by the worker: the job was cancelled, lost or handed back."""
        self._reason = reason
        self._ended.set()

    def take_progress(self) -> dict[str, Any] | None:
        """The newest progress not yet carried by a heartbeat."""
        facts, self._progress = self._progress, None
        return facts


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


Handlers = Mapping[str, Handler]
