"""Estimates how large a regular expression becomes in RE2, before it is compiled.

A short text may stand for a large program: `[\\pL]{60}` is sixty copies of a table of Unicode. RE2
bounds the memory of one expression, but not the time of the thousands that a request may hold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

MOST_OF_ONE: Final = 20_000
MOST_OF_ALL: Final = 100_000  # about a second of one core
MOST_EXPRESSIONS: Final = 500

_TABLE = 500  # a class of Unicode
_ANY = 10  # `.`, and what a class without letters of Unicode leaves out
_ENOUGH = 10**9  # further, nobody needs to count

_TOKEN = re.compile(
    r"""
    \\Q.*?(?:\\E|\Z)
    | (?P<open>\((?:\?P?<[^>]*+>|(?!\?P?<)(?:\?[a-zA-Z-]*:?)?))
    | (?P<close>\))
    | (?P<repeat>[*+?]|\{(?P<least>\d{1,9})(?P<comma>,)?(?P<most>\d{1,9})?\})\??
    | (?P<class>\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*+\])
    | (?P<table>\\[pP](?:\{[^}]*+\}|[^{]))
    | (?P<any>\.)
    | \\x\{[^}]*+\}
    | (?P<broken>\[|\(\?P?<|\\[pP]\{|\\x\{)
    | \\.
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def compiled_size(pattern: str) -> int:
    """In instructions, roughly and rather too many; a plain character is one."""
    ignores_case = re.search(r"\(\?[a-zA-Z]*i", pattern) is not None
    outer: list[int] = []  # of each open group: what came before it
    before = last = 0  # of this group: all but its last part, and that
    for token in _TOKEN.finditer(pattern):
        if token["broken"] is not None:
            break  # RE2 refuses what has no end before it compiles anything
        if token["open"] is not None:
            outer.append(before + last)
            before = last = 0
        elif token["close"] is not None:
            inside = before + last + 1
            before, last = (outer.pop() if outer else 0), inside
        elif token["repeat"] is not None:
            last = min(last * _times(token), _ENOUGH)
        else:
            before, last = min(before + last, _ENOUGH), _weight(token, ignores_case)
    return min(before + last + sum(outer), _ENOUGH)


def _times(token: re.Match[str]) -> int:
    if token["least"] is None:
        return 1
    return max(1, int(token["most"] or token["least"]) + (token["most"] is None))


def _weight(token: re.Match[str], ignores_case: bool) -> int:
    if token["table"] is not None:
        return _TABLE
    if token["class"] is not None:
        tables = len(re.findall(r"\\[pP]", token["class"]))
        return _TABLE * tables if tables else _ANY
    if token["any"] is not None:
        return _ANY
    return len(token[0]) * (2 if ignores_case else 1)


@dataclass
class ExpressionBudget:
    """What the regular expressions of one request may cost together; one that comes again is free,
    for compiled ones are kept."""

    spent: int = 0
    known: set[str] = field(default_factory=set)

    def refusal(self, pattern: str) -> str:
        """Why this one is too much, or nothing."""
        if pattern in self.known:
            return ""
        self.known.add(pattern)
        if len(self.known) > MOST_EXPRESSIONS:
            return f"more than {MOST_EXPRESSIONS} regular expressions"
        size = compiled_size(pattern)
        self.spent += size
        if size > MOST_OF_ONE:
            return "expression too large"
        if self.spent > MOST_OF_ALL:
            return "too many large regular expressions"
        return ""
