"""Sums of amounts by currency, for sides with a currency column: reports never add different
currencies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING

import numpy as np

from kalla.reconcile.arrays.arrow_numbers import as_table
from kalla.reconcile.recipe.model import Side
from kalla.reconcile.session.row_status import meaning

if TYPE_CHECKING:
    from kalla.reconcile.session.match_session import MatchSession

Sums = dict[str, Decimal]

NONE = "∅"  # of rows without one


def of_settled(session: MatchSession, side: Side) -> dict[tuple[str, int], Sums]:
    """By status and rule."""
    plan = session.plan.sides[side]
    if plan.currency is None or plan.amount is None:
        return {}
    codes = session.row_status[side].codes()
    settled = np.flatnonzero(codes)
    session.table("settled_codes", as_table({"row_id": settled, "code": codes[settled]}))
    found: dict[tuple[str, int], Sums] = {}
    rows = f"{session.all_rows(side)} JOIN settled_codes USING (row_id)"
    for code, currency, amount in session.rows(
        f"SELECT code, {_currency(session, side)}, sum({plan.amount.sql}) AS amount FROM {rows}"
        " GROUP BY ALL HAVING amount IS NOT NULL"
    ):
        found.setdefault(meaning(code), {})[currency] = amount
    return found


def of_rows(session: MatchSession, side: Side, rows: str) -> Sums:
    """Of some rows: a table, and which of it."""
    plan = session.plan.sides[side]
    if plan.currency is None or plan.amount is None:
        return {}
    return dict(
        session.rows(
            f"SELECT {_currency(session, side)}, sum({plan.amount.sql}) AS amount FROM {rows}"
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


def _currency(session: MatchSession, side: Side) -> str:
    found = session.plan.sides[side].currency
    return f"coalesce({found.sql if found else 'NULL'}, '{NONE}')"
