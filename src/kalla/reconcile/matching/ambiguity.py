"""Rows of groups that stay ambiguous: with the candidates that were found, or with a whole key."""

from __future__ import annotations

from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.recipe.model import Side
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.rule_sql import conjunction, group_columns

SHOWN_CANDIDATES = 20


def mark_ambiguous_pairs(
    session: MatchSession, rule: RulePlan, side: Side, other: Side, pairs: str
) -> None:
    """Rows that stay ambiguous, from pairs of (row_id, reason, other)."""
    session.keys_table(other, f"SELECT other FROM ({pairs})", "other_keys")
    session.mark_ambiguous(
        side,
        f"SELECT d.row_id, {rule.number}, any_value(reason),"
        f" list_sort(min(key, {SHOWN_CANDIDATES})), count(*)"
        f" FROM ({pairs}) d JOIN other_keys k ON k.row_id = d.other GROUP BY d.row_id",
    )


def mark_ambiguous_keys(
    session: MatchSession, rule: RulePlan, side: Side, other: Side, which: str
) -> None:
    """Rows whose key was not searched: all rows of the other side with that key are candidates."""
    same = conjunction([f"t.{name} = k.{name}" for name in group_columns(rule)])
    mine, theirs = (
        f"SELECT t.row_id, k.kid FROM {each}_grouped t JOIN kids k ON {same}"
        for each in (side, other)
    )
    kids = f"SELECT m.kid FROM ({mine}) m WHERE {which}"
    session.keys_table(other, f"SELECT row_id FROM ({theirs}) WHERE kid IN ({kids})", "other_keys")
    session.mark_ambiguous(
        side,
        f"SELECT m.row_id, {rule.number}, 'too_large', o.keys, o.n FROM ({mine}) m JOIN"
        f" (SELECT kid, list_sort(min(key, {SHOWN_CANDIDATES})) AS keys, count(*) AS n"
        f" FROM ({theirs}) JOIN other_keys USING (row_id) GROUP BY kid) o"
        f" USING (kid) WHERE {which}",
    )
