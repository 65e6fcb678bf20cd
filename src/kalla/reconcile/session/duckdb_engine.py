"""The DuckDB of a match, with typed results: rows, arrays, Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from duckdb.func import PythonUDFType

from kalla.reconcile.arrays.arrow_numbers import as_column, numbers
from kalla.reconcile.sql import similarity
from kalla.reconcile.sql.conditions import FUZZY
from kalla.storage import LOCAL, Storage
from kalla.storage.scratch import scratch

_IN_CACHE = 122_880  # rows; larger batches take twice as long to go through


@dataclass(frozen=True)
class Resources:
    """The memory, threads and folder of one match."""

    memory: str
    threads: int
    temp: Path | None = None  # each match spills into a folder of its own there, or where it runs
    storage: Storage = LOCAL


class Engine:
    def __init__(self, resources: Resources) -> None:
        self.threads = resources.threads
        self.storage = resources.storage
        if resources.temp is not None:
            resources.temp.mkdir(parents=True, exist_ok=True)
        self.held = ExitStack()  # until it is closed
        temp = self.held.enter_context(scratch(resources.temp))
        self.connection = duckdb.connect(
            config={
                "memory_limit": resources.memory,
                "threads": resources.threads,
                "temp_directory": str(temp / "spilled"),
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "enable_external_file_cache": False,  # a source is read once
            }
        )
        resources.storage.register(self.connection)
        self.run("SET GLOBAL TimeZone = 'UTC'")  # of every connection, forks included
        self.run("SET enable_progress_bar = false")
        self.connection.create_function(
            FUZZY,
            similarity.of_pairs,
            ["VARCHAR", "VARCHAR", "VARCHAR"],
            "INTEGER",
            type=PythonUDFType.ARROW,
        )

    def close(self) -> None:
        self.connection.close()
        self.held.close()

    def run(self, sql: str) -> None:
        self.connection.execute(sql)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()

    def row(self, sql: str) -> tuple[Any, ...]:
        (row,) = self.rows(sql)
        return row

    def arrays(self, sql: str) -> dict[str, Any]:
        return self.connection.execute(sql).fetchnumpy()

    def column(self, sql: str) -> npt.NDArray[Any]:
        """The one column of a query, without nulls."""
        (found,) = self.columns(sql)
        return found

    def columns(self, sql: str) -> list[npt.NDArray[Any]]:
        """Numbers of several columns, without nulls."""
        found = self.arrow(sql)
        return [
            np.concatenate([np.empty(0, each.type.to_pandas_dtype()), *map(numbers, each.chunks)])
            for each in found.columns
        ]

    def arrow(self, sql: str) -> pa.Table:
        return self.connection.sql(sql).to_arrow_table()

    def batches(self, sql: str, rows: int = _IN_CACHE) -> Iterable[pa.RecordBatch]:
        return streamed(self.connection.sql(sql).to_arrow_reader(rows))

    def table(self, name: str, columns: pa.Table, kind: str = "TEMP TABLE") -> None:
        """Creates a table from an Arrow table."""
        self.connection.register("given", columns)
        self.run(f"CREATE OR REPLACE {kind} {name} AS SELECT * FROM given")
        self.connection.unregister("given")

    def add(self, table: str, values: npt.NDArray[Any], selected: str) -> None:
        """Rows made of one column of our own, which `selected` calls `given`."""
        if len(values):
            self.connection.register("column_of_ours", as_column(values, "given"))
            self.run(f"INSERT INTO {table} {selected} FROM column_of_ours")
            self.connection.unregister("column_of_ours")


def streamed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Arrow reports a failure of DuckDB as if a file could not be read."""
    try:
        yield from batches
    except OSError as error:
        raise duckdb.Error(str(error)) from error
