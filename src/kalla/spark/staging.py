"""The stage kernel: one slice of any connector straight to one Parquet file. Knows no Spark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import file_digest
from itertools import chain
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kalla.spark.connectors.connector import Connector, Slice, arrow_schema
from kalla.storage import Storage, is_s3

_LOOKED_AT = 10_000  # rows


@dataclass(frozen=True)
class Staged:
    """A file that is whole: what is in it, and how to tell that it still is."""

    path: str
    rows: int
    bytes: int
    checksum: str  # SHA-256 of the file


def stage(connector: Connector, part: Slice, columns: Sequence[str] | None, path: Path) -> Staged:
    """Write the slice to `path`, which appears when it is whole and not before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        rows = _write(connector, part, columns, unfinished)
        with unfinished.open("rb+") as written:
            os.fsync(written.fileno())
            checksum = file_digest(written, "sha256").hexdigest()
        size = unfinished.stat().st_size
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return Staged(str(path), rows, size, checksum)


def stage_to(
    storage: Storage, connector: Connector, part: Slice, columns: Sequence[str] | None, url: str
) -> Staged:
    """The same to any URL: where that is not a folder, the file is made here and then sent."""
    if not is_s3(url):
        return stage(connector, part, columns, Path(url))
    with storage.writing(url) as path:
        made = stage(connector, part, columns, path)
    return replace(made, path=url)


def _write(connector: Connector, part: Slice, columns: Sequence[str] | None, path: Path) -> int:
    batches = connector.read(part, columns)
    first = next(batches, None)
    if first is None:
        pq.write_table(arrow_schema(connector.schema(), columns).empty_table(), path)
        return 0
    rows = 0
    with pq.ParquetWriter(
        path,
        first.schema,
        compression="snappy",  # written once and read once: zstd takes longer than it saves
        use_dictionary=_repetitive(first),
        store_decimal_as_integer=True,
    ) as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _repetitive(batch: pa.RecordBatch) -> list[str]:
    """The columns for which a dictionary pays; for the others it costs time and space."""
    head = batch.slice(0, _LOOKED_AT)
    return [
        name
        for name, values in zip(head.schema.names, head.columns, strict=True)
        if not pa.types.is_nested(values.type) and 2 * len(pc.unique(values)) < len(values)
    ]
