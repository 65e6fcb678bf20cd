"""Messages of Kafka: one by one, and as the columns of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]

NO_TIMESTAMP = -1

_BINARY = pa.large_binary()
_HEADERS = pa.large_list(pa.struct([("name", _BINARY), ("value", _BINARY)]))


class OffsetsGone(Exception):
    """The range begins before the oldest message in Kafka, or after the newest."""


@dataclass(frozen=True, slots=True)
class Message:
    topic: str
    partition: int
    offset: int
    timestamp: int | None  # milliseconds since 1970
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, order=True)
class OffsetRange:
    """The offsets from `start` up to but not including `end`, of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} {self.start}..{self.end - 1}"


@dataclass(frozen=True, eq=False)
class MessageBatch(Sequence[Message]):
    """Messages of one partition by rising offset, without a Python object for each of them."""

    topic: str
    partition: int
    offsets: Integers
    timestamps: Integers  # NO_TIMESTAMP where there is none
    keys: pa.LargeBinaryArray
    values: pa.LargeBinaryArray
    headers: pa.LargeListArray | None  # None: no message has any

    @classmethod
    def of(cls, messages: Sequence[Message]) -> MessageBatch:
        """The same messages as a batch; a batch is returned unchanged."""
        if isinstance(messages, MessageBatch):
            return messages
        headers = [
            [{"name": name.encode(), "value": value} for name, value in each.headers]
            for each in messages
        ]
        times = [NO_TIMESTAMP if each.timestamp is None else each.timestamp for each in messages]
        return cls(
            messages[0].topic if messages else "",
            messages[0].partition if messages else 0,
            np.array([each.offset for each in messages], np.int64),
            np.array(times, np.int64),
            pa.array([each.key for each in messages], _BINARY),
            pa.array([each.value for each in messages], _BINARY),
            pa.array(headers, _HEADERS) if any(headers) else None,
        )

    @property
    def value_bytes(self) -> int:
        ends = np.frombuffer(self.values.buffers()[1], np.int64)
        return int(ends[self.values.offset + len(self)] - ends[self.values.offset])

    def fitting(self, most: int) -> int:
        """How many of the first messages have so many bytes together."""
        ends = np.frombuffer(self.values.buffers()[1], np.int64)
        ends = ends[self.values.offset : self.values.offset + len(self) + 1]
        return int(np.searchsorted(ends[1:] - ends[0], most, side="right"))

    def between(self, start: int, end: int) -> MessageBatch:
        """The messages from the offset `start` up to but not including `end`."""
        low, high = np.searchsorted(self.offsets, [start, end])
        return self[low:high]

    def take(self, rows: Integers) -> MessageBatch:
        chosen = pa.array(rows)
        return MessageBatch(
            self.topic,
            self.partition,
            self.offsets[rows],
            self.timestamps[rows],
            self.keys.take(chosen),
            self.values.take(chosen),
            None if self.headers is None else self.headers.take(chosen),
        )

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> MessageBatch: ...

    def __getitem__(self, place: int | slice) -> Message | MessageBatch:
        if isinstance(place, slice):
            return MessageBatch(
                self.topic,
                self.partition,
                self.offsets[place],
                self.timestamps[place],
                self.keys[place],
                self.values[place],
                None if self.headers is None else self.headers[place],
            )
        timestamp = int(self.timestamps[place])
        return Message(
            self.topic,
            self.partition,
            int(self.offsets[place]),
            None if timestamp == NO_TIMESTAMP else timestamp,
            self.keys[place].as_py(),
            self.values[place].as_py(),
            self.headers_of(place),
        )

    def headers_of(self, row: int) -> tuple[tuple[str, bytes | None], ...]:
        if self.headers is None:
            return ()
        return tuple(
            (each["name"].decode("utf-8", "replace"), each["value"])
            for each in self.headers[row].as_py()
        )

    def __iter__(self) -> Iterator[Message]:
        return (self[row] for row in range(len(self)))


def binary_column(lengths: Integers, data: npt.NDArray[np.uint8]) -> pa.LargeBinaryArray:
    """Consecutive values; a negative length is a null."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.maximum(lengths, 0), out=ends[1:])
    present = lengths >= 0
    known = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    buffers = [known, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(_BINARY, len(lengths), buffers)


def header_column(
    counts: Integers, names: pa.LargeBinaryArray, values: pa.LargeBinaryArray
) -> pa.LargeListArray | None:
    """The headers of messages, with the number of headers of each."""
    if not len(names):
        return None
    ends = np.concatenate([[0], np.cumsum(counts)])
    pairs = pa.StructArray.from_arrays([names, values], names=["name", "value"])
    return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), pairs)
