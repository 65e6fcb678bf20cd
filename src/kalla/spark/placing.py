"""Places kernels on Spark: one task each, run where Spark puts it; what comes back is its facts.

A kernel is a plain function of one description. It travels pickled, with whatever it closes over,
so that a secret in it is in no option, no row and no text of a plan.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kalla.errors import KallaError

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

Task = TypeVar("Task")
Facts = TypeVar("Facts")


def place(
    session: SparkSession, kernel: Callable[[Task], Facts], tasks: Sequence[Task]
) -> list[Facts]:
    """The facts of every task, in their order. The first task that fails fails the call.

    An error that Kalla raises on purpose is not tried again: it comes back as it is.
    """
    if not tasks:
        return []
    described = [pickle.dumps(task) for task in tasks]

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column("id").to_pylist():
                try:
                    result: object = kernel(pickle.loads(described[number]))  # noqa: S301 -- ours
                except KallaError as error:
                    result = error
                yield pa.RecordBatch.from_pydict(
                    {"id": [number], "facts": [pickle.dumps(result)]},
                    schema=pa.schema([("id", pa.int64()), ("facts", pa.binary())]),
                )

    frame = session.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, "id long, facts binary")
    found = {row["id"]: pickle.loads(row["facts"]) for row in frame.collect()}  # noqa: S301 -- ours
    facts = [found[number] for number in range(len(tasks))]
    for each in facts:
        if isinstance(each, KallaError):
            raise each
    return facts
