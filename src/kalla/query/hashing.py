"""XXH64 of a label set, in the bytes Prometheus hashes: limit_ratio samples by it."""

from __future__ import annotations

from kalla.query.labels import Labels

_MASK = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def series_hash(labels: Labels) -> int:
    """Names and values, each with its length before it."""
    out = bytearray()
    for name, value in labels:
        for text in (name, value):
            raw = text.encode(errors="surrogateescape")
            out += _length(len(raw)) + raw
    return xxh64(bytes(out))


def _length(size: int) -> bytes:
    if size < 255:
        return bytes([size])
    return bytes([255]) + size.to_bytes(3, "little")


def xxh64(data: bytes, seed: int = 0) -> int:
    length, at = len(data), 0
    if length >= 32:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        while at <= length - 32:
            for lane in range(4):
                word = int.from_bytes(data[at : at + 8], "little")
                lanes[lane] = _round(lanes[lane], word)
                at += 8
        total = sum(_rotate(lane, turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            total = ((total ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        total = seed + _P5
    total = (total + length) & _MASK
    while at <= length - 8:
        word = int.from_bytes(data[at : at + 8], "little")
        total = (_rotate(total ^ _round(0, word), 27) * _P1 + _P4) & _MASK
        at += 8
    if at <= length - 4:
        word = int.from_bytes(data[at : at + 4], "little")
        total = (_rotate(total ^ (word * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        total = _rotate(total ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    total = (total ^ (total >> 33)) * _P2 & _MASK
    total = (total ^ (total >> 29)) * _P3 & _MASK
    return total ^ (total >> 32)


def _round(lane: int, word: int) -> int:
    return _rotate((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _rotate(value: int, turn: int) -> int:
    value &= _MASK
    return ((value << turn) | (value >> (64 - turn))) & _MASK
