"""The columns of rows that evidence shows in addition to their results: names and SQL of a plan.

`left_amount` and the like are there in all evidence; a column of a source is `left.` and its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kalla.reconcile.plan.plan import SidePlan
from kalla.reconcile.recipe.model import Side
from kalla.reconcile.sql.column_values import held, quote

VALUES = ("amount", "currency", "date")


def of_row(plan: SidePlan, prefix: str) -> dict[str, str]:
    """Amount, currency and date of a row of a side, and its shown columns: each name and its SQL
    over the columns as they are held."""
    values = {
        "amount": plan.amount.sql if plan.amount else "NULL::INTEGER",
        "currency": plan.currency.sql if plan.currency else "NULL::VARCHAR",
        "date": plan.date.sql if plan.date else "NULL::DATE",
    }
    shown = {source_column(plan.side, name): sql for name, sql in plan.shown.items()}
    return {f"{prefix}{name}": sql for name, sql in values.items()} | shown


def described(plan: SidePlan) -> dict[str, object]:
    """For metadata: the columns of a source that evidence shows, and what they stand for."""
    values = {"amount": plan.amount, "currency": plan.currency, "date": plan.date}
    return {
        "key": [value.column for value in plan.primary_key],
        **{name: value.column if value else None for name, value in values.items()},
        "shown": list(plan.shown),
    }


def needed(plan: SidePlan) -> tuple[str, ...]:
    """The columns of its source that `of_row` is made of."""
    values = (plan.amount, plan.currency, plan.date)
    return tuple(dict.fromkeys([*(each.column for each in values if each), *plan.shown]))


def source_column(side: Side, name: str) -> str:
    return f"{side}.{name}"


def sum_type(plan: SidePlan) -> str:
    """Of the sum of a group's amounts."""
    return f"DECIMAL(38, {plan.amount.scale})" if plan.amount else "INTEGER"


def listed(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{sql} AS {quote(name)}" for name, sql in columns.items())


def named(columns: Iterable[str]) -> str:
    return ", ".join(map(quote, columns))


def in_pair(side: Side, name: str) -> str:
    """A column of a source next to those of the other side, before formatting."""
    return f"{side}={name}"


def as_held(plan: SidePlan) -> str:
    """Of a pair, the columns of one side under the names that its SQL has for them."""
    return ", ".join(f"{quote(in_pair(plan.side, name))} AS {held(name)}" for name in needed(plan))
