"""Parquet files of ours on S3, as a source: Spark itself has no client for S3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from kalla.spark.connectors.connector import ColumnType, Estimate, Slice
from kalla.storage import Storage


@dataclass(frozen=True)
class StoredParquet:
    """Files of one schema; each is a slice."""

    storage: Storage
    files: tuple[str, ...]

    def schema(self) -> tuple[ColumnType, ...]:
        with self.storage.open(self.files[0]) as opened:
            found = pq.read_schema(opened)
        return tuple(ColumnType(each.name, str(each.type), each.type) for each in found)

    def estimate(self) -> Estimate:
        rows = size = 0
        for file in self.files:
            with self.storage.open(file) as opened:
                rows += pq.read_metadata(opened).num_rows
            size += self.storage.size(file)
        return Estimate(rows, size, exact=True)

    def split(self, n: int) -> tuple[Slice, ...]:  # noqa: ARG002 -- a file is read as a whole
        return tuple(Slice(number, len(self.files)) for number in range(len(self.files)))

    def read(self, part: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        with self.storage.open(self.files[part.number]) as opened:
            yield from pq.ParquetFile(opened).iter_batches(
                columns=None if columns is None else list(columns)
            )
