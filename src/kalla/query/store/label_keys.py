"""Maps the bytes of labels, as sent, to a number: a hash table in columns, read by kernels.

A hash only says where to look; the bytes themselves are compared.
"""

from __future__ import annotations

import secrets

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kalla.compiling import compiled, helper
from kalla.query.array_types import Whole

FRESH = -2
"""In the place of a number: these bytes are not known."""

Bytes = NDArray[np.uint8]

_EMPTY = -1
_TAKEN = -2  # by others, so that it is further on if it is there
_MIX = np.uint64(0x9FB21C651E98DF25)
_SHIFT = np.uint64(32)
# The columns of an entry.
_HASH, _FROM, _TO, _NUMBER = range(4)


class LabelKeys:
    """It only grows. Not thread-safe: the caller must serialize access."""

    def __init__(self) -> None:
        # A random seed per process: nobody can prepare colliding labels.
        self._seed = secrets.randbits(62)
        self._slots = np.full(1 << 10, _EMPTY, np.int64)
        self._entries = np.empty((1 << 9, 4), np.int64)
        self._bytes = np.empty(1 << 16, np.uint8)
        self._count = 0
        self._used = 0
        self._offsets = np.zeros(1, np.int64)  # of entries in the bytes; written when asked for

    @property
    def nbytes(self) -> int:
        return self._slots.nbytes + self._entries.nbytes + self._bytes.nbytes

    def find(self, data: Bytes, spans: Whole) -> Whole:
        """The number of each span's bytes, FRESH where it has none or begins before the data."""
        found = np.empty(len(spans), np.int64)
        held = (self._slots, self._entries, self._bytes)
        _find(data, spans, self._seed, *held, found)
        return found

    def add(self, data: Bytes, spans: Whole, numbers: Whole) -> None:
        """Existing entries keep their numbers."""
        self._make_room(len(spans), int((spans[:, 1] - spans[:, 0]).sum()))
        counts = np.array([self._count, self._used])
        held = (self._slots, self._entries, self._bytes)
        _add(data, spans, numbers, self._seed, *held, counts)
        self._count, self._used = counts.tolist()

    def held(self, entries: Whole) -> pa.LargeBinaryArray:
        """The bytes of entries, by the order in which they were added."""
        if len(self._offsets) <= self._count:  # entries lie one after the other
            self._offsets = np.append(self._entries[: self._count, _FROM], self._used)
        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._bytes)]
        whole = pa.Array.from_buffers(pa.large_binary(), self._count, buffers)
        return whole.take(pa.array(entries))

    def _make_room(self, entries: int, size: int) -> None:
        if (needed := self._used + size) > len(self._bytes):
            grown = np.empty(max(needed, 2 * len(self._bytes)), np.uint8)
            grown[: self._used] = self._bytes[: self._used]
            self._bytes = grown
        if (needed := self._count + entries) > len(self._entries):
            room = 1 << (needed - 1).bit_length()
            more = np.empty((room, 4), np.int64)
            more[: self._count] = self._entries[: self._count]
            self._entries = more
            self._slots = np.full(2 * room, _EMPTY, np.int64)
            _place(self._slots, self._entries, self._count)


@compiled("none: u1 i1 i1 U1")
def gather(held, firsts, offsets, out):  # type: ignore[no-untyped-def]
    """Pieces of bytes, from where each begins to where `offsets` says."""
    for i in range(len(firsts)):
        shift = firsts[i] - offsets[i]
        for at in range(offsets[i], offsets[i + 1]):
            out[at] = held[at + shift]


@compiled("none: u1 i2 int i1 i2 u1 I1")
def _find(data, spans, seed, slots, entries, held, found):  # type: ignore[no-untyped-def]
    # One step for all, then the next: memory is waited for once for many.
    mask = len(slots) - 1
    digests = np.empty(len(spans), np.int64)
    for i in range(len(spans)):
        digests[i] = _hash(data, spans[i, 0], spans[i, 1], seed) if spans[i, 0] >= 0 else 0
    for i in range(len(spans)):
        found[i] = slots[digests[i] & mask]
    for i in range(len(spans)):
        if found[i] != _EMPTY and entries[found[i], _HASH] != digests[i]:
            found[i] = _TAKEN
    for i in range(len(spans)):
        first, last, entry = spans[i, 0], spans[i, 1], found[i]
        if first < 0:
            found[i] = FRESH
            continue
        if entry == _TAKEN or (entry >= 0 and not _is(data, first, last, entries, entry, held)):
            entry = slots[_slot(data, first, last, digests[i], slots, entries, held)]
        found[i] = FRESH if entry == _EMPTY else entries[entry, _NUMBER]


@compiled("none: u1 i2 i1 int I1 I2 U1 I1")
def _add(data, spans, numbers, seed, slots, entries, held, counts):  # type: ignore[no-untyped-def]
    for i in range(len(spans)):
        first, last = spans[i, 0], spans[i, 1]
        digest = _hash(data, first, last, seed)
        slot = _slot(data, first, last, digest, slots, entries, held)
        if slots[slot] == _EMPTY:
            at = counts[1]
            entry = counts[0]
            entries[entry, _HASH] = digest
            entries[entry, _FROM] = at
            entries[entry, _TO] = at + last - first
            entries[entry, _NUMBER] = numbers[i]
            for k in range(last - first):
                held[at + k] = data[first + k]
            slots[slot] = entry
            counts[0] += 1
            counts[1] += last - first


@compiled("none: I1 i2 int")
def _place(slots, entries, count):  # type: ignore[no-untyped-def]
    mask = len(slots) - 1
    for entry in range(count):
        slot = entries[entry, _HASH] & mask
        while slots[slot] != _EMPTY:
            slot = (slot + 1) & mask
        slots[slot] = entry


@helper
def _slot(data, first, last, digest, slots, entries, held):  # type: ignore[no-untyped-def]
    """Where these bytes are, or would be; half of the slots at least are empty."""
    mask = len(slots) - 1
    slot = digest & mask
    while slots[slot] != _EMPTY:
        entry = slots[slot]
        if entries[entry, _HASH] == digest and _is(data, first, last, entries, entry, held):
            break
        slot = (slot + 1) & mask
    return slot


@helper
def _is(data, first, last, entries, entry, held):  # type: ignore[no-untyped-def]
    """Whether an entry is of these bytes."""
    begin = entries[entry, _FROM]
    if entries[entry, _TO] - begin != last - first:
        return False
    while last - first >= 8:
        if _word(data, first) != _word(held, begin):
            return False
        first += 8
        begin += 8
    alike = True
    for k in range(last - first):
        alike = alike and data[first + k] == held[begin + k]
    return alike


@helper
def _hash(data, first, last, seed):  # type: ignore[no-untyped-def]
    value = (np.uint64(seed) ^ np.uint64(last - first)) * _MIX
    while last - first >= 8:
        value = (value ^ _word(data, first)) * _MIX
        value ^= value >> _SHIFT
        first += 8
    rest = np.uint64(0)
    for k in range(last - first):
        rest = (rest << np.uint64(8)) | np.uint64(data[first + k])
    value = (value ^ rest) * _MIX
    value ^= value >> _SHIFT
    return np.int64(value)


@helper
def _word(data, at):  # type: ignore[no-untyped-def]
    """Eight bytes as one number: compiled to one load."""
    at = np.uint64(at)
    word = np.uint64(0)
    for k in range(8):
        word |= np.uint64(data[at + np.uint64(k)]) << np.uint64(8 * k)
    return word
