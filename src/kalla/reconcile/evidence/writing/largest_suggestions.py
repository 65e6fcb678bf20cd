"""The largest suggested matches of a rule: those that a person should review first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby

from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.recipe.model import Side, opposite
from kalla.reconcile.session.match_session import MatchSession

LARGEST = 5  # of each currency
_SHOWN_PARTNERS = 3


@dataclass(frozen=True)
class Suggestion:
    """A row of one side, and the rows of the other that together fit it."""

    side: Side
    record_key: str
    amount: str  # a decimal
    currency: str | None
    partners: tuple[str, ...]  # the first of them
    partner_count: int


def largest_of(session: MatchSession, rule: RulePlan, groups: str) -> tuple[Suggestion, ...]:
    """The largest suggestions of an executed rule; `groups` is the table of its groups."""
    if rule.sums is None or rule.cardinality not in ("1:N", "N:1"):
        return ()
    one: Side = "left" if rule.cardinality == "1:N" else "right"
    many = opposite(one)
    suggested = f"SELECT row_id FROM {groups} WHERE status = 'suggested' AND side"
    session.keys_table(one, f"{suggested} = '{one}'", "suggested_ones")
    session.run(
        "CREATE OR REPLACE TEMP TABLE largest_ones AS"
        f" SELECT gid, key, {one}_amount AS amount, currency FROM {groups} g"
        f" JOIN suggested_ones USING (row_id) JOIN {groups}_sums USING (gid) WHERE g.side = '{one}'"
        " QUALIFY row_number() OVER"
        f" (PARTITION BY currency ORDER BY abs(amount) DESC, key) <= {LARGEST}"
    )
    session.keys_table(
        many,
        f"{suggested} = '{many}' AND gid IN (SELECT gid FROM largest_ones)",
        "suggested_many",
    )
    rows = session.rows(
        "SELECT any_value(o.key), any_value(amount), any_value(currency),"
        f" list_sort(list(m.key))[:{_SHOWN_PARTNERS}], count(*) FROM largest_ones o"
        f" JOIN {groups} g ON g.gid = o.gid AND g.side = '{many}'"
        " JOIN suggested_many m ON m.row_id = g.row_id GROUP BY o.gid"
    )
    return largest(
        Suggestion(one, key, f"{amount:f}", currency, tuple(partners), count)
        for key, amount, currency, partners, count in rows
    )


def largest(found: Iterable[Suggestion]) -> tuple[Suggestion, ...]:
    """Of each currency."""
    ordered = sorted(
        found,
        key=lambda each: (each.currency or "", -abs(Decimal(each.amount)), each.record_key),
    )
    kept = [
        list(each)[:LARGEST] for _, each in groupby(ordered, key=lambda each: each.currency or "")
    ]
    return tuple(each for currency in kept for each in currency)
