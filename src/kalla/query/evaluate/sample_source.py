"""The seam to storage: what a leaf asks for, and the columns it gets; one source in memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from kalla.query.array_types import Floats, Mask, Whole
from kalla.query.labels.label_sets import Labels, shown, value_of
from kalla.query.promql.matchers import Matcher
from kalla.query.promql.query_errors import NativeHistograms

# Prometheus' staleness marker: the series has ended. Its value is a NaN with these exact bits.
STALE_BITS = 0x7FF0000000000002
STALE = np.array([STALE_BITS], np.uint64).view(np.float64)[0]


@dataclass(frozen=True)
class SeriesBatch:
    """Series sorted by labels; the samples of series i are at offsets[i] to offsets[i + 1].

    `stale` marks staleness markers among the samples, None if there are none. `starts` holds
    each sample's start timestamp (0: not known), None if none has one. `read` counts what it took
    to get here, in the source's own words (segments, bytes); explain shows it.
    """

    labels: Sequence[Labels]
    offsets: Whole
    times: Whole
    values: Floats
    stale: Mask | None = None
    starts: Whole | None = None
    read: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def without_markers(self) -> SeriesBatch:
        """Range vectors never see staleness markers."""
        if self.stale is None:
            return self
        kept = ~self.stale
        reached = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
        starts = None if self.starts is None else self.starts[kept]
        return SeriesBatch(
            self.labels,
            reached[self.offsets],
            self.times[kept],
            self.values[kept],
            None,
            starts,
        )


class Source(Protocol):
    """Where samples come from, in shards; one label set is in exactly one shard."""

    @property
    def shards(self) -> int: ...

    def select(
        self, shard: int, matchers: Sequence[Matcher], after: int, until: int
    ) -> SeriesBatch:
        """Series of a shard that match, with their samples of (after, until], in time order.

        Raises NativeHistograms when a matching series has a native histogram there.
        """


@dataclass(frozen=True)
class Samples:
    """One series in memory; `histograms` are the times of native histograms among its samples."""

    times: Whole
    values: Floats
    starts: Whole | None = None
    histograms: Whole = field(default_factory=lambda: np.empty(0, np.int64))


class MemorySource:
    """Series in memory, for tests and scripts; sharded by the hash of the full label set."""

    def __init__(self, series: Mapping[Labels, Samples], shards: int = 1) -> None:
        self._shards = shards
        self._series: list[list[tuple[Labels, Samples]]] = [[] for _ in range(shards)]
        for labels in sorted(series):
            self._series[shard_of(labels, shards)].append((labels, series[labels]))

    @property
    def shards(self) -> int:
        return self._shards

    def select(
        self, shard: int, matchers: Sequence[Matcher], after: int, until: int
    ) -> SeriesBatch:
        held = self._series[shard]
        chosen = matching([labels for labels, _ in held], matchers)
        parts: list[tuple[Labels, Samples, int, int]] = []
        for index in chosen:
            labels, samples = held[index]
            if ((samples.histograms > after) & (samples.histograms <= until)).any():
                raise NativeHistograms(f"{shown(labels)} has some in the time asked for")
            low, high = np.searchsorted(samples.times, [after, until], side="right")
            if high > low:
                parts.append((labels, samples, int(low), int(high)))
        return _batch(parts)


def matching(known: Sequence[Labels], matchers: Iterable[Matcher]) -> list[int]:
    """Which of the label sets fulfil every matcher; each value is tested once."""
    left = list(range(len(known)))
    for matcher in matchers:
        found = [value_of(known[index], matcher.name) for index in left]
        distinct = sorted(set(found))
        admitted = dict(zip(distinct, matcher.admits(distinct), strict=True))
        left = [index for index, value in zip(left, found, strict=True) if admitted[value]]
    return left


def shard_of(labels: Labels, shards: int) -> int:
    return shard_of_texts([word for pair in labels for word in pair], shards)


def shard_of_texts(texts: Iterable[str], shards: int) -> int:
    """The same of the names and values of a label set, in turns."""
    text = "\xff".join(texts)
    return zlib.crc32(text.encode(errors="surrogateescape")) % shards


def _batch(parts: Sequence[tuple[Labels, Samples, int, int]]) -> SeriesBatch:
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([high - low for _, _, low, high in parts], out=offsets[1:])
    empty = np.empty(0)
    times = [samples.times[low:high] for _, samples, low, high in parts]
    values = np.concatenate(
        [samples.values[low:high] for _, samples, low, high in parts] or [empty]
    )
    stale = values.view(np.uint64) == STALE_BITS
    starts = None
    if any(samples.starts is not None for _, samples, _, _ in parts):
        starts = np.concatenate(
            [
                np.zeros(high - low, np.int64)
                if samples.starts is None
                else samples.starts[low:high]
                for _, samples, low, high in parts
            ]
        )
    return SeriesBatch(
        tuple(labels for labels, _, _, _ in parts),
        offsets,
        np.concatenate(times or [np.empty(0, np.int64)]).astype(np.int64),
        values,
        stale if stale.any() else None,
        starts,
    )
