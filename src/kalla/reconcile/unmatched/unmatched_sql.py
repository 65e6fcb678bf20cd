"""The query of the evidence of unmatched rows."""

from __future__ import annotations

from kalla.reconcile.matching import sum_mismatches
from kalla.reconcile.plan import shown_columns
from kalla.reconcile.plan.plan import Plan
from kalla.reconcile.recipe.model import SIDES, Side, opposite
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.row_status import OPEN, SETTLED
from kalla.reconcile.sql.column_values import enum, literal
from kalla.reconcile.unmatched import explanations

STATUSES = (*SETTLED, *OPEN)
REASONS = (
    "not_attempted",
    "no_candidate",
    "taken",
    "sum_failed",
    "condition_failed",
    "no_pair",
)


def by_sql(session: MatchSession, side: Side) -> str:
    """Reads the results of the search for nearest candidates: `{side}_found` and `{side}_near`."""
    other = opposite(side)
    key, join = session.keyed(side, "t", "t.row_id")
    gone = session.settled_rows(other, f"SELECT other FROM {side}_found")
    names, unmet = attempted(session.plan, side)
    candidate = shown_columns.of_row(session.plan.sides[other], "candidate_")
    row_ids = session.column(f"SELECT other FROM {side}_found")
    near = session.rows_at(other, session.row_status[other].distinct(row_ids), f"{side}_candidates")
    ambiguous, unmatched = (f"{literal(each)}::{enum(STATUSES)}" for each in OPEN)
    of_row = shown_columns.of_row(session.plan.sides[side], "")
    values, sums = {name: f"n.{name}" for name in explanations.VALUES}, ""
    if sum_mismatches.are_kept(session.plan):
        sum_mismatches.lay_out(session, side)
        values |= {name: f"coalesce(n.{name}, s.{name})" for name in sum_mismatches.VALUES}
        sums = (
            f" LEFT JOIN {side}_sum_mismatches s ON s.row_id = u.row_id"
            " AND s.rule = CAST(n.rule AS VARCHAR)"
            " AND n.failing IS NULL AND g.row_id IS NULL AND a.row_id IS NULL"
        )
    return (
        f"SELECT {key} AS record_key, {shown_columns.listed(of_row)},"
        f" {shown_columns.named(candidate)}, {names} AS attempted_rules,"
        f" {unmet} AS unmet, n.candidate,"
        f" CASE WHEN g.status IS NOT NULL THEN g.status WHEN a.row_id IS NOT NULL THEN {ambiguous}"
        f" WHEN n.other IS NOT NULL THEN {unmatched} END AS status,"
        f" n.rule, {', '.join(f'{sql} AS {name}' for name, sql in values.items())}"
        f" FROM {side}_unmatched u JOIN {session.open_rows(side)} t USING (row_id) {join}"
        f" LEFT JOIN {side}_near n ON n.row_id = u.row_id"
        f" LEFT JOIN (SELECT row_id, {shown_columns.listed(candidate)} FROM {near}) c"
        " ON c.row_id = n.other"
        f" LEFT JOIN {gone} g ON g.row_id = n.other"
        f" LEFT JOIN {other}_ambiguous a ON a.row_id = n.other{sums}"
    )


def worth(plan: Plan, side: Side) -> dict[str, str]:
    """The amount of a row, and its currency, where the recipe names them."""
    amount, currency = plan.sides[side].amount, plan.sides[side].currency
    return {
        "amount": amount.sql if amount else "NULL::INTEGER",
        "currency": currency.sql if currency else "NULL::VARCHAR",
    }


def shown(plan: Plan, side: Side) -> tuple[str, ...]:
    """The display columns of a row and of its nearest candidate."""
    own = shown_columns.of_row(plan.sides[side], "")
    candidate = shown_columns.of_row(plan.sides[opposite(side)], "candidate_")
    # The row itself first, whichever side it is of.
    return tuple(name for name in (*own, *candidate) if name not in ("amount", "currency"))


def attempted(plan: Plan, side: Side) -> tuple[str, str]:
    """The names of the rules whose filters admit a row; and whether there are none."""
    admitted = [(literal(rule.name), rule.filters[SIDES.index(side)]) for rule in plan.rules]
    if not any(filters for _, filters in admitted):
        return f"[{', '.join(name for name, _ in admitted)}]", "false"
    listed = ", ".join(f"CASE WHEN {given or 'true'} THEN {name} END" for name, given in admitted)
    nobody = " AND ".join(f"NOT ({given or 'true'})" for _, given in admitted)
    return f"list_filter([{listed}], lambda name: name IS NOT NULL)", nobody
