"""The difference between two texts for people, with an end to its time: difflib is quadratic."""

from __future__ import annotations

from collections import Counter
from difflib import unified_diff
from functools import lru_cache
from typing import Final

_MOST_PAIRS: Final = 250_000  # of an old and a new line


@lru_cache(maxsize=64)  # a live page asks for the same versions every second
def changed_lines(
    old: tuple[str, ...],
    new: tuple[str, ...],
    names: tuple[str, str] = ("", ""),
    context: int = 3,
) -> tuple[str, ...]:
    """A unified difference with its two head lines; of long texts only how many lines changed."""
    if len(old) * len(new) <= _MOST_PAIRS:
        return tuple(unified_diff(old, new, *names, lineterm="", n=context))
    if old == new:
        return ()
    removed, added = Counter(old) - Counter(new), Counter(new) - Counter(old)
    return (
        f"--- {names[0]}",
        f"+++ {names[1]}",
        f"{removed.total():,} lines removed, {added.total():,} lines added: too long to compare",
    )
