"""The strategy DELTA: signed changes, grouped, and added to the table's rows.

A group is removed when its number of rows is zero, a sum is NULL when it has no value to add, and
an average is its sum and count. These numbers are stored in columns `__kalla_…` next to the result.
Never for floats: adding them in another order gives another sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlglot import exp

from kalla.tables.incremental.changes import Inputs, joins_changed_rows, signed_changes
from kalla.tables.incremental.dialect import Structured
from kalla.tables.incremental.structure import (
    NotIncremental,
    Select,
    Structure,
    Union,
    expression,
    parsed,
)

HIDDEN = "__kalla_"
ROWS = "__kalla_rows"  # rows of the group
SIGN = "__kalla_sign"

Kind = Literal["key", "count", "sum", "avg", "min", "max"]


@dataclass(frozen=True)
class Measure:
    """One column of a grouped result."""

    name: str
    kind: Kind
    argument: str  # SQL over the joined rows; empty: every row counts
    # Columns stored with it: the number of its values, and for an average also their sum.
    count_column: str = ""
    sum_column: str = ""


@dataclass(frozen=True)
class DeltaShape:
    """A query whose result can be kept by adding signed changes."""

    node: Select
    measures: tuple[Measure, ...]
    grouped: bool

    @property
    def keys(self) -> list[str]:
        return [each.name for each in self.measures if each.kind == "key"]

    def extended(self, sql: str) -> str:
        """The query with the table's internal columns."""
        if not self.grouped:
            return sql
        tree = parsed(sql)
        for name, call in self._hidden().items():
            tree.select(exp.alias_(expression(call), name, quoted=True), copy=False)
        return tree.sql(Structured, identify=True)

    def hidden_columns(self) -> list[str]:
        return list(self._hidden()) if self.grouped else []

    def _hidden(self) -> dict[str, str]:
        found = {ROWS: "COUNT(*)"}
        for each in self.measures:
            if each.count_column:
                found[each.count_column] = f"COUNT({each.argument})"
            if each.sum_column:
                found[each.sum_column] = f"SUM({each.argument})"
        return found

    def changes(self, inputs: Inputs) -> str | None:
        """Every changed key with the sums to add; None: nothing changed."""
        if not joins_changed_rows(self.node, inputs):
            raise NotIncremental("the right side of an outer join or a subquery's table changed")
        outputs = [
            exp.alias_(
                expression(each.argument) if each.argument else expression("1"),
                f"c{n}",
                quoted=True,
            )
            for n, each in enumerate(self.measures)
        ]
        rows = signed_changes(self.node, inputs, outputs, SIGN)
        if rows is None:
            return None
        keys = [f"c{n}" for n, each in enumerate(self.measures) if each.kind == "key"]
        sums = [f"SUM({SIGN}) AS {ROWS}"]
        for n, each in enumerate(self.measures):
            sums += _signed(each, f"c{n}")
        columns = [
            *(
                f"c{n} AS `{each.name}`"
                for n, each in enumerate(self.measures)
                if each.kind == "key"
            ),
            *sums,
        ]
        # Groups whose changes cancel each other out stay as they are.
        zero = [f"{ROWS} <> 0", *(f"{name} <> 0" for name in self._zero_columns())]
        having = "" if self._has_extremes() else f" HAVING {' OR '.join(zero)}"
        return (
            f"SELECT {', '.join(columns)} FROM ({rows.sql(Structured, identify=True)})"
            f" GROUP BY {', '.join(keys)}{having}"
        )

    def _zero_columns(self) -> list[str]:
        found = []
        for each in self.measures:
            if each.count_column:
                found.append(each.count_column)
            if each.kind == "count" and each.argument:
                found.append(f"`{each.name}`")
            if each.kind == "sum":
                found.append(f"coalesce(`{each.name}`, 0)")
            if each.sum_column:
                found.append(f"coalesce({each.sum_column}, 0)")
        return found

    def _has_extremes(self) -> bool:
        return any(each.kind in ("min", "max") for each in self.measures)


def _signed(measure: Measure, column: str) -> list[str]:
    counted = f"CAST(SUM(CASE WHEN {column} IS NULL THEN 0 ELSE {SIGN} END) AS BIGINT)"
    # Minus inside the CASE: sign * value would widen a decimal's type beyond its sum's.
    added = f"SUM(CASE WHEN {SIGN} > 0 THEN {column} ELSE -{column} END)"
    match measure.kind:
        case "count":
            value = counted if measure.argument else f"SUM({SIGN})"
            return [f"{value} AS `{measure.name}`"]
        case "sum":
            return [f"{added} AS `{measure.name}`", f"{counted} AS {measure.count_column}"]
        case "avg":
            return [f"{added} AS {measure.sum_column}", f"{counted} AS {measure.count_column}"]
        case "min" | "max":
            call = measure.kind
            return [
                f"{call}(CASE WHEN {SIGN} > 0 THEN {column} END) AS `{measure.name}`",
                f"{call}(CASE WHEN {SIGN} < 0 THEN {column} END) AS `{HIDDEN}gone_{measure.name}`",
            ]
    return []


_CALLS: Mapping[type[exp.Expr], Kind] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
}


def delta_shape(found: Structure) -> DeltaShape:
    """Raises NotIncremental with the reason why DELTA does not apply."""
    node = found.node
    if isinstance(node, Union):
        raise NotIncremental("DELTA does not apply to UNION")
    tree = parsed(node.sql)
    outputs = tree.selects
    if node.plain:
        measures = tuple(
            Measure(each.alias_or_name, "key", each.unalias().sql(Structured, identify=True))
            for each in outputs
        )
        return DeltaShape(node, measures, grouped=False)
    if not node.grouped or tree.args.get("distinct"):
        raise NotIncremental("DELTA does not apply to DISTINCT and windows")
    if tree.args.get("having"):
        raise NotIncremental(
            "DELTA does not apply to HAVING: groups that do not pass are not stored"
        )
    if any(key.place is None for key in node.keys):
        raise NotIncremental("DELTA needs every GROUP BY key in the result")
    keys = {key.sql for key in node.keys}
    return DeltaShape(
        node,
        tuple(_measure(n, each, keys) for n, each in enumerate(outputs)),
        grouped=True,
    )


def _measure(number: int, output: exp.Expr, keys: set[str]) -> Measure:
    inner, name = output.unalias(), output.alias_or_name
    sql = inner.sql(Structured, identify=True)
    if sql in keys:
        return Measure(name, "key", sql)
    kind = _CALLS.get(type(inner))
    argument = inner.this if kind else None
    if kind is None or argument is None or inner.expressions:
        raise NotIncremental(f"DELTA does not apply to {name}, which is not a plain aggregate")
    if isinstance(argument, exp.Distinct):
        raise NotIncremental(f"DELTA does not apply to DISTINCT in {name}")
    if isinstance(argument, exp.Star):
        return Measure(name, "count", "")
    text = argument.sql(Structured, identify=True)
    return Measure(
        name,
        kind,
        text,
        count_column=f"{HIDDEN}n{number}" if kind in ("sum", "avg") else "",
        sum_column=f"{HIDDEN}s{number}" if kind == "avg" else "",
    )


def refuse_floats(shape: DeltaShape, types: Mapping[str, Any]) -> None:
    """By the types that Spark gives the extended result."""
    for each in shape.measures:
        checked: Sequence[str] = [each.sum_column or each.name]
        for name in checked:
            if "float" in types[name] or "double" in types[name]:
                raise NotIncremental(f"DELTA does not apply to floats: {each.name}")
            if each.kind in ("min", "max", "sum") and not _plain_type(types[name]):
                raise NotIncremental(f"DELTA does not apply to {types[name]}: {each.name}")


def _plain_type(name: str) -> bool:
    """Types that the worker compares and adds as Spark does."""
    known = ("tinyint", "smallint", "int", "bigint", "string", "date", "timestamp")
    return name in known or name.startswith("decimal")
