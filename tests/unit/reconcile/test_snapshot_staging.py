"""Slices staged while a snapshot is held: as many at once as may be, none behind another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest

from kalla.errors import Cancelled, Permanent
from kalla.reconcile.runs import handlers
from kalla.reconcile.runs.handlers import HandlerDependencies, StagePlan
from kalla.spark.connectors.connector import Slice
from kalla.spark.staging import Staged
from kalla.work.handler import Context
from kalla.work.job import Job, Outcome

PARTS = [Slice(number, 12) for number in range(12)]
PATIENCE = 20


class Session(threading.local):
    """As Spark's: each thread has tags of its own."""

    def __init__(self) -> None:
        self.tags: set[str] = set()

    def addTag(self, tag: str) -> None:  # noqa: N802 -- Spark's name
        self.tags.add(tag)

    def getTags(self) -> set[str]:  # noqa: N802
        return self.tags


class Sessions:
    @contextmanager
    def session(self, *_: object) -> Iterator[Session]:
        made = Session()
        made.addTag("the job's")
        yield made


def stage_all(
    monkeypatch: pytest.MonkeyPatch,
    stage: Callable[[Slice], None],
    at_once: int,
    context: Context | None = None,
) -> Outcome:
    def place(session: Session, kernel: Any, tasks: Sequence[Slice]) -> list[Staged]:
        assert session.getTags() == {"the job's"}, "or nobody could interrupt it"
        return [kernel(part) for part in tasks]

    def kernel(part: Slice) -> Staged:
        stage(part)
        return Staged(f"{part.number}.parquet", 10, 100, "")

    monkeypatch.setattr(handlers, "place", place)
    plan = StagePlan(HandlerDependencies(cast(Any, None), cast(Any, Sessions()), cast(Any, None)))
    context = context or Context()
    return plan._stage_all(cast(Job, None), context, kernel, PARTS, at_once, {"side": "left"})


def test_as_many_slices_are_staged_at_once_as_were_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = threading.Barrier(6)
    context = Context()

    def stage(_: Slice) -> None:
        together.wait(PATIENCE)

    found = stage_all(monkeypatch, stage, 6, context)
    assert found.result == {
        "side": "left",
        "chunks_done": 12,
        "files": [f"{number}.parquet" for number in range(12)],
        "rows": 120,
    }
    assert context.take_progress() == {"side": "left", "chunks_done": 12, "rows": 120}


def test_no_slice_waits_behind_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    others = threading.Semaphore(0)

    def stage(part: Slice) -> None:
        if part.number > 0:
            others.release()
            return
        for _ in PARTS[1:]:
            assert others.acquire(timeout=PATIENCE)

    assert stage_all(monkeypatch, stage, 2).rows == 120


def test_after_a_failure_and_a_cancel_no_slice_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def failing(part: Slice) -> None:
        begun.append(part.number)
        raise Permanent("a value that does not fit")

    with pytest.raises(Permanent, match="does not fit"):
        stage_all(monkeypatch, failing, 1)
    assert len(begun) <= 2, "one may begin while the failure is on its way"
    context = Context()

    def cancelling(part: Slice) -> None:
        begun.append(part.number)
        context.end("by a person")

    begun.clear()
    with pytest.raises(Cancelled, match="by a person"):
        stage_all(monkeypatch, cancelling, 1, context)
    assert begun == [0]
