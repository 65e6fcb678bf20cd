"""The id of a match: 128 bits made of recipe, rule and keys, the same on every run and machine.

`docs/reconcile.md` defines it in words. Two keys that are whole numbers, as most are, are mixed by
arithmetic; to hash their text takes many times as long.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from kalla.reconcile.matching.values import literal

SEPARATOR = "chr(31)"
WORD = 2**64 - 1

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SIGN = np.uint64(2**63)
_BEFORE, _AFTER = np.uint64(29), np.uint64(32)
_ROWS = 1 << 14  # at once: what is made of them stays in a cache


def of_keys(recipe: str, rule: str, keys: str) -> str:
    """From parts of a text, in SQL, as a number."""
    return f"md5_number(concat({literal(_head(recipe, rule))}, {keys}))"


def whole(text: str) -> str:
    """The number of 64 bits that a key is the very text of, or null, in SQL."""
    number = f"TRY_CAST({text} AS BIGINT)"
    return f"CASE WHEN CAST({number} AS VARCHAR) = {text} THEN {number} END"


def of_numbers(recipe: str, rule: str, left: Numbers, right: Numbers) -> tuple[Words, Words]:
    """From two whole numbers each: the high and the low word of each id."""
    high, low = left.view(np.uint64) ^ _SIGN, right.view(np.uint64) ^ _SIGN
    seeds = _seeds(recipe, rule)
    for first in range(0, len(left), _ROWS):
        here = slice(first, first + _ROWS)
        a, b = high[here], low[here]
        for turn in (0, 2):
            a ^= _mixed(b, seeds[turn])
            b ^= _mixed(a, seeds[turn + 1])
    return high, low


def _mixed(word: Words, seed: np.uint64) -> Words:
    """The low word of a product; what has high bits lays them over the low ones, before and after.

    By places that differ, or the one would undo the other from turn to turn.
    """
    mixed = word ^ seed
    mixed ^= mixed >> _BEFORE
    mixed *= _FACTOR
    mixed ^= mixed >> _AFTER
    return mixed


def _head(recipe: str, rule: str) -> str:
    return f"{recipe}\x1f{rule}\x1f"


def _seeds(recipe: str, rule: str) -> list[np.uint64]:
    digest = hashlib.sha256(_head(recipe, rule).encode()).digest()
    return [np.uint64(int.from_bytes(digest[at : at + 8], "little")) for at in range(0, 32, 8)]
