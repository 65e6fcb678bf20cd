"""The hash of a label set that Prometheus samples by in limit_ratio: XXH64 of its bytes."""

from __future__ import annotations

from xxhash import xxh64_intdigest

from kalla.query.labels.label_sets import Labels


def series_hash(labels: Labels) -> int:
    """Names and values, each with its length before it."""
    out = bytearray()
    for name, value in labels:
        for text in (name, value):
            raw = text.encode(errors="surrogateescape")
            out += _length(len(raw)) + raw
    return xxh64_intdigest(bytes(out))


def _length(size: int) -> bytes:
    if size < 255:
        return bytes([size])
    return bytes([255]) + size.to_bytes(3, "little")
