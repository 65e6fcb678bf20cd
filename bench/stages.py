"""Where the CPU of a match goes: its steps one after the other in one thread, so that every second
is of one step. A step's seconds hold those of the steps within it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from bench import reconcile_data, reconcile_peers
from bench.reconcile_peers import fresh, with_kernel
from kalla import threads

# As they follow each other; what lies within another is indented.
STEPS = (
    "sources.source_planning.inspect_files",
    "kernel._load",
    "  arrays.column_arrays.gather",
    "  session.side_loading.count",
    "  session.duplicate_keys.number",
    "kernel.execute_rules",
    "  arrays.array_path.pairs",
    "kernel.find_unmatched",
    "evidence.writing.datasets.Evidence.pairs",
    "  evidence.writing.differences.once",
    "  evidence.writing.matched_pairs._with_columns",
    "  evidence.writing.matched_pairs._columns",
    "  evidence.writing.matched_pairs._digest",
    "unmatched.nearest_candidates.search",
    "  arrays.array_path.candidates",
    "  arrays.nearest_values.next_to",
    "evidence.writing.datasets.Evidence.unmatched",
    "kernel.states_of",
)


class _Taken:
    """Seconds of one step: by the clock, of the CPU for us and for us in the system."""

    def __init__(self) -> None:
        self.seconds = self.user = self.system = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        try:
            yield
        finally:
            now = resource.getrusage(resource.RUSAGE_SELF)
            self.seconds += time.monotonic() - began
            self.user += now.ru_utime - before.ru_utime
            self.system += now.ru_stime - before.ru_stime


class _AtOnce:
    """Takes the place of a pool: whatever is asked of it is done before it answers."""

    def __init__(self, *_: object) -> None:
        """It has no threads."""

    def __enter__(self) -> _AtOnce:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nobody to wait for."""

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        found: Future[Any] = Future()
        found.set_result(work(*given))
        return found

    def map(self, work: Callable[..., Any], *given: Any) -> list[Any]:
        return [work(*each) for each in zip(*given, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--key", choices=("number", "text"), default="number")
    parser.add_argument("--data", type=Path, help="keep the made-up rows here")
    chosen = parser.parse_args()
    taken = {step: _Taken() for step in STEPS}
    with TemporaryDirectory(prefix="kalla-bench-") as folder, ExitStack() as stack:
        place = Path(folder)
        pair = reconcile_data.make(chosen.data or place / "data", chosen.rows)
        stack.enter_context(patch.object(reconcile_peers, "THREADS", 1))
        stack.enter_context(patch.object(threads, "ThreadPoolExecutor", _AtOnce))
        with_kernel(pair, fresh(place / "out"), chosen.key)  # for warmth
        for step, seen in taken.items():
            stack.enter_context(_watched(step.strip(), seen))
        whole = _Taken()
        for _ in range(chosen.repeat):
            empty = fresh(place / "out")
            os.sync()
            with whole.counted():
                with_kernel(pair, empty, chosen.key)
    for name, seen in ({"whole": whole} | taken).items():
        figures = {key: round(spent / chosen.repeat, 4) for key, spent in vars(seen).items()}
        print(json.dumps({"step": name} | figures))


def _watched(step: str, seen: _Taken) -> Any:
    """A patch that counts what a function takes."""
    room, *names = step.rsplit(".", 2) if ".Evidence." in step else step.rsplit(".", 1)
    owner: Any = importlib.import_module(f"kalla.reconcile.{room}")
    for name in names[:-1]:
        owner = getattr(owner, name)
    work = getattr(owner, names[-1])

    def counted(*given: Any, **options: Any) -> Any:
        with seen.counted():
            return work(*given, **options)

    return patch.object(owner, names[-1], counted)


if __name__ == "__main__":
    main()
