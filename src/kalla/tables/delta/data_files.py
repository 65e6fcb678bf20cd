"""Parquet files of a Delta table: written from batches of rows, and described for its log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

MOST_ROWS = 500_000  # of one file: a change rewrites the whole file
_LONGEST_TEXT = 32  # of the smallest and largest values in the log


@dataclass(frozen=True)
class DataFile:
    path: str
    rows: int
    size: int
    statistics: dict[str, Any]  # in the form of the Delta log


class DataFileWriter:
    """Writes batches to files of at most MOST_ROWS rows each; memory holds one batch."""

    def __init__(self, folder: Path, schema: pa.Schema, statistics_of: Sequence[str]) -> None:
        self._folder = folder
        self.schema = schema
        self._statistics_of = statistics_of
        self._writer: pq.ParquetWriter | None = None
        self._path = Path()
        self._rows = 0
        self.files: list[DataFile] = []

    def write(self, rows: pa.Table) -> None:
        """In the order of the columns of the schema."""
        rows = rows.select(self.schema.names).cast(self.schema)
        while rows.num_rows:
            writer = self._writer or self._opened()
            part = rows.slice(0, MOST_ROWS - self._rows)
            writer.write_table(part)
            self._rows += part.num_rows
            rows = rows.slice(part.num_rows)
            if self._rows == MOST_ROWS:
                self.end_file()

    def end_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self.files.append(described(self._path, self._statistics_of))
            self._writer = None
            self._rows = 0

    def close(self, even_empty: bool = False) -> list[DataFile]:
        """All files; with `even_empty` there is at least one."""
        if even_empty and not self.files and self._writer is None:
            self._opened()
        self.end_file()
        return self.files

    def _opened(self) -> pq.ParquetWriter:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path = self._folder / f"{uuid4().hex}.parquet"
        self._writer = pq.ParquetWriter(
            self._path, self.schema, compression="snappy", coerce_timestamps="us"
        )
        return self._writer


def written(
    folder: Path,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    statistics_of: Sequence[str] = (),
    even_empty: bool = False,
) -> list[DataFile]:
    writer = DataFileWriter(folder, schema, statistics_of)
    for batch in batches:
        writer.write(pa.Table.from_batches([batch]))
    return writer.close(even_empty)


def described(path: Path, columns: Sequence[str]) -> DataFile:
    """The log entry of a file, with the smallest and largest values of plain columns."""
    metadata = pq.read_metadata(path)
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    wanted = set(columns)
    for place in range(metadata.num_columns if metadata.num_row_groups else 0):
        groups = [
            metadata.row_group(number).column(place) for number in range(metadata.num_row_groups)
        ]
        name = groups[0].path_in_schema
        found = [each.statistics for each in groups]
        if name not in wanted or any(each is None for each in found):
            continue
        if all(each.has_null_count for each in found):
            nulls[name] = sum(each.null_count for each in found)
        bounds = [each for each in found if each.has_min_max]
        with_values = [each for each in found if each.num_values]
        if not bounds or len(bounds) < len(with_values):
            continue
        low, high = min(each.min for each in bounds), max(each.max for each in bounds)
        if _is_plain(low) and _is_plain(high):
            smallest[name], largest[name] = low, high
    statistics: dict[str, Any] = {"numRecords": metadata.num_rows}
    if nulls:
        statistics |= {"minValues": smallest, "maxValues": largest, "nullCount": nulls}
    return DataFile(str(path), metadata.num_rows, path.stat().st_size, statistics)


def _is_plain(value: object) -> bool:
    """Whether values are unchanged in JSON."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, str) and len(value) <= _LONGEST_TEXT)
