"""Ids and keys of many pairs, compiled. Imported where they are many: that alone takes a while."""

from __future__ import annotations

import numpy as np

from kalla.compiling import compiled, helper
from kalla.digits import length_of, put_digits
from kalla.reconcile.evidence import identity

LONGEST = 20  # digits of a whole number with its sign
SLACK = 8  # bytes that are written beyond the last one

_HALF, _BITS, _BYTE = np.uint64(2**32 - 1), np.uint64(32), np.uint64(8)
_SIGN, _ZERO = identity.SIGN, np.uint64(0)
_MINUS = ord("-")
_mixed = helper(identity.mixed)


@compiled("none:i1 i1 i1 w1 W2 W2")
def identify(left, right, codes, seeds, ids, sums):  # type: ignore[no-untyped-def]
    """The id of each pair, its first byte first; and by code, the sums of the four half words of
    the ids."""
    for row in range(len(left)):
        a, b = _mixed(np.uint64(left[row]) ^ _SIGN, np.uint64(right[row]) ^ _SIGN, seeds)
        ids[row, 0], ids[row, 1] = _turned(a), _turned(b)
        code = codes[row]
        sums[code, 0] += b & _HALF
        sums[code, 1] += b >> _BITS
        sums[code, 2] += a & _HALF
        sums[code, 3] += a >> _BITS


@compiled("int:i1 N1 U1")
def spell(given, ends, text):  # type: ignore[no-untyped-def]
    """Whole numbers as text, one after the other, and where each ends; returns where all do."""
    at = 0
    ends[0] = 0
    for row in range(len(given)):
        number = np.uint64(given[row])
        if given[row] < 0:
            text[at] = _MINUS
            at += 1
            number = _ZERO - number
        at = put_digits(number, length_of(number), text, at)
        ends[row + 1] = at
    return at


@helper
def _turned(word):  # type: ignore[no-untyped-def]
    """Its bytes the other way round."""
    found = _ZERO
    for _ in range(8):
        found = (found << _BYTE) | (word & np.uint64(255))
        word >>= _BYTE
    return found
