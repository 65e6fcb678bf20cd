"""Versions of what dynamic tables read: pinned once, read as files, compared between two pins.

Delta tables are read as the list of Parquet files that their log names, so that Spark needs no
jars of Delta; what plain files would get wrong (deletion vectors, renamed columns, partitions) is
refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from kalla.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

# A job's payload holds the names of a folder's files.
MOST_FILES = 1000
_MOST_NAME_BYTES = 60_000
_REFUSED_FEATURES = {"deletionVectors", "columnMapping", "rowTracking", "variantType"}
_CHANGE_FEED = "delta.enableChangeDataFeed"
_ADDED = ("insert", "update_postimage")


class Gap(Exception):
    """The changes between two pins cannot be known; the text says why."""


class PinGone(Exception):
    """What a pin names is not there any more: the next tick pins anew."""


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
    """Rows that are gone and rows that are new between two pins; a row may be in both."""

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
        if not any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts):
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


def columns(pinned: Pin) -> tuple[str, ...]:
    """The names of its columns."""
    if pinned.kind == "delta":
        return tuple(field.name for field in _table_at(pinned).schema().fields)
    first = pinned.files[0][0]
    if pinned.format == "csv":
        with pa_csv.open_csv(first) as reader:
            return tuple(reader.schema.names)
    return tuple(pq.read_schema(first).names)


def frame(spark: SparkSession, pinned: Pin) -> DataFrame:
    """The rows of a pin."""
    if pinned.kind == "delta":
        table = _table_at(pinned)
        return _delta_frame(spark, table, _files(table))
    for path, size, modified in pinned.files:
        _require_unchanged(path, size, modified)
    return _file_frame(spark, pinned.format, [path for path, _, _ in pinned.files])


def changes(spark: SparkSession, old: Pin, new: Pin, scratch: Path) -> Changes:
    """What differs between two pins of one source; raises Gap where that cannot be known."""
    if (old.kind, old.location, old.format) != (new.kind, new.location, new.format):
        raise Gap("a source was replaced")
    if new.kind == "files":
        return _file_changes(spark, old, new)
    if old.table_id != new.table_id:
        raise Gap("a source was replaced")
    if old.version == new.version:
        return Changes(None, None)
    before, after = _table_at(old), _table_at(new)
    if before.schema().to_json() != after.schema().to_json():
        raise Gap("the schema of a source changed")
    if _has_feed(before) and _has_feed(after):
        return _fed_changes(spark, before, after, scratch)
    gone = sorted(set(_files(before)) - set(_files(after)))
    new_files = sorted(set(_files(after)) - set(_files(before)))
    if any(not Path(path).exists() for path in gone):
        raise Gap("old files of a source were vacuumed")
    # A rewritten file holds its unchanged rows on both sides: net them.
    removed = _delta_frame(spark, before, gone)
    added = _delta_frame(spark, after, new_files)
    if not gone:
        return Changes(None, added)
    return Changes(removed.exceptAll(added), added.exceptAll(removed))


def _file_changes(spark: SparkSession, old: Pin, new: Pin) -> Changes:
    if set(old.files) - set(new.files):
        raise Gap("a file of a source was changed or removed, and its old rows are gone")
    added = sorted(set(new.files) - set(old.files))
    if not added:
        return Changes(None, None)
    for each in added:
        _require_unchanged(*each)
    return Changes(None, _file_frame(spark, new.format, [path for path, _, _ in added]))


def _fed_changes(
    spark: SparkSession, before: DeltaTable, after: DeltaTable, scratch: Path
) -> Changes:
    """By the change feed, which holds the changed rows alone."""
    from deltalake.exceptions import DeltaError

    try:
        reader = after.load_cdf(
            starting_version=before.version() + 1, ending_version=after.version()
        )
        rows = _without_views(pa.table(reader.read_all()))
    except (DeltaError, OSError) as error:
        raise Gap(f"the change feed of a source has a gap: {str(error)[:200]}") from None
    kinds = rows.column("_change_type").to_pylist()
    names = [field.name for field in after.schema().fields]
    found: list[DataFrame | None] = []
    for wanted in (False, True):
        mask = pa.array([(kind in _ADDED) is wanted for kind in kinds], pa.bool_())
        part = rows.select(names).filter(mask)
        if part.num_rows == 0:
            found.append(None)
            continue
        path = scratch / f"changes-{uuid4().hex}.parquet"
        pq.write_table(part, path)
        found.append(_delta_frame(spark, after, [str(path)]))
    return Changes(found[0], found[1])


def _without_views(rows: pa.Table) -> pa.Table:
    """With plain texts: pyarrow cannot filter columns of views."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return rows.cast(
        pa.schema([each.with_type(plain.get(each.type, each.type)) for each in rows.schema])
    )


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
        raise PinGone(f"version {pinned.version} of {pinned.location}: {error}") from None


def _files(table: DeltaTable) -> list[str]:
    return [unquote(uri.removeprefix("file://")) for uri in table.file_uris()]


def _has_feed(table: DeltaTable) -> bool:
    return table.metadata().configuration.get(_CHANGE_FEED, "false") == "true"


def _delta_frame(spark: SparkSession, table: DeltaTable, files: Sequence[str]) -> DataFrame:
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*files)


def _file_frame(spark: SparkSession, format_: str, files: Sequence[str]) -> DataFrame:
    if format_ == "csv":
        # Every column is text: what a type is guessed from may change with the next file.
        return spark.read.csv(list(files), header=True, enforceSchema=False)
    return spark.read.parquet(*files)


def _require_unchanged(path: str, size: int, modified: int) -> None:
    try:
        facts = Path(path).stat()
    except OSError:
        raise PinGone(f"{path} is gone") from None
    if (facts.st_size, facts.st_mtime_ns) != (size, modified):
        raise PinGone(f"{path} was changed")
