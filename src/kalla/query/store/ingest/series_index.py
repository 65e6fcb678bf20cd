"""The series of all senders: maps the bytes of labels, as sent, to a number in one lookup.

Numbers stand for label sets with their shard, and can be put in the order of a segment's rows.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kalla.errors import KallaError
from kalla.query.array_types import Mask, Whole
from kalla.query.evaluate.sample_source import shard_of, shard_of_texts
from kalla.query.labels.label_sets import Labels, name_of, shown
from kalla.query.promql.syntax_tree import METRIC_NAME
from kalla.query.store.label_texts import LabelTexts
from kalla.query.store.series_table import labels_of_text, text_of

if TYPE_CHECKING:
    from kalla.query.store.label_keys import Bytes, LabelKeys

# A number for labels that no series can have.
REFUSED = -1
# The memory of one more series in addition to its bytes and texts: entries in lists and
# dictionaries.
_SERIES_BYTES = 400
_MOST_TEXT = (1 << 31) - 1
# So many are put into their places one by one.
_FEW = 100


class MalformedWrite(KallaError):
    """The bytes are not a valid remote write message; sending them again will not help."""

    status = 400
    title = "The write is not valid"


class WriteTooLarge(KallaError):
    status = 413
    title = "The write is too large"


class Refusals:
    """Why parts of a write are not kept: the first reasons, and how many more there are."""

    MOST = 10

    def __init__(self) -> None:
        self.count = 0
        self._first: list[str] = []

    def add(self, reason: str) -> None:
        self.count += 1
        if len(self._first) < self.MOST:
            self._first.append(reason)

    def add_all(self, words: str, numbers: Sequence[int], known: SeriesIndex) -> None:
        """The same reason for each of these series."""
        for number in numbers[: self.MOST]:
            self.add(f"{words} for series {shown(known.labels(number))}")
        self.count += len(numbers[self.MOST :])

    def __str__(self) -> str:
        more = self.count - len(self._first)
        return "\n".join([*self._first, *([f"and {more} more"] if more else [])])


class SeriesIndex:
    """Bounded: the caller replaces a full index with a new one."""

    def __init__(self, shards: int, most_bytes: int) -> None:
        self._shard_count = shards
        self._most_bytes = most_bytes
        self._bytes = 0
        self._keys: LabelKeys | None = None
        self._by_text: dict[str, int] = {}
        self._by_number: list[str] = []
        # Shard, metric, text and number of each series: first as they come, then in this order,
        # which is that of a segment's rows.
        self._fresh: list[tuple[int, str, str, int]] = []
        self._ordered: list[tuple[int, str, str, int]] = []
        self._order = np.empty(0, np.int64)
        self._places = np.empty(0, np.int64)
        self._shards = np.empty(0, np.int64)
        self._metrics: dict[str, str] = {}
        # As columns, by number.
        self._names = _Texts()
        self._texts = _Texts()
        self._changing = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_number)

    @property
    def is_full(self) -> bool:
        keys = 0 if self._keys is None else self._keys.nbytes
        return self._bytes + keys > self._most_bytes

    def numbers(self, text: bytes, spans: Whole, split: Mask, refusals: Refusals) -> Whole:
        """Each series' number, or REFUSED, with Prometheus' error texts for these."""
        from kalla.query.store.label_keys import (  # brings the compiler of kernels
            FRESH,
            LabelKeys,
        )

        data = np.frombuffer(text, np.uint8)
        with self._changing:
            if self._keys is None:
                self._keys = LabelKeys()
            numbers = self._keys.find(data, spans)
        fresh = np.flatnonzero((numbers == FRESH) | split)
        if len(fresh):
            whole = fresh[(spans[fresh, 0] >= 0) & ~split[fresh]]
            numbers[whole] = self._plain(data, spans[whole])
            for place in fresh[numbers[fresh] == FRESH].tolist():
                first, last = spans[place].tolist()
                numbers[place] = self._any(text, first, last, refusals)
            # Only bytes that have a number, and nothing between the labels, are worth keeping.
            kept = whole[numbers[whole] != REFUSED]
            with self._changing:
                self._keys.add(data, spans[kept], numbers[kept])
        return numbers

    def _plain(self, data: Bytes, spans: Whole) -> Whole:
        """The numbers of plain labels; FRESH for all others."""
        from kalla.query.store.ingest import plain_labels
        from kalla.query.store.label_keys import FRESH

        label_texts, found = plain_labels.label_texts(data, spans)
        numbers = []
        for first, last, name, beyond in found.tolist():
            if first < 0:
                numbers.append(FRESH)
                continue
            text = label_texts[first:last].decode()
            number = self._by_text.get(text)
            if number is None:
                # Names and values are plain: a quote begins or ends one.
                shard = shard_of_texts(text[2:-2].split('"')[::2], self._shard_count)
                number = self._add(text, label_texts[name:beyond].decode(), shard)
            numbers.append(number)
        return np.array(numbers, np.int64)

    def _any(self, text: bytes, first: int, last: int, refusals: Refusals) -> int:
        if first < 0:
            refusals.add("labels refer to symbols that are not in the table")
            return REFUSED
        labels = _labels_of(label_pairs(text[first:last]), refusals)
        return REFUSED if labels is None else self.add(labels)

    def add(self, labels: Labels) -> int:
        """The number of a label set."""
        return self._add(text_of(labels), name_of(labels), shard_of(labels, self._shard_count))

    def _add(self, text: str, name: str, shard: int) -> int:
        with self._changing:
            number = self._by_text.get(text)
            if number is None:
                number = self._by_text[text] = len(self._by_number)
                self._by_number.append(text)
                name = self._metrics.setdefault(name, name)
                self._fresh.append((shard, name, text, number))
                self._bytes += _SERIES_BYTES + 2 * sys.getsizeof(text)
        return number

    def places(self) -> Whole:
        """By number: the rank of the series among all, by shard, metric and text."""
        with self._changing:
            if self._fresh:
                self._names.extend([name for _, name, _, _ in self._fresh])
                self._texts.extend([text for _, _, text, _ in self._fresh])
                shards = [shard for shard, _, _, _ in self._fresh]
                self._shards = np.concatenate([self._shards, np.array(shards, np.int64)])
                self._fresh.sort()
                if len(self._fresh) < _FEW:
                    at = [bisect(self._ordered, each) for each in self._fresh]
                    for before, (place, each) in enumerate(zip(at, self._fresh, strict=True)):
                        self._ordered.insert(before + place, each)
                    self._order = np.insert(self._order, at, [each[3] for each in self._fresh])
                else:
                    # Two sorted runs: Python's sort merges them without sorting anew.
                    self._ordered += self._fresh
                    self._ordered.sort()
                    self._order = np.array([each[3] for each in self._ordered], np.int64)
                self._fresh = []
                self._places = np.empty(len(self._order), np.int64)
                self._places[self._order] = np.arange(len(self._order))
            return self._places

    def label_texts(self, numbers: Whole) -> LabelTexts:
        """The label sets of numbers that have their place, as columns of a segment."""
        with self._changing:
            return LabelTexts(self._names.take(numbers), self._texts.take(numbers))

    def shards(self, numbers: Whole) -> Whole:
        return self._shards[numbers]

    def labels(self, number: int) -> Labels:
        return labels_of_text(self._by_number[number])


class _Texts:
    """A column of text that grows at its end."""

    def __init__(self) -> None:
        self._bytes = np.empty(1 << 12, np.uint8)
        self._offsets = np.zeros(1, np.int64)

    def extend(self, texts: Sequence[str]) -> None:
        more = [text.encode() for text in texts]
        used = int(self._offsets[-1])
        offsets = used + np.cumsum([len(text) for text in more], dtype=np.int64)
        if offsets[-1] > len(self._bytes):
            grown = np.empty(max(int(offsets[-1]), 2 * len(self._bytes)), np.uint8)
            grown[:used] = self._bytes[:used]
            self._bytes = grown
        self._bytes[used : offsets[-1]] = np.frombuffer(b"".join(more), np.uint8)
        self._offsets = np.concatenate([self._offsets, offsets])

    def take(self, places: Whole) -> pa.StringArray:
        from kalla.query.store.label_keys import gather  # brings the compiler of kernels

        firsts = self._offsets[places]
        offsets = np.zeros(len(places) + 1, np.int64)
        np.cumsum(self._offsets[places + 1] - firsts, out=offsets[1:])
        if offsets[-1] > _MOST_TEXT:
            raise ValueError("the labels of one commit are longer than a column of text can be")
        text = np.empty(offsets[-1], np.uint8)
        gather(self._bytes, firsts, offsets, text)
        return pa.StringArray.from_buffers(
            len(places), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text)
        )


def _labels_of(pairs: Sequence[tuple[bytes, bytes]], refusals: Refusals) -> Labels | None:
    try:
        named = sorted((name.decode(), value.decode()) for name, value in pairs)
    except UnicodeDecodeError:
        broken = tuple(
            (name.decode(errors="replace"), value.decode(errors="replace")) for name, value in pairs
        )
        refusals.add(f"invalid metric name or labels, got {shown(broken)}")
        return None
    for (name, _), (following, _) in pairwise(named):
        if name == following:
            refusals.add(
                f"invalid labels for series, labels {shown(tuple(named))}, duplicated label {name}"
            )
            return None
    # An empty value is no label.
    labels = tuple(pair for pair in named if pair[1])
    if any(not name for name, _ in named) or not any(name == METRIC_NAME for name, _ in labels):
        refusals.add(f"invalid metric name or labels, got {shown(tuple(named))}")
        return None
    return labels


def label_pairs(text: bytes) -> list[tuple[bytes, bytes]]:
    """The labels among the fields of a series, as they were sent."""
    pairs = []
    at, end = 0, len(text)
    try:
        while at < end:
            # Nearly all labels are like this: name, then value, neither longer than 127 bytes.
            size, first = text[at + 1], text[at + 3]
            then = at + 4 + first
            second = text[then + 1]
            if (
                text[at] != 0x0A
                or text[at + 2] != 0x0A
                or text[then] != 0x12
                or first + second + 4 != size
                or size >= 0x80
            ):
                break
            at = then + 2 + second
            pairs.append((text[then - first : then], text[then + 2 : at]))
    except IndexError:
        pass
    if at == end:
        return pairs
    return _any_label_pairs(text)


def _any_label_pairs(text: bytes) -> list[tuple[bytes, bytes]]:
    pairs = []
    for field, label in fields(text):
        if field == 1 and isinstance(label, bytes):
            name = value = b""
            for part, content in fields(label):
                if part == 1 and isinstance(content, bytes):
                    name = content
                elif part == 2 and isinstance(content, bytes):
                    value = content
            pairs.append((name, value))
    return pairs


def fields(text: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a small protobuf message: numbers, or the bytes of what says its length."""
    at = 0
    while at < len(text):
        tag, at = _varint(text, at)
        field, kind = tag >> 3, tag & 7
        if kind == 0:
            number, at = _varint(text, at)
            yield field, number
            continue
        if kind == 2:
            size, at = _varint(text, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise MalformedWrite("the protobuf message has a field of an unknown kind")
        if size > len(text) - at:
            raise MalformedWrite("the protobuf message has a field longer than itself")
        yield field, text[at : at + size]
        at += size


def _varint(text: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at + place >= len(text):
            break
        byte = text[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + place + 1
    raise MalformedWrite("the protobuf message has a number that does not end")
