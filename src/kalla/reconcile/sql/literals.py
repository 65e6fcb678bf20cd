"""Text as an SQL literal: a module of its own, because both values and times use it."""

from __future__ import annotations


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
