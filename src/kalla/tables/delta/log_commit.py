"""Kalla's own commits to the log of a Delta table: added and removed files, and the change feed.

deltalake neither removes chosen files nor writes a change feed for files it did not rewrite,
and it tries again on a later version; a fenced commit is for one version or none. deltalake defines
protocol and schema, and maintains the log.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from kalla.tables.delta.data_files import DataFile

_PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    # For every refresh there are two commits.
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}


class VersionTaken(Exception):
    """Another commit has this version: nothing was committed."""


@dataclass(frozen=True)
class FileChange:
    """The files that a commit removes and adds; paths are those of the file system."""

    adds: Sequence[DataFile] = ()
    removes: Sequence[str] = ()
    feed: Sequence[DataFile] = ()  # rows with `_change_type`


NO_CHANGE = FileChange()


def put_commit(
    location: str,
    version: int,
    transaction: tuple[str, int],
    metadata: Mapping[str, str],
    change: FileChange = NO_CHANGE,
    table: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Writes this version of the table; raises VersionTaken if it exists."""
    now = int(time.time() * 1000)
    app, number = transaction
    folder = Path(location)
    actions: list[Mapping[str, Any]] = [
        {
            "commitInfo": {
                "timestamp": now,
                "operation": "REFRESH",
                "operationParameters": {},
                "engineInfo": "kalla",
                **metadata,
            }
        },
        *table,
        {"txn": {"appId": app, "version": number, "lastUpdated": now}},
        *({"remove": _removed(folder, path, now)} for path in change.removes),
        *({"add": _added(folder, each, now)} for each in change.adds),
        *({"cdc": _feed_file(folder, each)} for each in change.feed),
    ]
    text = "".join(json.dumps(action) + "\n" for action in actions)
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    written = log / f".{uuid4().hex}.tmp"
    written.write_text(text, encoding="utf-8")
    try:
        # After a power cut, a commit is whole, and so is every file that it names.
        files = [Path(each.path) for each in (*change.adds, *change.feed)]
        for path in (*files, *{each.parent for each in files}, written):
            _sync(path)
        # A hard link is atomic: created once, with the whole file.
        os.link(written, log / f"{version:020d}.json")
        _sync(log)
    except FileExistsError:
        raise VersionTaken(f"version {version} of {location}") from None
    finally:
        written.unlink()


def table_actions(schema_json: str, known: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Protocol and metadata of a table with this schema; with `known`, the metadata of a table
    that there is, it stays the same table."""
    from deltalake import DeltaTable, Schema

    with tempfile.TemporaryDirectory(prefix="kalla-") as folder:
        DeltaTable.create(folder, Schema.from_json(schema_json), configuration=_PROPERTIES)
        text = (Path(folder) / "_delta_log" / f"{0:020d}.json").read_text("utf-8")
    actions = [json.loads(line) for line in text.splitlines() if line.strip()]
    found = [each for each in actions if "protocol" in each or "metaData" in each]
    for each in found:
        if known is not None and "metaData" in each:
            each["metaData"] |= known
    return found


def _added(folder: Path, file: DataFile, now: int) -> dict[str, Any]:
    return {
        "path": _relative(folder, file.path),
        "partitionValues": {},
        "size": file.size,
        "modificationTime": now,
        "dataChange": True,
        "stats": json.dumps(file.statistics),
    }


def _removed(folder: Path, path: str, now: int) -> dict[str, Any]:
    return {"path": _relative(folder, path), "deletionTimestamp": now, "dataChange": True}


def _feed_file(folder: Path, file: DataFile) -> dict[str, Any]:
    return {
        "path": _relative(folder, file.path),
        "partitionValues": {},
        "size": file.size,
        "dataChange": False,
    }


def _sync(path: Path) -> None:
    """Of a file its content; of a folder the names in it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _relative(folder: Path, path: str) -> str:
    return quote(str(Path(path).relative_to(folder)))
