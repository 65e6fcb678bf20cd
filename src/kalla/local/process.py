"""A server as a child process: start, wait, stop; it ends when its parent ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kalla.errors import StartFailed
from kalla.local import ports
from kalla.redaction import scrub

LOG_LIMIT = 10 * 1024 * 1024
_MOST_READ = 1 << 20

# A child's death signal comes when the *thread* that forked it ends. So one thread forks them all,
# and it lives as long as the process.
_forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forker")
_TROUBLE = re.compile(r"FATAL|PANIC|\[FTL\]|\[ERR\]|\bERROR\b|Error:|Exception|error:")


class Server(ABC):
    """One server. Not thread-safe: the thread that starts it also stops it."""

    name: str
    port_setting = ""
    watched = False  # whether a probe that fails again and again means that a restart would help
    start_seconds = 30.0
    stop_seconds = 10.0
    stop_signal = signal.SIGTERM
    hurry_signal = signal.SIGKILL  # what a second Ctrl-C sends
    death_signal = signal.SIGKILL  # what it gets when the parent is gone

    def __init__(self, name: str, port: int, logs: Path, host: str = ports.HOST) -> None:
        self.name = name
        self.host = host
        self.port = port
        self.log = logs / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._log_read = 0

    @property
    @abstractmethod
    def version(self) -> str:
        """The version for people: 18.4."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """What to run. A secret in here would show in `ps`."""

    @abstractmethod
    def probe(self) -> bool:
        """Whether it answers; quick, and called again and again."""

    def check(self) -> None:
        """Raise StartFailed if it cannot start here; changes nothing that matters."""
        ports.require_free(self.port, self.name, self.port_setting, self.host)

    def prepare(self) -> None:
        """Creates what it needs before it can start."""
        self.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)

    def environment(self) -> Mapping[str, str]:
        """Variables on top of those it inherits."""
        return {}

    def inherited(self) -> Mapping[str, str]:
        """The variables of this process that the server inherits."""
        return os.environ

    def identity(self) -> str:
        """The user identity of the child; see launch.py."""
        return "self"

    def own_ports(self) -> Sequence[int]:
        """Every port it listens on."""
        return (self.port,)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def state(self) -> str:
        if self.process is None:
            return "stopped"
        code = self.process.poll()
        return "running" if code is None else f"ended ({_ending(code)})"

    def start(self, abandoned: Callable[[], bool] = lambda: False) -> None:
        """Starts it and waits until it answers, or raises StartFailed leaving nothing running."""
        if self.running:
            raise StartFailed(f"{self.name} is already running.")
        try:
            self._start(abandoned)
        finally:
            ports.release(*self.own_ports())

    def _start(self, abandoned: Callable[[], bool]) -> None:
        self.check()
        self.prepare()
        self._spawn()
        deadline = time.monotonic() + self.start_seconds
        try:
            while not self._answers():
                if abandoned():
                    raise StartFailed(f"{self.name} was stopped before it was ready.")
                if time.monotonic() > deadline:
                    raise StartFailed(
                        f"{self.name} did not answer on {self.address} within "
                        f"{self.start_seconds:g} s{self._quote()}"
                    )
                time.sleep(0.05)
        except BaseException:
            self.stop(lambda: True)
            raise

    def ask_to_stop(self) -> None:
        """Asks it to end, without waiting; `stop` asks again and waits."""
        if self.running:
            self._signal(self.stop_signal)

    def stop(self, hurried: Callable[[], bool] = lambda: False) -> None:
        """Asks it to end, and kills it if this takes too long or a second signal arrives."""
        if self.process is None:
            return
        if self.running and not hurried():
            self.ask_to_stop()
            self._wait(self.stop_seconds, hurried)
        if self.running and self.hurry_signal != signal.SIGKILL:
            self._signal(self.hurry_signal)
            self._wait(5)
        if self.running:
            self.kill()
        self.process = None

    def kill(self) -> None:
        """Kills it at once, with all processes of its session."""
        if self.process is not None and self.running:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def ending(self) -> str:
        """How it ended, and its last output; a killed server has none."""
        killed = self.process is not None and (self.process.poll() or 0) < 0
        words = "" if killed else self.last_error_line()
        return f"{self.state}: {words}" if words else self.state

    def restart_reason(self) -> str | None:
        """Why a server that still answers should be restarted; None for most servers."""
        return None

    def written_since_start(self) -> bytes:
        """New output of this start in its log, not returned before."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._log_read)
                written = file.read(_MOST_READ)
                self._log_read = file.tell()
        except OSError:
            return b""
        return written

    def last_error_line(self) -> str:
        """The last error line of this start, or its last line."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._log_start, self.log.stat().st_size - 65536))
                lines = [
                    line.strip() for line in file.read().decode("utf-8", "replace").split("\n")
                ]
        except OSError:
            return ""
        lines = [line for line in lines if line]
        relevant = [line for line in lines if _TROUBLE.search(line)] or lines
        return scrub(relevant[-1])[:400] if relevant else ""

    def _answers(self) -> bool:
        assert self.process is not None  # noqa: S101
        code = self.process.poll()
        if code is not None:
            # Taken since the check: the holder explains more than the server's own last line.
            ports.require_free(self.port, self.name, self.port_setting, self.host, patience=0)
            raise StartFailed(f"{self.name} ended while starting ({_ending(code)}){self._quote()}")
        return self.probe()

    def _spawn(self) -> None:
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT:
            self.log.replace(self.log.with_name(self.log.name + ".1"))
        with self.log.open("ab") as log:
            self._log_start = self._log_read = log.tell()
            self.process = _forker.submit(
                subprocess.Popen,
                launched(self.command(), self.death_signal, self.identity()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**self.inherited(), **self.environment()},
            ).result()

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None  # noqa: S101
        self.process.send_signal(number)

    def _wait(self, seconds: float, hurried: Callable[[], bool] = lambda: False) -> None:
        deadline = time.monotonic() + seconds
        while self.running and not hurried() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _quote(self) -> str:
        words = self.last_error_line()
        return f": {words.rstrip('.')} (log: {self.log})." if words else f" (log: {self.log})."


def launched(
    command: Sequence[str], death_signal: signal.Signals = signal.SIGKILL, identity: str = "self"
) -> list[str]:
    """The command that runs `command` as a child which dies with this process."""
    launcher = str(Path(__file__).with_name("launch.py"))
    head = [
        sys.executable,
        "-I",
        "-S",
        launcher,
        str(os.getpid()),
        str(int(death_signal)),
        identity,
    ]
    return [*head, *command]


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
