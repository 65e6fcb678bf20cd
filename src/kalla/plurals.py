"""Numbers with their nouns, as messages and pages show them: "1 row", "1,234 rows"."""

from __future__ import annotations


def counted(number: int, singular: str, plural: str | None = None) -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
