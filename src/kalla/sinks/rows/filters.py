"""Filters: SQL predicates over the mapped columns, checked by the sandbox, evaluated by DuckDB.

The simple comparisons of the older, CEL-like form (`==`, `&&`, `||`, `!`) are translated first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kalla.errors import InvalidInput, Problem
from kalla.sinks.model import Column
from kalla.sinks.rows.types import Unfit, column_type
from kalla.sinks.servers.message_ranges import Integers

Flags = npt.NDArray[np.bool_]

LONGEST = 2000

# The sandbox's functions with the same meaning in DuckDB; none fails on a value of its type.
_FUNCTIONS = frozenset(
    {
        "abs", "coalesce", "concat", "contains", "endswith", "greatest", "least", "left", "length",
        "lower", "ltrim", "nullif", "replace", "right", "rtrim", "startswith", "substring", "trim",
        "upper",
    }
)  # fmt: skip
_KAFKA = {"_topic": pa.string(), "_partition": pa.int32(), "_offset": pa.int64()}
_CEL = re.compile(r"==|&&|\|\||!(?!=)")
_CEL_TOKENS = re.compile(
    r"""(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<sign>==|!=|<=|>=|&&|\|\||[<>!()-])"""
    r"""|(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<space>\s+)"""
)
_CEL_SIGNS = {"==": "=", "&&": "AND", "||": "OR", "!": "NOT"}


class Filter:
    """The compiled filters of one mapping version; a row passes if all of them are true."""

    def __init__(self, filters: Sequence[str], mapping: Sequence[Column]) -> None:
        import duckdb

        self._condition = " AND ".join(f"({each})" for each in held(filters, mapping))
        self._names = _schema(mapping).keys() - _KAFKA.keys()
        self._connection = duckdb.connect(
            config={"threads": "1", "enable_external_access": "false", "lock_configuration": "true"}
        )

    def close(self) -> None:
        self._connection.close()

    def passing(self, columns: Mapping[str, pa.Array], place: Place) -> Passing:
        """Which rows pass; a row whose filter fails is reported, never dropped."""
        count = len(place.offsets)
        kafka = {
            "_topic": pa.repeat(pa.scalar(place.topic, pa.string()), count),
            "_partition": pa.repeat(pa.scalar(place.partition, pa.int32()), count),
            "_offset": pa.array(place.offsets),
        }
        table = pa.table({name: _naive(columns[name]) for name in self._names} | kafka)
        faults: dict[int, str] = {}
        return Passing(self._bisect(table, 0, faults), faults)

    def _bisect(self, table: pa.Table, start: int, faults: dict[int, str]) -> Flags:
        """Finds a value on which the predicate fails by bisection, so that others continue."""
        try:
            return self._evaluate(table)
        except _duckdb_error() as error:
            if table.num_rows == 1:
                why = re.sub(r" ?\(.*\)", "", str(error).splitlines()[0])  # without the value
                faults[start] = f"the filter cannot be evaluated: {why}"
                return np.zeros(1, np.bool_)
        half = table.num_rows // 2
        return np.concatenate(
            [
                self._bisect(table.slice(0, half), start, faults),
                self._bisect(table.slice(half), start + half, faults),
            ]
        )

    def _evaluate(self, table: pa.Table) -> Flags:
        if not table.num_rows:
            return np.zeros(0, np.bool_)
        self._connection.register("message", table)
        found: pa.Table = self._connection.sql(
            f"SELECT _offset, coalesce({self._condition}, false) AS passes FROM message"
        ).to_arrow_table()
        # By their offsets, which rise: the order of a scan is not guaranteed.
        order = np.argsort(found.column(0).to_numpy())
        passes: Flags = found.column(1).to_numpy()[order]
        return passes


@dataclass(frozen=True)
class Place:
    """The position of a batch's rows in Kafka."""

    topic: str
    partition: int
    offsets: Integers


@dataclass(frozen=True)
class Passing:
    """One result a row; `faults` has the rows without one, and why."""

    rows: Flags
    faults: dict[int, str]


def filter_problems(filters: Sequence[str], mapping: Sequence[Column]) -> list[Problem]:
    """The problems of new filters: syntax, names, types, and what stored ones may still have."""
    problems: list[Problem] = []
    names = Counter(each.column.lower() for each in mapping) + Counter(_KAFKA.keys())
    if filters and (same := sorted(name for name, count in names.items() if count > 1)):
        message = f"columns that differ only by case cannot be filtered: {', '.join(same)}"
        return [Problem("mapping", message, suggestion="rename one of them")]
    for number, each in enumerate(filters):
        try:
            (written,) = held([each], mapping, number)
        except InvalidInput as error:
            problems += error.problems
            continue
        if _begins_at_zero(written):
            message = "substring counts from 1, and begins at 0 here"
            problems.append(Problem(f"filters.{number}", message))
    return problems


def _begins_at_zero(predicate: str) -> bool:
    from sqlglot import exp, parse_one

    substrings = parse_one(predicate, dialect="duckdb").find_all(exp.Substring)
    return any(each.args.get("start") == exp.Literal.number(0) for each in substrings)


def held(filters: Sequence[str], mapping: Sequence[Column], first: int = 0) -> list[str]:
    """The predicates for DuckDB, generated from their syntax trees. Raises InvalidInput."""
    return [
        _checked_sql(each, mapping, f"filters.{number}")
        for number, each in enumerate(filters, first)
    ]


def _checked_sql(text: str, mapping: Sequence[Column], field: str) -> str:
    from sqlglot import exp, parse_one

    from kalla.spark.sandbox import hold

    if len(text) > LONGEST:
        raise InvalidInput(Problem(field, f"has more than {LONGEST:,} characters"))
    schema = _schema(mapping)
    predicate = translated(text, field)
    passed = hold(
        f"SELECT * FROM message WHERE ({predicate})", {"message": list(schema)}, field, {}
    )
    tree = parse_one(passed, dialect="spark")
    where = tree.args.get("where")
    parts = {name for name, part in tree.args.items() if part}
    nested = tree.find(exp.Subquery, exp.Exists, exp.Window, exp.AggFunc)
    if where is None or len(list(tree.find_all(exp.Select))) != 1 or nested is not None:
        raise InvalidInput(Problem(field, "must be one predicate, without SELECT and aggregates"))
    if parts - {"expressions", "from_", "from", "where", "kind"}:
        raise InvalidInput(Problem(field, "must be one predicate and nothing after it"))
    for node in where.find_all(exp.Func, exp.Cast, exp.RegexpLike):
        name = _spark_name(node)
        if name not in _FUNCTIONS and not isinstance(node, exp.And | exp.Or | exp.Case | exp.If):
            raise InvalidInput(
                Problem(
                    field,
                    f"{name} is not allowed in filters",
                    suggestion=f"use one of {', '.join(sorted(_FUNCTIONS))}",
                )
            )
    for like in where.find_all(exp.Like):
        if "\\" in like.sql():
            raise InvalidInput(Problem(field, "a backslash in LIKE is not allowed"))
    written = str(where.this.sql(dialect="duckdb"))
    _check_types(written, schema, field)
    return written


def _spark_name(node: Any) -> str:
    return str(node.sql(dialect="spark")).split("(")[0].lower()


def _check_types(predicate: str, schema: Mapping[str, Any], field: str) -> None:
    """Evaluates the filters on one sample row: DuckDB refuses comparisons of wrong types."""
    import duckdb

    row = pa.table({name: pa.array([_any_value(kind)], kind) for name, kind in schema.items()})
    with duckdb.connect(config={"enable_external_access": "false"}) as connection:
        connection.register("message", row)
        try:
            described = connection.execute(f"DESCRIBE SELECT {predicate} AS p FROM message")
            kind = described.fetchall()[0][1]
            connection.execute(f"SELECT {predicate} FROM message").fetchall()
        except duckdb.OutOfRangeException:
            pass  # of this value; those of rows are handled later
        except duckdb.Error as error:
            raise InvalidInput(Problem(field, str(error).splitlines()[0])) from None
    if kind != "BOOLEAN":
        raise InvalidInput(Problem(field, f"must be true or false, and is {kind}"))


def _any_value(kind: Any) -> object:
    if pa.types.is_boolean(kind):
        return True
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return 1
    if pa.types.is_decimal(kind):
        return Decimal(0)
    if pa.types.is_string(kind):
        return "x"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return 0
    return []


def _schema(mapping: Sequence[Column]) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for each in mapping:
        try:
            kind = column_type(each.type, each.unit).arrow
        except Unfit:
            continue  # reported with the mapping
        if "decimal256" not in str(kind):  # DuckDB has no such numbers, in arrays neither
            schema[each.column] = pa.timestamp("us") if pa.types.is_timestamp(kind) else kind
    return schema | _KAFKA


def _naive(column: pa.Array) -> pa.Array:
    """Times as UTC without a zone, so that they compare with plain literals."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return pc.local_timestamp(column)
    return column


def translated(text: str, field: str = "filters") -> str:
    """The predicate as SQL; a CEL-like one is rewritten token by token, a SQL one is unchanged."""
    outside = re.sub(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", "''", text)
    if not _CEL.search(outside):
        return text
    written: list[str] = []
    at = 0
    while at < len(text):
        found = _CEL_TOKENS.match(text, at)
        if found is None:
            raise InvalidInput(
                Problem(
                    field,
                    f"cannot be read at {text[at : at + 20]!r}: with ==, && and || only simple"
                    " comparisons are translated",
                    suggestion="write SQL: name = 'x' AND amount > 3",
                )
            )
        at = found.end()
        if found["text"]:
            body = found["text"][1:-1].replace("\\'", "'").replace('\\"', '"')
            written.append("'" + body.replace("'", "''") + "'")
        elif found["name"] == "null" and written and written[-1] in ("=", "!="):
            written[-1] = "IS NULL" if written[-1] == "=" else "IS NOT NULL"
        elif not found["space"]:
            written.append(_CEL_SIGNS.get(found[0], found[0]))
    return " ".join(written)


def _duckdb_error() -> type[Exception]:
    import duckdb

    return duckdb.Error
