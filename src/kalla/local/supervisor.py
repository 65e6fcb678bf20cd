"""Keeps one server running: restarts it when it ends or fails its checks, stops it on request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kalla.errors import StartFailed
from kalla.local.process import Server

LOOK_SECONDS = 0.25
HEALTH_SECONDS = 5.0
SICK_AFTER = 3
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
SETTLED_SECONDS = 60.0


@dataclass(frozen=True)
class News:
    """An event of a server, for display."""

    event: Literal["starting", "ready", "trouble", "stopping", "stopped"]
    server: Server
    text: str = ""
    seconds: float = 0.0


class Supervisor(threading.Thread):
    """One thread owns one server, so nobody else has to lock it."""

    def __init__(
        self, server: Server, tell: Callable[[News], None], hurried: Callable[[], bool]
    ) -> None:
        super().__init__(name=f"supervisor of {server.name}", daemon=True)
        self.server = server
        self.settled = threading.Event()  # the first start has succeeded or failed
        self.failure: StartFailed | None = None
        self._publish = tell
        self._hurried = hurried
        self._leaving = threading.Event()

    def leave(self) -> None:
        """Have the server stopped; join() to wait for it."""
        self._leaving.set()

    def run(self) -> None:
        try:
            self._begin()
            self.settled.set()
            self._keep()
        except StartFailed as failure:
            self.failure = failure
        except Exception as error:
            # a dead supervisor would look like a healthy one
            self.failure = StartFailed(f"{self.server.name} cannot be kept running: {error!r}")
            self._publish(News("trouble", self.server, str(self.failure)))
        finally:
            self._end()
            self.settled.set()

    def _begin(self) -> None:
        began = time.monotonic()
        self._publish(News("starting", self.server))
        self.server.start(self._leaving.is_set)
        self._publish(News("ready", self.server, seconds=time.monotonic() - began))

    def _keep(self) -> None:
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            error_message = self._watch()
            if error_message is None:
                return
            if time.monotonic() - began > SETTLED_SECONDS:
                pause = FIRST_PAUSE
            while error_message and not self._leaving.is_set():
                again = f"; restarting it in {pause:g} s"
                self._publish(News("trouble", self.server, error_message.rstrip(".") + again))
                if self._leaving.wait(pause):
                    return
                pause = min(pause * 2, LONGEST_PAUSE)
                try:
                    self._begin()
                    error_message = ""
                except (StartFailed, OSError) as failure:
                    error_message = str(failure)

    def _watch(self) -> str | None:
        """Waits for a failure and returns its message; None when asked to stop."""
        sick, looked = 0, time.monotonic()
        while not self._leaving.wait(LOOK_SECONDS):
            if not self.server.running:
                return f"{self.server.name} {self.server.ending()}"
            if restart_reason := self.server.restart_reason():
                self.server.stop(self._hurried)
                return f"{self.server.name} {restart_reason}"
            if self.server.watched and time.monotonic() - looked >= HEALTH_SECONDS:
                sick = 0 if self.server.probe() else sick + 1
                looked = time.monotonic()
                if sick >= SICK_AFTER:
                    self.server.stop(self._hurried)
                    return f"{self.server.name} failed {sick} health checks in a row"
        return None

    def _end(self) -> None:
        if not self.server.running:
            return
        began = time.monotonic()
        self._publish(News("stopping", self.server))
        self.server.stop(self._hurried)
        self._publish(News("stopped", self.server, seconds=time.monotonic() - began))
