"""Finds where the rows of a sheet or a text file begin and end: the header, and lines that are not
rows.

Exports of banks and ledgers have titles above their header and sums below their rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_NUMBER = re.compile(r"[-+(]?[€$£¥]?\s?[0-9][0-9.,'\u00a0\u202f ]*[-)%]?\s?[€$£¥]?")
_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T].*)?")
_SUM_WORD = re.compile(
    r"\W*(sum(me|s)?|total(s|e)?|gesamt\w*|saldo|endsaldo|anfangssaldo|balance|closing\b.*|somme"
    r"|totaal|suma|importe total|end of .*|\*+.*)\b.*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Shape:
    """`header` is the place of the header among the rows, and `footer` how many rows at the end are
    no records; each with the reason."""

    header: int
    header_reason: str
    width: int
    footer: int = 0
    footer_reason: str = ""


def find_shape(rows: Sequence[Sequence[Any]], last: Sequence[Sequence[Any]] | None = None) -> Shape:
    """By the first rows, and the last ones if these are others."""
    widths = Counter(_width(row) for row in rows if _width(row))
    if not widths:
        return Shape(0, "there are no values", 0)
    # The most frequent number of values is that of the records; of two, the larger one.
    usual = max(widths, key=lambda width: (widths[width], width))
    width = max(width for width in widths if widths[width] * 4 >= widths[usual])
    header = next((place for place, row in enumerate(rows) if _is_header(row, width)), None)
    if header is None:
        header = next(place for place, row in enumerate(rows) if _width(row))
        reason = "the first line that is not empty: no later one looks like names of columns"
    elif header == 0:
        reason = f"the first line has {_width(rows[0])} names"
    else:
        reason = f"the first line with {_width(rows[header])} names; those above it are shorter"
    footer, why = _footer(rows[header + 1 :] if last is None else last, width)
    return Shape(header, reason, width, footer, why)


def numbered(names: Sequence[str]) -> list[str]:
    """Names with the later ones of several equal ones numbered: Währung, Währung_2. A column
    without a name gets its position as its name.
    """
    names = [name or f"column{place}" for place, name in enumerate(names, 1)]
    found: list[str] = []
    taken = {name.lower() for name in names}
    for name in names:
        number, unique = 2, name
        while unique in found:
            unique, number = f"{name}_{number}", number + 1
            if unique.lower() in taken:
                unique = name
        found.append(unique)
    return found


def _footer(rows: Sequence[Sequence[Any]], width: int) -> tuple[int, str]:
    """Counts rows at the end that are totals by their first value, or are much shorter."""
    count, reasons = 0, []
    for row in reversed(rows):
        values = [str(value).strip() for value in row if _is_given(value)]
        if not values:
            continue
        if _SUM_WORD.fullmatch(values[0]):
            reasons.append(f"{values[0]!r} begins a line of sums")
        elif len(values) == 1 and width > 2:
            reasons.append(f"{values[0]!r} stands alone in its line")
        else:
            break
        count += 1
    if count == sum(1 for row in rows if any(_is_given(value) for value in row)):
        return 0, ""  # all of it: then these are records
    return count, "; ".join(reversed(reasons))


def _is_header(row: Sequence[Any], width: int) -> bool:
    values = [value for value in row if _is_given(value)]
    if len(values) * 4 < width * 3 or len(values) < min(2, width):
        return False
    return all(isinstance(value, str) and not _is_value(value) for value in values)


def _is_value(text: str) -> bool:
    """Whether a text is a number or a date, and so not a column name."""
    text = text.strip()
    return bool(_NUMBER.fullmatch(text) or _DATE.fullmatch(text))


def _is_given(value: Any) -> bool:
    return value is not None and (not isinstance(value, str) or bool(value.strip()))


def _width(row: Sequence[Any]) -> int:
    """Up to the last value: empty ones behind it do not count, those between do."""
    return max((place for place, value in enumerate(row, 1) if _is_given(value)), default=0)
