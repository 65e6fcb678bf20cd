"""Places kernels on Spark: one task each, run where Spark puts it; what comes back is its facts.

A kernel is a plain function of one description. It travels pickled, with whatever it closes over,
so that a secret in it is in no option, no row and no text of a plan.
"""

from __future__ import annotations

import gc
import pickle
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from kalla import release
from kalla.errors import KallaError

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

Task = TypeVar("Task")
Facts = TypeVar("Facts")

_imported = 0  # modules, when a task last began


def place(
    session: SparkSession, kernel: Callable[[Task], Facts], tasks: Sequence[Task]
) -> list[Facts]:
    """The facts of every task, in their order. The first task that fails fails the call.

    An error that Kalla raises on purpose is not tried again: it comes back as it is.
    """
    if not tasks:
        return []
    from pyspark import cloudpickle
    from pyspark.sql.types import BinaryType, LongType, StructField, StructType

    described = [pickle.dumps(task) for task in tasks]
    # So that its modules are imported by a worker that is ready.
    packed: bytes = cloudpickle.dumps(kernel)  # type: ignore[no-untyped-call]
    expected = release.version()

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        _settle_in()
        context = TaskContext.get()
        number = context.partitionId() if context else 0
        try:
            # First: what was pickled by another version may not mean the same here.
            release.require_same_series(
                "this process", expected, "the Spark executor is", release.version()
            )
            work: Callable[[Any], object] = pickle.loads(packed)  # noqa: S301 -- ours
            result = work(pickle.loads(described[number]))  # noqa: S301 -- ours
        except KallaError as error:
            result = error
        # A partition is a number, and has it as its only row. To wait for that before would cost
        # 40 ms: two small writes to a socket, of which the second waits until the first has an
        # answer.
        (batch,) = batches
        if batch.column("id").to_pylist() != [number]:
            raise RuntimeError(f"Spark has placed {batch.column('id')} as partition {number}")
        yield _answer(batch.column("id"), pickle.dumps(result))

    # As types, not as text, which the server would be asked to read.
    columns = StructType([StructField("id", LongType()), StructField("facts", BinaryType())])
    frame = session.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, columns)
    found = {row["id"]: pickle.loads(row["facts"]) for row in frame.collect()}  # noqa: S301 -- ours
    facts = [found[number] for number in range(len(tasks))]
    for each in facts:
        if isinstance(each, KallaError):
            raise each
    return facts


def _settle_in() -> None:
    """Keep what is imported out of the search for garbage that Spark's worker makes after every
    task: through all of it, that takes longer than many a task.

    What is here before a task has come through the search after the one before. In a new worker
    Arrow is told first that there is no pandas: it would ask for it as soon as it is given a value
    of Python's own, and that takes a second to import.
    """
    global _imported
    if not _imported and "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas())
        pa.array([0])  # asks once; who imports pandas later has it all the same
        sys.meta_path.pop(0)
    if len(sys.modules) > _imported:
        _imported = len(sys.modules)
        gc.freeze()


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ImportError("nothing here needs it")


def _answer(number: pa.Array, facts: bytes) -> pa.RecordBatch:
    """Made of buffers: of Python's own values Arrow would import pandas, in every worker."""
    ends = struct.pack("=ii", 0, len(facts))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(facts)]
    answers = pa.Array.from_buffers(pa.binary(), 1, buffers)
    return pa.RecordBatch.from_arrays([number, answers], ["id", "facts"])
