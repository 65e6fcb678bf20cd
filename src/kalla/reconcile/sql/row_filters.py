"""Filters as SQL over one row: a column compared with the recipe's value."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.recipe.model import Filter, Scalar
from kalla.reconcile.recipe.yaml_values import plain
from kalla.reconcile.sql import column_values, date_times
from kalla.reconcile.sql.column_values import Columns, Value, held, literal

_MOST_DIGITS = 38  # of a decimal


def conjunction(filters: Sequence[Filter], columns: Columns) -> str | None:
    """Filters as one expression over a row; a null passes `is_null` alone."""
    parts = [_filter(each, columns)[0] for each in filters]
    return " AND ".join(f"coalesce({part}, false)" for part in parts) or None


def leniently(filters: Sequence[Filter], columns: Columns) -> str | None:
    """The same, but unreadable values pass: a row that passes only this was left out for an
    unreadable value. None if every value is readable.
    """
    parts = [_filter(each, columns) for each in filters]
    if not any(read for _, read in parts):
        return None
    return " AND ".join(
        f"coalesce({part}, {' OR '.join(map(column_values.fails, read)) or 'false'})"
        for part, read in parts
    )


def readings(filters: Sequence[Filter], columns: Columns) -> list[Value]:
    """The values that filters parse, where parsing may fail."""
    return [value for each in filters for value in _filter(each, columns)[1]]


def _filter(each: Filter, columns: Columns) -> tuple[str, list[Value]]:
    """A filter as SQL, and what it reads of which that may fail."""
    column = column_values.value(columns, each.column)
    if each.op == "is_null":
        return f"{held(each.column)} IS NULL", []
    if each.op == "not_null":
        return f"{held(each.column)} IS NOT NULL", []
    if each.op in ("in", "not_in"):
        given = each.value if isinstance(each.value, tuple) else (each.value,)
        listed: dict[Value, list[str]] = {}
        for value in given:
            if value is not None:
                read, one = _against(column, value, columns)
                listed.setdefault(read, []).append(one)
        word, joint = ("IN", " OR ") if each.op == "in" else ("NOT IN", " AND ")
        parts = (f"{read.sql} {word} ({', '.join(some)})" for read, some in listed.items())
        return joint.join(parts), [read for read in listed if _may_hide(each, column, read)]
    if isinstance(each.value, tuple) or each.value is None:
        raise InvalidInput(Problem(each.column, f"the filter {each.op} needs one value"))
    if each.op in ("contains", "startswith", "endswith"):
        name = {"contains": "contains", "startswith": "starts_with", "endswith": "ends_with"}
        text = f"{name[each.op]}({column_values.as_text(column).sql}, {literal(str(each.value))})"
        return text, [column] if _may_hide(each, column, column) else []
    signs = {"eq": "=", "ne": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
    read, one = _against(column, each.value, columns)
    hidden = [read] if _may_hide(each, column, read) else []
    return f"{read.sql} {signs[each.op]} {one}", hidden


def _may_hide(each: Filter, column: Value, read: Value) -> bool:
    """Whether a row may be left out because of an unreadable value. A number that is asked for by
    itself is not any other text: K-1 is not the account 4711, unless accounts are amounts."""
    is_other = read.kind == "number" and each.op in ("eq", "in") and not column.is_amount
    return bool(read.reads) and not is_other


def _against(column: Value, given: Scalar, columns: Columns) -> tuple[Value, str]:
    """The column read as what it is compared with, and the literal."""
    if isinstance(given, bool) or column.kind == "boolean":
        return column_values.as_text(column), literal(str(given).lower())
    if isinstance(given, int | Decimal) or column.kind == "number" or column.is_amount:
        number = column_values.as_number(column, columns)
        text, places = _number(given, number.scale)
        return column_values.narrow(number, 38 - max(number.scale, places)), text
    if isinstance(given, str) and (column.kind != "text" or columns.csv.date_format):
        # JSON has no dates: a text that is one is, where the column has dates.
        found = plain(given.strip())
        given = found if isinstance(found, date) else given
    if isinstance(given, datetime):
        moment = literal(str(given))
        if given.tzinfo is None:
            moment = date_times.placed(f"TIMESTAMP {moment}", columns.time_zone)
        else:
            moment = f"TIMESTAMPTZ {moment}"
        return column_values.as_timestamp(column, columns), moment
    if isinstance(given, date):
        return column_values.as_date(column, columns), f"DATE {literal(str(given))}"
    if column.kind != "text":
        raise InvalidInput(Problem("filters", f"{given!r} is not a date"))
    return column, literal(given)


def _number(given: Scalar, scale: int) -> tuple[str, int]:
    """A number to compare with a column of so many places, and how many it has itself."""
    try:
        number = Decimal(str(given))
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite():
        raise InvalidInput(Problem("filters", f"{given!r} is not a number"))
    too_many = InvalidInput(Problem("filters", f"{given!r} has too many digits to compare with"))
    if abs(number.adjusted()) > _MOST_DIGITS:  # 1E-999999999, written out, has a gigabyte
        raise too_many
    text = format(number, "f")
    whole, _, part = text.lstrip("-0").partition(".")
    if len(whole) + max(len(part), scale) > _MOST_DIGITS:
        raise too_many
    return text, len(part)
