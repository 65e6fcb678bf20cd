"""What every source looks like from outside: schema, estimate, split, read. Knows no source.

A connector stands for one table of one source with its filters. It is small, can be pickled, opens
what it needs when it is called, and shows no secret in its repr.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Literal, Protocol, TypeAlias, get_args

import pyarrow as pa

from kalla.errors import InvalidInput, Permanent, Problem

Scalar: TypeAlias = str | bool | int | Decimal | date  # a datetime is a date
Operator = Literal[
    "eq", "ne", "lt", "lte", "gt", "gte", "in", "not_in",
    "contains", "startswith", "endswith", "is_null", "not_null",
]  # fmt: skip
OPERATORS: tuple[Operator, ...] = get_args(Operator)


class Connector(Protocol):
    """A source that can be read in slices."""

    def schema(self) -> tuple[ColumnType, ...]:
        """Every column, also those that cannot be read."""
        ...

    def estimate(self) -> Estimate:
        """How much there is after the filters, and what a user should know about reading it."""
        ...

    def split(self, n: int) -> tuple[Slice, ...]:
        """At most n slices (at least one); every row is in exactly one, also one added later."""
        ...

    def read(self, part: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The slice's rows, all of them or an error: each batch has `arrow_schema(columns)`.

        Without columns, all that can be read.
        """
        ...


class Unreadable(Permanent):
    """A value that its column's type cannot hold exactly: an error, never another value."""


@dataclass(frozen=True)
class ColumnType:
    """A column: its type at the source, and what it is read as (None: it cannot be read)."""

    name: str
    declared: str
    arrow: pa.DataType | None
    nullable: bool = True
    note: str = ""


@dataclass(frozen=True)
class Estimate:
    """How much there is to read, and how it will be read."""

    rows: int
    bytes: int
    exact: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Predicate:
    """Which rows the source delivers. Null passes `is_null` alone.

    A date against a point in time compares with its day in `time_zone`.
    """

    column: str
    op: Operator
    value: Scalar | tuple[Scalar, ...] | None = None
    time_zone: str = "UTC"


@dataclass(frozen=True)
class KeyRange:
    """From `lower` (included) to `upper` (excluded); None is open. Values are canonical text.

    With several columns the bounds compare as rows. `collations` names the order of each text
    column, so that both sides of a cut use the same one, whoever reads them and whenever.
    """

    columns: tuple[str, ...]
    lower: tuple[str, ...] | None
    upper: tuple[str, ...] | None
    nulls: bool = False
    collations: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Slice:
    """One part of a source, counted from 0; without a range it is part `number` of `of` by itself
    (the whole source where there is one)."""

    number: int
    of: int
    range: KeyRange | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Slice:
        bounds = given["range"]
        return cls(int(given["number"]), int(given["of"]), bounds and _range(bounds))


def arrow_schema(schema: Sequence[ColumnType], columns: Sequence[str] | None = None) -> pa.Schema:
    """The schema of what `read` gives; says at once which of the columns cannot be read."""
    known = {column.name: column for column in schema}
    readable = [column.name for column in schema if column.arrow is not None]
    asked = readable if columns is None else list(columns)
    if problems := list(_column_problems(known, asked)):
        raise InvalidInput(*problems)
    return pa.schema([pa.field(name, known[name].arrow) for name in asked])


def _column_problems(known: Mapping[str, ColumnType], asked: Sequence[str]) -> Iterator[Problem]:
    if not asked:
        yield Problem("columns", "name at least one")
    for name in dict.fromkeys(asked):
        if asked.count(name) > 1:
            yield Problem(name, "is asked for more than once")
        if name not in known:
            yield Problem(name, f"there is no such column; there are {', '.join(known)}")
        elif known[name].arrow is None:
            yield Problem(
                name,
                f"the type {known[name].declared} is not supported: "
                "leave the column out, or cast it in a view",
            )


def _range(given: Mapping[str, Any]) -> KeyRange:
    lower, upper = given["lower"], given["upper"]
    return KeyRange(
        tuple(given["columns"]),
        None if lower is None else tuple(lower),
        None if upper is None else tuple(upper),
        bool(given["nulls"]),
        tuple(given["collations"]),
    )
