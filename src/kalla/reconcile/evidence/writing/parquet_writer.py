"""Writes evidence files by Arrow: DuckDB takes twice as long for the same."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_PAGE = 1 << 23  # bytes; small pages take longer


def writer(
    path: Path, schema: pa.Schema, *, coded: Collection[str], plain: Collection[str], rows: int
) -> pq.ParquetWriter:
    """For so many rows at once. Columns that are `coded` have few values; to compress those that
    are `plain` gains little."""
    return pq.ParquetWriter(
        path,
        schema,
        compression={name: "none" if name in plain else "snappy" for name in schema.names},
        use_dictionary=list(coded),
        write_statistics=False,  # of little use in these files
        data_page_size=_PAGE,
        write_batch_size=rows,
        store_schema=False,
        store_decimal_as_integer=True,
    )
