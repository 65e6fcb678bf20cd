"""Rows on their way from task to task: one Arrow file, in which each batch is of one bucket.

What is written once and read soon is neither encoded nor compressed, and read where it lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.row_status import as_column, numbers

BUCKET = '"kalla:bucket"'

_ROWS, _BUCKETS = "rows.arrow", "buckets.npy"

# A batch is sorted out at once: within a processor's cache, unless each bucket would get too few.
_BATCH = 122_880
_LARGEST_BATCH = 300_000
_BATCH_OF_BUCKET = 8_192

_VIEWED = ("BLOB", "BIT")  # which a newer Arrow has in a way that cannot be sorted out


def write(session: MatchSession, rows: str, count: int, folder: Path) -> None:
    """Write the rows of a query, whose last column, BUCKET, is which of so many each is in."""
    folder.mkdir(parents=True, exist_ok=True)
    given = session.connection.sql(
        f"SELECT * REPLACE ({BUCKET}::USMALLINT AS {BUCKET}) FROM ({rows})"
    )
    is_plain = not any(each in str(kind) for kind in given.types for each in _VIEWED)
    settings = {
        "arrow_output_version": "'1.5'" if is_plain else "'1.0'",  # 1.5 has decimals of 64 bits
        "arrow_lossless_conversion": "true",  # types as they were
        "arrow_large_buffer_size": "true",  # texts of a batch may be more than 2 GB
    }
    for name, setting in settings.items():
        session.run(f"SET {name} = {setting}")
    reader = given.to_arrow_reader(min(max(_BATCH, count * _BATCH_OF_BUCKET), _LARGEST_BATCH))
    found: list[int] = []
    with pa.ipc.new_file(str(folder / _ROWS), pa.schema(list(reader.schema)[:-1])) as file:
        for batch in _told(session, reader, rows):
            for number, part in _sorted_out(batch):
                file.write_batch(part)
                found.append(number)
    np.save(folder / _BUCKETS, np.array(found, np.int64))
    for name in settings:
        session.run(f"RESET {name}")


def read(folders: Iterable[str], bucket: int | None = None) -> pa.Table:
    """The rows of one bucket, or of all, that were written into these folders."""
    batches: list[pa.RecordBatch] = []
    schema = pa.schema([])
    for folder in map(Path, folders):
        file = pa.ipc.open_file(pa.memory_map(str(folder / _ROWS)))
        schema = file.schema
        buckets = np.load(folder / _BUCKETS)
        wanted = np.ones(len(buckets), np.bool_) if bucket is None else buckets == bucket
        batches += [file.get_batch(int(place)) for place in np.flatnonzero(wanted)]
    return pa.Table.from_batches(batches, schema)


def _told(
    session: MatchSession, reader: pa.RecordBatchReader, rows: str
) -> Iterator[pa.RecordBatch]:
    """Batches; what DuckDB says of rows that it cannot read, it says itself."""
    try:
        yield from reader
    except (OSError, pa.ArrowException):  # all that is left of it on its way through Arrow
        session.run(f"CREATE TEMP TABLE refused AS {rows}")
        raise


def _sorted_out(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    buckets = numbers(batch.column(batch.num_columns - 1))
    rows = batch.select(range(batch.num_columns - 1))
    ends = np.cumsum(np.bincount(buckets))
    if np.count_nonzero(ends) > 1:
        order = np.argsort(buckets, kind="stable").astype(np.int32)
        rows = pc.take(rows, as_column(order).column(0).chunk(0))
    first = 0
    for number, end in enumerate(ends):
        if end > first:
            yield number, rows.slice(first, int(end) - first)
            first = int(end)
