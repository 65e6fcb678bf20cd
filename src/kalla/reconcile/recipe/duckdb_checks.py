"""Checks the parts of a recipe that DuckDB interprets: regular expressions, date formats, time
zones.

In a run it would be too late: an unknown one fails there, or is null in every row.
"""

from __future__ import annotations

import re
import warnings
from functools import cache, lru_cache

import duckdb

_SPECIFIER = re.compile(r"%[^%]")
# As other tools write them, the longest first.
_WRITTEN_OTHERWISE = {
    "yyyy": "%Y", "YYYY": "%Y", "yy": "%y", "YY": "%y", "MM": "%m", "dd": "%d", "DD": "%d",
    "HH": "%H", "ss": "%S",
}  # fmt: skip


@lru_cache(maxsize=1024)
def expression_fault(pattern: str) -> str:
    """Why an expression does not compile in DuckDB's engine or in Python's.

    Python counts its groups, so both must accept it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        return str(error).splitlines()[0]
    return _refusal("SELECT regexp_extract('', $1, 0)", pattern)


@lru_cache(maxsize=1024)
def date_format_fault(date_format: str) -> str:
    """Why no date can be read by a format."""
    if fault := _refusal("SELECT try_strptime('', $1)", date_format):
        return fault.rpartition(": ")[2]
    is_fixed = not _SPECIFIER.search(date_format.replace("%%", ""))
    if is_fixed:
        return "it contains no day, month or year"
    return "" if _has_year(date_format) else "it has no year: every date would be in 1900"


def meant_date_format(date_format: str) -> str | None:
    """The strptime format that `dd.MM.yyyy` was meant to be."""
    if "%" in date_format:
        return None
    # `mm` are minutes, but months to who writes neither hours nor other months.
    has_time = "HH" in date_format or "MM" in date_format
    words = _WRITTEN_OTHERWISE | {"mm": "%M" if has_time else "%m"}
    meant = re.sub("|".join(words), lambda found: words[found[0]], date_format)
    return meant if meant.count("%") > 1 else None


@lru_cache(maxsize=1024)
def knows_time_zone(name: str) -> bool:
    return not _refusal("SELECT timezone($1, TIMESTAMP '2000-01-01')", name)


def _has_year(date_format: str) -> bool:
    """Whether a day that is written by a format is read in its year again."""
    sql = (
        "SELECT year(try_strptime(strftime(TIMESTAMP '2004-02-28', $1), $1)) IS DISTINCT FROM 1900"
    )
    with _connection().cursor() as cursor:
        return cursor.execute(sql, [date_format]).fetchall() == [(True,)]


def _refusal(sql: str, value: str) -> str:
    try:
        with _connection().cursor() as cursor:
            cursor.execute(sql, [value]).fetchall()
    except duckdb.Error as error:
        return str(error).splitlines()[0].removeprefix("Invalid Input Error: ")
    return ""


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    """One connection for all checks, because opening it takes longer than a check."""
    return duckdb.connect(config={"threads": 1})
