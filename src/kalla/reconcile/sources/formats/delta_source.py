"""Delta tables: the files of the current version, with the columns that are only in its log."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote as escaped
from urllib.parse import unquote

import duckdb
import pyarrow as pa

from kalla.errors import InvalidInput, Problem, Unavailable
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.sources.scanning.duckdb_files import opened, readable
from kalla.reconcile.sources.scanning.scan_sql import listed
from kalla.reconcile.sql.column_values import literal, quote
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.redaction import scrub
from kalla.storage import Storage, is_s3, join
from kalla.storage.files import File

if TYPE_CHECKING:
    from deltalake import DeltaTable

LOG = "_delta_log"

# What does not change how a file of rows is read, or is looked at below.
_KNOWN_FEATURES = {
    "columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview",
    "v2Checkpoint", "vacuumProtocolCheck",
}  # fmt: skip
_FILE = "=file"  # no column of a table is held by such a name


@dataclass(frozen=True)
class _Part:
    """A file of the table, and its values of the partition columns."""

    file: File
    rows: int | None
    values: Mapping[str, Any]


def is_table(uri: str, storage: Storage) -> bool:
    """Whether there is a Delta table at this URL."""
    return storage.holds(join(uri, LOG))


def refuse_files_of_tables(files: Sequence[File], storage: Storage) -> None:
    """Files in the folder of a table may not belong to it: only its log defines its files."""
    if (table := storage.folder_with(LOG, files)) is not None:
        raise InvalidInput(Problem("", f"{table} is a Delta table: name its folder"))


def inspect_table(uri: str, storage: Storage, bounds: Bounds | None = None) -> Input:
    """The current version of a table as an input; refuses features that its plain files do not
    show.
    """
    from deltalake import DeltaTable

    with _translate_errors(uri), _addressed(uri, storage) as address:
        table = DeltaTable(address, storage_options=storage.delta_options(uri))
        version = table.version()
        schema = pa.schema(table.schema().to_arrow())
        partitions = list(table.metadata().partition_columns)
        _refuse_what_files_do_not_show(uri, table, [schema.field(name) for name in partitions])
        actions = pa.table(table.get_add_actions(flatten=True))
        parts = _parts(uri, storage.plain(uri), actions, partitions)
    files = tuple(each.file.url for each in parts)
    rows = [each.rows for each in parts]
    with opened(storage, bounds) as connection, readable(files):
        types = _types(connection, schema)
        stored = _stored(connection, files)
        relation = _relation(types, stored, partitions, parts)
        known = [each for each in rows if each is not None]
        count = sum(known) if len(known) == len(rows) else _count(connection, files)
    return Input(
        "delta",
        files,
        types,
        rows=count,
        bytes=sum(each.file.size for each in parts),
        notes=(f"version {version} of the Delta table",),
        marks=({"table": uri, "version": version}, *(each.file.mark for each in parts)),
        relation=relation,
    )


@contextmanager
def _addressed(uri: str, storage: Storage) -> Iterator[str]:
    """The URL by which the package finds the table, whatever signs are in its name.

    It decodes escapes even where they are part of a name, and would read another table: a table
    with such a name gets a temporary one.
    """
    plain = storage.plain(uri)
    if unquote(plain) == plain:
        bucket, sign, path = plain.partition("://") if is_s3(uri) else ("file", "://", plain)
        yield f"{bucket}{sign}{escaped(path)}"
        return
    if is_s3(uri):
        raise ValueError("its name holds an escape (as %20), which would be read as what it means")
    with tempfile.TemporaryDirectory() as folder:
        for each in Path(plain).iterdir():
            (Path(folder) / each.name).symlink_to(each)
        yield folder


def _refuse_what_files_do_not_show(
    uri: str, table: DeltaTable, partitions: Sequence[pa.Field]
) -> None:
    features = set(table.protocol().reader_features or ())
    fault = ""
    if strange := sorted(features - _KNOWN_FEATURES):
        fault = f"it uses {', '.join(strange)}"
    elif table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        fault = "its columns have other names in its files (column mapping)"
    elif any(pa.types.is_binary(field.type) for field in partitions):
        fault = "it is partitioned by a binary column"
    elif "deletionVectors" in features and any(
        batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors())
    ):
        fault = "rows were deleted without being removed from its files (deletion vectors)"
    if fault:
        raise InvalidInput(
            Problem("", f"the Delta table {uri} cannot be read: {fault}; write a copy without")
        )


def _parts(uri: str, folder: str, actions: pa.Table, partitions: Sequence[str]) -> list[_Part]:
    found = []
    for row in actions.to_pylist():
        path = unquote(row["path"])
        if "://" in path or path.startswith("/") or ".." in path.split("/"):
            # Permission to read the table does not include files elsewhere that its log names.
            raise InvalidInput(
                Problem("", f"the Delta table {uri} names a file outside of it: write a full copy")
            )
        when = datetime.fromtimestamp(row["modification_time"] / 1000, UTC)
        file = File(join(folder, path), row["size_bytes"], when)
        values = {name: row.get(f"partition.{name}") for name in partitions}
        found.append(_Part(file, row.get("num_records"), values))
    return sorted(found, key=lambda each: each.file.url)


def _types(connection: duckdb.DuckDBPyConnection, schema: pa.Schema) -> dict[str, str]:
    connection.register("schema", schema.empty_table())
    described = connection.execute("DESCRIBE FROM schema").fetchall()
    connection.unregister("schema")
    return {str(name): str(type_) for name, type_, *_ in described}


def _stored(connection: duckdb.DuckDBPyConnection, files: Sequence[str]) -> dict[str, str]:
    """What the files have themselves: a column that was added later may be in none yet."""
    if not files:
        return {}
    described = connection.execute(f"DESCRIBE FROM {_read(files)}").fetchall()
    return {str(name): str(type_) for name, type_, *_ in described}


def _count(connection: duckdb.DuckDBPyConnection, files: Sequence[str]) -> int:
    ((rows,),) = connection.execute(f"SELECT count(*) FROM {_read(files)}").fetchall()
    return int(rows)


def _relation(
    types: Mapping[str, str],
    stored: Mapping[str, str],
    partitions: Sequence[str],
    parts: Sequence[_Part],
) -> str | None:
    """None where the files are simply read one after the other."""
    plain = all(stored.get(name) == type_ for name, type_ in types.items())
    if plain and not partitions:
        return None
    if not parts:
        nothing = [f"CAST(NULL AS {type_}) AS {quote(name)}" for name, type_ in types.items()]
        return f"(SELECT {', '.join(nothing)} WHERE false)"
    columns = [
        f"{_column(name, type_, stored, partitions)} AS {quote(name)}"
        for name, type_ in types.items()
    ]
    source = _read([each.file.url for each in parts], f", filename={literal(_FILE)}")
    if not partitions:
        return f"(SELECT {', '.join(columns)} FROM {source} AS f)"
    rows = []
    for each in parts:
        values = [_text(each.values[name]) for name in partitions]
        rows.append(f"({', '.join([literal(each.file.url), *values])})")
    names = ", ".join(quote(name) for name in (_FILE, *partitions))
    return (
        f"(SELECT {', '.join(columns)} FROM {source} AS f"
        f" LEFT JOIN (VALUES {', '.join(rows)}) AS p({names}) USING ({quote(_FILE)}))"
    )


def _column(name: str, type_: str, stored: Mapping[str, str], partitions: Sequence[str]) -> str:
    if name in partitions:
        lost = literal("a file of the Delta table is not in its log")
        value = f"CASE WHEN p.{quote(_FILE)} IS NULL THEN error({lost}) ELSE p.{quote(name)} END"
        return f"CAST({value} AS {type_})"
    if name not in stored:
        return f"CAST(NULL AS {type_})"
    column = f"f.{quote(name)}"
    return column if stored[name] == type_ else f"CAST({column} AS {type_})"


def _read(files: Sequence[str], options: str = "") -> str:
    return f"read_parquet({listed(files)}, union_by_name=true, hive_partitioning=false{options})"


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    return literal(value.isoformat() if isinstance(value, date) else str(value))


@contextmanager
def _translate_errors(uri: str) -> Iterator[None]:
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, pa.ArrowException, ValueError) as error:
        reason = scrub(str(error).strip().splitlines()[0])
        raise InvalidInput(Problem("", f"the Delta table {uri} cannot be read: {reason}")) from None
    except OSError as error:
        reason = scrub(str(error).strip().splitlines()[0])
        raise Unavailable(f"the Delta table {uri} cannot be reached: {reason}") from None
