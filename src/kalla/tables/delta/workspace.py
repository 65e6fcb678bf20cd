"""The DuckDB of one refresh: the rows of the table with their positions, and their changes.

Rows stay in Parquet files or in tables that spill to disk, so a result may be larger than the
memory of its worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import pyarrow as pa

FILE = "__kalla_file"  # the position of a row: its file, and its number there
ROW = "__kalla_row"
_BATCH = 100_000


@dataclass(frozen=True)
class Relation:
    """A table or view of the workspace."""

    name: str
    columns: tuple[str, ...]  # without the places


class Workspace:
    """Closed with its refresh; `folder` is for data that does not fit in memory."""

    def __init__(self, folder: Path, memory: str = "1GB") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._connection = duckdb.connect(
            config={"memory_limit": memory, "temp_directory": str(folder / "spill")}
        )
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("SET preserve_insertion_order = false")
        self._registered: list[pa.Table] = []

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def placed_files(self, name: str, paths: Sequence[str], columns: Sequence[str]) -> Relation:
        """The rows of a table's Parquet files, with their places."""
        chosen = ", ".join(quoted(each) for each in columns)
        places = f"filename AS {FILE}, file_row_number AS {ROW}"
        return self._view(name, paths, f"{chosen}, {places}", columns)

    def files(
        self,
        name: str,
        paths: Sequence[str],
        columns: Sequence[str],
        named: Sequence[str] | None = None,
    ) -> Relation:
        """The rows of Parquet files, with renamed columns if given."""
        own = named or columns
        chosen = ", ".join(
            f"{quoted(each)} AS {quoted(other)}" for each, other in zip(columns, own, strict=True)
        )
        return self._view(name, paths, chosen, own)

    def _view(
        self, name: str, paths: Sequence[str], chosen: str, columns: Sequence[str]
    ) -> Relation:
        listed = ", ".join(literal(path) for path in paths)
        self.execute(
            f"CREATE OR REPLACE VIEW {name} AS SELECT {chosen}"
            f" FROM read_parquet([{listed}], filename = true, file_row_number = true,"
            " hive_partitioning = false, union_by_name = true)"
        )
        return Relation(name, tuple(columns))

    def arrow(self, name: str, rows: pa.Table) -> Relation:
        """Rows in memory, without positions."""
        self._registered.append(rows)
        self._connection.register(name, rows)
        return Relation(name, tuple(rows.column_names))

    def table(self, name: str, query: str) -> Relation:
        """Stores the rows of a query in a table."""
        self.execute(f"CREATE OR REPLACE TABLE {name} AS {query}")
        described = self._connection.execute(f"DESCRIBE {name}").fetchall()
        return Relation(name, tuple(each[0] for each in described if each[0] not in (FILE, ROW)))

    def execute(self, statement: str) -> None:
        self._connection.execute(statement)

    def count(self, relation: Relation | str, where: str = "true") -> int:
        name = relation if isinstance(relation, str) else relation.name
        (row,) = self._connection.execute(f"SELECT count(*) FROM {name} WHERE {where}").fetchall()
        return int(row[0])

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(query).fetchall()

    def read(self, query: str) -> pa.Table:
        return pa.table(self._connection.sql(query).to_arrow_table())

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        yield from self._connection.sql(query).to_arrow_reader(_BATCH)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def same(names: Sequence[str], one: str, other: str) -> str:
    """An equality in which NULL is a value like any other."""
    return " AND ".join(
        f"{one}.{quoted(name)} IS NOT DISTINCT FROM {other}.{quoted(name)}" for name in names
    )
