"""What is to be said of unmatched rows, as a query."""

from __future__ import annotations

from kalla.reconcile.matching import shortfalls, telling
from kalla.reconcile.matching.fates import OPEN, SETTLED
from kalla.reconcile.matching.values import enum, literal
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.model import SIDES, Side, opposite
from kalla.reconcile.plan import Plan

STATUSES = (*SETTLED, *OPEN)
REASONS = (
    "not_attempted",
    "no_candidate",
    "taken",
    "sum_failed",
    "condition_failed",
    "no_pair",
)


def by_sql(bench: Workbench, side: Side) -> str:
    """From what the search for the closest ones has left: `{side}_found` and `{side}_near`."""
    other = opposite(side)
    key, join = bench.keyed(side, "t", "t.rid")
    gone = bench.gone(other, f"SELECT other FROM {side}_found")
    names, unmet = attempted(bench.plan, side)
    ambiguous, unmatched = (f"{literal(each)}::{enum(STATUSES)}" for each in OPEN)
    of_row = [f"{sql} AS {name}" for name, sql in worth(bench.plan, side).items()]
    said, sums = {name: f"n.{name}" for name in telling.SAID}, ""
    if shortfalls.are_kept(bench.plan):
        shortfalls.lay_out(bench, side)
        said |= {name: f"coalesce(n.{name}, s.{name})" for name in shortfalls.SAID}
        sums = (
            f" LEFT JOIN {side}_shortfalls s ON s.rid = u.rid AND s.rule = CAST(n.rule AS VARCHAR)"
            " AND n.failing IS NULL AND g.rid IS NULL AND a.rid IS NULL"
        )
    return (
        f"SELECT {key} AS record_key, {', '.join(of_row)}, {names} AS attempted_rules,"
        f" {unmet} AS unmet, n.candidate,"
        f" CASE WHEN g.status IS NOT NULL THEN g.status WHEN a.rid IS NOT NULL THEN {ambiguous}"
        f" WHEN n.other IS NOT NULL THEN {unmatched} END AS status,"
        f" n.rule, {', '.join(f'{sql} AS {name}' for name, sql in said.items())}"
        f" FROM {side}_unmatched u JOIN {bench.left_over(side)} t USING (rid) {join}"
        f" LEFT JOIN {side}_near n ON n.rid = u.rid"
        f" LEFT JOIN {gone} g ON g.rid = n.other"
        f" LEFT JOIN {other}_ambiguous a ON a.rid = n.other{sums}"
    )


def worth(plan: Plan, side: Side) -> dict[str, str]:
    """The amount of a row, and its currency, where the recipe names them."""
    amount, currency = plan.sides[side].amount, plan.sides[side].currency
    return {
        "amount": amount.sql if amount else "NULL::INTEGER",
        "currency": currency.sql if currency else "NULL::VARCHAR",
    }


def attempted(plan: Plan, side: Side) -> tuple[str, str]:
    """The names of the rules that met a row, those whose filters admit it; and whether none did."""
    admitted = [(literal(rule.name), rule.filters[SIDES.index(side)]) for rule in plan.rules]
    if not any(filters for _, filters in admitted):
        return f"[{', '.join(name for name, _ in admitted)}]", "false"
    listed = ", ".join(f"CASE WHEN {given or 'true'} THEN {name} END" for name, given in admitted)
    nobody = " AND ".join(f"NOT ({given or 'true'})" for _, given in admitted)
    return f"list_filter([{listed}], lambda name: name IS NOT NULL)", nobody
