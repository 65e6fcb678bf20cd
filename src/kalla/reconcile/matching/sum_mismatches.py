"""Stores the sums of two groups that do not fit, after their rule has run, to explain their rows at
the end.
"""

from __future__ import annotations

from kalla.reconcile.plan.plan import Plan, RulePlan
from kalla.reconcile.recipe.model import SIDES, Side, opposite
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.rule_sql import conjunction, group_columns, unscaled
from kalla.reconcile.sql import column_values, decimal_sums
from kalla.reconcile.sql.column_values import Value, literal

VALUES = ("left_value", "right_value", "difference")  # as texts
_COLUMNS = ("rule", *VALUES)

# What one row has, by rule, on its way from task to task.
KIND = f"STRUCT({', '.join(f'{name} VARCHAR' for name in _COLUMNS)})[]"


def are_kept(plan: Plan) -> bool:
    return any(rule.sums for rule in plan.rules)


def lay_out(session: MatchSession, side: Side) -> None:
    """`{side}_sum_mismatches` (row_id, rule and the values), shared by all forks."""
    columns = ", ".join(f"{name} VARCHAR" for name in _COLUMNS)
    session.run(f"CREATE TABLE IF NOT EXISTS {side}_sum_mismatches (row_id BIGINT, {columns})")


def keep(session: MatchSession, rule: RulePlan, groups: str) -> None:
    """For each unmatched row that agrees with another unmatched row: the sums of all such rows of
    its key, on both sides.
    """
    if rule.sum_bound is None:
        return
    keys = group_columns(rule) if rule.cardinality == "M:N" else ["kid"]
    for side in SIDES:
        session.run(
            f"CREATE OR REPLACE TEMP TABLE {side}_short AS {_left(rule, side, keys, groups)}"
        )
    amount = Value("", "number", rule.sum_scale)
    sums = [decimal_sums.scaled(decimal_sums.whole(f"{each}.total"), amount.scale) for each in "ab"]
    texts = [column_values.shown(amount, sql) for sql in sums]
    texts.append(rule.sum_bound.difference(sums[0], sums[1], amount.scale))
    shared = "".join(f"{name}, " for name in keys)
    left, right = (
        f"(SELECT {shared}{decimal_sums.halves('units')} AS total FROM {side}_short GROUP BY ALL)"
        for side in SIDES
    )
    listed = [f"a.{name}" for name in keys]
    listed += [f"{sql} AS {name}" for sql, name in zip(texts, VALUES, strict=True)]
    session.run(
        f"CREATE OR REPLACE TEMP TABLE short AS SELECT {', '.join(listed)}"
        f" FROM {left} a JOIN {right} b ON {_same(keys, 'a', 'b')}"
    )
    for side in SIDES:
        lay_out(session, side)
        session.run(
            f"INSERT INTO {side}_sum_mismatches SELECT t.row_id, {literal(rule.name)},"
            f" {', '.join(VALUES)}"
            f" FROM {side}_short t JOIN short s ON {_same(keys, 't', 's')}"
        )


def _left(rule: RulePlan, side: Side, keys: list[str], groups: str) -> str:
    """A query (key, row_id, units) of a side's open rows that agree with an open row."""
    mine, theirs = (
        f"(SELECT row_id FROM {groups} WHERE side = '{each}')" for each in (side, opposite(side))
    )
    if rule.cardinality == "M:N":  # a group is settled as a whole
        shared = "".join(f"{name}, " for name in keys)
        units = unscaled("amount", rule.sum_scale)
        return (
            f"SELECT {shared}row_id, {units} AS units FROM {side}_part WHERE row_id NOT IN {mine}"
        )
    is_one = (side == "left") == (rule.cardinality == "1:N")
    own, other = ("one", "many") if is_one else ("many", "one")
    return (
        f"SELECT DISTINCT kid, {own} AS row_id, {own}_amount AS units FROM admissible"
        f" WHERE {own} NOT IN {mine} AND {other} NOT IN {theirs}"
    )


def _same(keys: list[str], one: str, other: str) -> str:
    return conjunction([f"{one}.{name} = {other}.{name}" for name in keys])


def handed_on(session: MatchSession, side: Side) -> str:
    """All stored sums of a row `t`, as KIND."""
    if not are_kept(session.plan):
        return "NULL"
    lay_out(session, side)
    packed = ", ".join(f"{name} := s.{name}" for name in _COLUMNS)
    mismatches = f"{side}_sum_mismatches s WHERE s.row_id = t.row_id"
    return f"(SELECT list(struct_pack({packed})) FROM {mismatches})"


def restore(session: MatchSession, side: Side, handed: str) -> None:
    """What was handed on with the rows, in a column of that name."""
    lay_out(session, side)
    columns = ", ".join(f"s.{name}" for name in _COLUMNS)
    session.run(
        f"INSERT INTO {side}_sum_mismatches SELECT row_id, {columns}"
        f" FROM (SELECT row_id, unnest({handed}) AS s FROM {session.all_rows(side)})"
    )
