"""Sums of amounts by currency, of sides that name one: what is of different currencies is never
added where a person reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING

import numpy as np

from kalla.reconcile.matching.fates import as_table, meaning
from kalla.reconcile.model import Side

if TYPE_CHECKING:
    from kalla.reconcile.matching.workbench import Workbench

Sums = dict[str, Decimal]

NONE = "∅"  # of rows without one


def of_settled(bench: Workbench, side: Side) -> dict[tuple[str, int], Sums]:
    """By status and rule."""
    plan = bench.plan.sides[side]
    if plan.currency is None or plan.amount is None:
        return {}
    codes = bench.fates[side].codes()
    settled = np.flatnonzero(codes)
    bench.table("settled_codes", as_table({"rid": settled, "code": codes[settled]}))
    found: dict[tuple[str, int], Sums] = {}
    rows = f"{bench.all_rows(side)} JOIN settled_codes USING (rid)"
    for code, currency, amount in bench.rows(
        f"SELECT code, {_currency(bench, side)}, sum({plan.amount.sql}) AS amount FROM {rows}"
        " GROUP BY ALL HAVING amount IS NOT NULL"
    ):
        found.setdefault(meaning(code), {})[currency] = amount
    return found


def of_rows(bench: Workbench, side: Side, rows: str) -> Sums:
    """Of some rows: a table, and which of it."""
    plan = bench.plan.sides[side]
    if plan.currency is None or plan.amount is None:
        return {}
    return dict(
        bench.rows(
            f"SELECT {_currency(bench, side)}, sum({plan.amount.sql}) AS amount FROM {rows}"
            " GROUP BY ALL HAVING amount IS NOT NULL"
        )
    )


def together(parts: Iterable[Mapping[str, Decimal]]) -> Sums:
    """Exact: the everyday decimal context would round at 28 digits."""
    found: Sums = {}
    with localcontext(prec=100):
        for part in parts:
            for currency, amount in part.items():
                found[currency] = found.get(currency, Decimal(0)) + amount
    return found


def _currency(bench: Workbench, side: Side) -> str:
    found = bench.plan.sides[side].currency
    return f"coalesce({found.sql if found else 'NULL'}, '{NONE}')"
