"""Filters as SQL over one row: a column against what the recipe gives, read as what it meets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.matching import times, values
from kalla.reconcile.matching.values import Columns, Value, held, literal
from kalla.reconcile.model import Filter, Scalar
from kalla.reconcile.recipes.notation import plain


def conjunction(filters: Sequence[Filter], columns: Columns) -> str | None:
    """Filters as one expression over a row; a null passes `is_null` alone."""
    parts = [_filter(each, columns) for each in filters]
    return " AND ".join(f"coalesce({part}, false)" for part in parts) or None


def _filter(each: Filter, columns: Columns) -> str:
    column = values.value(columns, each.column)
    if each.op == "is_null":
        return f"{held(each.column)} IS NULL"
    if each.op == "not_null":
        return f"{held(each.column)} IS NOT NULL"
    if each.op in ("in", "not_in"):
        given = each.value if isinstance(each.value, tuple) else (each.value,)
        listed: dict[str, list[str]] = {}
        for value in given:
            if value is not None:
                sql, one = _against(column, value, columns)
                listed.setdefault(sql, []).append(one)
        word, joint = ("IN", " OR ") if each.op == "in" else ("NOT IN", " AND ")
        return joint.join(f"{sql} {word} ({', '.join(some)})" for sql, some in listed.items())
    if isinstance(each.value, tuple) or each.value is None:
        raise InvalidInput(Problem(each.column, f"the filter {each.op} needs one value"))
    if each.op in ("contains", "startswith", "endswith"):
        name = {"contains": "contains", "startswith": "starts_with", "endswith": "ends_with"}
        return f"{name[each.op]}({values.as_text(column).sql}, {literal(str(each.value))})"
    signs = {"eq": "=", "ne": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
    sql, one = _against(column, each.value, columns)
    return f"{sql} {signs[each.op]} {one}"


def _against(column: Value, given: Scalar, columns: Columns) -> tuple[str, str]:
    """The column read as what it is compared with, and the literal."""
    if isinstance(given, bool) or column.kind == "boolean":
        return values.as_text(column).sql, literal(str(given).lower())
    if isinstance(given, int | Decimal) or column.kind == "number" or column.is_amount:
        number = values.as_number(column, columns)
        text, places = _number(given, number.scale)
        return values.narrow(number, 38 - max(number.scale, places)).sql, text
    if isinstance(given, str) and (column.kind != "text" or columns.csv.date_format):
        # JSON has no dates: a text that is one is, where the column has dates.
        found = plain(given.strip())
        given = found if isinstance(found, date) else given
    if isinstance(given, datetime):
        moment = literal(str(given))
        if given.tzinfo is None:
            moment = times.placed(f"TIMESTAMP {moment}", columns.time_zone)
        else:
            moment = f"TIMESTAMPTZ {moment}"
        return values.as_timestamp(column, columns).sql, moment
    if isinstance(given, date):
        return values.as_date(column, columns).sql, f"DATE {literal(str(given))}"
    if column.kind != "text":
        raise InvalidInput(Problem("filters", f"{given!r} is no date"))
    return column.sql, literal(given)


def _number(given: Scalar, scale: int) -> tuple[str, int]:
    """A number to compare with a column of so many places, and how many it has itself."""
    try:
        number = Decimal(str(given))
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite():
        raise InvalidInput(Problem("filters", f"{given!r} is no number"))
    text = format(number, "f")
    whole, _, part = text.lstrip("-0").partition(".")
    if len(whole) + max(len(part), scale) > 38:
        raise InvalidInput(Problem("filters", f"{given!r} has too many digits to compare with"))
    return text, len(part)
