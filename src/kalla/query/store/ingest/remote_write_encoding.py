"""Messages of remote write 1.0, as a sender makes them; `remote_write` reads them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from kalla.query.array_types import Floats, Whole
from kalla.query.labels.label_sets import Labels
from kalla.query.store.catalogue import Metadata
from kalla.query.store.ingest.openmetrics import TYPES

SAMPLE_BYTES = 22
"""What a sample takes at the most."""

# Times of a series take the same count of bytes: six from 1970 to 2109, ten whichever they are.
_USUAL, _MOST = 6, 10
_SNAPPY = pa.Codec("snappy")


def notes(metadata: Mapping[str, Metadata]) -> bytes:
    """Metadata of metrics, as a part of a message."""
    return b"".join(
        _field(
            3,
            b"\x08"
            + _varint(TYPES.index(note.type))
            + _field(2, name.encode())
            + _field(4, note.help.encode())
            + _field(5, note.unit.encode()),
        )
        for name, note in metadata.items()
    )


def labels_of(labels: Labels) -> bytes:
    """What a series begins with."""
    return b"".join(
        _field(
            1,
            _field(1, name.encode(errors="surrogateescape"))
            + _field(2, value.encode(errors="surrogateescape")),
        )
        for name, value in labels
    )


def series(head: bytes, times: Whole, values: Floats) -> bytes:
    """Samples behind the labels of their series, as a part of a message."""
    return _field(1, head + _samples(times, values))


def packed(message: bytes | bytearray) -> bytes:
    """As a body is sent."""
    return bytes(_SNAPPY.compress(bytes(message), asbytes=True))


def _samples(times: Whole, values: Floats) -> bytes:
    usual = not len(times) or (times.min() >= 0 and times.max() < 1 << 7 * _USUAL)
    places = _USUAL if usual else _MOST
    lines = np.empty((len(times), 12 + places), np.uint8)
    lines[:, :3] = (0x12, 10 + places, 0x09)
    lines[:, 3:11] = np.ascontiguousarray(values, "<f8").view(np.uint8).reshape(-1, 8)
    lines[:, 11] = 0x10
    left = times.astype(np.uint64)
    for place in range(places):
        more = np.uint64(0x80 if place < places - 1 else 0)
        lines[:, 12 + place] = (left & np.uint64(0x7F)) | more
        left >>= np.uint64(7)
    return lines.tobytes()


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
