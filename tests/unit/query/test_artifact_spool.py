"""Artifacts on a worker's disk: nothing is there that the budget does not count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kalla.query.worker.artifact_spool import Spool, SpoolFailed
from kalla.query.worker.disk_budget import DiskBudget


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spool(tmp_path: Path, clock: Clock) -> Spool:
    return Spool(tmp_path / "9322", DiskBudget(1000), 30, 600, clock)


def content(size: int) -> pa.Buffer:
    return pa.py_buffer(bytes(size))


def files(spool: Spool) -> set[str]:
    return {path.stem for path in spool._artifacts_folder.iterdir()}


def test_an_artifact_that_is_evicted_while_it_is_written_leaves_no_file(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_bytes
    kept: list[str] = []

    def overtaken(path: Path, data: Any) -> int:
        if not kept:
            kept.append("")
            kept[0] = spool.keep(content(850))  # evicts the one that is written now
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", overtaken)

    with pytest.raises(SpoolFailed, match="evicted while it was written"):
        spool.keep(content(500))
    assert files(spool) == set(kept)
    assert spool.sizes() == (0, 850)


def test_a_fetched_artifact_stays_30_seconds_and_another_10_minutes(
    spool: Spool, clock: Clock
) -> None:
    fetched, unfetched = spool.keep(content(10)), spool.keep(content(20))
    spool.acknowledge(fetched)

    clock.now = 29.9
    assert spool.sweep() == 0
    assert files(spool) == {fetched, unfetched}
    clock.now = 30.0
    assert spool.sweep() == 0  # an ordinary deletion, not an expiry
    assert files(spool) == {unfetched}
    clock.now = 599.9
    assert spool.sweep() == 0
    assert spool.content(unfetched) == content(20)
    clock.now = 600.0
    assert spool.sweep() == 1
    assert files(spool) == set()
    assert spool.sizes() == (0, 0)
    assert spool.content(unfetched) is None
