"""The id of a match: 128 bits made of recipe, rule and keys, the same on every run and machine.

`docs/reconcile.md` defines it in words. Two keys that are whole numbers, as most are, are mixed by
arithmetic; to hash their text takes four times as long.
"""

from __future__ import annotations

import hashlib

from kalla.reconcile.matching.values import literal

SEPARATOR = "chr(31)"
WORD = 2**64 - 1

_FACTOR = 0x9E3779B97F4A7C15
_LEAST = -(2**63)  # of the whole numbers that are mixed


def of_keys(recipe: str, rule: str, keys: str) -> str:
    """From parts of a text, in SQL."""
    return f"md5_number(concat({literal(_head(recipe, rule))}, {keys}))::UUID"


def of_pairs(recipe: str, rule: str, rows: str, whole: tuple[str | None, str | None]) -> str:
    """The rows of a query with left_key and right_key, and now a match_id.

    `whole` names what each key is as a number of 64 bits, where it is known to be one.
    """
    texts = ("left_key", "right_key")
    a, b = (
        f"CAST(CAST({known or _whole(text)} AS HUGEINT) - ({_LEAST}) AS UBIGINT)"
        for known, text in zip(whole, texts, strict=True)
    )
    mixed = f"SELECT {a} AS a, {b} AS b, * FROM ({rows})"
    for (turned, by), seed in zip((("a", "b"), ("b", "a")) * 2, _seeds(recipe, rule), strict=True):
        product = f"(CAST(xor({by}, {seed}::UBIGINT) AS UHUGEINT) * {_FACTOR}::UHUGEINT)"
        folded = f"xor(({product} >> 64)::UBIGINT, ({product} & {WORD}::UHUGEINT)::UBIGINT)"
        mixed = f"SELECT * REPLACE (xor({turned}, {folded}) AS {turned}) FROM ({mixed})"
    match_id = "((CAST(a AS UHUGEINT) << 64) | CAST(b AS UHUGEINT))::UUID"
    if None in whole:
        text = of_keys(recipe, rule, f"left_key, {SEPARATOR}, right_key")
        match_id = f"CASE WHEN a IS NULL OR b IS NULL THEN {text} ELSE {match_id} END"
    return f"SELECT {match_id} AS match_id, * EXCLUDE (a, b) FROM ({mixed})"


def _whole(text: str) -> str:
    """The number that a key is the very text of, or null."""
    number = f"TRY_CAST({text} AS BIGINT)"
    return f"CASE WHEN CAST({number} AS VARCHAR) = {text} THEN {number} END"


def _head(recipe: str, rule: str) -> str:
    return f"{recipe}\x1f{rule}\x1f"


def _seeds(recipe: str, rule: str) -> tuple[int, ...]:
    digest = hashlib.sha256(_head(recipe, rule).encode()).digest()
    return tuple(int.from_bytes(digest[at : at + 8], "little") for at in range(0, 32, 8))
