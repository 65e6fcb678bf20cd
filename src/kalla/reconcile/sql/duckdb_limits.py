"""A DuckDB that takes no more memory, threads and time than it was given.

For reads while a caller waits: of a run's evidence, or of a source before a run.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

import duckdb

from kalla.storage import Storage

_GLANCE_SECONDS = 0.1


@dataclass(frozen=True)
class Bounds:
    """The limits of one reader: above its memory it spills, after its seconds it is interrupted,
    and also when it is abandoned.
    """

    memory: str = "512MB"
    threads: int = 2
    seconds: float = 30.0
    given_up: threading.Event | None = None


@contextmanager
def bounded(
    storage: Storage, bounds: Bounds
) -> Iterator[tuple[duckdb.DuckDBPyConnection, threading.Event]]:
    """A connection, and what is set when its time is over: from then on every query is
    interrupted.
    """
    with tempfile.TemporaryDirectory(prefix="kalla-reading-") as spilled:
        connection = duckdb.connect(
            config={
                "memory_limit": bounds.memory,
                "threads": str(bounds.threads),
                "temp_directory": spilled,
                "preserve_insertion_order": "false",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            }
        )
        alarm = _Alarm(connection, bounds)
        try:
            connection.execute("SET TimeZone = 'UTC'")
            storage.register(connection)
            alarm.start()
            yield connection, alarm.rung
        finally:
            alarm.stop()
            connection.close()


class _Alarm(threading.Thread):
    """Interrupts a connection when its time is over, again and again: an interrupt between two
    queries is lost.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, bounds: Bounds) -> None:
        super().__init__(name="bounds-alarm", daemon=True)
        self.rung = threading.Event()
        self._connection = connection
        self._bounds = bounds
        self._done = threading.Event()

    def run(self) -> None:
        ends = monotonic() + self._bounds.seconds
        given_up = self._bounds.given_up
        while not self._done.is_set():
            if monotonic() >= ends or (given_up is not None and given_up.is_set()):
                self.rung.set()
                self._connection.interrupt()
            self._done.wait(_GLANCE_SECONDS)

    def stop(self) -> None:
        self._done.set()
        if self.is_alive():
            self.join()
