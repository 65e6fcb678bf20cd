"""The supported ClickHouse types: how a JSON value becomes one, or why it cannot."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EXACT = Context(prec=100)  # the default one rounds to 28 digits
_BEYOND = 10**20  # no integer or epoch in ClickHouse is this far from zero
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_NUMERIC = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d{1,3})?")
_JSON_LIMIT = re.compile(r"max_dynamic_(paths|types)\s*=\s*\d+")
_INTEGERS = {
    f"{sign}Int{bits}": (
        0 if sign else -(1 << (bits - 1)),
        (1 << bits) - 1 if sign else (1 << (bits - 1)) - 1,
    )
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}


class Unfit(ValueError):
    """A value that its column cannot store.

    The message says why without the value: dead letters are grouped by it.
    """


@dataclass(frozen=True)
class ColumnType:
    """One type: `convert` is exact or raises Unfit; what is of a `plain` type stays as it is."""

    name: str  # in ClickHouse
    input_type: str  # how the Arrow column is declared to ClickHouse's input()
    arrow: Any
    convert: Callable[[Any], Any]
    plain: frozenset[type] = frozenset()
    nullable: bool = False
    exact_numbers: bool = False  # floats would lose digits


def column_type(name: str, unit: str | None = None) -> ColumnType:
    """The type of this name; Unfit if Kalla does not know it: it never guesses."""
    name = name.strip()
    head, arguments = _split(name)
    if head == "Nullable" and len(arguments) == 1:
        inner = column_type(arguments[0], unit)
        if inner.nullable or inner.name.startswith(("Array", "Map")):
            raise Unfit(f"{name}: ClickHouse has no such type")
        return ColumnType(
            name,
            f"Nullable({inner.input_type})",
            inner.arrow,
            lambda value: None if value is None else inner.convert(value),
            inner.plain | {type(None)} if inner.plain else frozenset(),
            True,
            inner.exact_numbers,
        )
    if head == "LowCardinality" and len(arguments) == 1:
        inner = column_type(arguments[0], unit)
        return ColumnType(
            name, inner.input_type, inner.arrow, inner.convert, inner.plain, inner.nullable
        )
    if head == "Array" and len(arguments) == 1:
        return _array(name, column_type(arguments[0], unit))
    if head == "Map" and len(arguments) == 2:
        return _map(name, column_type(arguments[0]), column_type(arguments[1], unit))
    if head in _INTEGERS and not arguments:
        low, high = _INTEGERS[head]
        arrow = getattr(pa, head.lower())()
        return ColumnType(name, head, arrow, _integer(head, low, high), frozenset({int}))
    if head in ("Float32", "Float64") and not arguments:
        if head == "Float32":  # not plain: Arrow makes infinity of a number that is too large
            return ColumnType(name, head, pa.float32(), _float(head))
        return ColumnType(name, head, pa.float64(), _float(head), frozenset({float}))
    if head == "Decimal" and len(arguments) == 2 and all(each.isdigit() for each in arguments):
        return _decimal(name, int(arguments[0]), int(arguments[1]))
    if (head, arguments) in (("Bool", []), ("Boolean", [])):
        return ColumnType(name, "Bool", pa.bool_(), _bool, frozenset({bool}))
    if (head, arguments) == ("String", []):
        return ColumnType(name, "String", pa.string(), _text, frozenset({str}))
    if (head, arguments) == ("UUID", []):
        return ColumnType(name, "String", pa.string(), _uuid)
    if head == "JSON":
        return ColumnType(name, "String", pa.string(), _json)
    if head in ("Date", "Date32") and not arguments:
        return ColumnType(name, "Date32", pa.date32(), _date(head))
    if head in ("DateTime", "DateTime64"):
        return _moment(name, unit)
    raise Unfit(f"{name}: Kalla does not support this type")


def check_new(name: str) -> None:
    """Unfit for a type that a new mapping may not have. Stored mappings never change: their columns
    keep it.
    """
    head, arguments = _split(name.strip())
    if head == "JSON" and not all(map(_JSON_LIMIT.fullmatch, arguments)):
        raise Unfit(f"{name}: Kalla does not support this type")
    if head == "DateTime64" and _precision(arguments) > 9:
        raise Unfit(f"{name}: ClickHouse has no such type")
    for each in arguments:
        check_new(each)


def _split(name: str) -> tuple[str, list[str]]:
    head, bracket, rest = name.partition("(")
    if not bracket:
        return head, []
    if not rest.endswith(")"):
        raise Unfit(f"{name}: the brackets do not close")
    arguments, depth, start = [], 0, 0
    inside = rest[:-1]
    for index, sign in enumerate(inside):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            arguments.append(inside[start:index].strip())
            start = index + 1
    return head.strip(), [*arguments, inside[start:].strip()]


def _integer(name: str, low: int, high: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if type(value) is not int:
            if type(value) not in (float, Decimal):
                raise Unfit(f"is {_kind(value)}, not a whole number")
            if not -_BEYOND < value < _BEYOND:  # before int(): 1e999999 would be a million digits
                raise Unfit(f"does not fit {name}")
            if value != int(value):
                raise Unfit("is not a whole number")
            value = int(value)
        if not low <= value <= high:
            raise Unfit(f"does not fit {name}")
        return int(value)

    return convert


def _float(name: str) -> Callable[[Any], float]:
    def convert(value: Any) -> float:
        if type(value) not in (int, float, Decimal):
            raise Unfit(f"is {_kind(value)}, not a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isinf(number) or (name == "Float32" and abs(number) > 3.4028235e38):
            raise Unfit(f"does not fit {name}")
        return number

    return convert


def _decimal(name: str, precision: int, scale: int) -> ColumnType:
    if not (1 <= precision <= 76 and scale <= precision):
        raise Unfit(f"{name}: ClickHouse has no such type")
    limit, last = Decimal(10) ** (precision - scale), Decimal(1).scaleb(-scale)
    arrow = pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)

    def convert(value: Any) -> Decimal:
        if type(value) is str and not _NUMERIC.fullmatch(value):
            raise Unfit("is text that is not a number")
        if type(value) not in (str, int, Decimal):
            raise Unfit(f"is {_kind(value)}, not a number")
        number = Decimal(value)
        if not -limit < number < limit:
            raise Unfit(f"does not fit {name}")
        scaled = number.quantize(last, context=_EXACT)  # Arrow does not cut zeros off
        if scaled != number:
            raise Unfit(f"has more than {scale} decimals")
        return scaled

    return ColumnType(name, name, arrow, convert, exact_numbers=True)


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise Unfit(f"is {_kind(value)}, not true or false")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise Unfit(f"is {_kind(value)}, not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unfit("contains half of a surrogate pair") from None
    return value


def _uuid(value: Any) -> str:
    try:
        return str(uuid.UUID(_text(value)))
    except ValueError:
        raise Unfit("is not a UUID") from None


def _json(value: Any) -> str:
    """Only what ClickHouse accepts: it would refuse the whole range for one value."""
    if type(value) is not dict:
        raise Unfit(f"is {_kind(value)}, not an object")
    try:
        _check_paths(value)
        return _text(
            json.dumps(
                value, ensure_ascii=False, separators=(",", ":"), default=float, allow_nan=False
            )
        )
    except RecursionError:
        raise Unfit("is nested too deeply") from None
    except Unfit:
        raise
    except ValueError:
        raise Unfit("contains a number that does not fit Float64") from None


def _check_paths(value: Any) -> None:
    """ClickHouse refuses an object with a path twice: {"a.b": 1, "a": {"b": 2}}."""
    if type(value) is list:
        for each in value:
            _check_paths(each)
    elif type(value) is dict:
        paths = list(_paths(value, ""))
        if len(set(paths)) < len(paths):
            raise Unfit("contains a path twice: names with dots are paths, too")


def _paths(value: dict[str, Any], prefix: str) -> Iterator[str]:
    for name, each in value.items():
        if type(each) is dict:
            yield from _paths(each, f"{prefix}{name}.")
        elif each is not None:  # ClickHouse does not store it
            _check_paths(each)
            yield prefix + name


def _date(name: str) -> Callable[[Any], dt.date]:
    low, high = (
        (dt.date(1970, 1, 1), dt.date(2149, 6, 6))
        if name == "Date"
        else (dt.date(1900, 1, 1), dt.date(2299, 12, 31))
    )

    def convert(value: Any) -> dt.date:
        try:
            day = dt.date.fromisoformat(_text(value))
        except ValueError:
            raise Unfit("is not a date like 2026-01-31") from None
        if not low <= day <= high:
            raise Unfit(f"does not fit {name}")
        return day

    return convert


def _moment(name: str, unit: str | None) -> ColumnType:
    low, high = moment_bounds(name)
    scale = _UNITS[unit] if unit else None

    def convert(value: Any) -> int:
        if scale is not None:
            if type(value) not in (int, float, Decimal) or not -_BEYOND < value < _BEYOND:
                raise Unfit(f"is not a number of {unit} since 1970")
            micros: int = round(value * scale)
        else:
            micros = _micros(value)
        if not low * 1_000_000 <= micros < high * 1_000_000:
            raise Unfit(f"does not fit {name}")
        return micros

    # Only microseconds are read; ClickHouse truncates what the column cannot store.
    return ColumnType(name, "DateTime64(6, 'UTC')", pa.timestamp("us", "UTC"), convert)


def moment_bounds(name: str) -> tuple[int, int]:
    """The first second of a DateTime type, and the first one that it cannot store."""
    head, arguments = _split(name)
    if head == "DateTime":
        return 0, 1 << 32
    return -2_208_988_800, 9_223_372_036 if _precision(arguments) == 9 else 10_413_792_000


def _precision(arguments: list[str]) -> int:
    return int(arguments[0]) if arguments and arguments[0].isdigit() else 3


def _micros(value: Any) -> int:
    try:
        moment = dt.datetime.fromisoformat(_text(value))
    except ValueError:
        raise Unfit("is not a time like 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)


def _array(name: str, inner: ColumnType) -> ColumnType:
    def convert(value: Any) -> list[Any]:
        if type(value) is not list:
            raise Unfit(f"is {_kind(value)}, not an array")
        return [inner.convert(each) for each in value]

    return ColumnType(
        name,
        f"Array({inner.input_type})",
        pa.list_(inner.arrow),
        convert,
        exact_numbers=inner.exact_numbers,
    )


def _map(name: str, key: ColumnType, inner: ColumnType) -> ColumnType:
    def convert(value: Any) -> list[tuple[Any, Any]]:
        if type(value) is not dict:
            raise Unfit(f"is {_kind(value)}, not an object")
        return [(key.convert(each), inner.convert(value[each])) for each in value]

    return ColumnType(
        name,
        f"Map({key.input_type}, {inner.input_type})",
        pa.map_(key.arrow, inner.arrow),
        convert,
        exact_numbers=inner.exact_numbers,
    )


def _kind(value: Any) -> str:
    kinds = {
        type(None): "null",
        bool: "a boolean",
        str: "text",
        list: "an array",
        dict: "an object",
    }
    return kinds.get(type(value), "a number")
