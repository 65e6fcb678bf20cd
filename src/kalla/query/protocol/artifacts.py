"""Results of work units as Parquet: what one process computed, with the same bits in another.

A row is a series or a group. Its cells are in binary columns, one value per row, as the raw bytes
of the array: floats keep the bits of a NaN, exact sums keep their limbs. What does not belong to
one row is JSON in the file's metadata.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kalla.query.array_types import Whole
from kalla.query.evaluate.frames import Frame
from kalla.query.evaluate.leaf import Partial
from kalla.query.evaluate.partial_aggregates import Reduced
from kalla.query.evaluate.sample_source import SeriesBatch
from kalla.query.kernels.exact_sums import ExactSums
from kalla.query.labels.interned import Interned
from kalla.query.labels.label_sets import Labels
from kalla.query.promql.query_errors import ExecutionFailed
from kalla.query.protocol.versions import SCHEMA_VERSION, checksum_of
from kalla.query.store.series_table import SeriesTable, labels_of_text, text_of

_FACTS = b"kalla.artifact"

Array = NDArray[Any]


@dataclass(frozen=True)
class Encoded:
    """An artifact's bytes and its description."""

    content: pa.Buffer
    checksum: str
    rows: int


def encode_partial(part: Partial) -> Encoded:
    facts: dict[str, Any] = {
        "kind": "partial",
        "series": part.series,
        "samples": part.samples,
        "fullest": part.fullest,
        "uncounted": [_escaped(name) for name in sorted(part.uncounted)],
        "overlapping": [_escaped(name) for name in sorted(part.overlapping)],
        "answered": _packed(part.answered),
        "samples_by_step": _packed(part.samples_by_step),
        "read": dict(part.read),
    }
    if part.frame is not None:
        facts |= {"holds": "frame", "steps": part.frame.values.shape[1]}
        return _written(facts, part.frame.labels, _frame_columns(part.frame))
    reduced = part.reduced
    if reduced is None:
        return _written(facts | {"holds": "nothing"}, (), {})
    if reduced.frame is not None:
        facts |= {"holds": "chosen", "steps": reduced.frame.values.shape[1]}
        return _written(facts, reduced.frame.labels, _frame_columns(reduced.frame))
    columns: dict[str, Array] = {"drops": reduced.drops.reshape(-1, 1)}
    facts["holds"] = "groups"
    if (sums := reduced.sums) is not None:
        groups, steps, width = sums.limbs.shape
        facts |= {"base": sums.base, "width": width, "steps": steps}
        columns |= {"counts": sums.counts, "flags": sums.flags}
        columns["limbs"] = sums.limbs.reshape(groups, steps * width)
    elif reduced.counts is not None:
        facts["steps"] = reduced.counts.shape[1]
        columns["counts"] = reduced.counts
        if reduced.best is not None:
            columns["best"] = reduced.best
    return _written(facts, reduced.groups, columns)


def encode_batch(batch: SeriesBatch) -> Encoded:
    """Samples are stored in sequence: a row has as many as its series."""
    offsets = batch.offsets
    ragged: dict[str, Array] = {"times": batch.times, "values": batch.values}
    if batch.stale is not None:
        ragged["stale"] = batch.stale
    if batch.starts is not None:
        ragged["starts"] = batch.starts
    facts: dict[str, Any] = {"kind": "batch", "read": dict(batch.read)}
    return _written(facts, batch.labels, {}, {name: (one, offsets) for name, one in ragged.items()})


def encode_labels(known: Sequence[Labels]) -> Encoded:
    return _written({"kind": "labels"}, known, {})


def decode_partial(content: pa.Buffer, table: SeriesTable) -> Partial:
    facts, stored = _read(content, "partial")
    part = Partial(
        series=facts["series"],
        samples=facts["samples"],
        fullest=facts["fullest"],
        uncounted=frozenset(map(_unescaped, facts["uncounted"])),
        overlapping=frozenset(map(_unescaped, facts["overlapping"])),
        answered=_unpacked(facts["answered"], np.bool_),
        samples_by_step=_unpacked(facts["samples_by_step"], np.int64),
        read=facts["read"],
    )
    match facts["holds"]:
        case "frame":
            return _with(part, frame=_frame(facts, stored, table))
        case "chosen":
            chosen = _frame(facts, stored, table)
            return _with(part, reduced=Reduced((), np.empty(0, bool), frame=chosen))
        case "groups":
            return _with(part, reduced=_groups(facts, stored))
    return part


def decode_batch(content: pa.Buffer, table: SeriesTable) -> SeriesBatch:
    facts, stored = _read(content, "batch")
    offsets, times = _ragged(stored, "times", np.int64)
    has = set(stored.column_names)
    return SeriesBatch(
        _labels(facts, stored, table),
        offsets,
        times,
        _ragged(stored, "values", np.float64)[1],
        _ragged(stored, "stale", np.bool_)[1] if "stale" in has else None,
        _ragged(stored, "starts", np.int64)[1] if "starts" in has else None,
        facts["read"],
    )


def decode_labels(content: pa.Buffer) -> list[Labels]:
    _, stored = _read(content, "labels")
    return [labels_of_text(text) for text in stored.column("labels").to_pylist()]


def _with(part: Partial, *, frame: Frame | None = None, reduced: Reduced | None = None) -> Partial:
    return replace(part, frame=frame, reduced=reduced)


def _frame_columns(frame: Frame) -> dict[str, Array]:
    columns: dict[str, Array] = {"drops": frame.drops.reshape(-1, 1), "values": frame.values}
    # Usually every cell is present: then the mask is left out.
    if not frame.present.all():
        columns["present"] = np.packbits(frame.present, axis=1)
    return columns


def _frame(facts: Mapping[str, Any], stored: pa.Table, table: SeriesTable) -> Frame:
    steps, rows = facts["steps"], stored.num_rows
    present = np.ones((rows, steps), bool)
    if "present" in stored.column_names:
        packed = _matrix(stored, "present", np.uint8, (steps + 7) // 8)
        present = np.unpackbits(packed, axis=1, count=steps).astype(bool)
    return Frame(
        _labels(facts, stored, table),
        _matrix(stored, "values", np.float64, steps),
        present,
        _matrix(stored, "drops", np.bool_, 1).reshape(-1),
    )


def _groups(facts: Mapping[str, Any], stored: pa.Table) -> Reduced:
    steps, rows = facts["steps"], stored.num_rows
    groups = tuple(labels_of_text(text) for text in stored.column("labels").to_pylist())
    drops = _matrix(stored, "drops", np.bool_, 1).reshape(-1)
    counts = _matrix(stored, "counts", np.int64, steps)
    if "limbs" in stored.column_names:
        width = facts["width"]
        limbs = _matrix(stored, "limbs", np.int64, steps * width).reshape(rows, steps, width)
        flags = _matrix(stored, "flags", np.uint8, steps)
        return Reduced(groups, drops, sums=ExactSums(limbs, facts["base"], counts, flags))
    best = _matrix(stored, "best", np.float64, steps) if "best" in stored.column_names else None
    return Reduced(groups, drops, counts=counts, best=best)


def _labels(facts: Mapping[str, Any], stored: pa.Table, table: SeriesTable) -> Sequence[Labels]:
    texts = stored.column("labels").combine_chunks()
    if not facts["interned"]:
        return tuple(labels_of_text(text) for text in texts.to_pylist())
    numbers = table.numbers(texts).astype(np.int64)
    return Interned(table, numbers, nameless=facts["nameless"])


def _written(
    facts: Mapping[str, Any],
    known: Sequence[Labels],
    columns: Mapping[str, Array],
    ragged: Mapping[str, tuple[Array, Whole]] | None = None,
) -> Encoded:
    interned = isinstance(known, Interned)
    document = dict(facts) | {
        "schema_version": SCHEMA_VERSION,
        "interned": interned,
        "nameless": isinstance(known, Interned) and known.nameless,
    }
    stored: dict[str, pa.Array] = {"labels": _label_texts(known)}
    for name, array in columns.items():
        stored[name] = _cells(np.ascontiguousarray(array))
    for name, (array, offsets) in (ragged or {}).items():
        stored[name] = _runs(np.ascontiguousarray(array), offsets)
    table = pa.table(stored).replace_schema_metadata({_FACTS: json.dumps(document).encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        store_schema=True,
        row_group_size=max(table.num_rows, 1),
        data_page_size=1 << 30,
    )
    content = sink.getvalue()
    return Encoded(content, checksum_of(content), table.num_rows)


def _label_texts(known: Sequence[Labels]) -> pa.Array:
    """Of a series table: with names, for numbers of the other side are of whole label sets."""
    if isinstance(known, Interned):
        return known.table.written(known.numbers)
    return pa.array([text_of(one) for one in known], pa.large_string())


def _cells(array: Array) -> pa.Array:
    """Each row's bytes."""
    rows = array.shape[0]
    width = array.nbytes // rows if rows else 0
    offsets = np.arange(rows + 1, dtype=np.int64) * width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(array.reshape(-1).view(np.uint8))]
    return pa.Array.from_buffers(pa.large_binary(), rows, buffers)


def _runs(array: Array, offsets: Whole) -> pa.Array:
    bounds = offsets.astype(np.int64) * array.itemsize
    content = array.view(np.uint8)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(bounds)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _read(content: pa.Buffer, kind: str) -> tuple[dict[str, Any], pa.Table]:
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        facts: dict[str, Any] = json.loads(file.schema_arrow.metadata[_FACTS])
        if facts.get("schema_version") != SCHEMA_VERSION or facts.get("kind") != kind:
            raise ExecutionFailed(
                f"a query worker sent an artifact of version {facts.get('schema_version')}, this "
                f"API reads version {SCHEMA_VERSION}: run the same Kalla on both"
            )
        return facts, file.read(use_threads=False)


def _content(stored: pa.Table, name: str) -> tuple[Whole, NDArray[np.uint8]]:
    """Where each row begins in the bytes of a column, and those bytes."""
    column = stored.column(name)
    chunks = [chunk.cast(pa.large_binary()) for chunk in column.chunks]
    if len(chunks) != 1:
        chunks = [pa.concat_arrays(chunks) if chunks else pa.array([], pa.large_binary())]
    array = chunks[0]
    _, offsets, content = array.buffers()
    if offsets is None or array.offset:
        raise AssertionError("a column of an artifact has no offsets of its own")
    bounds = np.frombuffer(offsets, np.int64)[: len(array) + 1]
    cells = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
    first = int(bounds[0]) if len(bounds) else 0
    last = int(bounds[-1]) if len(bounds) else 0
    return bounds - first, cells[first:last]


def _matrix(stored: pa.Table, name: str, dtype: Any, width: int) -> Array:
    if not stored.num_rows:
        return np.empty((0, width), dtype)
    cells = _content(stored, name)[1]
    # A copy: the bytes may be unaligned, and a frame may be written to.
    found: Array = cells.copy().view(dtype).reshape(stored.num_rows, width)
    return found


def _ragged(stored: pa.Table, name: str, dtype: Any) -> tuple[Whole, Array]:
    if not stored.num_rows:
        return np.zeros(1, np.int64), np.empty(0, dtype)
    bounds, cells = _content(stored, name)
    return bounds // np.dtype(dtype).itemsize, cells.copy().view(dtype)


def _packed(array: Array | None) -> str | None:
    if array is None:
        return None
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _unpacked(text: str | None, dtype: Any) -> Any:
    return None if text is None else np.frombuffer(base64.b64decode(text), dtype).copy()


def _escaped(name: str) -> str:
    return base64.b64encode(name.encode(errors="surrogatepass")).decode()


def _unescaped(text: str) -> str:
    return base64.b64decode(text).decode(errors="surrogatepass")
