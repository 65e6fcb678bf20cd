"""Finds the changed rows of a table, by value, and rewrites their files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kalla.tables.delta.data_files import MOST_ROWS, DataFile, DataFileWriter, written
from kalla.tables.delta.log_commit import FileChange
from kalla.tables.delta.workspace import FILE, ROW, Relation, Workspace, literal, quoted, same

_SMALL = 50_000  # rows of a file that is merged with others
_MOST_SMALL = 16
_BATCH = 100_000


@dataclass(frozen=True)
class Change:
    """Rows to remove, by their positions, and rows to add."""

    deletes: Relation  # the rows with their places
    inserts: Relation  # with the file they had better stand in, or NULL
    deleted: int
    inserted: int


@dataclass(frozen=True)
class TableFiles:
    """The files of a table at one version."""

    location: str
    version: int
    columns: tuple[str, ...]  # of the Delta table
    # Of its files: internal columns come after the columns of the Delta table.
    schema: pa.Schema | None
    paths: tuple[str, ...]
    rows: int
    schema_json: str  # of the Delta table

    @property
    def hidden(self) -> tuple[str, ...]:
        names = () if self.schema is None else tuple(self.schema.names)
        return tuple(name for name in names if name not in self.columns)

    def types_are(self, schema_json: str) -> bool:
        """Whether a schema has the same columns of the same types."""
        return _types(self.schema_json) == _types(schema_json)


def difference(workspace: Workspace, old: Relation, new: Relation) -> Change:
    """The surplus and missing copies of rows, by value; NULLs are equal to each other.

    `old` has positions; `new` may have preferred files.
    """
    columns = ", ".join(quoted(name) for name in old.columns)
    file = FILE if FILE in _all_columns(workspace, new) else "NULL"
    net = workspace.table(
        "net_rows",
        f"""
        SELECT {columns}, sum(weight)::BIGINT AS __kalla_surplus,
               max({FILE}) AS {FILE}, row_number() OVER () AS __kalla_value
        FROM (
            SELECT {columns}, 1 AS weight, NULL::VARCHAR AS {FILE} FROM {old.name}
            UNION ALL
            SELECT {columns}, -1, {file}::VARCHAR FROM {new.name}
        )
        GROUP BY {columns}
        HAVING sum(weight) <> 0
        """,
    )
    deletes = workspace.table(
        "deleted_rows",
        f"""
        SELECT * EXCLUDE (__kalla_copy, __kalla_surplus) FROM (
            SELECT o.*, n.__kalla_surplus,
                   row_number() OVER (PARTITION BY n.__kalla_value ORDER BY o.{FILE}, o.{ROW})
                       AS __kalla_copy
            FROM {old.name} o JOIN {net.name} n ON {same(old.columns, "o", "n")}
            WHERE n.__kalla_surplus > 0
        )
        WHERE __kalla_copy <= __kalla_surplus
        """,
    )
    inserts = workspace.table(
        "inserted_rows",
        f"SELECT {columns}, {FILE} FROM {net.name}, range(-__kalla_surplus)"
        " WHERE __kalla_surplus < 0",
    )
    return _change(workspace, deletes, inserts)


def replaced(workspace: Workspace, old: Relation, new: Relation) -> Change:
    """Removes all of `old` and adds all of `new`, equal rows included. Both have files."""
    return _change(workspace, old, new)


def rewritten(workspace: Workspace, table: TableFiles, change: Change) -> FileChange:
    """Rewrites the files of the change, and writes its change feed."""
    if table.schema is None:
        raise ValueError("a table without files has no rows to change")
    if not change.deleted and not change.inserted:
        return FileChange()
    folder = Path(table.location)
    touched = {
        str(file)
        for (file,) in workspace.rows(
            f"SELECT DISTINCT {FILE} FROM {change.deletes.name} UNION"
            f" SELECT DISTINCT {FILE} FROM {change.inserts.name} WHERE {FILE} IS NOT NULL"
        )
    }
    counts = {path: pq.read_metadata(path).num_rows for path in table.paths}
    small = {path for path, count in counts.items() if count < _SMALL}
    if len(small) > _MOST_SMALL:
        touched |= small  # put together
    roomy = [path for path in touched if counts[path] + change.inserted < 2 * MOST_ROWS]
    home = min(roomy, key=lambda path: counts[path], default=None)
    writer = DataFileWriter(folder, table.schema, table.columns)
    for path in sorted(touched, key=lambda path: counts[path]):
        for rows in _kept(workspace, change, path):
            writer.write(rows)
        own = f"{FILE} = {literal(path)}" + (f" OR {FILE} IS NULL" if path == home else "")
        _insert(workspace, change, own, writer)
        if path not in small:
            writer.end_file()  # rows stay in their order
    if home is None:
        _insert(workspace, change, f"{FILE} IS NULL", writer)
    # A table without rows keeps one file, which has its internal columns.
    adds = writer.close(even_empty=len(touched) == len(table.paths))
    feed = _feed(workspace, table, change) if touched else []
    return FileChange(adds, sorted(touched), feed)


def _insert(workspace: Workspace, change: Change, where: str, writer: DataFileWriter) -> None:
    chosen = ", ".join(quoted(name) for name in writer.schema.names)
    for batch in workspace.batches(f"SELECT {chosen} FROM {change.inserts.name} WHERE {where}"):
        writer.write(pa.Table.from_batches([batch]))


def _kept(workspace: Workspace, change: Change, path: str) -> Iterator[pa.Table]:
    gone = workspace.read(
        f"SELECT {ROW} FROM {change.deletes.name} WHERE {FILE} = {literal(path)} ORDER BY {ROW}"
    )
    places = gone.column(0).to_numpy()
    first = 0
    for batch in pq.ParquetFile(path).iter_batches(_BATCH):
        low, high = np.searchsorted(places, [first, first + batch.num_rows])
        keep = np.ones(batch.num_rows, dtype=bool)
        keep[places[low:high] - first] = False
        yield pa.Table.from_batches([batch.filter(pa.array(keep))])
        first += batch.num_rows


def _feed(workspace: Workspace, table: TableFiles, change: Change) -> list[DataFile]:
    """The change feed for readers: only the columns of the Delta table."""
    if table.schema is None:
        return []
    fields = [table.schema.field(name) for name in table.columns]
    schema = pa.schema([*fields, pa.field("_change_type", pa.string())])
    chosen = ", ".join(quoted(name) for name in table.columns)
    return written(
        Path(table.location) / "_change_data",
        schema,
        workspace.batches(
            f"SELECT {chosen}, 'delete' AS _change_type FROM {change.deletes.name} UNION ALL"
            f" SELECT {chosen}, 'insert' FROM {change.inserts.name}"
        ),
    )


def _types(schema_json: str) -> list[tuple[str, str]]:
    return [
        (field["name"], json.dumps(field["type"], sort_keys=True))
        for field in json.loads(schema_json)["fields"]
    ]


def _change(workspace: Workspace, deletes: Relation, inserts: Relation) -> Change:
    return Change(deletes, inserts, workspace.count(deletes), workspace.count(inserts))


def _all_columns(workspace: Workspace, relation: Relation) -> set[str]:
    return {str(row[0]) for row in workspace.rows(f"DESCRIBE {relation.name}")}
