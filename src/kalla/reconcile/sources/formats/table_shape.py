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
    r"\W*(?P<word>sum(me|s)?|total(s|e)?|gesamt\w*|saldo|endsaldo|anfangssaldo|balance|closing\b"
    r"|somme|totaal|suma|importe total|end of\b|\*+)(?P<more>.*)",
    re.IGNORECASE,
)
_SHORT = 0.75  # of the values that records have


@dataclass(frozen=True)
class Footer:
    """How many rows at the end are not records."""

    rows: int
    reason: str = ""
    is_sure: bool = True


@dataclass(frozen=True)
class Shape:
    """`header` is the place of the header among the rows, `filled` how many values a record usually
    has."""

    header: int
    header_reason: str
    width: int
    filled: int = 0

    def footer_of(self, rows: Sequence[Sequence[Any]]) -> Footer:
        """Counts rows at the end that are totals by their first value, or are much shorter."""
        count, reasons, is_sure = 0, [], True
        for row in reversed(rows):
            values = [str(value).strip() for value in row if _is_given(value)]
            if not values:
                continue
            if (is_sum := self._is_sum(values)) is not None:
                reasons.append(f"{values[0]!r} begins a line of sums")
                is_sure = is_sure and is_sum and self.width > 2 and _sums_a_column(row, rows)
            elif len(values) == 1 and self.width > 2:
                reasons.append(f"{values[0]!r} stands alone in its line")
                is_sure = False
            else:
                break
            count += 1
        if count == sum(1 for row in rows if any(_is_given(value) for value in row)):
            return Footer(0)  # all of it: then these are records
        return Footer(count, "; ".join(reversed(reasons)), is_sure)

    def _is_sum(self, values: Sequence[str]) -> bool | None:
        """Whether this is surely a line of sums; None if it is none: a payee may be called Total
        Energies."""
        if not (found := _SUM_WORD.fullmatch(values[0])) or re.match(r"\w", found["more"]):
            return None
        is_short = len(values) < _SHORT * self.filled
        is_alone = not re.search(r"\w", found["more"])
        if is_short or (is_alone and not any(_DATE.fullmatch(value) for value in values)):
            return is_short and is_alone
        return None


def _sums_a_column(row: Sequence[Any], rows: Sequence[Sequence[Any]]) -> bool:
    """Whether it has a number where another row has one."""
    return any(
        _is_number(value) and place < len(other) and _is_number(other[place])
        for place, value in enumerate(row)
        for other in rows
        if other is not row
    )


def find_shape(rows: Sequence[Sequence[Any]]) -> Shape:
    """The shape of a table, by its first rows."""
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
    filled = Counter(sum(map(_is_given, row)) for row in rows[header + 1 :] if _width(row))
    return Shape(header, reason, width, max(filled, key=filled.__getitem__, default=0))


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


def _is_header(row: Sequence[Any], width: int) -> bool:
    values = [value for value in row if _is_given(value)]
    if len(values) * 4 < width * 3 or len(values) < min(2, width):
        return False
    return all(isinstance(value, str) and not _is_value(value) for value in values)


def _is_value(text: str) -> bool:
    """Whether a text is a number or a date, and so not a column name."""
    text = text.strip()
    return bool(_NUMBER.fullmatch(text) or _DATE.fullmatch(text))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or bool(_NUMBER.fullmatch(str(value).strip()))


def _is_given(value: Any) -> bool:
    return value is not None and (not isinstance(value, str) or bool(value.strip()))


def _width(row: Sequence[Any]) -> int:
    """Up to the last value: empty ones behind it do not count, those between do."""
    return max((place for place, value in enumerate(row, 1) if _is_given(value)), default=0)
