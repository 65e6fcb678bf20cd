"""Artifacts and downloaded segments on this worker's disk, under one budget.

Artifacts are deleted some time after they were fetched, or when they were not fetched for long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from kalla.errors import KallaError
from kalla.query.store import segments
from kalla.query.store.segments import Segment
from kalla.query.worker.disk_budget import DiskBudget
from kalla.storage import Storage, join


class SpoolFailed(KallaError):
    """An artifact could not be written; another worker may do it."""


@dataclass
class Artifact:
    path: Path
    goes_at: float  # by the clock of the spool


class Spool:
    """Threads write, the event loop acknowledges and sweeps: every method takes the lock."""

    def __init__(
        self,
        folder: Path,
        budget: DiskBudget,
        acknowledged_seconds: float,
        unfetched_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._artifacts_folder = folder / "artifacts"
        self._segments_folder = folder / "segments"
        self.budget = budget
        self._acknowledged_seconds = acknowledged_seconds
        self._unfetched_seconds = unfetched_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._artifacts: dict[str, Artifact] = {}
        for each in (self._artifacts_folder, self._segments_folder):
            each.mkdir(parents=True, exist_ok=True)

    def keep(self, content: pa.Buffer) -> str:
        """Stores the artifact; returns the name under which it can be fetched."""
        name = uuid4().hex
        with self._lock:
            self._delete(self.budget.admit_artifact(name, content.size))
            path = self._artifacts_folder / f"{name}.parquet"
            self._artifacts[name] = Artifact(path, self._clock() + self._unfetched_seconds)
        try:
            path.write_bytes(memoryview(content))
        except OSError as error:
            self.drop(name)
            raise SpoolFailed(f"the artifact could not be written: {error.strerror}") from error
        with self._lock:
            if name not in self._artifacts:
                path.unlink(missing_ok=True)
                raise SpoolFailed("the artifact was evicted while it was written")
        return name

    def path(self, name: str) -> Path | None:
        with self._lock:
            found = self._artifacts.get(name)
            return None if found is None else found.path

    def content(self, name: str) -> pa.Buffer | None:
        """An artifact's bytes, mapped; None if it was deleted."""
        path = self.path(name)
        if path is None:
            return None
        try:
            with pa.memory_map(str(path)) as file:
                return file.read_buffer()
        except FileNotFoundError:
            return None

    def acknowledge(self, name: str) -> None:
        with self._lock:
            if name in self._artifacts:
                self.budget.acknowledge(name)
                self._artifacts[name].goes_at = self._clock() + self._acknowledged_seconds

    def drop(self, name: str) -> None:
        with self._lock:
            self.budget.remove(name)
            self._delete([name])

    def sweep(self) -> int:
        """Deletes artifacts whose time is over; returns how many of them nobody had fetched."""
        with self._lock:
            now = self._clock()
            late = [name for name, one in self._artifacts.items() if one.goes_at <= now]
            states = [self.budget.entries[name].state for name in late]
            for name in late:
                self.budget.remove(name)
            self._delete(late)
            return states.count("unacknowledged")

    @property
    def count(self) -> int:
        return len(self._artifacts)

    def sizes(self) -> tuple[int, int]:
        """Bytes of downloaded segments, and of artifacts."""
        with self._lock:
            return self.budget.cache_bytes, self.budget.spool_bytes

    def segment(self, segment: Segment) -> Path | None:
        """The path of a downloaded object; None if it must be downloaded."""
        name = _segment_name(segment)
        with self._lock:
            if name not in self.budget.entries:
                return None
            self.budget.use(name)
        return self._segments_folder / name

    def keep_segment(self, segment: Segment, content: pa.Buffer) -> None:
        """Keeps a downloaded object where the budget has room for it."""
        name = _segment_name(segment)
        whole = self._segments_folder / name
        part = whole.with_suffix(f".{uuid4().hex}")
        try:
            part.write_bytes(memoryview(content))
        except OSError:
            part.unlink(missing_ok=True)  # a full disk: it is read from the store again
            return
        with self._lock:
            dropped = self.budget.admit_segment(name, content.size)
            if dropped is None:
                part.unlink(missing_ok=True)
                return
            self._delete(dropped)
            part.replace(whole)

    def forget_segment(self, segment: Segment) -> None:
        name = _segment_name(segment)
        with self._lock:
            self.budget.remove(name)
            self._delete([name])

    def _delete(self, names: list[str]) -> None:
        for name in names:
            found = self._artifacts.pop(name, None)
            path = self._segments_folder / name if found is None else found.path
            path.unlink(missing_ok=True)


class SegmentFiles:
    """Gets objects for a worker's segment cache: from the disk, or else from the store.

    `loads` counts by thread, so that a work unit can tell whether it had to read the store.
    """

    def __init__(
        self, storage: Storage, url: str, spool: Spool, downloaded: Callable[[float], object]
    ) -> None:
        self._storage = storage
        self._url = url
        self._spool = spool
        self._downloaded = downloaded  # called with the seconds of each download
        self._is_remote = "://" in url
        self._counting = threading.local()

    @property
    def loads(self) -> int:
        found: int = getattr(self._counting, "loads", 0)
        return found

    def content(self, segment: Segment) -> pa.Buffer:
        """All bytes of the object that holds a segment, checked."""
        self._counting.loads = self.loads + 1
        if not self._is_remote:
            return segments.mapped(join(self._url, segment.path), segment)
        path = self._spool.segment(segment)
        if path is not None:
            try:
                return segments.mapped(str(path), segment)
            except (segments.SegmentBroken, OSError):
                self._spool.forget_segment(segment)  # evicted at this moment, or damaged here
        began = time.monotonic()
        found = segments.content(self._storage, self._url, segment)
        self._downloaded(time.monotonic() - began)
        self._spool.keep_segment(segment, found)
        return found


def _segment_name(segment: Segment) -> str:
    return f"{segment.checksum}.segment"
