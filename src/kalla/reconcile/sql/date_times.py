"""Dates and points in time as SQL: parsing, time zones and comparison.

A moment is a text's date or point in time, or the timestamp that it meets, as a whole number: twice
the microseconds since 1970 (of a date: of its midnight in the recipe's time zone, and of a day that
the zone skipped, of the microsecond before), and one more for a date. A duration is microseconds; a
span between two moments is twice as many, and one more where both are dates.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kalla.reconcile.sql import nanoseconds
from kalla.reconcile.sql.literals import literal

if TYPE_CHECKING:
    from kalla.reconcile.sql.column_values import Columns

DAY = 86_400_000_000  # microseconds
_FOREVER = f"{10**20}::HUGEINT"  # more of them than there are between any two points in time

_DATE = r"\s*\d{4}[-/]\d{1,2}[-/]\d{1,2}"
_WHITES = r"\s*"
_UNZONED = _DATE + r"([T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?)?" + _WHITES
_TIME_OF_DAY = re.compile(r"%-?[HIMSfgnpXc]")
_ZONE = re.compile(r"%[zZ]")


def compares(left: str, sign: str, right: str, zone: str) -> str:
    """How two moments compare: as days where one of them is a date."""
    first, last = (day_of_moment(each, zone) for each in (left, right))
    return (
        f"(CASE WHEN ({left} | {right}) & 1 = 1 THEN {first} {sign} {last}"
        f" ELSE {left} {sign} {right} END)"
    )


def between(left: str, right: str, zone: str) -> str:
    """Microseconds from one moment to the other: of whole days where one of them is a date."""
    first, last = (day_of_moment(each, zone) for each in (left, right))
    return (
        f"(CASE WHEN ({left} | {right}) & 1 = 1 THEN ({last} - {first})::HUGEINT * {DAY}"
        f" ELSE ({right}::HUGEINT - {left}) // 2 END)"
    )


def span(left: str, right: str, zone: str) -> str:
    """The span between two moments, and whether both are dates; see above."""
    return f"({between(left, right, zone)} * 2 + ({left} & {right} & 1))"


def between_instants(left: str, right: str) -> str:
    """Microseconds from one point in time to the other; to `infinity` more than to any other."""
    return (
        f"coalesce(epoch_us({right})::HUGEINT - epoch_us({left}), CASE WHEN {right} = {left} THEN 0"
        f" WHEN {right} > {left} THEN {_FOREVER} WHEN {right} < {left} THEN -{_FOREVER} END)"
    )


def unless_infinite(left: str, right: str, difference: str) -> str:
    """The difference of two dates or two points in time; null if one is infinite."""
    return (
        f"CASE WHEN {right} = {left} OR isfinite({left}) AND isfinite({right}) THEN {difference}"
        f" WHEN {right} > {left} THEN 'infinity' ELSE '-infinity' END"
    )


def band(left: str, right: str, before: str, after: str, ends: tuple[str, str]) -> str:
    """A range over the left one that bounds the right one: within the range of valid dates."""
    low, high = f"TRY({left} - {before})", f"TRY({left} + {after})"
    return f"{right} BETWEEN coalesce({low}, {ends[0]}) AND coalesce({high}, {ends[1]})"


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
    """The point in time of a text; without a zone it is in the recipe's zone."""
    zone, written = columns.time_zone, columns.csv.date_format
    if written:
        parsed, signs = _parsed(text, written), written.replace("%%", "")
        is_zoned = _ZONE.search(signs) is not None
        if "%n" in signs:
            parsed = nanoseconds.of_time(parsed, "TIMESTAMPTZ" if is_zoned else "TIMESTAMP")
        return parsed if is_zoned else placed(parsed, zone)
    # Without a digit in front it would be `infinity`, or `epoch`.
    is_dated = f"regexp_matches({text}, '^\\s*[0-9]')"
    zoned = f"(CASE WHEN {is_dated} THEN TRY_CAST({text} AS TIMESTAMPTZ) END)"
    if zone == "UTC":  # as DuckDB has it by itself
        return nanoseconds.of_text(text, zoned)
    unzoned = f"regexp_full_match({text}, {literal(_UNZONED)})"
    of_zone = placed(f"TRY_CAST({text} AS TIMESTAMP)", zone)
    return nanoseconds.of_text(text, f"CASE WHEN {unzoned} THEN {of_zone} ELSE {zoned} END")


def _parsed(text: str, date_format: str) -> str:
    return f"try_strptime({text}, {literal(date_format)})"


def placed(timestamp: str, zone: str) -> str:
    """Where a time of a zone's clocks is; of one that they show twice, the first time."""
    if zone == "UTC":
        return f"timezone('UTC', {timestamp})"
    named = literal(zone)
    # DuckDB takes the last time. The first is found by what the clocks were a day before.
    day_before = f"TRY({timestamp} - INTERVAL 24 HOURS)"
    first = f"(timezone({named}, {day_before}) + INTERVAL 24 HOURS)"
    return (
        f"(CASE WHEN timezone({named}, {first}) = {timestamp} THEN {first}"
        f" ELSE timezone({named}, {timestamp}) END)"
    )


def day_of(instant: str, zone: str) -> str:
    return f"CAST(timezone({literal(zone)}, {instant}) AS DATE)"


def code(instant: str) -> str:
    """The moment of a point in time; one too far away to be counted twice is none."""
    return f"TRY(epoch_us({instant}) * 2)"


def code_of_day(day: str, zone: str) -> str:
    """The moment of a date."""
    midnight = f"CAST({day} AS TIMESTAMP)"
    found = f"({code(placed(midnight, zone))} + 1)"
    if zone == "UTC":
        return found
    shown = day_of(f"timezone({literal(zone)}, {midnight})", zone)
    return f"({found} - 2 * CAST({shown} <> {day} AS INTEGER))"


def instant_of(moment: str) -> str:
    return f"make_timestamptz({moment} >> 1)"


def day_of_moment(moment: str, zone: str) -> str:
    local = f"timezone({literal(zone)}, {instant_of(moment)})"
    return f"CAST({local} + to_microseconds({moment} & 1) AS DATE)"


def spelled(span: str) -> str:
    days, time = f"CAST(({span} >> 1) // {DAY} AS VARCHAR)", duration(f"({span} >> 1)")
    return f"CASE WHEN {span} & 1 = 1 THEN {days} ELSE {time} END"


def duration(sql: str) -> str:
    """Such as `-1d 2h 0.5s`: exact, which a fraction of a day is not."""
    size = f"abs({sql})"
    parts = [(f"{size} // {DAY}", "d"), (f"{size} // 3600000000 % 24", "h")]
    parts.append((f"{size} // 60000000 % 60", "m"))
    said = [f"CASE WHEN {count} > 0 THEN concat({count}, '{unit}') END" for count, unit in parts]
    part = f"rtrim(printf('.%06d', CAST({size} % 1000000 AS INTEGER)), '.0')"
    said.append(
        f"CASE WHEN {size} % 60000000 > 0"
        f" THEN concat({size} // 1000000 % 60, CASE WHEN {size} % 1000000 > 0 THEN {part} END, 's')"
        " END"
    )
    return (
        f"CASE WHEN {sql} = 0 THEN '0' ELSE"
        f" concat(CASE WHEN {sql} < 0 THEN '-' END, concat_ws(' ', {', '.join(said)})) END"
    )
