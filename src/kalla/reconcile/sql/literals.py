"""A text as SQL has it: apart, since both values and times are made of such."""

from __future__ import annotations


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
