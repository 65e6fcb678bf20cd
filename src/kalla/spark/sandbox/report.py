"""Gathers every problem of one SQL text, each with its place in it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import NoReturn

from sqlglot import exp

from kalla.errors import InvalidInput, Problem

_MOST_PROBLEMS = 50
_LONGEST_NAME = 80


class Report:
    def __init__(self, field: str, sql: str) -> None:
        self._field = field
        self._sql = sql
        self._messages: dict[str, None] = {}  # in order, and each once

    def add(self, message: str, at: exp.Expr | int | None = None) -> None:
        """`at` is a node, or an offset in the text."""
        offset = _offset(at) if isinstance(at, exp.Expr) else at
        self._messages[message + self._place(offset)] = None

    def refuse(self, message: str) -> NoReturn:
        """With what there is already, if anything."""
        self.add(message)
        raise self._error()

    def check(self) -> None:
        if self._messages:
            raise self._error()

    def _error(self) -> InvalidInput:
        messages = list(self._messages)
        if (more := len(messages) - _MOST_PROBLEMS) > 0:
            messages[_MOST_PROBLEMS:] = [f"and {more} more problems"]
        return InvalidInput(*(Problem(self._field, message) for message in messages))

    def _place(self, offset: int | None) -> str:
        if offset is None:
            return ""
        before = self._sql[:offset]
        line = before.count("\n") + 1
        column = offset - before.rfind("\n")
        return f" (line {line}, column {column})"


def suggestion(name: str, known: Iterable[str]) -> str:
    """`: did you mean …?`, where a near name exists."""
    near = get_close_matches(name.lower(), sorted({each.lower() for each in known}), n=1)
    return f": did you mean {near[0]}?" if near else ""


def shown(name: str) -> str:
    """A name from the text, short enough for a sentence."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def _offset(node: exp.Expr) -> int | None:
    """Of the node, or of the first thing inside it whose place the parser kept."""
    offsets = (each.meta.get("start") for each in node.walk())
    return min((offset for offset in offsets if offset is not None), default=None)
