"""Dates and points in time as SQL: read from text, placed in a time zone, held against each other.

A moment is a text's date or point in time, or the timestamp that it meets, as a whole number: twice
the microseconds since 1970 (of a date: of its midnight in the recipe's time zone), and one more for
a date. A duration is microseconds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kalla.reconcile.matching import nanoseconds
from kalla.reconcile.matching.literals import literal

if TYPE_CHECKING:
    from kalla.reconcile.matching.values import Columns

DAY = 86_400_000_000  # microseconds

_DATE = r"\s*\d{4}[-/]\d{1,2}[-/]\d{1,2}"
_WHITES = r"\s*"
_UNZONED = _DATE + r"([T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?)?" + _WHITES
_TIME_OF_DAY = re.compile(r"%-?[HIMSfgnpXc]")
_ZONE = re.compile(r"%[zZ]")


def between(left: str, right: str, zone: str) -> str:
    """Microseconds from one to the other: of whole days where one of them is a date."""
    first, last = (day_of(instant_of(each), zone) for each in (left, right))
    return (
        f"(CASE WHEN ({left} | {right}) & 1 = 1 THEN ({last} - {first}) * {DAY}"
        f" ELSE ({right} - {left}) // 2 END)"
    )


def has_time(date_format: str) -> bool:
    """Whether what is written so has a time of day."""
    return bool(_TIME_OF_DAY.search(date_format.replace("%%", "")))


def is_plain(text: str) -> str:
    """Whether a text is shaped like a date without a time."""
    return f"regexp_full_match({text}, {literal(_DATE + _WHITES)})"


def plain_date(text: str, columns: Columns) -> str:
    if columns.csv.date_format:
        return f"CAST({_parsed(text, columns.csv.date_format)} AS DATE)"
    return f"TRY_CAST({text} AS DATE)"


def instant(text: str, columns: Columns) -> str:
    """The point in time that a text is; one that tells no zone is of the recipe's."""
    zone, written = columns.time_zone, columns.csv.date_format
    if written:
        parsed, signs = _parsed(text, written), written.replace("%%", "")
        is_zoned = _ZONE.search(signs) is not None
        if "%n" in signs:
            parsed = nanoseconds.of_time(parsed, "TIMESTAMPTZ" if is_zoned else "TIMESTAMP")
        return parsed if is_zoned else placed(parsed, zone)
    zoned = f"TRY_CAST({text} AS TIMESTAMPTZ)"
    if zone == "UTC":  # as DuckDB has it by itself
        return nanoseconds.of_text(text, zoned)
    unzoned = f"regexp_full_match({text}, {literal(_UNZONED)})"
    of_zone = placed(f"TRY_CAST({text} AS TIMESTAMP)", zone)
    return nanoseconds.of_text(text, f"CASE WHEN {unzoned} THEN {of_zone} ELSE {zoned} END")


def _parsed(text: str, date_format: str) -> str:
    return f"try_strptime({text}, {literal(date_format)})"


def placed(timestamp: str, zone: str) -> str:
    return f"timezone({literal(zone)}, {timestamp})"


def day_of(instant: str, zone: str) -> str:
    return f"CAST(timezone({literal(zone)}, {instant}) AS DATE)"


def code(instant: str) -> str:
    """The moment of a point in time; one too far away to be counted twice is none."""
    return f"TRY(epoch_us({instant}) * 2)"


def instant_of(moment: str) -> str:
    return f"make_timestamptz(({moment} - ({moment} & 1)) // 2)"


def duration(sql: str) -> str:
    """Such as `-1d 2h 0.5s`: exact, which a fraction of a day is not."""
    size = f"abs({sql})"
    parts = [(f"{size} // {DAY}", "d"), (f"{size} // 3600000000 % 24", "h")]
    parts.append((f"{size} // 60000000 % 60", "m"))
    said = [f"CASE WHEN {count} > 0 THEN concat({count}, '{unit}') END" for count, unit in parts]
    part = f"rtrim(printf('.%06d', {size} % 1000000), '.0')"
    said.append(
        f"CASE WHEN {size} % 60000000 > 0"
        f" THEN concat({size} // 1000000 % 60, CASE WHEN {size} % 1000000 > 0 THEN {part} END, 's')"
        " END"
    )
    return (
        f"CASE WHEN {sql} = 0 THEN '0' ELSE"
        f" concat(CASE WHEN {sql} < 0 THEN '-' END, concat_ws(' ', {', '.join(said)})) END"
    )
