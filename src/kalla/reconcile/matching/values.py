"""A column as a value that can be compared: its type, its derivations, and how two types meet.

Everything here is an SQL expression over one row of one side, made from names and types alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.model import Csv, DatePart, Derivation, Regex

Kind = Literal["text", "number", "date", "timestamp", "boolean"]

# Amounts in text and in floats are read with so many places; more digits than that are no amount.
PLACES = 9

_WHITE = "".join(
    chr(code)
    for codes in (range(9, 14), range(28, 33), (0x85, 0xA0, 0x1680), range(0x2000, 0x200B),
                  (0x2028, 0x2029, 0x202F, 0x205F, 0x3000))
    for code in codes
)  # fmt: skip
_ENDS = ("left", "right")
WHOLE_64 = {
    "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER",
}  # fmt: skip
_WHOLE = WHOLE_64 | {"UBIGINT"}
# Parquet has no such numbers: DuckDB would write floats, and cents would be lost.
_UNWRITABLE = {"HUGEINT", "UHUGEINT"}
_NAIVE = {"TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "DATETIME"}
_TEXT = {"VARCHAR", "UUID", "JSON", "ENUM"}


@dataclass(frozen=True)
class Columns:
    """The columns of one side as DuckDB delivers them, and how its text is written."""

    types: Mapping[str, str]
    csv: Csv = field(default_factory=Csv)
    time_zone: str = "UTC"


@dataclass(frozen=True)
class Value:
    """An expression over a side's row. `reads` is what it was read from, if that may fail."""

    sql: str
    kind: Kind
    scale: int = 0
    reads: str | None = None
    column: str = ""


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def held(column: str) -> str:
    """A column of a source as the workbench names it, so that none takes a name of its own."""
    return quote(f"={column}")


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def enum(texts: Iterable[str]) -> str:
    """The type of a column of few texts: it is held as numbers, and written with its dictionary."""
    return f"ENUM ({', '.join(map(literal, dict.fromkeys(texts)))})"


def value(columns: Columns, column: str, derivations: tuple[Derivation, ...] = ()) -> Value:
    """The column after its derivations."""
    found = replace(_raw(columns, column), column=column)
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
    if left.kind == right.kind:
        return left, right
    kinds = {left.kind, right.kind}
    for kind, turn in (("number", as_number), ("date", as_date), ("timestamp", as_timestamp)):
        if kinds == {"text", kind}:
            return turn(left, columns[0]), turn(right, columns[1])
    if kinds == {"date", "timestamp"}:
        return as_date(left, columns[0]), as_date(right, columns[1])
    if kinds == {"text", "boolean"}:
        return as_text(left), as_text(right)
    raise InvalidInput(Problem(path, f"a {left.kind} cannot be compared with a {right.kind}"))


def as_text(given: Value) -> Value:
    if given.kind == "text":
        return given
    return Value(shown(given), "text", column=given.column)


def as_number(given: Value, columns: Columns) -> Value:
    if given.kind == "number":
        return given
    if given.kind != "text":
        raise InvalidInput(Problem("", f"a {given.kind} is no amount"))
    text = f"trim({given.sql})"
    if columns.csv.decimal == ",":
        text = f"CASE WHEN {text} NOT LIKE '%.%' THEN replace({text}, ',', '.') END"
    shape = literal(rf"[+-]?(\d{{1,{38 - PLACES}}}(\.\d{{0,{PLACES}}})?|\.\d{{1,{PLACES}}})")
    sql = f"CASE WHEN regexp_full_match({text}, {shape}) THEN CAST({text} AS {amount_type()}) END"
    return Value(f"({sql})", "number", PLACES, given.sql, given.column)


def as_date(given: Value, columns: Columns) -> Value:
    zone = literal(columns.time_zone)
    if given.kind == "date":
        return given
    if given.kind == "timestamp":
        return replace(given, sql=f"CAST(timezone({zone}, {given.sql}) AS DATE)", kind="date")
    if given.kind != "text":
        raise InvalidInput(Problem("", f"a {given.kind} is no date"))
    if columns.csv.date_format:
        sql = f"CAST(try_strptime({given.sql}, {literal(columns.csv.date_format)}) AS DATE)"
        return Value(sql, "date", 0, given.sql, given.column)
    plain = rf"regexp_full_match({given.sql}, '\d{{4}}-\d{{2}}-\d{{2}}')"
    moment = f"timezone({zone}, TRY_CAST({given.sql} AS TIMESTAMPTZ))"
    sql = f"(CASE WHEN {plain} THEN TRY_CAST({given.sql} AS DATE) ELSE CAST({moment} AS DATE) END)"
    return Value(sql, "date", 0, given.sql, given.column)


def as_timestamp(given: Value, columns: Columns) -> Value:
    if given.kind == "timestamp":
        return given
    if given.kind != "text":
        raise InvalidInput(Problem("", f"a {given.kind} is no point in time"))
    if columns.csv.date_format:
        read = f"try_strptime({given.sql}, {literal(columns.csv.date_format)})"
        return Value(f"timezone('UTC', {read})", "timestamp", 0, given.sql, given.column)
    moment = f"TRY_CAST({given.sql} AS TIMESTAMPTZ)"
    return Value(moment, "timestamp", 0, given.sql, given.column)


def wide(given: Value) -> Value:
    """An amount with room to add and multiply in: whole numbers would overflow."""
    if given.scale:
        return given
    return replace(given, sql=f"CAST({given.sql} AS DECIMAL(38, 0))")


def amount_type(scale: int = PLACES) -> str:
    return f"DECIMAL(38, {scale})"


def shown(given: Value, sql: str | None = None) -> str:
    """The value as a person reads it, and as keys and digests hold it."""
    sql = given.sql if sql is None else sql
    if given.kind == "text":
        return sql
    if given.kind == "number" and given.scale:
        # To trim takes ten times as long as to write, and most need none.
        text = f"CAST({sql} AS VARCHAR)"
        return f"CASE WHEN suffix({text}, '0') THEN rtrim(rtrim({text}, '0'), '.') ELSE {text} END"
    if given.kind == "timestamp":
        moment = f"timezone('UTC', {sql})"
        return (
            f"CASE WHEN epoch_us({sql}) % 1000000 = 0"
            f" THEN strftime({moment}, '%Y-%m-%dT%H:%M:%SZ')"
            f" ELSE strftime({moment}, '%Y-%m-%dT%H:%M:%S.%fZ') END"
        )
    return f"CAST({sql} AS VARCHAR)"


def _raw(columns: Columns, column: str) -> Value:
    sql, kind = held(column), columns.types[column].upper()
    if kind.endswith("]"):
        kind = "LIST"
    if kind in _TEXT or kind.startswith(("ENUM", "VARCHAR")):
        return Value(sql if kind == "VARCHAR" else f"CAST({sql} AS VARCHAR)", "text")
    if kind in _WHOLE:
        return Value(sql, "number")
    if kind in _UNWRITABLE:
        raise InvalidInput(
            Problem(
                column,
                f"its type {kind.lower()} cannot be written to evidence exactly",
                suggestion="let the source deliver it as DECIMAL(38, 0)",
            )
        )
    if kind.startswith("DECIMAL"):
        return Value(sql, "number", int(kind.rstrip(")").rpartition(",")[2]))
    if kind in ("FLOAT", "DOUBLE"):
        # By way of its shortest text: the float itself is a little off what was meant.
        exact = f"TRY_CAST(CAST({sql} AS VARCHAR) AS {amount_type()})"
        return Value(exact, "number", PLACES, reads=sql)
    if kind == "DATE":
        return Value(sql, "date")
    if kind == "TIMESTAMP WITH TIME ZONE":
        return Value(sql, "timestamp")
    if kind in _NAIVE:
        return Value(f"timezone('UTC', CAST({sql} AS TIMESTAMP))", "timestamp")
    if kind == "BOOLEAN":
        return Value(sql, "boolean")
    raise InvalidInput(
        Problem(column, f"its type {kind.lower()} cannot be compared; leave it out or cast it")
    )


def _cut(given: Value, part: DatePart) -> Value:
    sql = f"CAST(date_trunc({literal(part.date_part)}, {given.sql}) AS DATE)"
    return replace(given, sql=sql)


def _derived(given: Value, derivation: Derivation) -> Value:
    if isinstance(derivation, Regex):
        pattern = literal(derivation.regex)
        group = 1 if re.compile(derivation.regex).groups else 0
        sql = (
            f"CASE WHEN regexp_matches({given.sql}, {pattern})"
            f" THEN regexp_extract({given.sql}, {pattern}, {group}) END"
        )
        return Value(f"({sql})", "text", column=given.column)
    if derivation == "trim":
        # To look for all kinds of white takes twenty times as long as to see that there is none.
        plain = " AND ".join(f"{end}({given.sql}, 1) BETWEEN '!' AND '~'" for end in _ENDS)
        trimmed = f"trim({given.sql}, {literal(_WHITE)})"
        sql = f"(CASE WHEN {plain} THEN {given.sql} ELSE {trimmed} END)"
        return Value(sql, "text", column=given.column)
    if derivation == "digits":
        return Value(f"regexp_replace({given.sql}, '[^0-9]', '', 'g')", "text", column=given.column)
    return Value(f"{derivation}({given.sql})", "text", column=given.column)
