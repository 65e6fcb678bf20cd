"""Filters and orders over evidence, as users write them and as SQL: names quoted, values bound."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, Decimal, InvalidOperation, localcontext
from io import StringIO
from typing import Any, Literal, get_args

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.evidence.reading.evidence_reader import MEASURE, Column, Dataset, column

Op = Literal[
    "eq", "ne", "in", "contains", "startswith", "gt", "gte", "lt", "lte", "is_null", "not_null"
]
OPS: tuple[Op, ...] = get_args(Op)

_WRITTEN = re.compile(rf"(.*?):({'|'.join(OPS)})(?:(:)(.*))?\Z", re.DOTALL)
_GROUPED = re.compile(r"\s*[-+]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?\s*")  # as a page shows amounts
_ALONE = ("is_null", "not_null")
_COMPARISONS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_DIGITS = 38  # of DuckDB's widest decimal
_LONGEST, _MOST_FILTERS, _MOST_VALUES = 1000, 20, 1000


@dataclass(frozen=True)
class Filter:
    column: str
    op: Op
    value: str = ""

    @property
    def by_size(self) -> bool:
        """Whether a number is compared without its sign."""
        return len(self.column) > len("||") and self.column[0] == self.column[-1] == "|"

    @property
    def named(self) -> str:
        return self.column[1:-1] if self.by_size else self.column

    @classmethod
    def parse(cls, text: str) -> Filter:
        """`column:op:value`; `is_null` and `not_null` have no value."""
        # The name of a source's column may hold a colon.
        found = _WRITTEN.match(text)
        name, op, colon, value = found.groups("") if found else ("", "", "", "")
        if op not in OPS or bool(colon) == (op in _ALONE):
            raise InvalidInput(
                Problem("filter", f"{text!r} is not column:op:value with one of {', '.join(OPS)}")
            )
        if len(value) > _LONGEST:
            raise InvalidInput(Problem("filter", f"a value has at most {_LONGEST} characters"))
        return cls(name, op, value)

    def __str__(self) -> str:
        return f"{self.column}:{self.op}" + ("" if self.op in _ALONE else f":{self.value}")


@dataclass(frozen=True)
class Order:
    """A column to sort by; nulls come last in both directions. `|amount|` sorts by size, without a
    sign.
    """

    column: str
    descending: bool = False
    by_size: bool = False

    @classmethod
    def parse_all(cls, text: str) -> tuple[Order, ...]:
        """Separated by commas; a name with a comma is quoted, as in a CSV."""
        lines = csv.reader(StringIO(text, newline=""))
        return tuple(cls.parse(each) for line in lines for each in line if each)

    @property
    def quoted(self) -> str:
        """As one of several."""
        text = str(self).replace('"', '""')
        return f'"{text}"' if set(text) & set(',"\r\n') else text

    @classmethod
    def parse(cls, text: str) -> Order:
        name = text.removeprefix("-")
        by_size = len(name) > 2 and name[0] == name[-1] == "|"
        return cls(name[1:-1] if by_size else name, text.startswith("-"), by_size)

    def __str__(self) -> str:
        name = f"|{self.column}|" if self.by_size else self.column
        return f"-{name}" if self.descending else name


@dataclass(frozen=True)
class Term:
    """A condition in SQL, and the values of its placeholders."""

    sql: str
    values: tuple[Any, ...] = ()


def condition(dataset: Dataset, filters: Sequence[Filter]) -> Term:
    """All filters at once."""
    if len(filters) > _MOST_FILTERS:
        raise InvalidInput(Problem("filter", f"there may be at most {_MOST_FILTERS}"))
    terms = [_term(column(dataset.columns, each.named, "filter"), each) for each in filters]
    return Term(
        " AND ".join(f"({term.sql})" for term in terms) or "true",
        tuple(value for term in terms for value in term.values),
    )


def total_order(dataset: Dataset, orders: Sequence[Order]) -> tuple[Order, ...]:
    """The orders, then the dataset's keys: no two rows are equal under it."""
    for each in orders:
        found = column(dataset.columns, each.column, "sort")
        if each.by_size and found.kind != "number":
            raise InvalidInput(
                Problem("sort", f"{found.name} is not a number, so it cannot be sorted by size")
            )
    named = tuple(dict.fromkeys(each.column for each in orders))
    first = tuple(next(each for each in orders if each.column == name) for name in named)
    return first + tuple(Order(key) for key in dataset.keys if key not in named)


def sortable(each: Column, wanted: Order, table: str = "") -> str:
    """A list is sorted by its text, a measure by its number."""
    place = f"{table}.{each.sql}" if table else each.sql
    if each.is_measure:
        return _measured(place)
    if wanted.by_size:
        return f"abs({place})"
    return f"CAST({place} AS VARCHAR)" if each.kind == "list" else place


def _measured(place: str) -> str:
    return f"TRY_CAST(split_part({place}, ' ', 1) AS {MEASURE})"


def _term(where: Column, wanted: Filter) -> Term:
    if wanted.by_size and where.kind != "number":
        raise InvalidInput(
            Problem("filter", f"{where.name} is not a number, so it cannot be filtered by size")
        )
    if wanted.op == "is_null":
        return Term(f"{where.sql} IS NULL")
    if wanted.op == "not_null":
        return Term(f"{where.sql} IS NOT NULL")
    if where.is_measure and wanted.op in _COMPARISONS:
        return _of_number(where, wanted)
    return _BY_KIND[where.kind](where, wanted)


def _of_text(where: Column, wanted: Filter) -> Term:
    text = where.sql if where.type == "VARCHAR" else f"CAST({where.sql} AS VARCHAR)"
    match wanted.op:
        case "eq":
            return Term(f"{text} = ?", (wanted.value,))
        case "ne":
            return Term(f"{text} IS DISTINCT FROM ?", (wanted.value,))
        case "in":
            return Term(f"list_contains(?::VARCHAR[], {text})", (_values(wanted),))
        case "contains":
            return Term(f"contains({text}, ?)", (wanted.value,))
        case "startswith":
            return Term(f"starts_with({text}, ?)", (wanted.value,))
    raise _unfit(where, wanted)


def _of_list(where: Column, wanted: Filter) -> Term:
    """For a list its elements are tested: one must match; with `ne` none may be equal."""
    match wanted.op:
        case "eq":
            return Term(f"list_contains({where.sql}, ?)", (wanted.value,))
        case "ne":
            return Term(f"coalesce(NOT list_contains({where.sql}, ?), true)", (wanted.value,))
        case "in":
            return Term(f"list_has_any({where.sql}, ?::VARCHAR[])", (_values(wanted),))
        case "contains" | "startswith":
            call = "contains" if wanted.op == "contains" else "starts_with"
            found = f"list_filter({where.sql}, lambda x: {call}(x, ?))"
            return Term(f"len({found}) > 0", (wanted.value,))
    raise _unfit(where, wanted)


def _of_number(where: Column, wanted: Filter) -> Term:
    """Compared with as many places as the column has; a value between two of them is rounded down,
    and the comparison adjusted.
    """
    if wanted.op in ("contains", "startswith"):
        raise _unfit(where, wanted)
    scale = int(where.sorted_as.partition(",")[2].strip(" )") or 0)
    wide = f"DECIMAL({_DIGITS}, {scale})"
    place = _measured(where.sql) if where.is_measure else where.sql
    place = f"abs({place})" if wanted.by_size else place
    number, given = f"CAST({place} AS {wide})", f"CAST(? AS {wide})"
    if wanted.op == "in":
        found = [_rounded(where, text, scale) for text in _values(wanted)]
        exact = [str(value) for value, is_exact in found if is_exact]
        return Term(f"list_contains(CAST(?::VARCHAR[] AS {wide}[]), {number})", (exact,))
    value, is_exact = _rounded(where, wanted.value, scale)
    if wanted.op in ("eq", "ne") and not is_exact:
        return Term("false" if wanted.op == "eq" else "true")
    if wanted.op in ("eq", "ne"):
        sign = "=" if wanted.op == "eq" else "IS DISTINCT FROM"
    else:
        fitting = _COMPARISONS if is_exact else _COMPARISONS | {"gte": ">", "lt": "<="}
        sign = fitting[wanted.op]
    return Term(f"{number} {sign} {given}", (str(value),))


def _rounded(where: Column, text: str, scale: int) -> tuple[Decimal, bool]:
    with localcontext(prec=100):
        try:
            value = Decimal(text.replace(",", "") if _GROUPED.fullmatch(text) else text)
            down = value.quantize(Decimal(1).scaleb(-scale), ROUND_FLOOR)
            if not value.is_finite():
                raise InvalidOperation
        except InvalidOperation:
            raise InvalidInput(
                Problem("filter", f"{where.name}: {text!r} is not a number")
            ) from None
        if abs(down) >= Decimal(10) ** (_DIGITS - scale):
            raise InvalidInput(Problem("filter", f"{where.name}: {text!r} has too many digits"))
        return down, down == value


def _of_time(where: Column, wanted: Filter) -> Term:
    signs = _COMPARISONS | {"eq": "=", "ne": "IS DISTINCT FROM"}
    if wanted.op == "in":
        moments = [_moment(where, text) for text in _values(wanted)]
        return Term(f"list_contains(?::TIMESTAMPTZ[], {where.sql}::TIMESTAMPTZ)", (moments,))
    if wanted.op not in signs:
        raise _unfit(where, wanted)
    moment = _moment(where, wanted.value)
    return Term(f"{where.sql}::TIMESTAMPTZ {signs[wanted.op]} ?::TIMESTAMPTZ", (moment,))


def _moment(where: Column, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            Problem("filter", f"{where.name}: {text!r} is not a time such as 2026-05-31T12:00:00Z")
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _of_boolean(where: Column, wanted: Filter) -> Term:
    if wanted.op == "in":
        listed = [_truth(where, text) for text in _values(wanted)]
        return Term(f"list_contains(?::BOOLEAN[], {where.sql})", (listed,))
    if wanted.op not in ("eq", "ne"):
        raise _unfit(where, wanted)
    sign = "=" if wanted.op == "eq" else "IS DISTINCT FROM"
    return Term(f"{where.sql} {sign} ?", (_truth(where, wanted.value),))


def _truth(where: Column, text: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidInput(Problem("filter", f"{where.name} is true or false, not {text!r}"))
    return text == "true"


def _values(wanted: Filter) -> list[str]:
    """Separated by commas; a value with a comma is quoted, as in a CSV."""
    lines = csv.reader(StringIO(wanted.value, newline=""))
    values = [value for line in lines for value in line]
    if len(values) > _MOST_VALUES:
        raise InvalidInput(Problem("filter", f"{wanted.column}: at most {_MOST_VALUES} values"))
    return values


def _unfit(where: Column, wanted: Filter) -> InvalidInput:
    return InvalidInput(
        Problem("filter", f"{wanted.op} does not fit {where.name}, whose values are {where.kind}")
    )


_BY_KIND: dict[str, Callable[[Column, Filter], Term]] = {
    "text": _of_text,
    "list": _of_list,
    "number": _of_number,
    "time": _of_time,
    "boolean": _of_boolean,
}
