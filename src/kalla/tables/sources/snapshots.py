"""Versions of what dynamic tables read: pinned once, read as files, compared between two pins.

Delta tables are read as the list of Parquet files that their log names, so that Spark needs no
jars of Delta; features that plain files do not show (deletion vectors, renamed columns, partitions)
are refused.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from kalla.errors import Conflict, InvalidInput, Problem
from kalla.tables.delta.log_changes import LogChanges, LogGap, log_changes

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

# A job's payload holds the names of a folder's files.
MOST_FILES = 1000
_MOST_NAME_BYTES = 60_000
_REFUSED_FEATURES = {"deletionVectors", "columnMapping", "rowTracking", "variantType"}
_REMOVED = ("delete", "update_preimage")
_ADDED = ("insert", "update_postimage")
_PIECE = 1 << 20
_LONGEST_HEADER = 1 << 20  # characters of a line
_GUESSED_ROW_BYTES = 32  # where rows were not counted


class Gap(Exception):
    """The changes between two pins are unknown; the message says why."""


class PinGone(Conflict):
    """The pinned version does not exist any more: the next tick pins again."""


@dataclass(frozen=True)
class Pin:
    """One version of a source or of a dynamic table."""

    kind: Literal["delta", "files"]
    location: str
    version: int = 0  # of a Delta table
    table_id: str = ""  # of a Delta table: another one means that it was replaced
    format: str = ""  # of files
    files: tuple[tuple[str, int, int], ...] = ()  # path, size, modification time

    def as_json(self) -> dict[str, Any]:
        if self.kind == "delta":
            return {
                "kind": "delta",
                "location": self.location,
                "version": self.version,
                "table_id": self.table_id,
            }
        return {
            "kind": "files",
            "location": self.location,
            "format": self.format,
            "files": [list(each) for each in self.files],
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Pin:
        files = tuple((str(a), int(b), int(c)) for a, b, c in fields.get("files", ()))
        return cls(**{**fields, "files": files})


@dataclass(frozen=True)
class Changes:
    """Removed and new rows between two pins; a row may be in both."""

    removed: DataFrame | None
    added: DataFrame | None


def pin(name: str, location: str, format_: str) -> Pin:
    """The newest version of a source; raises InvalidInput for what cannot be read exactly."""
    if "://" in location:
        raise InvalidInput(
            Problem(
                name,
                f"{location} is not a folder",
                suggestion="name a folder that Kalla and Spark both see",
            )
        )
    folder = Path(location)
    if not folder.is_dir():
        raise InvalidInput(Problem(name, f"{location} is not there", suggestion="name a folder"))
    if format_ == "delta":
        table = _open(name, location)
        return Pin("delta", location, table.version(), str(table.metadata().id))
    if (folder / "_delta_log").is_dir():
        raise InvalidInput(
            Problem(name, f"{location} is a Delta table", suggestion="write FORMAT DELTA")
        )
    files = []
    for path in sorted(folder.rglob(f"*.{format_}")):
        if path.is_dir():  # what Spark writes, a folder with that name; its files are found, too
            continue
        if not any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts):
            _demand_file(name, path, folder)
            facts = path.stat()
            files.append((str(path), facts.st_size, facts.st_mtime_ns))
    if not files:
        raise InvalidInput(Problem(name, f"{location} has no .{format_} files"))
    if len(files) > MOST_FILES or sum(len(path) for path, _, _ in files) > _MOST_NAME_BYTES:
        raise InvalidInput(
            Problem(
                name,
                f"{location} has {len(files):,} files: too many, or their names are too long",
                suggestion="make a Delta table of them",
            )
        )
    return Pin("files", location, format=format_, files=tuple(files))


def _demand_file(name: str, path: Path, folder: Path) -> None:
    """Refuse a pipe, which would hold its reader, and a link out of what an admin has named."""
    if not path.is_file():
        raise InvalidInput(Problem(name, f"{path} is not a file", suggestion="remove it"))
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InvalidInput(
            Problem(name, f"{path} is a link that leads out of {folder}", suggestion="remove it")
        )


def columns(pinned: Pin) -> tuple[str, ...]:
    """The names of its columns."""
    if pinned.kind == "delta":
        return tuple(field.name for field in _table_at(pinned).schema().fields)
    first = pinned.files[0][0]
    if pinned.format == "csv":
        return _csv_columns(first)
    return tuple(pq.read_schema(first).names)


def _csv_columns(path: str) -> tuple[str, ...]:
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            lines = iter(lambda: file.readline(_LONGEST_HEADER), "")
            names = next(csv.reader(lines, strict=True), None)
    except UnicodeDecodeError:
        raise _not_utf8(path) from None
    except csv.Error as error:
        raise InvalidInput(Problem("source", f"{path} has no header: {error}")) from None
    if not names or any(not name for name in names):
        raise InvalidInput(
            Problem(
                "source", f"{path} has no header", suggestion="name each column in its first line"
            )
        )
    return tuple(names)


def _not_utf8(path: str) -> InvalidInput:
    return InvalidInput(
        Problem("source", f"{path} is not UTF-8", suggestion="write it anew in UTF-8")
    )


def schema_text(pinned: Pin) -> str:
    """Equal for two pins whose columns have the same names and types."""
    if pinned.kind == "delta":
        return str(_table_at(pinned).schema().to_json())
    return (
        "csv: " + ", ".join(columns(pinned))
        if pinned.format == "csv"
        else str(pq.read_schema(pinned.files[0][0]).remove_metadata())
    )


def frame(spark: SparkSession, pinned: Pin) -> DataFrame:
    """The rows of a pin."""
    if pinned.kind == "delta":
        table = _table_at(pinned)
        files = _files(table)
        if any(not Path(path).exists() for path in files):
            raise PinGone(f"files of version {pinned.version} of {pinned.location} were vacuumed")
        return _delta_frame(spark, table, files)
    return _file_frame(spark, pinned, pinned.files)


def changes(spark: SparkSession, old: Pin, new: Pin) -> Changes:
    """The changes between two pins of one source; raises Gap where they are unknown."""
    if new.kind == "files":
        added = _new_files(old, new)
        if not added:
            return Changes(None, None)
        return Changes(None, _file_frame(spark, new, added))
    return _logged_changes(spark, _table_at(new), _logged(old, new))


def changed_rows(old: Pin, new: Pin) -> int | None:
    """About how many rows changed, without reading them; None: none did. Raises Gap."""
    if new.kind == "files":
        added = _new_files(old, new)
        return sum(size for _, size, _ in added) // _GUESSED_ROW_BYTES + 1 if added else None
    found = _logged(old, new)
    return found.rows if found.added or found.removed or found.feed else None


def _logged(old: Pin, new: Pin) -> LogChanges:
    _require_same(old, new)
    if old.version == new.version:
        return LogChanges()
    if new.version < old.version:
        raise Gap("a source was restored to an older version")
    try:
        before = _table_at(old)
    except PinGone as gone:
        raise Gap(f"the log of a source no longer has its old version: {gone}") from None
    after = _table_at(new)
    if before.schema().to_json() != after.schema().to_json():
        raise Gap("the schema of a source changed")
    try:
        return log_changes(old.location, old.version, new.version, _bytes_per_row(after))
    except LogGap as gap:
        raise Gap(f"the changes of a source are unknown: {gap}") from None


def _new_files(old: Pin, new: Pin) -> list[tuple[str, int, int]]:
    _require_same(old, new)
    if set(old.files) - set(new.files):
        raise Gap("a file of a source was changed or removed, and its old rows are lost")
    added = sorted(set(new.files) - set(old.files))
    for each in added:
        _require_unchanged(new.location, *each)
    return added


def _require_same(old: Pin, new: Pin) -> None:
    if (old.kind, old.location, old.format) != (new.kind, new.location, new.format):
        raise Gap("a source was replaced")
    if old.table_id != new.table_id:
        raise Gap("a source was replaced")


def row_count(pinned: Pin) -> int:
    """About how many rows a pin has; 0: not known."""
    if pinned.kind == "delta":
        return _counted(_table_at(pinned))[0]
    return sum(size for _, size, _ in pinned.files) // _GUESSED_ROW_BYTES


def _logged_changes(spark: SparkSession, table: DeltaTable, found: LogChanges) -> Changes:
    removed: list[DataFrame] = []
    added: list[DataFrame] = []
    if found.feed:
        rows = _delta_frame(spark, table, found.feed, ["_change_type"])
        for kinds, frames in ((_REMOVED, removed), (_ADDED, added)):
            frames.append(rows.where(rows["_change_type"].isin(*kinds)).drop("_change_type"))
    if found.rewrote:
        # A rewritten file holds its unchanged rows on both sides: net them.
        gone = _delta_frame(spark, table, found.removed)
        new = _delta_frame(spark, table, found.added)
        removed.append(gone.exceptAll(new))
        added.append(new.exceptAll(gone))
    else:
        if found.removed:
            removed.append(_delta_frame(spark, table, found.removed))
        if found.added:
            added.append(_delta_frame(spark, table, found.added))
    return Changes(_all(removed), _all(added))


def _all(frames: Sequence[DataFrame]) -> DataFrame | None:
    found = None
    for each in frames:
        found = each if found is None else found.unionByName(each)
    return found


def _open(name: str, location: str) -> DeltaTable:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(location)
    except (DeltaError, OSError) as error:
        raise InvalidInput(
            Problem(name, f"{location} is not a Delta table: {str(error).splitlines()[0][:200]}")
        ) from None
    refused = set(table.protocol().reader_features or ()) & _REFUSED_FEATURES
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        refused.add("columnMapping")
    if refused:
        raise InvalidInput(
            Problem(
                name, f"{location} uses {', '.join(sorted(refused))}, which Kalla does not read"
            )
        )
    if table.metadata().partition_columns:
        raise InvalidInput(
            Problem(name, f"{location} is partitioned, which Kalla does not read yet")
        )
    return table


def _table_at(pinned: Pin) -> DeltaTable:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return DeltaTable(pinned.location, version=pinned.version)
    except (DeltaError, OSError) as error:
        raise PinGone(
            f"version {pinned.version} of {pinned.location} does not exist any more: {error}"
        ) from None


def _files(table: DeltaTable) -> list[str]:
    return [unquote(uri.removeprefix("file://")) for uri in table.file_uris()]


def _counted(table: DeltaTable) -> tuple[int, int]:
    """Rows and bytes, by the statistics of the log; 0 rows where it has none."""
    actions = pa.table(table.get_add_actions(flatten=True))
    rows = (
        actions.column("num_records").to_pylist() if "num_records" in actions.schema.names else []
    )
    sizes = actions.column("size_bytes").to_pylist()
    return (0 if None in rows else sum(rows)), sum(sizes)


def _bytes_per_row(table: DeltaTable) -> float:
    rows, size = _counted(table)
    return size / rows if rows else float(_GUESSED_ROW_BYTES)


def _delta_frame(
    spark: SparkSession, table: DeltaTable, files: Sequence[str], extra: Sequence[str] = ()
) -> DataFrame:
    from pyspark.sql.types import StringType, StructField, StructType

    given = StructType.fromJson(json.loads(table.schema().to_json()))
    schema = StructType([*given.fields, *(StructField(name, StringType()) for name in extra)])
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*files)


def _file_frame(
    spark: SparkSession, pinned: Pin, files: Sequence[tuple[str, int, int]]
) -> DataFrame:
    for each in files:
        _require_unchanged(pinned.location, *each)
    paths = [path for path, _, _ in files]
    if pinned.format != "csv":
        return spark.read.parquet(*paths)
    for each in files:
        _demand_utf8(*each)
    # Every column is text: what a type is guessed from may change with the next file. A row of
    # another width fails the refresh, or its values would be lost.
    names = ", ".join(f"`{name.replace('`', '``')}` STRING" for name in columns(pinned))
    return spark.read.schema(names).csv(
        paths,
        header=True,
        enforceSchema=False,
        mode="FAILFAST",
        multiLine=True,
        quote='"',
        escape='"',
    )


def csv_refusal(message: str) -> str | None:
    """What to say of Spark's error about a row that does not fit its header; None of any other."""
    if "Malformed records are detected" not in message:
        return None
    file = re.search(r"while reading file (?:file:)?(\S+\.csv)", message)
    return (
        f"a row of {unquote(file[1]) if file else 'a CSV source'} has more or fewer values than its"
        " header, or a quote that is not closed"
    )


@lru_cache(maxsize=4 * MOST_FILES)  # a refresh names every file of a folder, of which few are new
def _demand_utf8(path: str, _size: int, _modified: int) -> None:
    """Spark would put U+FFFD in the place of other bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with Path(path).open("rb") as file:
            while piece := file.read(_PIECE):
                decoder.decode(piece)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise _not_utf8(path) from None


def _require_unchanged(location: str, path: str, size: int, modified: int) -> None:
    try:
        facts = Path(path).stat()
        inside = Path(path).resolve().is_relative_to(Path(location).resolve())
    except OSError:
        raise PinGone(f"{path} is gone") from None
    if not inside or (facts.st_size, facts.st_mtime_ns) != (size, modified):
        raise PinGone(f"{path} was changed")
