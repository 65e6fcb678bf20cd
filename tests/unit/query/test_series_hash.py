"""The hash that limit_ratio samples by is the one Prometheus computes."""

from __future__ import annotations

import struct

from xxhash import xxh64_intdigest

from kalla.query.labels.hashing import series_hash


def test_names_and_values_are_hashed_with_their_lengths() -> None:
    assert series_hash((("job", "api"),)) == xxh64_intdigest(b"\x03job\x03api")
    long = "x" * 300
    length = b"\xff" + struct.pack("<I", 300)[:3]
    assert series_hash((("a", long),)) == xxh64_intdigest(b"\x01a" + length + long.encode())


def test_no_labels_hash_to_the_seedless_xxh64_of_nothing() -> None:
    assert series_hash(()) == 0xEF46DB3751D8E999
