"""A column as a comparable value: its type, its derivations, and how two types are compared.

Everything here is an SQL expression over one row of one side, made from names and types alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.recipe.model import Csv, DatePart, Derivation, Regex
from kalla.reconcile.sql import date_times, nanoseconds
from kalla.reconcile.sql.literals import literal as literal  # which is asked for here

Kind = Literal["text", "number", "date", "timestamp", "boolean", "moment", "duration", "span"]

# Amounts in text and in floats are read with so many places; more digits than that are no amount.
PLACES = 9
_MOST_DIGITS = 38
_DIGITS = _MOST_DIGITS - PLACES - 1  # before the point, so that the difference of two has a place

_WHITE = "".join(
    chr(code)
    for codes in (range(9, 14), range(28, 33), (0x85, 0xA0, 0x1680), range(0x2000, 0x200B),
                  (0x2028, 0x2029, 0x202F, 0x205F, 0x3000))
    for code in codes
)  # fmt: skip
_ENDS = ("left", "right")
# A blank that keeps a number on one line, wide or narrow, and a curved apostrophe look the same.
_BETWEEN = {".": ".", ",": ",", "'": "'\u2019", " ": " \u00a0\u202f"}
# As bookkeepers write an amount: a currency's sign on one side, a minus behind it, or brackets.
_CURRENCY_SIGN = r"^[€$£¥]\s*|\s*[€$£¥]$"
_NEGATIVE = r"^([0-9][^-+()]*|[.,][0-9]+)-$|^\(([^-+()]+)\)$"
WHOLE_64 = {
    "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER",
}  # fmt: skip
WHOLE = WHOLE_64 | {"UBIGINT"}
# Parquet has no such numbers: DuckDB would write floats, and cents would be lost.
_UNWRITABLE = {"HUGEINT", "UHUGEINT"}
_NAIVE = {"TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "DATETIME"}
_NOTHING = '"NULL"'  # the type of a column in which there is no value, as Arrow's null
_TEXT = {"VARCHAR", "UUID", "JSON", "ENUM", _NOTHING}


@dataclass(frozen=True)
class Columns:
    """The columns of one side as DuckDB delivers them, and how its text is written."""

    types: Mapping[str, str]
    csv: Csv = field(default_factory=Csv)
    time_zone: str = "UTC"
    amount: str | None = None  # the column that the source declares as such


@dataclass(frozen=True)
class Value:
    """An expression over a side's row. `reads` is what it was read from, if that may fail."""

    sql: str
    kind: Kind
    scale: int = 0
    reads: str | None = None
    column: str = ""
    zone: str = ""  # of a moment
    whole: int = _DIGITS  # of a number: how many digits there may be before the point
    is_amount: bool = False  # of its source, as it is: a number, though it may be text


def fails(given: Value) -> str:
    """Whether there is something to read, and it cannot be."""
    return f"({given.reads or 'NULL'} IS NOT NULL AND {given.sql} IS NULL)"


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def held(column: str) -> str:
    """The internal name of a source's column, so that none collides with Kalla's own names."""
    return quote(f"={column}")


def enum(texts: Iterable[str]) -> str:
    """The type of a column of few texts: it is held as numbers, and written with its dictionary."""
    return f"ENUM ({', '.join(map(literal, dict.fromkeys(texts)))})"


def value(columns: Columns, column: str, derivations: tuple[Derivation, ...] = ()) -> Value:
    """The column after its derivations."""
    found = replace(_raw(columns, column), column=column, is_amount=column == columns.amount)
    for derivation in derivations:
        if isinstance(derivation, DatePart):
            found = _cut(as_date(found, columns), derivation)
        else:
            found = _derived(as_text(found), derivation)
    return found


def meet(
    left: Value, right: Value, columns: tuple[Columns, Columns], path: str
) -> tuple[Value, Value]:
    """Both as one kind: text is read as what it meets, a point in time as the date it meets."""
    kinds = {left.kind, right.kind}
    are_numbers = "number" in kinds or left.is_amount or right.is_amount
    if are_numbers and kinds <= {"text", "number"}:
        left, right = as_number(left, columns[0]), as_number(right, columns[1])
        room = 38 - max(left.scale, right.scale)
        return narrow(left, room), narrow(right, room)
    if left.kind == right.kind:
        return left, right
    if kinds <= {"text", "date", "timestamp"}:
        return meet_in_time(left, right, columns)
    if kinds == {"text", "boolean"}:
        return as_text(left), as_text(right)
    raise InvalidInput(Problem(path, f"a {left.kind} cannot be compared with a {right.kind}"))


def meet_in_time(
    left: Value, right: Value, columns: tuple[Columns, Columns]
) -> tuple[Value, Value]:
    """Both as dates or as points in time. Of text each row says which it is: both are moments,
    unless a format tells it of all rows, or they meet dates."""
    have_time = {_has_time(left, columns[0]), _has_time(right, columns[1])}
    how = as_date if False in have_time else as_moment if None in have_time else as_timestamp
    return how(left, columns[0]), how(right, columns[1])


def as_text(given: Value) -> Value:
    if given.kind == "text":
        return given
    return Value(shown(given), "text", column=given.column)


def as_number(given: Value, columns: Columns) -> Value:
    if given.kind == "number":
        return given
    if given.kind != "text":
        raise InvalidInput(Problem("", f"a {given.kind} is not an amount"))
    text = _signed(_trimmed(given.sql))
    if columns.csv.thousands:
        text = _ungrouped(text, columns.csv.decimal, _BETWEEN[columns.csv.thousands])
    elif columns.csv.decimal == ",":
        text = f"CASE WHEN {text} NOT LIKE '%.%' THEN replace({text}, ',', '.') END"
    # Zeros in front and at the end are not digits that matter.
    shape = literal(rf"[+-]?(0*\d{{1,{_DIGITS}}}(\.\d{{0,{PLACES}}}0*)?|\.\d{{1,{PLACES}}}0*)")
    sql = f"CASE WHEN regexp_full_match({text}, {shape}) THEN CAST({text} AS {amount_type()}) END"
    return Value(f"({sql})", "number", PLACES, given.sql, given.column)


def as_date(given: Value, columns: Columns) -> Value:
    if given.kind == "date":
        return given
    if given.kind == "timestamp":
        return replace(given, sql=date_times.day_of(given.sql, columns.time_zone), kind="date")
    if given.kind != "text":
        raise InvalidInput(Problem("", f"a {given.kind} is not a date"))
    plain = date_times.plain_date(given.sql, columns)
    moment = date_times.day_of(date_times.instant(given.sql, columns), columns.time_zone)
    if columns.csv.date_format:
        sql = moment if date_times.has_time(columns.csv.date_format) else plain
    else:
        sql = f"(CASE WHEN {date_times.is_plain(given.sql)} THEN {plain} ELSE {moment} END)"
    return Value(sql, "date", 0, given.sql, given.column)


def as_timestamp(given: Value, columns: Columns) -> Value:
    if given.kind == "timestamp":
        return given
    if given.kind != "text":
        raise InvalidInput(Problem("", f"a {given.kind} is not a point in time"))
    return Value(date_times.instant(given.sql, columns), "timestamp", 0, given.sql, given.column)


def as_moment(given: Value, columns: Columns) -> Value:
    zone = columns.time_zone
    if given.kind == "timestamp":
        return replace(given, sql=date_times.code(given.sql), kind="moment", zone=zone)
    plain = date_times.code_of_day(date_times.plain_date(given.sql, columns), zone)
    timed = date_times.code(date_times.instant(given.sql, columns))
    if columns.csv.date_format:
        sql = timed if date_times.has_time(columns.csv.date_format) else plain
    else:
        sql = f"(CASE WHEN {date_times.is_plain(given.sql)} THEN {plain} ELSE {timed} END)"
    return Value(sql, "moment", 0, given.sql, given.column, zone)


def in_order(left: str, right: str, sign: str, columns: tuple[Columns, Columns]) -> str:
    """How two texts compare: as numbers where both are, as dates where both are, else as text."""
    texts = [(Value(sql, "text"), side) for sql, side in zip((left, right), columns, strict=True)]
    numbers = [as_number(*each).sql for each in texts]
    moments = [as_moment(*each).sql for each in texts]
    in_time = date_times.compares(moments[0], sign, moments[1], columns[0].time_zone)
    return (
        f"(CASE WHEN {_are_known(numbers)} THEN {numbers[0]} {sign} {numbers[1]}"
        f" WHEN {_are_known(moments)} THEN {in_time} ELSE {left} {sign} {right} END)"
    )


def sortable(given: Value, columns: Columns) -> Value:
    """The sort expression of a column: in text, numbers come before dates, and dates before the
    rest.
    """
    if given.kind != "text":
        return given
    number, moment = as_number(given, columns).sql, as_moment(given, columns).sql
    sql = (
        f"CASE WHEN {number} IS NOT NULL THEN row(0, {number}, NULL::BIGINT, NULL::VARCHAR)"
        f" WHEN {moment} IS NOT NULL THEN row(1, NULL, {moment}, NULL)"
        f" WHEN {given.sql} IS NOT NULL THEN row(2, NULL, NULL, {given.sql}) END"
    )
    return replace(given, sql=sql)


def wide(given: Value) -> Value:
    """An amount with room to add and multiply in: whole numbers would overflow."""
    if given.scale:
        return given
    return replace(given, sql=f"CAST({given.sql} AS DECIMAL(38, 0))")


def narrow(given: Value, whole: int) -> Value:
    """A number with no more digits before its point than there is room for: others are as good as
    unreadable."""
    if given.whole <= whole:
        return given
    sql = f"TRY_CAST({given.sql} AS DECIMAL({whole + given.scale}, {given.scale}))"
    if not whole + given.scale:
        sql = f"CASE WHEN {given.sql} = 0 THEN {given.sql} END"
    return replace(given, sql=sql, whole=whole, reads=given.reads or given.sql)


def _trimmed(text: str) -> str:
    # Searching for all kinds of white space takes twenty times as long as seeing that there is
    # none.
    plain = " AND ".join(f"{end}({text}, 1) BETWEEN '!' AND '~'" for end in _ENDS)
    return f"(CASE WHEN {plain} THEN {text} ELSE trim({text}, {literal(_WHITE)}) END)"


def _signed(text: str) -> str:
    """An amount with its sign in front: `12,00-` and `(12,00)` are negative, `12,00 €` is 12,00."""
    plain = f"right({text}, 1) BETWEEN '0' AND '9' AND left({text}, 1) BETWEEN '+' AND '9'"
    bare = f"regexp_replace({text}, {literal(_CURRENCY_SIGN)}, '')"
    turned = rf"regexp_replace({bare}, {literal(_NEGATIVE)}, '-\1\2')"
    return f"(CASE WHEN {plain} THEN {text} ELSE {turned} END)"


def _ungrouped(text: str, decimal: str, between: str) -> str:
    """A number as it would be written with a point alone; null where its groups are not valid.

    No group begins with a single 0: `0.125` is a fraction that somebody wrote with the other sign.
    """
    grouped = rf"[+-]?([1-9]|\d{{2,3}})([{between}]\d{{3}})+([{decimal}]\d*)?"
    plain = rf"[^{between}{'' if decimal == '.' else '.'}]*"
    shape = literal(f"{grouped}|{plain}")
    point = f"translate({text}, {literal(decimal + between)}, '.')"
    return f"CASE WHEN regexp_full_match({text}, {shape}) THEN {point} END"


def amount_type(scale: int = PLACES) -> str:
    return f"DECIMAL(38, {scale})"


def shown(given: Value, sql: str | None = None) -> str:
    """The value as text, for people, keys and digests."""
    sql = given.sql if sql is None else sql
    if given.kind == "text":
        return sql
    if given.kind == "number" and given.scale:
        # To trim takes ten times as long as to write, and most need none.
        text = f"CAST({sql} AS VARCHAR)"
        if not given.whole or given.scale == _MOST_DIGITS:  # DuckDB writes no zero before the point
            text = rf"regexp_replace({text}, '^(-?)[.]', '\10.')"
        return f"CASE WHEN suffix({text}, '0') THEN rtrim(rtrim({text}, '0'), '.') ELSE {text} END"
    if given.kind == "timestamp":
        moment = f"timezone('UTC', {sql})"
        return (
            f"CASE WHEN epoch_us({sql}) % 1000000 = 0"
            f" THEN strftime({moment}, '%Y-%m-%dT%H:%M:%SZ')"
            f" ELSE strftime({moment}, '%Y-%m-%dT%H:%M:%S.%fZ') END"
        )
    if given.kind == "moment":
        day, instant = date_times.day_of_moment(sql, given.zone), Value("", "timestamp")
        timed = shown(instant, date_times.instant_of(sql))
        return f"CASE WHEN {sql} & 1 = 1 THEN CAST({day} AS VARCHAR) ELSE {timed} END"
    if given.kind in ("duration", "span"):
        return (date_times.duration if given.kind == "duration" else date_times.spelled)(sql)
    return f"CAST({sql} AS VARCHAR)"


def displayed(columns: Columns, name: str) -> str:
    """A column as evidence shows it: unchanged, points in time in UTC, and types without a file
    format as text.
    """
    sql, kind = held(name), columns.types[name].upper()
    if kind in _NAIVE or kind.startswith("TIMESTAMP"):
        return _raw(columns, name).sql
    as_it_is = {*WHOLE, "VARCHAR", "FLOAT", "DOUBLE", "DATE", "BOOLEAN"}
    return sql if kind in as_it_is or kind.startswith("DECIMAL") else f"CAST({sql} AS VARCHAR)"


def has_order(type_: str) -> bool:
    """Whether a column's values are in an order that is not that of their text."""
    whole = type_.upper() in WHOLE | _UNWRITABLE | _NAIVE
    return whole or type_.upper().startswith(("DECIMAL(", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP"))


def _raw(columns: Columns, column: str) -> Value:
    sql, kind = held(column), columns.types[column].upper()
    if kind.endswith("]"):
        kind = "LIST"
    if kind in _TEXT or kind.startswith(("ENUM", "VARCHAR")):
        return Value(sql if kind == "VARCHAR" else f"CAST({sql} AS VARCHAR)", "text")
    if kind in WHOLE:
        return Value(sql, "number", whole=20)
    if kind in _UNWRITABLE:
        raise InvalidInput(
            Problem(
                column,
                f"its type {kind.lower()} cannot be written to evidence exactly",
                suggestion="let the source deliver it as DECIMAL(38, 0)",
            )
        )
    if kind.startswith("DECIMAL"):
        digits, scale = (int(each) for each in kind.rstrip(")").partition("(")[2].split(","))
        return Value(sql, "number", scale, whole=digits - scale)
    if kind in ("FLOAT", "DOUBLE"):
        # By way of its shortest text: the float itself is a little off what was meant.
        text = f"CAST({sql} AS VARCHAR)"
        near = f"TRY_CAST({text} AS DECIMAL({_DIGITS + PLACES}, {PLACES}))"
        return Value(_unrounded(sql, text, near), "number", PLACES, reads=sql)
    if kind == "DATE":
        return Value(sql, "date")
    if kind == "TIMESTAMP WITH TIME ZONE":
        return Value(sql, "timestamp")
    if kind == "TIMESTAMPTZ_NS":
        return Value(nanoseconds.of_time(sql, "TIMESTAMPTZ"), "timestamp", reads=sql)
    if kind == "TIMESTAMP_NS":
        naive = nanoseconds.of_time(sql, "TIMESTAMP")
        return Value(date_times.placed(naive, columns.time_zone), "timestamp", reads=sql)
    if kind in _NAIVE:
        return Value(date_times.placed(f"CAST({sql} AS TIMESTAMP)", columns.time_zone), "timestamp")
    if kind == "BOOLEAN":
        return Value(sql, "boolean")
    raise InvalidInput(
        Problem(column, f"its type {kind.lower()} cannot be compared; leave it out or cast it")
    )


def _are_known(both: list[str]) -> str:
    return f"{both[0]} IS NOT NULL AND {both[1]} IS NOT NULL"


def _unrounded(number: str, text: str, near: str) -> str:
    """The decimal of a float, or null if it has more places: a longer decimal shows them."""
    longer = (
        f"CASE WHEN abs({number}) < 1e9 THEN TRY_CAST({text} AS DECIMAL(38, 28)) = {near}"
        f" WHEN abs({number}) < 1e18 THEN TRY_CAST({text} AS DECIMAL(38, 20)) = {near}"
        " ELSE true END"
    )
    return f"(CASE WHEN {number} = 0 OR ({near} <> 0 AND {longer}) THEN {near} END)"


def _has_time(given: Value, columns: Columns) -> bool | None:
    """Whether a value is a point in time and no date; unknown for text without a format."""
    if given.kind != "text":
        return given.kind == "timestamp"
    written = columns.csv.date_format
    return None if written is None else date_times.has_time(written)


def _cut(given: Value, part: DatePart) -> Value:
    sql = f"CAST(date_trunc({literal(part.date_part)}, {given.sql}) AS DATE)"
    return replace(given, sql=sql)


def _derived(given: Value, derivation: Derivation) -> Value:
    if isinstance(derivation, Regex):
        pattern = literal(derivation.regex)
        group = 1 if re.compile(derivation.regex).groups else 0
        found = f"regexp_extract({given.sql}, {pattern}, {group})"
        if group:  # one that took no part is empty there, and null among all that are found
            every = f"regexp_extract_all({given.sql}, {pattern}, {group})"
            found = f"CASE WHEN {found} = '' THEN {every}[1] ELSE {found} END"
        sql = f"CASE WHEN regexp_matches({given.sql}, {pattern}) THEN {found} END"
        return Value(f"({sql})", "text", column=given.column)
    if derivation == "trim":
        return Value(_trimmed(given.sql), "text", column=given.column)
    if derivation == "digits":
        found = f"nullif(regexp_replace({given.sql}, '[^0-9]', '', 'g'), '')"
        return Value(found, "text", column=given.column)
    return Value(f"{derivation}({given.sql})", "text", column=given.column)
