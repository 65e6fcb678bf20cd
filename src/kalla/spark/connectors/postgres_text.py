"""SQL text for Postgres: identifiers, literals, key ranges and filters. Values are always quoted.

They are not bound: the driver streams by COPY, which takes no parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation

from kalla.errors import InvalidInput, Problem
from kalla.spark.connectors.connector import OPERATORS, KeyRange, Predicate, Scalar
from kalla.spark.connectors.postgres_types import KEY_TYPES, TEXT_TYPES, PostgresColumn

CTID = "ctid"

_SIGNS = {"eq": "=", "ne": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_INTEGERS = ("int2", "int4", "int8", "oid")
_NUMBERS = (*_INTEGERS, "numeric", "float4", "float8")
_TIMES = ("timestamp", "timestamptz")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def identifier(name: str) -> str:
    return '"' + _clean(name).replace('"', '""') + '"'


def literal(text: str) -> str:
    """A quoted text, safe whatever `standard_conforming_strings` says."""
    quoted = "'" + _clean(text).replace("'", "''").replace("\\", "\\\\") + "'"
    return f" E{quoted}" if "\\" in text else quoted


def where(conditions: Sequence[str]) -> str:
    return " WHERE " + " AND ".join(conditions) if conditions else ""


def key_expression(name: str, collation: str | None) -> str:
    quoted = CTID if name == CTID else identifier(name)
    return f"{quoted} COLLATE pg_catalog.{identifier(collation)}" if collation else quoted


def range_condition(bounds: KeyRange, columns: Mapping[str, PostgresColumn]) -> str:
    """Half-open, so that neighbours share no row and leave none out."""
    pairs = list(zip(bounds.columns, bounds.collations, strict=True))
    types = [_key_type(name, columns) for name in bounds.columns]
    left = _row([key_expression(name, collation) for name, collation in pairs])
    sides = []
    for sign, values in ((">=", bounds.lower), ("<", bounds.upper)):
        if values is not None:
            typed = zip(values, types, strict=True)
            sides.append(f"{left} {sign} " + _row([f"{literal(v)}::{t}" for v, t in typed]))
    inside = " AND ".join(sides) or "TRUE"
    nullable = [name for name in bounds.columns if name != CTID and not columns[name].not_null]
    if bounds.nulls and nullable:
        return f"({inside} OR " + " OR ".join(f"{identifier(n)} IS NULL" for n in nullable) + ")"
    return f"({inside})"


def predicate_condition(predicate: Predicate, columns: Mapping[str, PostgresColumn]) -> str:
    column = columns.get(predicate.column)
    if column is None:
        raise InvalidInput(Problem(predicate.column, "there is no such column to filter by"))
    if predicate.op not in OPERATORS:
        raise InvalidInput(Problem(column.name, f"there is no filter {predicate.op!r}"))
    quoted = identifier(column.name)
    if predicate.op in ("is_null", "not_null"):
        return f"{quoted} IS {'NOT ' if predicate.op == 'not_null' else ''}NULL"
    if predicate.op in ("in", "not_in"):
        return _membership(predicate, column)
    if predicate.value is None or isinstance(predicate.value, tuple):
        raise InvalidInput(Problem(column.name, f"the filter {predicate.op} needs one value"))
    if predicate.op in ("contains", "startswith", "endswith"):
        return _part(predicate.op, column, predicate.value)
    return _comparison(predicate.op, column, predicate.value, predicate.time_zone)


def _membership(predicate: Predicate, column: PostgresColumn) -> str:
    values = predicate.value if isinstance(predicate.value, tuple) else (predicate.value,)
    given = [value for value in values if value is not None]
    if len(given) < len(values):
        raise InvalidInput(Problem(column.name, f"null has no place in a filter {predicate.op}"))
    op, joint = ("eq", " OR ") if predicate.op == "in" else ("ne", " AND ")
    tests = [_comparison(op, column, value, predicate.time_zone) for value in given]
    nothing = "FALSE" if predicate.op == "in" else f"{identifier(column.name)} IS NOT NULL"
    return f"({joint.join(tests) or nothing})"


def _part(op: str, column: PostgresColumn, value: Scalar) -> str:
    searchable = column.base in (*TEXT_TYPES, *_INTEGERS, "uuid") or column.kind == "e"
    if not isinstance(value, str) or column.array or not searchable:
        raise _unfit(column, value)
    text, part = f"{identifier(column.name)}::text", literal(value)
    if op == "contains":
        return f"strpos({text}, {part}) > 0"
    if op == "startswith":
        return f"starts_with({text}, {part})"
    return f"right({text}, {len(value)}) = {part}" if value else f"{text} IS NOT NULL"


def _comparison(op: str, column: PostgresColumn, value: Scalar, zone: str) -> str:
    if column.array:
        raise _unfit(column, value)
    value = _as_column_has_it(column, value)
    if column.base in _TIMES and not isinstance(value, datetime) and isinstance(value, date):
        return _day_comparison(op, column, value, zone)
    if column.base == "timestamp" and isinstance(value, datetime) and value.tzinfo:
        return _clock_comparison(op, column, value, zone)
    left = identifier(column.name)
    if column.kind == "e":
        left += "::text"
    if (column.base in TEXT_TYPES or column.kind == "e") and op not in ("eq", "ne"):
        left += ' COLLATE "C"'  # as files are compared
    return f"{left} {_SIGNS[op]} {_value(column, value, zone)}"


def _as_column_has_it(column: PostgresColumn, value: Scalar) -> Scalar:
    """Text is read as the column's type, as it is in a file."""
    if not isinstance(value, str):
        return value
    try:
        if column.base in _NUMBERS:
            return Decimal(value.strip())
        if column.base == "date" or column.base in _TIMES:
            text = value.strip()
            return (
                date.fromisoformat(text) if _DATE.fullmatch(text) else datetime.fromisoformat(text)
            )
    except (ValueError, InvalidOperation):
        raise _unfit(column, value) from None
    if column.base == "bool" and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value


def _value(column: PostgresColumn, value: Scalar, zone: str) -> str:
    base = column.base
    if isinstance(value, bool):
        if base == "bool":
            return str(value).upper()
    elif isinstance(value, int | Decimal):
        if base in _NUMBERS and Decimal(value).is_finite() and Decimal(value).adjusted() < 1000:
            return _number(base, value)
    elif isinstance(value, datetime):
        if base in _TIMES:
            return _moment(base, value, zone)
    elif isinstance(value, date):
        if base == "date":
            return f"{literal(value.isoformat())}::date"
    elif base in TEXT_TYPES or column.kind == "e":
        return literal(value)
    elif base in ("uuid", "time"):
        return f"{literal(value)}::{base}"
    raise _unfit(column, value)


def _number(base: str, value: int | Decimal) -> str:
    # A bare whole number keeps an integer's index in use.
    if base in _INTEGERS and value == int(value):
        return f"({int(value)})"
    return f"{literal(format(Decimal(value), 'f'))}::numeric"


def _moment(base: str, value: datetime, zone: str) -> str:
    text = literal(value.isoformat(sep=" "))
    if base == "timestamp":
        return f"{text}::timestamp"
    return f"{text}::timestamptz" if value.tzinfo else _placed(f"{text}::timestamp", zone)


def _placed(timestamp: str, zone: str) -> str:
    """Where a time of a zone's clocks is; of one that they show twice, the first time, as in files:
    Postgres takes the last. What the clocks were a day before tells."""
    named = f"AT TIME ZONE {literal(zone)}"
    if zone == "UTC":
        return f"({timestamp} {named})"
    first = f"(({timestamp} - INTERVAL '24 hours') {named} + INTERVAL '24 hours')"
    return f"(CASE WHEN {first} {named} = {timestamp} THEN {first} ELSE {timestamp} {named} END)"


def _clock_comparison(op: str, column: PostgresColumn, instant: datetime, zone: str) -> str:
    """What clocks show against a point in time, as points in time: one that they show twice may be
    after the first. What they show within a day of it is looked at, so an index is of use."""
    left = identifier(column.name)
    moment = f"{literal(instant.isoformat(sep=' '))}::timestamptz"
    shown = f"({moment} AT TIME ZONE {literal(zone)})"
    if zone == "UTC":
        return f"{left} {_SIGNS[op]} {shown}"
    parts = [f"{_placed(left, zone)} {_SIGNS[op]} {moment}"]
    if op in ("eq", "lt", "lte"):
        parts.append(f"{left} < {shown} + INTERVAL '1 day'")
    if op in ("eq", "gt", "gte"):
        parts.append(f"{left} > {shown} - INTERVAL '1 day'")
    return f"({' AND '.join(parts)})"


def _day_comparison(op: str, column: PostgresColumn, day: date, zone: str) -> str:
    """A point in time against a day, by the day's bounds: so an index on it is of use."""
    left = identifier(column.name)

    def start(of: date) -> str:
        text = f"{literal(of.isoformat())}::timestamp"
        return _placed(text, zone) if column.base == "timestamptz" else text

    if day == date.max:
        raise _unfit(column, day)
    begins, ends = start(day), start(day + timedelta(days=1))
    return {
        "eq": f"({left} >= {begins} AND {left} < {ends})",
        "ne": f"({left} < {begins} OR {left} >= {ends})",
        "lt": f"{left} < {begins}",
        "lte": f"{left} < {ends}",
        "gt": f"{left} >= {ends}",
        "gte": f"{left} >= {begins}",
    }[op]


def _key_type(name: str, columns: Mapping[str, PostgresColumn]) -> str:
    if name == CTID:
        return "tid"
    column = columns.get(name)
    if column is None or column.array or column.base not in KEY_TYPES:
        raise InvalidInput(Problem(name, "no longer is a column that a slice can be cut by"))
    return "text" if column.base == "varchar" else column.base


def _row(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"


def _unfit(column: PostgresColumn, value: Scalar) -> InvalidInput:
    return InvalidInput(
        Problem(column.name, f"cannot filter {column.declared} by the value {value!s:.100}")
    )


def _clean(text: str) -> str:
    if re.search("[\x00\ud800-\udfff]", text):
        raise InvalidInput(Problem("", f"Postgres has no such character as in {text!a:.100}"))
    return text
