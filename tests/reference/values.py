"""Values: read, derived, brought together and compared, one pair at a time, exactly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Literal
from zoneinfo import ZoneInfo

from kalla.reconcile.recipe.model import (
    Comparison,
    Condition,
    Csv,
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

# A moment is what a text is where it meets a timestamp, or another text in a window: a date where
# the text is one, else an instant.
Kind = Literal["text", "number", "date", "timestamp", "moment"]
Seen = str | Fraction | date | datetime | None  # a value as it is compared

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)")
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})?"
)
PLAIN = Csv()
MICROSECOND = timedelta(microseconds=1)
MICROSECONDS_A_DAY = 86_400_000_000


@dataclass(frozen=True)
class Writing:
    """How text is written, and the recipe's time zone."""

    zone: ZoneInfo
    csv: Csv = PLAIN


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
            return "moment"
    if {left, right} == {"text", "timestamp"}:
        return "moment"
    return meeting_kind(left, right)


def meeting_kind(left: Kind, right: Kind) -> Kind:
    if left == right:
        return left
    if left == "text" or right == "text":
        return right if left == "text" else left
    if {left, right} == {"date", "timestamp"}:
        return "date"
    raise TypeError(f"a {left} and a {right} cannot be compared")


def read(value: Value, kind: Kind, writing: Writing) -> Seen:
    """A value as one of the given kind; null when it cannot be read as that."""
    if value is None:
        return None
    match kind:
        case "text":
            return as_text(value)
        case "number":
            return _number(value, writing.csv)
        case "date":
            return _date(value, writing)
        case "timestamp":
            found = _moment(value, writing)
            return None if found is None else instant(found, writing.zone)
        case "moment":
            return _moment(value, writing)


def _number(value: Value, csv: Csv) -> Fraction | None:
    match value:
        case str():
            text = _signed(value.strip())
            if csv.thousands is not None:
                text = _ungrouped(text, csv.decimal, csv.thousands)
            if csv.decimal == ",":
                text = "" if "." in text else text.replace(",", ".")
            return Fraction(text) if NUMBER.fullmatch(text) else None
        case int() | Decimal():
            return Fraction(value)
    raise TypeError(f"{value!r} is not a number")


def _signed(text: str) -> str:
    """A minus behind the digits and brackets around them stand for a minus before them."""
    if text[:1] in ("€", "$", "£", "¥"):
        text = text[1:].lstrip()
    elif text[-1:] in ("€", "$", "£", "¥"):
        text = text[:-1].rstrip()
    if text.endswith("-") and text[:1].isascii() and (text[:1].isdigit() or text[:1] in ".,"):
        return f"-{text[:-1]}"
    if text.startswith("(") and text.endswith(")") and text[1:2] not in "+-":
        return f"-{text[1:-1]}"
    return text


def _ungrouped(text: str, decimal: str, thousands: str) -> str:
    """Digits without the signs between them, which stand before every three, from the point on."""
    for other, sign in (("\u2019", "'"), ("\u00a0", " "), ("\u202f", " ")):
        text = text.replace(other, sign) if sign == thousands else text
    if thousands not in text:
        return text
    whole, point, places = text.partition(decimal)
    first, *rest = whole.lstrip("+-").split(thousands)
    in_groups = 1 <= len(first) <= 3 and first != "0" and all(len(each) == 3 for each in rest)
    if not in_groups or thousands in places or not rest:
        return ""
    return whole.replace(thousands, "") + point + places


def _date(value: Value, writing: Writing) -> date | None:
    found = _moment(value, writing)
    return None if found is None else day_of(found, writing.zone)


def _moment(value: Value, writing: Writing) -> date | datetime | None:
    """A date stays one; a time without an offset is one of the recipe's time zone."""
    match value:
        case str():
            found = _parsed(value, writing.csv)
            if isinstance(found, datetime):
                return (found if found.tzinfo else found.replace(tzinfo=writing.zone)).astimezone(
                    UTC
                )
            return found
        case datetime():
            return (value if value.tzinfo else value.replace(tzinfo=writing.zone)).astimezone(UTC)
        case date():
            return value
    raise TypeError(f"{value!r} is not a date")


def _parsed(text: str, csv: Csv) -> date | datetime | None:
    try:
        if csv.date_format is not None:
            found = datetime.strptime(text, csv.date_format)  # noqa: DTZ007 - its zone comes later
            return found if "%H" in csv.date_format else found.date()
        if DATE.fullmatch(text.strip()):
            return date.fromisoformat(text.strip())
        return datetime.fromisoformat(text.strip()) if TIMESTAMP.fullmatch(text.strip()) else None
    except ValueError:
        return None


def day_of(moment: date | datetime, zone: ZoneInfo) -> date:
    return moment.astimezone(zone).date() if isinstance(moment, datetime) else moment


def instant(moment: date | datetime, zone: ZoneInfo) -> datetime:
    if isinstance(moment, datetime):
        return moment
    return datetime.combine(moment, time(), zone).astimezone(UTC)


def in_time(moment: date | datetime, zone: ZoneInfo) -> tuple[datetime, bool]:
    """Where a moment stands among others: a date at its midnight, after an instant there; a day
    that the zone skipped, just before the midnight that was next."""
    found = instant(moment, zone)
    is_date = not isinstance(moment, datetime)
    is_skipped = is_date and day_of(found, zone) != moment
    return found - is_skipped * MICROSECOND, is_date


def order(value: Value, writing: Writing) -> tuple[int, object]:
    """Where a value that is not null stands in its column: of text, numbers come first, then
    dates, then the rest."""
    if not isinstance(value, str):
        return 0, value
    number = _number(value, writing.csv)
    if number is not None:
        return 0, number
    moment = _moment(value, writing)
    return (2, value) if moment is None else (1, in_time(moment, writing.zone))


def alike(left: str, right: str, writings: tuple[Writing, Writing]) -> tuple[Seen, Seen]:
    """Two texts as what their order goes by: numbers or dates where both are that, else text."""
    for kind in ("number", "moment"):
        first, second = (
            read(text, kind, writing) for text, writing in zip((left, right), writings, strict=True)
        )
        if first is not None and second is not None:
            return first, second
    return left, right


def of_one_kind(left: Seen, right: Seen, zone: ZoneInfo) -> tuple[Seen, Seen]:
    """A date and an instant are two dates."""
    are_times = [isinstance(each, datetime) for each in (left, right)]
    if isinstance(left, date) and isinstance(right, date) and not all(are_times):
        return day_of(left, zone), day_of(right, zone)
    return left, right


def derived(value: Value, derivation: Derivation, writing: Writing) -> Value:
    if value is None:
        return None
    if isinstance(derivation, DatePart):
        day = _date(value, writing)
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
            return re.sub("[^0-9]", "", text) or None


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


def holds(condition: Condition, left: Seen, right: Seen, writings: tuple[Writing, Writing]) -> bool:
    """Whether two values, read and met, satisfy a condition. Null satisfies none."""
    if left is None or right is None:
        return False
    zone = writings[0].zone
    match condition:
        case Equal():
            return compares("eq", *of_one_kind(left, right, zone))
        case Tolerance():
            assert isinstance(left, Fraction)
            assert isinstance(right, Fraction)
            return within(condition, left, right)
        case DateWindow():
            either = condition.days or 0
            before = either if condition.before is None else condition.before
            after = either if condition.after is None else condition.after
            apart = _time_between(left, right, zone)
            return -before * MICROSECONDS_A_DAY <= apart <= after * MICROSECONDS_A_DAY
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
            unlike = gap(condition, left, right, zone)
            return WHOLE - unlike >= Fraction(condition.threshold) * WHOLE
        case Comparison():
            if isinstance(left, str) and isinstance(right, str) and condition.op != "ne":
                left, right = alike(left, right, writings)
            return compares(condition.op, *of_one_kind(left, right, zone))
    raise TypeError(f"{condition!r} is not a condition")


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
    raise ValueError(f"{op} is not a comparison")


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


def gap(condition: Condition, left: Seen, right: Seen, zone: ZoneInfo) -> Fraction | int:
    """The signed difference of two values that are not null; a dissimilarity has no sign."""
    match condition:
        case Tolerance():
            assert isinstance(left, Fraction)
            assert isinstance(right, Fraction)
            return amount_difference(condition, left, right)
        case DateWindow():
            return _time_between(left, right, zone)
        case Fuzzy():
            assert isinstance(left, str)
            assert isinstance(right, str)
            return WHOLE - ten_thousandths(condition.metric, left, right)
    return 0


def has_times(left: Seen, right: Seen) -> bool:
    return isinstance(left, datetime) or isinstance(right, datetime)


def _time_between(left: Seen, right: Seen, zone: ZoneInfo) -> int:
    """Microseconds; of whole days, unless both are points in time."""
    first, second = of_one_kind(left, right, zone)
    if isinstance(first, datetime) and isinstance(second, datetime):
        return (second - first) // MICROSECOND
    assert isinstance(first, date)
    assert isinstance(second, date)
    return (second - first).days * MICROSECONDS_A_DAY


def gap_text(condition: Condition, between: Fraction | int, is_time: bool) -> str:
    """A difference as evidence shows it: of dates in days, of points in time as `-1d 2h 0.5s`."""
    if not isinstance(condition, DateWindow):
        return number_text(Fraction(between))
    if not is_time or between == 0:
        return number_text(Fraction(between, MICROSECONDS_A_DAY))
    rest, parts = abs(int(between)), []
    for size, unit in ((MICROSECONDS_A_DAY, "d"), (3_600_000_000, "h"), (60_000_000, "m")):
        count, rest = divmod(rest, size)
        parts += [f"{count}{unit}"] if count else []
    parts += [f"{number_text(Fraction(rest, 1_000_000))}s"] if rest else []
    return ("-" if between < 0 else "") + " ".join(parts)


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
