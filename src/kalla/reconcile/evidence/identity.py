"""The id of a match: 128 bits made of recipe, rule and keys, the same on every run and machine.

`docs/reconcile.md` defines it in words. Two keys that are whole numbers, as most are, are mixed by
arithmetic; to hash their text takes many times as long.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from kalla.reconcile import loops
from kalla.reconcile.matching.values import literal

SEPARATOR = "chr(31)"
WORD = 2**64 - 1

Numbers = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


def of_keys(recipe: str, rule: str, keys: str) -> str:
    """From parts of a text, in SQL, as a number."""
    return f"md5_number(concat({literal(_head(recipe, rule))}, {keys}))"


def whole(text: str) -> str:
    """The number of 64 bits that a key is the very text of, or null, in SQL."""
    number = f"TRY_CAST({text} AS BIGINT)"
    return f"CASE WHEN CAST({number} AS VARCHAR) = {text} THEN {number} END"


def of_numbers(recipe: str, rule: str, left: Numbers, right: Numbers) -> tuple[Words, Words]:
    """From two whole numbers each: the high and the low word of each id."""
    high, low = (np.empty(len(left), np.uint64) for _ in range(2))
    loops.mix(left, right, len(left), _seeds(recipe, rule), high, low)
    return high, low


def _head(recipe: str, rule: str) -> str:
    return f"{recipe}\x1f{rule}\x1f"


def _seeds(recipe: str, rule: str) -> Words:
    return np.frombuffer(hashlib.sha256(_head(recipe, rule).encode()).digest(), "<u8")
