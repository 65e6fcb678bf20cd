"""Shared SQL of the matching: a rule, its views, and a row's key."""

from __future__ import annotations

from collections.abc import Iterable

from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.sql import column_values
from kalla.reconcile.sql.column_values import Value


def same_key(rule: RulePlan) -> list[str]:
    """The equalities of a rule's key between its views `l` and `r`."""
    return [f"l.{name} = r.{name}" for name in key_columns(rule)] + normalized_key_checks(rule)


def normalized_key_checks(rule: RulePlan) -> list[str]:
    """The remaining checks of a pair whose rows have equal key columns."""
    return [rule.checks[place].holds for place in rule.key if rule.checks[place].normalized_key]


def key_columns(rule: RulePlan) -> list[str]:
    return equal_columns(rule) + (["cur"] if rule.currency else [])


def group_columns(rule: RulePlan) -> list[str]:
    """The columns that identify a group in the views `{side}_grouped`."""
    return ["group_number"] if rule.normalized_key else key_columns(rule)


def equal_columns(rule: RulePlan) -> list[str]:
    """The key without the currency."""
    return [f"k{place}" if rule.checks[place].normalized_key else f"v{place}" for place in rule.key]


def value_columns(rule: RulePlan) -> list[str]:
    """The columns that a rule compares: rows equal in these are interchangeable."""
    found = [f"v{place}" for place in range(len(rule.checks))]
    return found + [name for name in key_columns(rule) if name not in found]


def hashable(left: Value, right: Value) -> tuple[str, str]:
    """Both as one type, for equal values of different types have different hashes.

    Numbers stay exact: as floats, those of different scales differ by how DuckDB makes them.
    """
    if left.kind == right.kind == "number":
        scale = max(left.scale, right.scale)
        exact = column_values.amount_type(scale) if scale else "HUGEINT"
        # What has no place among so many places has no equal.
        return f"TRY_CAST({left.sql} AS {exact})", f"TRY_CAST({right.sql} AS {exact})"
    if left.kind == right.kind:
        return left.sql, right.sql
    return column_values.shown(left), column_values.shown(right)


def unscaled(sql: str, scale: int) -> str:
    """A decimal as a whole number of its last place."""
    if scale == 0:
        return f"CAST({sql} AS HUGEINT)"
    exact = f"CAST(CAST({sql} AS {column_values.amount_type(scale)}) AS VARCHAR)"
    return f"CAST(replace({exact}, '.', '') AS HUGEINT)"


def conjunction(parts: Iterable[str]) -> str:
    return " AND ".join(parts) or "true"


def key_part(value: Value, sql: str) -> str:
    text = column_values.shown(value, sql)
    if value.kind == "text":
        text = f"replace({text}, '#', '##')"
    return f"coalesce({text}, '∅')"
