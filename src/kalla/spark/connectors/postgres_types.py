"""Which Postgres type is read as which Arrow type, and the checks that no value changes on the way.

What is not listed here is not read: nothing becomes text because nobody thought of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from kalla.spark.connectors.connector import ColumnType, Unreadable
from kalla.spark.connectors.postgres_numeric import Unfit, decimals

KEY_TYPES = {
    "int2", "int4", "int8", "numeric", "date", "timestamp", "timestamptz", "uuid",
    "text", "varchar", "bpchar",
}  # fmt: skip
TEXT_TYPES = {"text", "varchar", "bpchar"}

_DIGITS = 38
_LOOSE_SCALE = 9
_ASIS = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_AS_TEXT = {"uuid", "json", "jsonb", "name"}
# Of what Arrow could hold, what Spark, Python and Parquet readers can hold too; "infinity" arrives
# as a number that has wrapped around, which is far outside.
_FIRST, _LAST = date(1, 1, 1), date(9999, 12, 31)
_DAY = 24 * 3600 * 10**6  # microseconds


@dataclass(frozen=True)
class PostgresColumn:
    """A column as the catalogue has it; domains are resolved, `array`: of such elements."""

    name: str
    declared: str
    base: str
    kind: str  # pg_type.typtype of the base: b, e (enum), c (composite), r (range), ...
    modifier: int
    array: bool
    not_null: bool

    def described(self) -> ColumnType:
        arrow, note = _mapping(self)
        if arrow is not None and self.array:
            arrow = pa.list_(arrow)
        return ColumnType(self.name, self.declared, arrow, not self.not_null, note)

    def expression(self, quoted: str) -> str:
        """What is selected, so that the driver returns the type that `described` names."""
        # The driver refuses an array that does not start at 1; a slice of all of it does.
        whole, dimension = (f"({quoted})[:]", "[]") if self.array else (quoted, "")
        # Of char(n) the cast leaves out the blanks at the end, which are no part of the value.
        if self.base in _AS_TEXT or self.base == "bpchar" or self.kind == "e":
            return f"{whole}::text{dimension}"
        if self.base == "oid":  # unsigned; the driver would wrap it
            return f"{whole}::int8{dimension}"
        if self.base == "numeric" and not self.array:  # of which the driver would make text
            return f"pg_catalog.numeric_send({quoted})"
        return whole


def converted(values: pa.Array, column: ColumnType, read_as: pa.DataType) -> pa.Array:
    """The values as that type, or an error that names the column."""
    where = f"column {column.name} ({column.declared})"
    if pa.types.is_decimal(read_as):
        try:
            return decimals(values, read_as)
        except Unfit as why:
            raise Unreadable(f"{where} has a value that {read_as} cannot hold: {why}") from None
    plain = _plain(values)
    elements = plain.flatten() if pa.types.is_list(read_as) else plain
    inner = read_as.value_type if pa.types.is_list(read_as) else read_as
    try:
        if pa.types.is_decimal(inner):
            _check_whole_digits(elements, inner, where)
        plain = plain.cast(read_as)
    except pa.ArrowInvalid as error:
        raise Unreadable(f"{where} has a value that {inner} cannot hold: {error}") from None
    _check_times(elements, inner, where)
    return plain


def check_dimensions(dimensions: pa.Array, column: ColumnType) -> None:
    """The driver would flatten an array of arrays into one list."""
    if (deepest := pc.max(dimensions).as_py()) is not None and deepest > 1:
        raise Unreadable(
            f"column {column.name} ({column.declared}) has an array of {deepest} dimensions; "
            "only lists are supported"
        )


def _mapping(column: PostgresColumn) -> tuple[pa.DataType | None, str]:
    unread = f"{column.name}: left out, for its type {column.declared} is not supported"
    if column.kind == "e":
        return pa.string(), f"{column.name}: the enum {column.declared} is read as text"
    if column.kind != "b":
        return None, unread
    if column.base in _AS_TEXT:
        return pa.string(), f"{column.name}: {column.declared} is read as text"
    if column.base == "oid":
        return pa.int64(), ""
    if column.base == "numeric":
        return _decimal(column)
    if column.base in ("float4", "float8"):
        return _ASIS[column.base], f"{column.name}: {column.declared} is approximate, no money"
    if column.base not in _ASIS:
        return None, unread
    return _ASIS[column.base], ""


def _decimal(column: PostgresColumn) -> tuple[pa.DataType, str]:
    if column.modifier < 4:
        return pa.decimal128(_DIGITS, _LOOSE_SCALE), (
            f"{column.name}: numeric without a precision is read as decimal({_DIGITS}, "
            f"{_LOOSE_SCALE}); a value that does not fit is an error"
        )
    precision = (column.modifier - 4) >> 16
    scale = ((column.modifier - 4) & 0x7FF ^ 1024) - 1024  # 11 bits, signed
    digits = max(precision, scale) if scale >= 0 else precision - scale
    if digits <= _DIGITS:
        return pa.decimal128(digits, max(scale, 0)), ""
    read_as = pa.decimal128(_DIGITS, min(max(scale, 0), _DIGITS))
    return read_as, (
        f"{column.name}: {column.declared} is read as decimal({read_as.precision}, "
        f"{read_as.scale}); a value that does not fit is an error"
    )


def _plain(values: pa.Array) -> pa.Array:
    """Without the extension types in which the driver wraps what Arrow has no type for."""
    if isinstance(values, pa.ExtensionArray):
        return values.storage
    if pa.types.is_list(values.type) and isinstance(values.type.value_type, pa.BaseExtensionType):
        inner = values.type.value_type.storage_type
        return values.cast(pa.list_(inner))
    return values


def _check_whole_digits(texts: pa.Array, read_as: pa.DataType, where: str) -> None:
    """Arrow's cast wraps around, unnoticed, when the scale carries a value beyond 128 bits."""
    room = read_as.precision - read_as.scale
    longest = pc.max(pc.binary_length(texts)).as_py()
    if longest is None or longest <= room:
        return
    point = pc.find_substring(texts, ".")
    length = pc.if_else(pc.less(point, 0), pc.binary_length(texts), point)
    signs = pc.starts_with(texts, "-").cast(pa.int32())
    below_one = pc.match_substring_regex(texts, "^-?0")
    if pc.max(pc.if_else(below_one, 0, pc.subtract(length, signs))).as_py() > room:
        raise Unreadable(
            f"{where} has a value that {read_as} cannot hold: "
            f"it has more than {room} digits before the point"
        )


def _check_times(values: pa.Array, read_as: pa.DataType, where: str) -> None:
    if pa.types.is_date(read_as):
        number, first, last = pa.int32(), _days(_FIRST), _days(_LAST)
    elif pa.types.is_timestamp(read_as):
        number, first, last = pa.int64(), _days(_FIRST) * _DAY, (_days(_LAST) + 1) * _DAY - 1
    elif pa.types.is_time(read_as):
        number, first, last = pa.int64(), 0, _DAY - 1
    else:
        return
    found = pc.min_max(values.cast(number)).as_py()
    if found["min"] is not None and not first <= found["min"] <= found["max"] <= last:
        bounds = (
            "00:00 to 23:59:59.999999"
            if pa.types.is_time(read_as)
            else "the years 1 to 9999 (infinity is outside)"
        )
        raise Unreadable(f"{where} has a value outside {bounds}")


def _days(day: date) -> int:
    return (day - date(1970, 1, 1)).days
