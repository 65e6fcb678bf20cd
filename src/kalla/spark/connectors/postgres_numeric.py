"""Postgres' own form of a numeric, as decimals: exactly, and a whole batch at a time.

The driver's way leads through text and took more time than all the rest of a read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Places: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]

_HEADER = 4  # how many digits, the weight of the first one, the sign, the scale; sixteen bits each
_DECIMALS = 4  # of a digit, for they are to the base of ten thousand
_NEGATIVE = 0x4000
_STRANGE = {-0x4000: "'nan'", -0x3000: "'infinity'", -0x1000: "'-infinity'"}
_IN_A_WORD = 18  # decimals that 64 bits hold, whatever they are
_LIMB = 4  # digits that are summed up before they are carried to 128 bits


class Unfit(ValueError):
    """A value that the decimal cannot hold exactly; says why."""


def decimals(values: pa.Array, read_as: pa.DataType) -> pa.Array:
    """What `numeric_send` gave (binary, or null) as decimals of that precision and scale."""
    if values.null_count == len(values):
        return pa.nulls(len(values), read_as)
    found = _found(values)
    _check(found, read_as)
    top = int(found.weights.max())
    if _DECIMALS * (top + 1) + read_as.scale <= _IN_A_WORD:
        low, high = _in_one_word(found, read_as.scale, top)
    else:
        low, high = _in_two_words(found, read_as.scale, top)
    parts = np.stack([low, high], axis=1)
    valid = values.is_valid().buffers()[1] if values.null_count else None
    return pa.Array.from_buffers(read_as, len(values), [valid, pa.py_buffer(parts)])


@dataclass(frozen=True)
class _Found:
    """The values' heads; null is as zero, without a digit."""

    halves: npt.NDArray[np.int16]  # of all of them, one after the other
    digits: Places  # where the first digit of each is
    counts: Places
    weights: Places
    negative: npt.NDArray[np.bool_]
    strange: tuple[int, ...]  # signs that no number has

    def digit(self, weight: int) -> Places:
        """What each has at that power of ten thousand."""
        place = self.weights - weight
        inside = (place >= 0) & (place < self.counts)
        found = self.halves[np.where(inside, self.digits + place, 0)]
        return np.where(inside, found, np.int64(0))


def _found(values: pa.Array) -> _Found:
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    sent = np.frombuffer(data, ">i2", count=int(bounds[-1]) // 2)
    halves = sent.astype(np.int16)
    starts = bounds[:-1].astype(np.int64) // 2
    given = np.diff(bounds) > 0
    starts = np.where(given, starts, 0)
    counts = np.where(given, halves[starts], 0).astype(np.int64)
    signs = np.where(given, halves[starts + 2], 0)
    return _Found(
        halves,
        starts + _HEADER,
        counts,
        np.where(counts > 0, halves[starts + 1], -1).astype(np.int64),
        signs == _NEGATIVE,
        tuple(np.unique(signs[signs < 0])) if signs.min() < 0 else (),
    )


def _check(found: _Found, read_as: pa.DataType) -> None:
    if found.strange:
        raise Unfit(f"it is {_STRANGE[int(found.strange[0])]}")
    if (found.weights - found.counts + 1 < _lowest(read_as.scale)).any():
        raise Unfit(f"it has more than {read_as.scale} digits behind the point")
    room = read_as.precision - read_as.scale
    full = room // _DECIMALS  # the weight from which on not every digit has room
    if found.weights.max() < full:
        return
    first = found.digit(full)
    if (found.weights > full).any() or (first >= 10 ** (room % _DECIMALS)).any():
        raise Unfit(f"it has more than {room} digits before the point")


def _in_one_word(found: _Found, scale: int, top: int) -> tuple[Words, Words]:
    total, shift = _fraction(found, scale)
    for weight in range(_first_whole(scale), top + 1):
        total += found.digit(weight) * 10 ** (shift + _DECIMALS * (weight - _first_whole(scale)))
    total = np.where(found.negative, -total, total)
    return total.view(np.uint64), (total >> 63).view(np.uint64)


def _in_two_words(found: _Found, scale: int, top: int) -> tuple[Words, Words]:
    first = _first_whole(scale)
    low = np.zeros(len(found.counts), np.uint64)
    high = low.copy()
    for limb in reversed(range(first, top + 1, _LIMB)):
        total = np.zeros(len(found.counts), np.int64)
        for weight in range(limb, limb + _LIMB):
            total += found.digit(weight) * 10 ** (_DECIMALS * (weight - limb))
        low, high = _raised(low, high, 10 ** (_DECIMALS * _LIMB), total.view(np.uint64))
    fraction, shift = _fraction(found, scale)
    low, high = _raised(low, high, 10**shift, fraction.view(np.uint64))
    turned = ~low + np.uint64(1)
    return (
        np.where(found.negative, turned, low),
        np.where(found.negative, ~high + (turned == 0), high),
    )


def _raised(low: Words, high: Words, factor: int, added: Words) -> tuple[Words, Words]:
    """Times a factor below 2^63 and plus a word, in 128 bits; halves of a word do not overflow."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    upper, lower = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    bottom = (low & mask) * lower
    middle = (low >> half) * lower + (bottom >> half)
    cross = (low & mask) * upper + (middle & mask)
    product = (cross << half) | (bottom & mask)
    carried = (low >> half) * upper + (middle >> half) + (cross >> half)
    total = product + added
    return total, high * np.uint64(factor) + carried + (total < product)


def _lowest(scale: int) -> int:
    """The weight of the last digit that has a place before the scale ends."""
    return -scale // _DECIMALS


def _first_whole(scale: int) -> int:
    """The lowest weight of which the scale takes all four decimals."""
    return _lowest(scale) + (scale % _DECIMALS > 0)


def _fraction(found: _Found, scale: int) -> tuple[Places, int]:
    """What is left of a digit that the scale cuts through, and how many decimals that are."""
    shift = scale % _DECIMALS
    if not shift:
        return np.zeros(len(found.counts), np.int64), 0
    kept, lost = np.divmod(found.digit(_lowest(scale)), 10 ** (_DECIMALS - shift))
    if lost.any():
        raise Unfit(f"it has more than {scale} digits behind the point")
    return kept, shift
