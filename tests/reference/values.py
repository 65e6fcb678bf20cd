"""Values: read, derived, brought together and compared, one pair at a time, exactly."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Literal
from zoneinfo import ZoneInfo

from kalla.reconcile.model import (
    Comparison,
    Condition,
    DatePart,
    DateWindow,
    Derivation,
    Equal,
    Fuzzy,
    Regex,
    Side,
    Text,
    Tolerance,
)
from tests.reference.evidence import Type, Value
from tests.reference.similarity import WHOLE, ten_thousandths

Kind = Literal["text", "number", "date", "timestamp"]
Seen = str | Fraction | date | datetime | None  # a value as it is compared

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)")
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
MICROSECOND = timedelta(microseconds=1)
MICROSECONDS_A_DAY = 86_400_000_000


def kind_of(column: Type) -> Kind:
    return "number" if column == "integer" or column == "decimal" else column


def compared_kind(condition: Condition, left: Kind, right: Kind) -> Kind:
    """As what two values meet under a condition."""
    match condition:
        case Text() | Fuzzy():
            return "text"
        case Tolerance():
            return "number"
        case DateWindow() if left == right == "text":
            return "date"
    return meeting_kind(left, right)


def meeting_kind(left: Kind, right: Kind) -> Kind:
    if left == right:
        return left
    if left == "text" or right == "text":
        return right if left == "text" else left
    if {left, right} == {"date", "timestamp"}:
        return "date"
    raise TypeError(f"a {left} and a {right} cannot be compared")


def read(value: Value, kind: Kind, zone: ZoneInfo) -> Seen:
    """A value as one of the given kind; null when it cannot be read as that."""
    if value is None:
        return None
    match kind:
        case "text":
            return as_text(value)
        case "number":
            return _number(value)
        case "date":
            return _date(value, zone)
        case "timestamp":
            return _timestamp(value, zone)


def _number(value: Value) -> Fraction | None:
    match value:
        case str():
            return Fraction(value.strip()) if NUMBER.fullmatch(value.strip()) else None
        case int() | Decimal():
            return Fraction(value)
    raise TypeError(f"{value!r} is no number")


def _date(value: Value, zone: ZoneInfo) -> date | None:
    match value:
        case str():
            return _parsed_date(value.strip())
        case datetime():
            return value.astimezone(zone).date()
        case date():
            return value
    raise TypeError(f"{value!r} is no date")


def _parsed_date(text: str) -> date | None:
    if not DATE.fullmatch(text):
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _timestamp(value: Value, zone: ZoneInfo) -> datetime | None:
    match value:
        case str():
            return _parsed_timestamp(value.strip(), zone)
        case datetime():
            return value.astimezone(UTC)
    raise TypeError(f"{value!r} is no timestamp")


def _parsed_timestamp(text: str, zone: ZoneInfo) -> datetime | None:
    """A time without an offset is one of the recipe's time zone."""
    if not TIMESTAMP.fullmatch(text):
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (instant if instant.tzinfo else instant.replace(tzinfo=zone)).astimezone(UTC)


def derived(value: Value, derivation: Derivation, zone: ZoneInfo) -> Value:
    if value is None:
        return None
    if isinstance(derivation, DatePart):
        day = _date(value, zone)
        return day and _cut(day, derivation)
    text = as_text(value)
    assert text is not None
    if isinstance(derivation, Regex):
        found = re.search(derivation.regex, text, re.ASCII)
        return found and found.group(1 if found.re.groups else 0)
    match derivation:
        case "trim":
            return text.strip()
        case "upper":
            return text.upper()
        case "lower":
            return text.lower()
        case "digits":
            return re.sub("[^0-9]", "", text)


def derived_kind(kind: Kind, derivations: tuple[Derivation, ...]) -> Kind:
    if not derivations:
        return kind
    return "date" if isinstance(derivations[-1], DatePart) else "text"


def _cut(day: date, to: DatePart) -> date:
    match to.date_part:
        case "year":
            return day.replace(month=1, day=1)
        case "month":
            return day.replace(day=1)
        case "day":
            return day


def holds(condition: Condition, left: Seen, right: Seen) -> bool:
    """Whether two values, read and met, satisfy a condition. Null satisfies none."""
    if left is None or right is None:
        return False
    match condition:
        case Equal():
            return left == right
        case Tolerance():
            assert isinstance(left, Fraction)
            assert isinstance(right, Fraction)
            return within(condition, left, right)
        case DateWindow():
            either = condition.days or 0
            before = either if condition.before is None else condition.before
            after = either if condition.after is None else condition.after
            unit = MICROSECONDS_A_DAY if isinstance(left, datetime) else 1
            return -before * unit <= _time_between(left, right) <= after * unit
        case Text():
            assert isinstance(left, str)
            assert isinstance(right, str)
            container, part = (left, right) if condition.container == "left" else (right, left)
            match condition.op:
                case "contains":
                    return part in container
                case "startswith":
                    return container.startswith(part)
                case "endswith":
                    return container.endswith(part)
        case Fuzzy():
            return WHOLE - gap(condition, left, right) >= Fraction(condition.threshold) * WHOLE
        case Comparison():
            return compares(condition.op, left, right)
    raise TypeError(f"{condition!r} is no condition")


def compares(op: str, left: Seen, right: Seen) -> bool:
    """Two values of one kind in their natural order, text by code point. Null compares never."""
    if left is None or right is None:
        return False
    smaller = left < right  # type: ignore[operator]  # both are of one kind
    match op:
        case "eq":
            return left == right
        case "ne":
            return left != right
        case "lt":
            return smaller
        case "lte":
            return smaller or left == right
        case "gt":
            return not smaller and left != right
        case "gte":
            return not smaller
    raise ValueError(f"{op} is no comparison")


def within(tolerance: Tolerance, left: Fraction, right: Fraction) -> bool:
    """Whether two amounts, or sums of amounts, are within a tolerance. The bound is included."""
    below = _bound(left, tolerance.below, tolerance.below_percent, tolerance)
    above = _bound(left, tolerance.above, tolerance.above_percent, tolerance)
    return -below <= amount_difference(tolerance, left, right) <= above


def _bound(
    left: Fraction, absolute: Decimal | None, percent: Decimal | None, both: Tolerance
) -> Fraction:
    """The bound of one direction: its own, else that of both; nothing said is zero."""
    if absolute is None and percent is None:
        absolute, percent = both.absolute, both.percent
    if percent is not None:
        return abs(left) * Fraction(percent) / 100
    return Fraction(absolute or 0)


def negated(tolerance: Tolerance | None, side: Side, amount: Fraction) -> Fraction:
    return -amount if tolerance is not None and tolerance.negate == side else amount


def amount_difference(tolerance: Tolerance | None, left: Fraction, right: Fraction) -> Fraction:
    return negated(tolerance, "right", right) - negated(tolerance, "left", left)


def gap(condition: Condition, left: Seen, right: Seen) -> Fraction | int:
    """The signed difference of two values that are not null; a dissimilarity has no sign."""
    match condition:
        case Tolerance():
            assert isinstance(left, Fraction)
            assert isinstance(right, Fraction)
            return amount_difference(condition, left, right)
        case DateWindow():
            return _time_between(left, right)
        case Fuzzy():
            assert isinstance(left, str)
            assert isinstance(right, str)
            return WHOLE - ten_thousandths(condition.metric, left, right)
    return 0


def _time_between(left: Seen, right: Seen) -> int:
    """Days between dates, microseconds between points in time."""
    if isinstance(left, datetime) and isinstance(right, datetime):
        return (right - left) // MICROSECOND
    assert isinstance(left, date)
    assert isinstance(right, date)
    return (right - left).days


def as_text(value: Value | Fraction) -> str | None:
    """The one text of a value: in keys, in evidence, and where text is asked of it."""
    match value:
        case None | str():
            return value
        case int() | Decimal() | Fraction():
            return number_text(Fraction(value))
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()


def number_text(number: Fraction) -> str:
    """As a person writes it: no exponent, no zeros at the end."""
    places = 0
    while (number * 10**places).denominator != 1:
        places += 1
    digits = str(abs(int(number * 10**places))).rjust(places + 1, "0")
    whole, part = digits[: len(digits) - places], digits[len(digits) - places :]
    return ("-" if number < 0 else "") + whole + ("." + part if part else "")
