"""Samples as rows of Parquet and back: one row per series and block of two hours.

Decimal numbers are stored as integers with their count of decimals, which Parquet packs well, all
others as floats; both are restored bit by bit. Staleness markers are positions, not values: a NaN's
bits do not survive every reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import gt, ne
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kalla.query.array_types import Floats, Mask, Whole
from kalla.query.evaluate.sample_source import STALE, STALE_BITS, SeriesBatch
from kalla.query.labels.label_sets import name_of
from kalla.query.promql.matchers import readable
from kalla.query.store.label_texts import LabelTexts
from kalla.query.store.series_table import text_of
from kalla.query.store.value_packing import list_array, lists, some_lists, sums, value_columns

BLOCK_MS = 2 * 3600 * 1000

# Samples of a row group: decoded in some 10 ms, 16 megabytes in memory.
_GROUP_SAMPLES = 1 << 20
# With this many a row group ends where its metric ends: statistics then prune by name.
_GROUP_LEAST = 1 << 16


_COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "metric": (pa.string(), ""),
    "labels": (pa.string(), ""),
    "block": (pa.int64(), "DELTA_BINARY_PACKED"),
    "min_time": (pa.int64(), "DELTA_BINARY_PACKED"),
    "max_time": (pa.int64(), "DELTA_BINARY_PACKED"),
    "times": (lists(pa.int64()), "DELTA_BINARY_PACKED"),
    "decimals": (pa.int8(), "PLAIN"),
    "whole": (lists(pa.int64()), "DELTA_BINARY_PACKED"),
    "floats": (lists(pa.float64()), "BYTE_STREAM_SPLIT"),
    "stale": (lists(pa.int32()), "DELTA_BINARY_PACKED"),
    "starts": (lists(pa.int64()), "DELTA_BINARY_PACKED"),
}
SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, (kind, _) in _COLUMNS.items()])
ENCODINGS = {
    f"{name}.list.element" if pa.types.is_list(kind) else name: encoding
    for name, (kind, encoding) in _COLUMNS.items()
    if encoding
}
# The columns that select rows; the others are read only for row groups with selected rows.
HEADS = ["labels", "min_time", "max_time"]
BODIES = ["times", "decimals", "whole", "floats", "stale", "starts"]


@dataclass(frozen=True)
class SampleColumns:
    """The samples of some rows: those of row i are at offsets[i] to offsets[i + 1]."""

    offsets: Whole
    times: Whole
    values: Floats
    stale: Mask | None
    starts: Whole | None

    def part(self, first: int, beyond: int) -> SampleColumns:
        """Of some rows next to each other, without a copy."""
        low, high = self.offsets[first], self.offsets[beyond]
        return SampleColumns(
            self.offsets[first : beyond + 1] - low,
            self.times[low:high],
            self.values[low:high],
            None if self.stale is None else self.stale[low:high],
            None if self.starts is None else self.starts[low:high],
        )

    @classmethod
    def joined(cls, bodies: Sequence[SampleColumns]) -> SampleColumns:
        """The rows of all, concatenated."""
        sizes = [len(body.times) for body in bodies]
        shifts = sums(np.array(sizes, np.int64))
        starts = [body.offsets[:-1] + shift for body, shift in zip(bodies, shifts, strict=False)]
        return cls(
            np.concatenate([*starts, shifts[-1:]]),
            np.concatenate([body.times for body in bodies]),
            np.concatenate([body.values for body in bodies]),
            _filled([body.stale for body in bodies], sizes, bool),
            _filled([body.starts for body in bodies], sizes, np.int64),
        )

    @property
    def nbytes(self) -> int:
        arrays = (self.offsets, self.times, self.values, self.stale, self.starts)
        return sum(array.nbytes for array in arrays if array is not None)


def tables(batches: Sequence[SeriesBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Tables of one row group each, sorted by metric and labels, with the place of their batch."""
    samples = sum(len(batch.times) for batch in batches)
    if not samples:
        return
    if samples > _GROUP_LEAST:
        for place, batch in enumerate(batches):
            named = _Named(batch)
            for chosen in named.groups(named.order(0, len(batch))):
                yield place, named.table(chosen)[0]
        return
    # Few samples in some batches, as commits are: what costs per array is done once for all.
    named = _Named(_joined(batches))
    bounds = sums(np.array([len(batch) for batch in batches], np.int64)).tolist()
    orders = [named.order(first, beyond) for first, beyond in pairwise(bounds)]
    table, places = named.table(np.concatenate(orders))
    counts = sums(np.array([len(order) for order in orders], np.int64))
    cuts = np.searchsorted(places, counts).tolist()
    for place, (first, beyond) in enumerate(pairwise(cuts)):
        if beyond > first:
            yield place, table.slice(first, beyond - first)


def body(table: pa.Table) -> SampleColumns:
    """The samples of a table of rows."""
    offsets, times = _flat(table, "times")
    whole_offsets, whole = _flat(table, "whole")
    counts = np.diff(offsets)
    decimals = table.column("decimals").to_numpy()
    is_whole = np.diff(whole_offsets) > 0
    values = whole.astype(np.float64)
    if decimals.any():
        values /= np.repeat(10.0**decimals, np.diff(whole_offsets))
    if not is_whole.all():
        _, floats = _flat(table, "floats")
        mixed = np.empty(len(times))
        of_whole = np.repeat(is_whole, counts)
        mixed[of_whole], mixed[~of_whole] = values, floats
        values = mixed
    stale: Mask | None = None
    stale_offsets, positions = _flat(table, "stale")
    if len(positions):
        stale = np.zeros(len(times), bool)
        stale[np.repeat(offsets[:-1], np.diff(stale_offsets)) + positions] = True
        values[stale] = STALE
    starts: Whole | None = None
    start_offsets, some = _flat(table, "starts")
    if len(some):
        starts = np.zeros(len(times), np.int64)
        starts[np.repeat(np.diff(start_offsets) > 0, counts)] = some
    return SampleColumns(offsets, times, values, stale, starts)


def _flat(table: pa.Table, name: str) -> tuple[Whole, NDArray[Any]]:
    """Offsets from zero, and the elements of all lists."""
    column = table.column(name)
    chunk = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    offsets = chunk.offsets.to_numpy().astype(np.int64)
    if not len(offsets):
        offsets = np.zeros(1, np.int64)
    return offsets - offsets[0], chunk.flatten().to_numpy()


# Writing


class _Named:
    """A batch with the texts its rows are sorted by."""

    def __init__(self, batch: SeriesBatch) -> None:
        self._batch = batch
        self._counts = np.diff(batch.offsets)
        # In order, and as columns: commits bring them so.
        self._spelled = batch.labels if isinstance(batch.labels, LabelTexts) else None
        if self._spelled is not None:
            return
        self._names = [name_of(labels) for labels in batch.labels]
        if not all(map(str.isascii, distinct := set(self._names))):
            texts = {name: readable(name) for name in distinct}
            self._names = [texts[name] for name in self._names]
        self._texts = [text_of(labels) for labels in batch.labels]

    def order(self, first: int, beyond: int) -> Whole:
        """The series of a range that have samples, by metric and labels."""
        filled = np.flatnonzero(self._counts[first:beyond]) + first
        if self._spelled is not None:
            return filled
        keys = list(zip(self._names[first:beyond], self._texts[first:beyond], strict=True))
        if any(map(gt, keys, keys[1:])):
            found = sorted(filled.tolist(), key=lambda series: keys[series - first])
            return np.array(found, np.int64)
        return filled

    def groups(self, order: Whole) -> Iterator[Whole]:
        """Cut where a row group is full, or full enough and its metric ends."""
        reached = sums(self._counts[order])
        ends = self._metric_ends(order)
        first = 0
        while first < len(order):
            full = int(np.searchsorted(reached, reached[first] + _GROUP_SAMPLES, "right")) - 1
            enough = int(np.searchsorted(reached, reached[first] + _GROUP_LEAST))
            end = int(np.searchsorted(ends, enough))
            beyond = min(full, int(ends[end]) if end < len(ends) else len(order))
            # A series that is larger is a row group of its own.
            beyond = max(beyond, first + 1)
            yield order[first:beyond]
            first = beyond

    def _metric_ends(self, order: Whole) -> Whole:
        """The places in an order before which a metric ends."""
        if self._spelled is not None:
            metrics = self._spelled.metrics.take(pa.array(order))
            differ = pc.not_equal(metrics[1:], metrics[:-1]).to_numpy(zero_copy_only=False)
        else:
            names = [self._names[series] for series in order.tolist()]
            differ = np.fromiter(map(ne, names, names[1:]), bool, max(len(names) - 1, 0))
        return np.flatnonzero(differ) + 1

    def table(self, chosen: Whole) -> tuple[pa.Table, Whole]:
        """The rows of some series, and which of them each row is of."""
        batch = _rearranged(self._batch, chosen)
        times = batch.times
        series = np.repeat(np.arange(len(chosen)), np.diff(batch.offsets))
        blocks = times // BLOCK_MS
        same = series[1:] == series[:-1]
        if (same & (times[1:] <= times[:-1])).any():
            raise ValueError("the samples of a series must be in the order of their times")
        fresh = np.ones(len(times), bool)
        fresh[1:] = ~same | (blocks[1:] != blocks[:-1])
        firsts = np.flatnonzero(fresh)
        offsets = np.append(firsts, len(times))
        places = series[firsts]
        rows = chosen[places]
        metrics, texts = self._texts_of(rows)
        stale = batch.values.view(np.uint64) == STALE_BITS
        if batch.stale is not None:
            stale |= batch.stale
        columns = {
            "metric": metrics,
            "labels": texts,
            "block": pa.array(blocks[firsts] * BLOCK_MS),
            "min_time": pa.array(times[firsts]),
            "max_time": pa.array(times[offsets[1:] - 1]),
            "times": list_array(offsets, times),
            **value_columns(batch.values, offsets, stale),
            "starts": some_lists(offsets, batch.starts),
        }
        return pa.Table.from_arrays(list(columns.values()), schema=SCHEMA), places

    def _texts_of(self, rows: Whole) -> tuple[pa.StringArray, pa.StringArray]:
        if self._spelled is not None:
            if _is_run(rows):
                spelled = self._spelled[int(rows[0]) : int(rows[-1]) + 1]
                return spelled.metrics, spelled.texts
            taken = pa.array(rows)
            return self._spelled.metrics.take(taken), self._spelled.texts.take(taken)
        chosen = rows.tolist()
        return (
            pa.array([self._names[row] for row in chosen], pa.string()),
            pa.array([self._texts[row] for row in chosen], pa.string()),
        )


def _joined(batches: Sequence[SeriesBatch]) -> SeriesBatch:
    """The series of all batches, concatenated."""
    if len(batches) == 1:
        return batches[0]
    spelled = [batch.labels for batch in batches if isinstance(batch.labels, LabelTexts)]
    counts = [np.diff(batch.offsets) for batch in batches]
    sizes = [len(batch.times) for batch in batches]
    return SeriesBatch(
        LabelTexts.joined(spelled)
        if spelled and len(spelled) == len(batches)
        else [labels for batch in batches for labels in batch.labels],
        sums(np.concatenate(counts)),
        np.concatenate([batch.times for batch in batches]),
        np.concatenate([batch.values for batch in batches]),
        _filled([batch.stale for batch in batches], sizes, bool),
        _filled([batch.starts for batch in batches], sizes, np.int64),
    )


def _filled(
    columns: Sequence[NDArray[Any] | None], sizes: Sequence[int], kind: type
) -> NDArray[Any] | None:
    """Columns concatenated, zeros for missing ones; None if all are missing."""
    if all(column is None for column in columns):
        return None
    return np.concatenate(
        [
            np.zeros(size, kind) if column is None else column
            for column, size in zip(columns, sizes, strict=True)
        ]
    )


def _rearranged(batch: SeriesBatch, places: Whole) -> SeriesBatch:
    """Of some series, in this order, without their labels."""
    counts = np.diff(batch.offsets)[places]
    offsets = sums(counts)
    if _is_run(places):
        kept: slice | Whole = slice(batch.offsets[places[0]], batch.offsets[places[-1] + 1])
    else:
        kept = np.repeat(batch.offsets[places] - offsets[:-1], counts) + np.arange(offsets[-1])
    return SeriesBatch(
        (),
        offsets,
        np.ascontiguousarray(batch.times[kept], np.int64),
        np.ascontiguousarray(batch.values[kept], np.float64),
        None if batch.stale is None else batch.stale[kept],
        None if batch.starts is None else batch.starts[kept],
    )


def _is_run(places: Whole) -> bool:
    """Whether they are next to each other, each once."""
    return bool((np.diff(places) == 1).all())
