"""Rows of groups that stay ambiguous: with the candidates that were found, or with a whole key."""

from __future__ import annotations

from kalla.reconcile.matching.phrases import conjunction, group_columns
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.model import Side
from kalla.reconcile.plan import RulePlan

SHOWN_CANDIDATES = 20


def doubt_pairs(bench: Workbench, rule: RulePlan, side: Side, other: Side, pairs: str) -> None:
    """Rows that stay ambiguous, from pairs of (rid, reason, other)."""
    bench.keys_table(other, f"SELECT other FROM ({pairs})", "other_keys")
    bench.doubt(
        side,
        f"SELECT d.rid, {rule.number}, any_value(reason),"
        f" list_sort(min(key, {SHOWN_CANDIDATES})), count(*)"
        f" FROM ({pairs}) d JOIN other_keys k ON k.rid = d.other GROUP BY d.rid",
    )


def doubt_whole_keys(bench: Workbench, rule: RulePlan, side: Side, other: Side, which: str) -> None:
    """Rows whose key was not looked into: all of the other side in that key are candidates."""
    same = conjunction([f"t.{name} = k.{name}" for name in group_columns(rule)])
    mine, theirs = (
        f"SELECT t.rid, k.kid FROM {each}_grouped t JOIN kids k ON {same}" for each in (side, other)
    )
    kids = f"SELECT m.kid FROM ({mine}) m WHERE {which}"
    bench.keys_table(other, f"SELECT rid FROM ({theirs}) WHERE kid IN ({kids})", "other_keys")
    bench.doubt(
        side,
        f"SELECT m.rid, {rule.number}, 'too_large', o.keys, o.n FROM ({mine}) m JOIN"
        f" (SELECT kid, list_sort(min(key, {SHOWN_CANDIDATES})) AS keys, count(*) AS n"
        f" FROM ({theirs}) JOIN other_keys USING (rid) GROUP BY kid) o USING (kid) WHERE {which}",
    )
