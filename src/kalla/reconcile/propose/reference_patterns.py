"""Patterns learned from reference numbers, by which they are found inside free text.

`RE-2026-0101` and its like give `RE-\\d{4}-\\d{4}`, found in `Rechnung re-2026-0101 vom …`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase, digits

_RUN = re.compile(r"[A-Z]+|[0-9]+|[^A-Z0-9]+")
_LEAST_DIGITS = 3
_MOST_SHAPES = 3
_COVERED = 0.8


@dataclass(frozen=True)
class Pattern:
    """An expression over upper-case text; its first group, or all of it, is the reference."""

    expression: str
    is_loose: bool  # separators may differ or be missing: the digits alone are compared
    covered: float  # of the values that it was learned from


def learn(values: Sequence[str]) -> list[Pattern]:
    """The patterns of these references, the strictest first; none if they have no common shape."""
    upper = [value.strip().upper() for value in values if value and value.strip()]
    shapes: Counter[tuple[str, ...]] = Counter(_shape(value) for value in upper)
    if not upper:
        return []
    kept: list[tuple[str, ...]] = []
    covered = 0
    for shape, count in sorted(shapes.items(), key=lambda each: (-each[1], each[0])):
        kept.append(shape)
        covered += count
        if covered >= _COVERED * len(upper) or len(kept) == _MOST_SHAPES:
            break
    share = covered / len(upper)
    if share < _COVERED:
        return []
    by_shape = [[value for value in upper if _shape(value) == shape] for shape in kept]
    if any(_digits(group) < _LEAST_DIGITS for group in by_shape):
        return []
    strict = [_expression(group) for group in by_shape]
    loose = [_expression(group, loose=True) for group in by_shape]
    found = [Pattern(_joined(strict), False, share)]
    if loose != strict:
        found.append(Pattern(_joined(loose), True, share))
    return found


def _shape(value: str) -> tuple[str, ...]:
    """The kinds of a value's runs, with its separators: letters, digits and what is between."""
    runs = _RUN.findall(value)
    return tuple("A" if _is_word(run) else "9" if run[0] in digits else run for run in runs)


def _is_word(run: str) -> bool:
    """Letters as the expressions know them: an umlaut is a separator."""
    return run[0] in ascii_uppercase


def _digits(values: Sequence[str]) -> int:
    return min(sum(sign in digits for sign in value) for value in values)


def _expression(values: Sequence[str], *, loose: bool = False) -> str:
    parts = list(zip(*(_RUN.findall(value) for value in values), strict=True))
    found = []
    for runs in parts:
        first = runs[0]
        if first[0] in digits:
            lengths = {len(run) for run in runs}
            found.append(rf"\d{{{min(lengths)}}}" if len(lengths) == 1 else r"\d+")
        elif _is_word(first):
            kinds = sorted(set(runs))
            if len(kinds) == 1:
                found.append(first)
            elif len(kinds) <= 5:
                found.append(f"(?:{'|'.join(kinds)})")
            else:
                lengths = {len(run) for run in runs}
                found.append(f"[A-Z]{{{min(lengths)},{max(lengths)}}}")
        else:
            found.append("[^A-Z0-9]{0,3}" if loose else re.escape(first).replace(r"\-", "-"))
    body = "".join(found)
    if body.startswith((r"\d", "[A-Z]")):  # not the middle of a longer number
        body = rf"(?:^|[^A-Z0-9])({body})(?:[^0-9]|$)"
    return body


def _joined(expressions: Sequence[str]) -> str:
    """One group, whichever of several shapes is found."""
    if len(expressions) == 1:
        return expressions[0]
    bare = [
        each.removeprefix("(?:^|[^A-Z0-9])(").removesuffix(")(?:[^0-9]|$)") for each in expressions
    ]
    return f"({'|'.join(bare)})"
