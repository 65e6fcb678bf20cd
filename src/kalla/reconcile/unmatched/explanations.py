"""Explains a row and its nearest candidate: the first failing condition, both values, and the
difference. Separate from the search, which only counts how many conditions hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kalla.reconcile.arrays import array_path, nearest_values
from kalla.reconcile.arrays.array_path import NearestCandidates
from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.recipe.model import Side, opposite
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.rule_sql import value_columns
from kalla.reconcile.sql import column_values
from kalla.reconcile.sql.column_values import Value, literal
from kalla.reconcile.sql.conditions import Check

VALUES = ("failing", "left_value", "right_value", "difference")


@dataclass(frozen=True)
class Nearest:
    """What one rule found closest: a table of row_id, other and satisfied. What it says of their
    values is looked up for those alone, among the rows that were `looking` and those `offered`;
    where each has but one, these `meet` by themselves."""

    rule: RulePlan
    table: str
    looking: str
    meet: str | None = None

    @property
    def offered(self) -> str:
        return f"{self.table}_offered"


def explain_nearest(session: MatchSession, side: Side, found: list[Nearest]) -> None:
    """`{side}_found` and `{side}_near`: the best candidate of each row over all rules, and its
    explanation."""
    own, _ = letters(side)
    chosen = ""
    if len(session.plan.rules) > 1 and found:
        every = " UNION ALL ".join(
            f"SELECT row_id, satisfied, {each.rule.number} AS rule FROM {each.table}"
            for each in found
        )
        session.run(
            f"CREATE OR REPLACE TEMP TABLE {side}_best AS"
            f" SELECT row_id, arg_min(rule, row(-satisfied, rule)) AS rule FROM ({every})"
            " GROUP BY row_id"
        )
        chosen = f" SEMI JOIN {side}_best b ON b.row_id = {own}.row_id AND b.rule = "
    row_ids, explained = [], []
    for rule in session.plan.rules:
        best = f"{chosen}{rule.number}" if chosen else ""
        its = [each for each in found if each.rule is rule]
        row_ids += [
            f"SELECT {own}.row_id, {own}.other FROM {each.table} {own}{best}" for each in its
        ]
        if its:
            pairs = " UNION ALL ".join(_pairs(each, side) + best for each in its)
            explained.append(_explanation_of_rule(session.plan.rules, rule, pairs))
    _create_views(session, side, row_ids, explained)


def explain_candidates(
    session: MatchSession, side: Side, seen: Sequence[NearestCandidates]
) -> None:
    """The same for candidates from arrays, where each row has the best of all rules already."""
    row_ids, explained = [], []
    key = session.plain_key(opposite(side), "")
    for number, each in enumerate(seen):
        name = f"{side}_seen_{number}"
        session.connection.register(name, array_path.table(session, side, each))
        row_ids.append(f"SELECT row_id, other FROM {name}")
        values, rows = dict.fromkeys(VALUES, "NULL"), name
        if each.place is not None:
            values, rows = explain_pairs(each.rule, each.place, name)
        rows = f"SELECT *, {key} AS key FROM {rows}"
        explained.append(_explanation_query(session.plan.rules, each.rule, values, rows))
    _create_views(session, side, row_ids, explained)


def explain_pairs(rule: RulePlan, place: int, table: str) -> tuple[dict[str, str], str]:
    """What is said of pairs that fail a check, of which a table has the values as l and r; and the
    pairs as conditions see them."""
    value = f"v{place}"
    both = ", ".join(f"struct_pack({value} := {letter}) AS {letter}" for letter in "lr")
    (values,) = _explanation_cases([(value, rule.checks[place])])
    return values, f"(SELECT * REPLACE ({both}) FROM {table})"


def _create_views(
    session: MatchSession, side: Side, row_ids: Sequence[str], explained: Sequence[str]
) -> None:
    nothing = (
        "SELECT NULL::BIGINT AS row_id, NULL::VARCHAR AS rule, NULL::BIGINT AS other,"
        " NULL::VARCHAR AS candidate, NULL::VARCHAR AS failing, NULL::VARCHAR AS left_value,"
        " NULL::VARCHAR AS right_value, NULL::VARCHAR AS difference WHERE false"
    )
    for name, each in (("found", row_ids), ("near", explained)):
        sql = " UNION ALL ".join(each) or nothing
        session.run(f"CREATE OR REPLACE TEMP VIEW {side}_{name} AS {sql}")


def _pairs(near: Nearest, side: Side) -> str:
    """Unmatched rows and their nearest candidates, both as conditions see them."""
    own, their = letters(side)
    names = value_columns(near.rule)
    rows = ", ".join(
        f"struct_pack({', '.join(f'{name} := {letter}.{name}' for name in names)}) AS {letter}"
        for letter in "lr"
    )
    meet = near.meet or (
        f"JOIN {near.table} w ON w.row_id = {own}.row_id"
        f" JOIN {near.offered} {their} ON {their}.row_id = w.other"
    )
    return (
        f"SELECT {own}.row_id, {their}.row_id AS other, {their}.key, {rows}"
        f" FROM {near.looking} {own} {meet}"
    )


def _explanation_of_rule(rules: Sequence[RulePlan], rule: RulePlan, pairs: str) -> str:
    compared = _compared(rule)
    failing = " ".join(
        f"WHEN NOT {holds(check)} THEN {place}" for place, (_, check) in enumerate(compared)
    )
    spelled = _explanation_cases(compared)
    values = {
        name: "CASE place "
        + " ".join(f"WHEN {place} THEN {each[name]}" for place, each in enumerate(spelled))
        + " END"
        for name in VALUES
    }
    return _explanation_query(
        rules, rule, values, f"SELECT *, CASE {failing} END AS place FROM ({pairs})"
    )


def _explanation_cases(compared: Sequence[tuple[str, Check]]) -> list[dict[str, str]]:
    """The explanation of each check, if it is the one that fails."""
    return [
        {
            "failing": literal(check.label),
            "left_value": column_values.shown(check.left, f"l.{name}"),
            "right_value": column_values.shown(check.right, f"r.{name}"),
            "difference": _difference(check, name),
        }
        for name, check in compared
    ]


def _explanation_query(
    rules: Sequence[RulePlan], rule: RulePlan, values: Mapping[str, str], rows: str
) -> str:
    """The whole explanation of rows (row_id, other, key, l, r)."""
    named = {"rule": literal(rule.name), **values}
    types = kinds(rules)
    listed = ", ".join(
        f"CAST({sql} AS {types.get(name, 'VARCHAR')}) AS {name}" for name, sql in named.items()
    )
    return f"SELECT row_id, other, key AS candidate, {listed} FROM ({rows})"


def kinds(rules: Sequence[RulePlan]) -> dict[str, str]:
    """The types of what has few values."""
    labels = (check.label for each in rules for _, check in _compared(each))
    return {
        "rule": column_values.enum(each.name for each in rules),
        "failing": column_values.enum(labels),
    }


def _difference(check: Check, name: str) -> str:
    if check.is_key:
        return "NULL::VARCHAR"
    both = f"l.{name} IS NOT NULL AND r.{name} IS NOT NULL"
    return f"CASE WHEN {both} THEN {check.difference} END"


def count_held(rule: RulePlan) -> str:
    return " + ".join(f"CAST({holds(check)} AS INTEGER)" for _, check in _compared(rule))


def holds(check: Check) -> str:
    return f"coalesce({check.holds}, false)"


def _compared(rule: RulePlan) -> list[tuple[str, Check]]:
    """The conditions of a rule, each with the name of what it compares; before the amounts, that
    these are of one currency."""
    found = [(f"v{place}", check) for place, check in enumerate(rule.checks)]
    if rule.currency:
        found.insert(nearest_values.searched(rule) or 0, ("cur", of_one_currency(rule.currency)))
    return found


def of_one_currency(columns: tuple[Value, Value]) -> Check:
    left, right = columns
    label = f"currency({left.column}, {right.column})"
    return Check(label, left, right, "l.cur = r.cur", "0", "'0'", is_key=True)


def letters(side: Side) -> tuple[str, str]:
    """The aliases of this side and the other side in conditions."""
    return ("l", "r") if side == "left" else ("r", "l")
