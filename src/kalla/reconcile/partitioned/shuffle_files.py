"""Shuffled rows between tasks: one Arrow file, in which each batch belongs to one bucket.

Files are written once and read soon, so they are neither encoded nor compressed. Files on disk are
memory-mapped; from S3 a task fetches only its own batches.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kalla.reconcile.arrays.arrow_numbers import as_column, numbers
from kalla.reconcile.session.match_session import MatchSession
from kalla.storage import Storage, is_s3, join
from kalla.storage.storage_failures import translate_errors
from kalla.threads import spread

BUCKET = '"kalla:bucket"'

_ROWS, _BUCKETS = "rows.arrow", "buckets.npy"
_AT_ONCE = 16  # files that are asked for their batches

# A batch is sorted out at once: within a processor's cache, unless each bucket would get too few.
_BATCH = 122_880
_LARGEST_BATCH = 300_000
_BATCH_OF_BUCKET = 8_192

_VIEWED = ("BLOB", "BIT")  # which a newer Arrow has in a way that cannot be sorted out


def write(session: MatchSession, rows: str, count: int, place: str) -> None:
    """Write the rows of a query, whose last column, BUCKET, is which of so many each is in."""
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
    schema = pa.schema(list(reader.schema)[:-1])
    with (
        session.storage.writing(join(place, _ROWS)) as path,
        pa.ipc.new_file(str(path), schema) as file,
    ):
        for batch in _counted(session, reader, rows):
            for number, part in _sorted_out(batch):
                file.write_batch(part)
                found.append(number)
    save(np.array(found, np.int64), join(place, _BUCKETS), session.storage)
    for name in settings:
        session.run(f"RESET {name}")


def read(places: Sequence[str], storage: Storage, bucket: int | None = None) -> pa.Table:
    """The rows of one bucket, or of all, that were written to these places."""

    def read_one(place: str) -> tuple[pa.Schema, list[pa.RecordBatch]]:
        buckets = load(join(place, _BUCKETS), storage)
        wanted = np.ones(len(buckets), np.bool_) if bucket is None else buckets == bucket
        with translate_errors(place):
            file = pa.ipc.open_file(storage.mapped(join(place, _ROWS)))
            return file.schema, [file.get_batch(int(at)) for at in np.flatnonzero(wanted)]

    found = list(spread(read_one, places, _AT_ONCE))
    batches = [batch for _, each in found for batch in each]
    return pa.Table.from_batches(batches, found[-1][0] if found else pa.schema([]))


def save(array: npt.NDArray[Any], url: str, storage: Storage) -> None:
    with storage.writing(url) as path:
        np.save(path, array)


def load(url: str, storage: Storage) -> npt.NDArray[Any]:
    """On disk, only the pages in use are read."""
    if not is_s3(url):
        mapped: npt.NDArray[Any] = np.load(storage.filesystem(url)[1], "r")
        return mapped
    with storage.open(url) as opened:
        found: npt.NDArray[Any] = np.load(io.BytesIO(opened.read()))
        return found


def _counted(
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
