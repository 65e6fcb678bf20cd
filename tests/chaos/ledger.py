"""The append-only ledger outside the system: every execution's start and end, one JSON line each.

A line is one write to a file opened for appending, so that a killed process loses nothing it said.
`at` is the machine's monotonic clock, the same for every process.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Ledger:
    """One process's file."""

    def __init__(self, folder: Path, name: str) -> None:
        path = folder / f"{name}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: str, **facts: Any) -> None:
        line = json.dumps({"what": what, "at": time.monotonic(), **facts}) + "\n"
        os.write(self._file, line.encode())


@dataclass(frozen=True, slots=True)
class Execution:
    """One call of a handler. `ending` is None when the process did not live to see it."""

    job_id: int
    fence: int
    type: str
    worker: str
    started: float
    ended: float | None = None
    ending: str | None = None  # completed, failed or taken away
    inputs: tuple[Any, ...] | None = None  # what came through the gate, for the job behind it


@dataclass(frozen=True, slots=True)
class Life:
    """One worker process."""

    worker: str
    pid: int
    born: float
    deaths: tuple[str, ...] = ()  # services that died in it


def lines(folder: Path) -> Iterator[dict[str, Any]]:
    """Every line of every worker, each with its worker's name. The first line is its birth."""
    for path in sorted(folder.glob("worker-*.jsonl")):
        worker = ""
        with path.open(encoding="utf-8") as file:
            for text in file:
                line = json.loads(text)
                worker = worker or line["name"]
                yield {"worker": worker, **line}


def read(folder: Path) -> tuple[list[Execution], list[Life]]:
    executions: list[Execution] = []
    lives: dict[str, Life] = {}
    open_: dict[tuple[str, int, int], dict[str, Any]] = {}
    for line in lines(folder):
        worker = line["worker"]
        match line["what"]:
            case "born":
                lives[worker] = Life(worker, line["pid"], line["at"])
            case "service died":
                life = lives[worker]
                lives[worker] = Life(worker, life.pid, life.born, tuple(line["deaths"]))
            case "start":
                # A second start under one fence stays visible: the first is kept as it stands.
                key = worker, line["job"], line["fence"]
                if (earlier := open_.pop(key, None)) is not None:
                    executions.append(_execution(earlier, None))
                open_[key] = line
            case "end":
                start = open_.pop((worker, line["job"], line["fence"]))
                executions.append(_execution(start, line))
    executions += [_execution(start, None) for start in open_.values()]
    executions.sort(key=lambda each: each.started)
    return executions, list(lives.values())


def _execution(start: dict[str, Any], end: dict[str, Any] | None) -> Execution:
    inputs = None if end is None else end.get("inputs")
    return Execution(
        job_id=start["job"],
        fence=start["fence"],
        type=start["type"],
        worker=start["worker"],
        started=start["at"],
        ended=None if end is None else end["at"],
        ending=None if end is None else end["ending"],
        inputs=None if inputs is None else tuple(inputs),
    )
