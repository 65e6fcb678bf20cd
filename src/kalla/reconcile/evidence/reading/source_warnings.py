"""Data quality warnings of a source for the report: keys that are not unique, values that cannot be
read, and recipe options that may help.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, Field

from kalla.reconcile.recipe.model import Side

_WITH_COMMA = re.compile(r"\s*[+-]?[0-9]+,[0-9]+\s*")
_IN_GROUPS = re.compile(r"\s*[+-]?[0-9]{1,3}([.,'’ \u00a0\u202f][0-9]{3})+([.,][0-9]*)?\s*")


MOST_ROWS = 10**15
Rows = Annotated[int, Field(ge=0, le=MOST_ROWS)]


class CsvOptions(BaseModel, frozen=True):
    """The csv options of a source in a recipe."""

    date_format: str | None = None
    decimal: str = "."
    thousands: str | None = None


class Unreadable(BaseModel, frozen=True):
    column: str
    kind: str = Field(alias="as")
    rows: Rows
    examples: list[Any]
    filtered: bool = False  # their rows were left out


class SourceIssues(BaseModel, frozen=True):
    format: str = ""
    doubled: Rows = Field(alias="rows_with_doubled_or_null_keys")
    unreadable: list[Unreadable]
    filtered_unread: Rows = Field(0, alias="rows_that_filters_could_not_read")


def of_source(side: Side, facts: SourceIssues, csv: CsvOptions) -> list[str]:
    """The warnings of a source, one sentence each."""
    found = []
    if facts.doubled:
        have = "1 row has" if facts.doubled == 1 else f"{facts.doubled:,} rows have"
        found.append(f"{side}: {have} a key that is not unique, or null")
    for each in facts.unreadable:
        examples = ", ".join(map(repr, each.examples))
        many, are = _values_in(each)
        where = " (in rows that filters left out)" if each.filtered else ""
        advice = _advice(each, csv) if facts.format == "csv" else ""
        found.append(f"{side}: {many} {are}, such as {examples}{where}{advice}")
    if facts.filtered_unread:
        were = "1 row was" if facts.filtered_unread == 1 else f"{facts.filtered_unread:,} rows were"
        found.append(
            f"{side}: {were} left out because a filter could not read"
            " their values; each counts as an exception"
        )
    return found


def _values_in(each: Unreadable) -> tuple[str, str]:
    if each.rows == 1:
        article = "an" if each.kind[:1] in "aeiou" else "a"
        return f"1 value in {each.column}", f"is not {article} {each.kind}"
    return f"{each.rows:,} values in {each.column}", f"are not {each.kind}s"


def _advice(each: Unreadable, csv: CsvOptions) -> str:
    """Recipe options that may make unreadable values readable."""
    if each.kind in ("date", "timestamp") and csv.date_format is None:
        return ": set csv.date_format to the format of the dates"
    if each.kind == "number" and csv.thousands is None and _any(each, _IN_GROUPS):
        return ": set csv.thousands and csv.decimal to the separators that the file uses"
    if each.kind == "number" and csv.decimal != "," and _any(each, _WITH_COMMA):
        return ': set csv.decimal to "," if that is the decimal separator'
    return ""


def _any(each: Unreadable, shape: re.Pattern[str]) -> bool:
    return any(shape.fullmatch(str(example)) for example in each.examples)
