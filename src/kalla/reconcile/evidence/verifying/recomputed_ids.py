"""The id of a match, recomputed from its definition for evidence of every format version.

For verification alone: the writer has its own code for the newest version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from uuid import UUID

_WORD = 2**64 - 1
_SIGN = 2**63
_FACTOR = 0x9E3779B97F4A7C15


def match_ids(
    version: int, recipe: str, rule: str, lefts: Sequence[str], rights: Sequence[str]
) -> list[UUID]:
    """The ids that the match may have: one, but in format 1 a pair was numbered in two ways."""
    found = [_hashed(recipe, rule, *sorted(lefts), "", *sorted(rights))]
    if version == 1 and len(lefts) == len(rights) == 1:
        (left,), (right,) = lefts, rights
        is_mixed = _is_whole(left) and _is_whole(right)
        pair = _mixed(recipe, rule, int(left), int(right)) if is_mixed else None
        found.insert(0, pair or _hashed(recipe, rule, left, right))
    return found


def _hashed(*parts: str) -> UUID:
    digest = hashlib.md5("\x1f".join(parts).encode(), usedforsecurity=False).digest()
    return UUID(int=int.from_bytes(digest, "little"))


def _is_whole(key: str) -> bool:
    """A whole number of 64 bits, written as a number is."""
    digits = key.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        return False
    return str(int(key)) == key and -_SIGN <= int(key) < _SIGN


def _mixed(recipe: str, rule: str, left: int, right: int) -> UUID:
    """The arithmetic of format 1 for two whole numbers."""
    seed = hashlib.sha256(f"{recipe}\x1f{rule}\x1f".encode()).digest()
    words = [int.from_bytes(seed[at : at + 8], "little") for at in range(0, 32, 8)]
    a, b = left + _SIGN, right + _SIGN
    for first, second in (words[:2], words[2:]):
        a ^= _turned(b ^ first)
        b ^= _turned(a ^ second)
    return UUID(int=(a << 64) + b)


def _turned(x: int) -> int:
    p = ((x ^ (x >> 29)) * _FACTOR) & _WORD
    return p ^ (p >> 32)
