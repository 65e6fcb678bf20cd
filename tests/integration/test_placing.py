"""Kernels placed on a real Spark: facts in order, and errors as they are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from pydantic import SecretStr

from kalla.errors import InvalidInput, KallaError, Problem, Unavailable
from kalla.settings import Spark as SparkSettings
from kalla.spark import task_failures
from kalla.spark.placing import place
from kalla.spark.session import connect
from tests.servers import SparkServer

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def session(spark_server: SparkServer) -> Iterator[SparkSession]:
    found = connect(SparkSettings(remote=spark_server.remote, token=SecretStr(spark_server.token)))
    yield found
    found.stop()


def test_the_facts_come_back_in_the_order_of_the_tasks(session: SparkSession) -> None:
    def kernel(number: int) -> tuple[int, int]:
        return number, number**2

    assert place(session, kernel, range(5)) == [(n, n * n) for n in range(5)]
    assert place(session, kernel, []) == []


def test_what_a_worker_imported_is_not_searched_for_garbage(session: SparkSession) -> None:
    def kernel(_: int) -> bool:
        import gc

        return gc.get_freeze_count() > len(gc.get_objects())

    place(session, kernel, range(2))  # the first task of a worker imports
    assert all(place(session, kernel, range(4)))


def test_a_worker_has_numba_before_its_first_task(session: SparkSession) -> None:
    def kernel(_: int) -> tuple[bool, int]:
        import os
        import sys

        return "numba" in sys.modules, os.getppid()

    (loaded, daemon), *_ = place(session, kernel, [0])
    assert loaded
    command = Path(f"/proc/{daemon}/cmdline").read_bytes().split(b"\0")
    assert b"kalla.app.spark_daemon" in command


def test_a_new_worker_imports_no_pandas_unless_it_is_asked_to() -> None:
    """In a process of its own: workers of a session that others used may have it."""
    asked = (
        "import sys, pyarrow as pa; from kalla.spark.placing import _settle_in; _settle_in(); "
        "import kalla.reconcile.kernel; made = pa.table({'n': [7]}); "
        "print('pandas' in sys.modules, made.to_pandas()['n'][0], 'pandas' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True)
    assert said.stdout.decode().split() == ["False", "7", "True"]


def test_to_answer_takes_no_pandas() -> None:
    answer = (
        "import sys, pyarrow as pa; from kalla.spark.placing import _answer; "
        "seven = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(b'\\7' + bytes(7))]); "
        "answer = _answer(seven, b'facts'); "
        "print(answer.num_columns, answer['id'][0], answer['facts'][0], 'pandas' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", answer], capture_output=True, check=True)
    assert said.stdout.decode().split() == ["2", "7", "b'facts'", "False"]


def test_an_error_raised_on_purpose_comes_back_as_it_is(session: SparkSession) -> None:
    problem = Problem("sources.left.uri", "it is empty")

    def kernel(number: int) -> int:
        if number == 1:
            raise InvalidInput(problem)
        return number

    with pytest.raises(InvalidInput) as caught:
        place(session, kernel, [0, 1])
    assert caught.value.problems == (problem,)


def test_any_other_error_fails_the_call(session: SparkSession) -> None:
    def kernel(number: int) -> int:
        return 1 // number

    with pytest.raises(Exception, match="ZeroDivisionError"):
        place(session, kernel, [0])


@pytest.mark.parametrize(
    ("path", "kind", "told"),
    [
        ("/dev/full", Unavailable, "no disk space is left where a Spark task writes (OSError: "),
        ("/proc/no", KallaError, "a Spark task failed: FileNotFoundError: "),
    ],
)
def test_what_a_task_cannot_write_is_told_in_a_sentence(
    session: SparkSession, path: str, kind: type[KallaError], told: str
) -> None:
    def kernel(_: int) -> int:
        with open(path, "w", encoding="ascii") as opened:  # noqa: PTH123 -- the path travels
            return opened.write("1")

    with pytest.raises(kind) as caught, task_failures.translate_errors():
        place(session, kernel, [0])
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "MemoryError"),
        (ValueError("one\n  two\nthree: four"), "ValueError: one"),
        (duckdb.OutOfMemoryException("no room"), "_duckdb.OutOfMemoryException: no room"),
    ],
    ids=["without words", "lines", "a module's own"],
)
def test_what_a_task_raises_is_told_in_a_sentence(
    session: SparkSession, error: Exception, said: str
) -> None:
    def kernel(number: int) -> int:
        try:
            return 1 // number
        except ZeroDivisionError:
            raise error  # noqa: B904 -- Python tells both

    with pytest.raises(KallaError) as caught, task_failures.translate_errors():
        place(session, kernel, [0])
    assert str(caught.value) == f"a Spark task failed: {said}"
