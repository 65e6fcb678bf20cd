"""Keeps one server running: starts it again when it ends or sickens, stops it when told."""

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
    """What happened to a part, for whoever shows it."""

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
        self._tell = tell
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
            # a supervisor that dies unnoticed would look like one that is content
            self.failure = StartFailed(f"{self.server.name} cannot be kept running: {error!r}")
            self._tell(News("trouble", self.server, str(self.failure)))
        finally:
            self._end()
            self.settled.set()

    def _begin(self) -> None:
        began = time.monotonic()
        self._tell(News("starting", self.server))
        self.server.start(self._leaving.is_set)
        self._tell(News("ready", self.server, seconds=time.monotonic() - began))

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
                again = f"; it is started again in {pause:g} s"
                self._tell(News("trouble", self.server, error_message.rstrip(".") + again))
                if self._leaving.wait(pause):
                    return
                pause = min(pause * 2, LONGEST_PAUSE)
                try:
                    self._begin()
                    error_message = ""
                except (StartFailed, OSError) as failure:
                    error_message = str(failure)

    def _watch(self) -> str | None:
        """Wait for trouble and say what it is; None when told to leave."""
        sick, looked = 0, time.monotonic()
        while not self._leaving.wait(LOOK_SECONDS):
            if not self.server.running:
                return f"{self.server.name} {self.server.ending()}"
            if ailment := self.server.ailment():
                self.server.stop(self._hurried)
                return f"{self.server.name} {ailment}"
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
        self._tell(News("stopping", self.server))
        self.server.stop(self._hurried)
        self._tell(News("stopped", self.server, seconds=time.monotonic() - began))
