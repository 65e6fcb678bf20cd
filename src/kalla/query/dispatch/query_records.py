"""Records of the running queries of this process and the last that ended, with their work units."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal
from uuid import uuid4

Ending = Literal["", "answered", "failed", "cancelled"]

MOST_ENDED = 200


@dataclass
class WorkRecord:
    """One work unit: where it is and what it took. Seconds are those of the API's clock."""

    work_id: str
    leaf_id: int
    shard: int
    state: str = "pending"
    worker: str = ""
    attempts: int = 0
    cache_hit: bool | None = None
    wait_seconds: float = 0.0  # in the worker's queue
    run_seconds: float = 0.0
    ready_to_fetch_seconds: float = 0.0
    fetch_seconds: float = 0.0
    bytes: int = 0
    rows: int = 0
    added_at: float = field(default_factory=time.monotonic)
    assigned_at: float = 0.0
    ready_at: float = 0.0
    fetched_at: float = 0.0


@dataclass
class QueryRecord:
    """`expression` is empty for a search of series and labels."""

    expression: str
    user: str
    query_id: str = field(default_factory=lambda: uuid4().hex)
    kind: Literal["instant", "range", "series"] = "instant"
    started_at: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    stage: str = "wait"
    ending: Ending = ""
    reason: str = ""
    stop: threading.Event = field(default_factory=threading.Event)
    work: list[WorkRecord] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.began

    @property
    def leaves(self) -> int:
        return len({one.leaf_id for one in self.work})

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.work)

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.work)

    @property
    def retries(self) -> int:
        return sum(max(one.attempts - 1, 0) for one in self.work)

    def by_worker(self) -> list[tuple[str, str, int]]:
        """Work units by worker and state, counted."""
        counts: dict[tuple[str, str], int] = {}
        for one in list(self.work):
            counts[one.worker, one.state] = counts.get((one.worker, one.state), 0) + 1
        return [(worker, state, count) for (worker, state), count in sorted(counts.items())]


class QueryRecords:
    def __init__(self) -> None:
        self.live: dict[str, QueryRecord] = {}
        self.ended: deque[QueryRecord] = deque(maxlen=MOST_ENDED)

    def begin(self, record: QueryRecord) -> None:
        self.live[record.query_id] = record

    def end(self, record: QueryRecord, ending: Ending, reason: str = "") -> None:
        record.ending, record.reason, record.ended = ending, reason, time.monotonic()
        record.stage = ending
        if self.live.pop(record.query_id, None) is not None:
            self.ended.appendleft(record)

    def all(self) -> Iterator[QueryRecord]:
        """Running queries, oldest first, then those that ended, latest first."""
        yield from self.live.values()
        yield from self.ended

    def get(self, query_id: str) -> QueryRecord | None:
        return next((one for one in self.all() if one.query_id == query_id), None)
