"""The columns that chance fills: their types, and the few values they may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal

from kalla.reconcile.recipe.model import Csv, Side
from tests.reference.evidence import Type, Value

# Each column with the values it may have, in the widest of its types; null is added apart.
VALUES: Mapping[str, Sequence[Value]] = {
    "amount": [
        Decimal(each)
        for each in ("1", "2", "3", "-1", "0", "5", "-3", "1.01", "0.01", "-0.01", "10", "1000.5")
    ],
    "cur": ["EUR", "USD"],
    "day": [
        datetime(2024, 2, 1, tzinfo=UTC),
        datetime(2024, 2, 2, tzinfo=UTC),
        datetime(2024, 1, 31, 23, 30, tzinfo=UTC),
        datetime(2024, 2, 1, 0, 0, 0, 1, tzinfo=UTC),
        datetime(2024, 2, 2, 3, 59, 59, tzinfo=UTC),
        datetime(2024, 3, 1, tzinfo=UTC),
        datetime(2023, 12, 31, 23, 15, tzinfo=UTC),
    ],
    "id": ["A", "B", "C", "D", "E", "F", "G", "H", "G#1", "a|b", "∅"],
    "no": ["1", "2"],
    "note": ["acme", "acme ab", "amce", "ACME", "ca", "abc", "åäö", "äåö", "", "acme as"],
    "qty": [1, 2, 3, 0, -1],
    "ref": ["1", "x", "2", "X", "01", " x", "x\t", "INV-1", "inv 1", "-1", "é", "É", ""],
}
TYPES: Mapping[str, Sequence[Type]] = {
    "amount": ("decimal", "decimal", "integer", "text"),
    "cur": ("text",),
    "day": ("date", "timestamp", "text"),
    "id": ("text",),
    "no": ("text", "integer"),
    "note": ("text",),
    "qty": ("integer",),
    "ref": ("text", "text", "integer"),
}

CSVS = (
    Csv(),
    Csv(),
    Csv(),
    Csv(decimal=",", thousands=".", date_format="%d.%m.%Y"),
    Csv(date_format="%d/%m/%Y %H:%M"),
)

Columns = Mapping[Side, Mapping[str, Type]]


def named(side: Side, column: str) -> str:
    """Both sides have the same columns; the names differ, so that a mix-up shows."""
    return column if side == "left" else f"r_{column}"


def as_type(value: Value, columns: Columns, side: Side, name: str, csv: Csv) -> Value:
    """A value in a column's type; null where it has none there."""
    match value, columns[side][name]:
        case datetime(), "date":
            return value.date()
        case datetime(), "text":
            return _dated(value, csv)
        case Decimal(), "integer":
            return int(value) if value == int(value) else None
        case Decimal(), "text":
            text = f" {value}" if value < 0 else f"{value}0" if "." in str(value) else f"{value}"
            whole, point, places = text.partition(".")
            if csv.thousands is not None and value >= 1_000:
                whole = f"{int(whole):,}".replace(",", csv.thousands)
            return whole + point.replace(".", csv.decimal) + places
        case str(), "integer":
            return int(value) if value.lstrip("-").isdecimal() else len(value)
    return value


def _dated(value: datetime, csv: Csv) -> str:
    """A date where it is midnight, a time without an offset at half past; in March neither."""
    if value.month == 3:
        return "soon"
    if csv.date_format is not None:
        return value.strftime(csv.date_format)
    if value == datetime(value.year, value.month, value.day, tzinfo=UTC):
        return value.date().isoformat()
    text = value.isoformat()
    return text.removesuffix("+00:00") if value.minute == 30 else text.replace("+00:00", "Z")
