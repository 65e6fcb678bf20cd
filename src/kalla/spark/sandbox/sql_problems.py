"""Gathers every problem of one SQL text, each with its place, the piece of the text that is
refused, and what to write instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NoReturn

from rapidfuzz import fuzz, process
from sqlglot import exp

from kalla.errors import InvalidInput, Problem

_MOST_PROBLEMS = 50
_LONGEST_NAME = 80
_LONGEST_PIECE = 200
_MOST_KNOWN = 20


class Report:
    def __init__(self, field: str, sql: str) -> None:
        self._field = field
        self._sql = sql
        self._problems: dict[str, Problem] = {}  # in order, and each once

    def add(
        self,
        message: str,
        at: exp.Expr | int | None = None,
        *,
        value: str | None = None,
        suggestion: str = "",
    ) -> None:
        """`at` is a node, or an offset in the text; `value` is the text of the node, or what
        begins at the offset, unless it is told.
        """
        start, end = _span(at) if isinstance(at, exp.Expr) else (at, None)
        said = message + self._place(start)
        if said not in self._problems:
            piece = self._piece(start or 0, end) if value is None else value
            self._problems[said] = Problem(self._field, said, _shortened(piece), suggestion)

    def nearest(self, name: str, known: Iterable[str]) -> str:
        """`did you mean …?`, where a near name exists and the problem will be shown."""
        if len(self._problems) >= _MOST_PROBLEMS:
            return ""
        names = sorted({each.lower() for each in known})
        # Not difflib: for a thousand columns it takes a second per name.
        near = process.extractOne(shown(name).lower(), names, scorer=fuzz.ratio, score_cutoff=60)
        return f"did you mean {near[0]}?" if near else ""

    def nearest_or_all(self, name: str, known: Collection[str]) -> str:
        """The nearest name, or those there are, when they are few enough to read."""
        if near := self.nearest(name, known):
            return near
        return f"known: {', '.join(sorted(known))}" if 0 < len(known) <= _MOST_KNOWN else ""

    def refuse(self, message: str, *, value: str | None = None, suggestion: str = "") -> NoReturn:
        """With what there is already, if anything."""
        self.add(message, value=value, suggestion=suggestion)
        raise self._error()

    def check(self) -> None:
        if self._problems:
            raise self._error()

    def _error(self) -> InvalidInput:
        problems = list(self._problems.values())
        if (more := len(problems) - _MOST_PROBLEMS) > 0:
            problems[_MOST_PROBLEMS:] = [Problem(self._field, f"and {more} more problems")]
        return InvalidInput(*problems)

    def _piece(self, start: int, end: int | None) -> str:
        if end is None:
            return self._sql[start : start + 2 * _LONGEST_PIECE]
        # The parser keeps the place of what is in a call's brackets, not of the last of these.
        piece = self._sql[start : end + 1]
        while piece.count("(") > piece.count(")") and self._sql.startswith(f"{piece})", start):
            piece += ")"
        return piece

    def _place(self, offset: int | None) -> str:
        if offset is None:
            return ""
        before = self._sql[:offset]
        line = before.count("\n") + 1
        column = offset - before.rfind("\n")
        return f" (line {line}, column {column})"


def shown(name: str) -> str:
    """A name from the text, short enough for a sentence."""
    return _visible(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…")


def _shortened(piece: str) -> str:
    """In one line, and no longer than somebody reads."""
    line = _visible(" ".join(piece[: 2 * _LONGEST_PIECE].split()))
    return line if len(line) <= _LONGEST_PIECE else f"{line[:_LONGEST_PIECE]}…"


def _visible(text: str) -> str:
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _span(node: exp.Expr) -> tuple[int | None, int | None]:
    """Of the node, or from the first to the last thing inside it whose place the parser kept."""
    spans = [each.meta for each in node.walk() if "start" in each.meta]
    if not spans:
        return None, None
    return min(each["start"] for each in spans), max(each["end"] for each in spans)
