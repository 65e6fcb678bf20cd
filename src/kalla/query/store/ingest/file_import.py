"""Files of samples as bodies of remote write: OpenMetrics text, Parquet, and our own segments.

Reads where the command runs and needs nothing of the store: what it makes goes through the API.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kalla.errors import InvalidInput, Problem
from kalla.query.array_types import Floats, Whole
from kalla.query.labels.label_sets import Labels
from kalla.query.promql.syntax_tree import METRIC_NAME
from kalla.query.store import segment_rows
from kalla.query.store.ingest import openmetrics, remote_write_encoding
from kalla.query.store.ingest.openmetrics import Part

# Of one body before it is packed; its samples share a commit.
BODY_BYTES = 4 << 20
PART_SAMPLES = 200_000
TIMESTAMP, VALUE, LABELS, METRIC = "timestamp", "value", "labels", "metric"
_PARQUET = b"PAR1"


@dataclass(frozen=True)
class WriteBody:
    """A packed remote write 1.0, how many samples it has, and how much of the file is done then."""

    content: bytes
    samples: int
    position: int


def bodies(path: Path) -> Iterator[WriteBody]:
    """All samples of a file. InvalidInput says what is wrong with it, and where."""
    for part in parts(path):
        message = bytearray(remote_write_encoding.notes(part.metadata))
        samples = 0
        for labels, times, values in part.series:
            head = remote_write_encoding.labels_of(labels)
            at = 0
            while at < len(times):
                room = BODY_BYTES - len(message) - len(head)
                take = (
                    max(1, room // remote_write_encoding.SAMPLE_BYTES)
                    if room > 0 or not samples
                    else 0
                )
                if take == 0:
                    yield WriteBody(remote_write_encoding.packed(message), samples, part.position)
                    message, samples = bytearray(), 0
                    continue
                chosen = slice(at, at + take)
                message += remote_write_encoding.series(head, times[chosen], values[chosen])
                samples += len(times[chosen])
                at += take
        if message or samples:
            yield WriteBody(remote_write_encoding.packed(message), samples, part.position)


def parts(path: Path) -> Iterator[Part]:
    """By what the file begins with, whatever its name."""
    try:
        with path.open("rb") as file:
            if file.read(4) == _PARQUET:
                yield from _parquet(path)
            else:
                openmetrics.require_end(file)
                yield from openmetrics.read(file, PART_SAMPLES)
    except OSError as error:
        raise InvalidInput(Problem(str(path), f"cannot be read: {error.strerror}")) from None
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(Problem(str(path), f"is damaged: {reason}")) from None
    except InvalidInput as error:
        raise InvalidInput(
            *(Problem(f"{path} {each.field}".rstrip(), each.message) for each in error.problems)
        ) from None


def _parquet(path: Path) -> Iterator[Part]:
    size = path.stat().st_size
    with pq.ParquetFile(path) as file:
        whole = file.metadata.num_rows
        own = set(segment_rows.SCHEMA.names) <= set(file.schema_arrow.names)
        read = 0
        if own:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                read += table.num_rows
                yield Part(_segment(table), position=size * read // max(whole, 1))
            return
        _check_columns(file.schema_arrow)
        for batch in file.iter_batches(PART_SAMPLES):
            read += batch.num_rows
            table = pa.Table.from_batches([batch])
            yield Part(_long(table), position=size * read // max(whole, 1))


def _segment(table: pa.Table) -> list[tuple[Labels, Whole, Floats]]:
    """Rows of our own format: a series' samples of two hours each."""
    body = segment_rows.body(table)
    found = []
    for place, text in enumerate(table.column("labels").to_pylist()):
        chosen = slice(body.offsets[place], body.offsets[place + 1])
        labels = tuple(json.loads(text).items())
        found.append((labels, body.times[chosen], body.values[chosen]))
    return found


def _check_columns(schema: pa.Schema) -> None:
    problems = [
        Problem("", f"has no column {name}: it needs {TIMESTAMP}, {VALUE} and labels")
        for name in (TIMESTAMP, VALUE)
        if name not in schema.names
    ]
    for column in schema:
        kind = column.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if column.name == TIMESTAMP:
            sound = (
                pa.types.is_timestamp(kind)
                or pa.types.is_integer(kind)
                or pa.types.is_floating(kind)
            )
            wanted = "a timestamp, whole milliseconds or seconds with a fraction"
        elif column.name == VALUE:
            sound = (
                pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)
            )
            wanted = "a number"
        elif column.name == LABELS and pa.types.is_map(kind):
            sound, wanted = _is_text(kind.key_type) and _is_text(kind.item_type), "a map of texts"
        else:
            sound, wanted = _is_text(kind), "text, as every label's"
        if not sound:
            problems.append(
                Problem("", f"has {column.type} in the column {column.name}, not {wanted}")
            )
    if problems:
        raise InvalidInput(*problems)


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _long(table: pa.Table) -> list[tuple[Labels, Whole, Floats]]:
    """A row for each sample; one without a value is none."""
    if table.column(TIMESTAMP).null_count:
        raise InvalidInput(Problem("", f"has rows without a {TIMESTAMP}"))
    if table.column(VALUE).null_count:
        table = table.filter(pc.is_valid(table.column(VALUE)))
    if not table.num_rows:
        return []
    times = _milliseconds(table.column(TIMESTAMP))
    values = table.column(VALUE).cast(pa.float64(), safe=False).to_numpy()
    groups, label_sets = _grouped(table)
    order = np.lexsort((times, groups))
    times, values, groups = times[order], values[order], groups[order]
    edges = np.searchsorted(groups, np.arange(len(label_sets) + 1))
    return [
        (labels, times[low:high], values[low:high])
        for labels, low, high in zip(label_sets, edges, edges[1:], strict=False)
    ]


def _milliseconds(column: pa.ChunkedArray) -> Whole:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    found = column.to_numpy()
    if not np.isfinite(found).all() or (np.abs(found.astype(np.float64)) > 2.0**60).any():
        raise InvalidInput(Problem("", f"has an invalid {TIMESTAMP}"))
    if found.dtype.kind == "f":
        found = np.rint(found.astype(np.float64) * 1000)
    return np.ascontiguousarray(found, np.int64)


def _grouped(table: pa.Table) -> tuple[Whole, list[Labels]]:
    """Each row's group, and the labels of each group."""
    groups = np.zeros(table.num_rows, np.int64)
    texts: dict[str, list[str | None]] = {}
    codes: dict[str, Whole] = {}
    maps: list[Labels] = []
    map_codes = np.empty(0, np.int64)
    for name in table.column_names:
        if name in (TIMESTAMP, VALUE):
            continue
        column = table.column(name).combine_chunks()
        if pa.types.is_map(column.type):
            map_codes, maps = _maps(column)
            found, held = map_codes, len(maps)
        else:
            if not pa.types.is_dictionary(column.type):
                column = column.dictionary_encode()
            found = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            texts[name] = [*column.dictionary.to_pylist(), None]  # the last is found by -1
            codes[name] = found
            held = len(texts[name])
        # Small again after each column, so that no product of sizes grows too large.
        _, groups = np.unique(groups * (held + 1) + found, return_inverse=True)
    _, firsts = np.unique(groups, return_index=True)
    label_sets = []
    for row in firsts.tolist():
        pairs = {name: texts[name][codes[name][row]] for name in texts}
        if maps:
            pairs |= dict(maps[map_codes[row]])
        label_sets.append(_label_set(pairs))
    return groups, label_sets


def _maps(column: pa.MapArray) -> tuple[Whole, list[Labels]]:
    """Each row's number, and the label set of each number."""
    offsets = column.offsets.to_pylist()
    keys, items = column.keys.to_pylist(), column.items.to_pylist()
    numbers: dict[Labels, int] = {}
    found = np.empty(len(column), np.int64)
    for row in range(len(column)):
        low, high = offsets[row], offsets[row + 1]
        labels = tuple(sorted(zip(keys[low:high], items[low:high], strict=True)))
        found[row] = numbers.setdefault(labels, len(numbers))
    return found, list(numbers)


def _label_set(pairs: Mapping[str, str | None]) -> Labels:
    named = {name: value for name, value in pairs.items() if value}
    if METRIC_NAME not in named and METRIC in named:
        named[METRIC_NAME] = named.pop(METRIC)
    if METRIC_NAME not in named:
        raise InvalidInput(
            Problem("", f"has rows without a name: in {METRIC_NAME}, {METRIC} or {LABELS}")
        )
    return tuple(sorted(named.items()))
