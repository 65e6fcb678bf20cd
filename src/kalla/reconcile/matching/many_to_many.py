"""Rules that match groups of rows: several with several here, one with several in `one_to_many`."""

from __future__ import annotations

from kalla.reconcile.matching import equivalence_groups, one_to_many, sum_mismatches
from kalla.reconcile.matching.ambiguity import mark_ambiguous_keys
from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.rule_sql import (
    conjunction,
    group_columns,
    key_columns,
    same_key,
    unscaled,
)
from kalla.reconcile.sql import decimal_sums
from kalla.reconcile.sql.conditions import FUZZY

# More pairs than this of kinds of rows under one key of an M:N rule are not compared.
_HOT_KINDS = 20_000_000
_HOT_TEXTS = 2_000_000  # where texts are compared by similarity, which takes twenty times as long


def match(session: MatchSession, rule: RulePlan) -> str:
    """Executes a group rule. Returns the table of its groups, a line for each row in one."""
    session.rule_input(rule, "left")
    session.rule_input(rule, "right")
    equivalence_groups.group(session, rule)
    groups = f"groups_{rule.number}"
    session.run(
        f"CREATE TEMP TABLE {groups} (gid BIGINT, side VARCHAR, row_id BIGINT, status VARCHAR,"
        " cardinality VARCHAR)"
    )
    if rule.cardinality == "M:N":
        _match_many(session, rule, groups)
    else:
        one: Side = "left" if rule.cardinality == "1:N" else "right"
        one_to_many.match(session, rule, groups, one)
    for side in SIDES:
        for status in ("matched", "suggested"):
            word = "confirmed" if status == "matched" else status
            row_ids = f"SELECT row_id FROM {groups} WHERE side = '{side}' AND status = '{word}'"
            session.settle(side, row_ids, status, rule.number)
    _keep_pairs(session, rule, groups)
    _keep_sums(session, rule, groups)
    sum_mismatches.keep(session, rule, groups)
    return groups


def _keep_pairs(session: MatchSession, rule: RulePlan, groups: str) -> None:
    """Groups that are a pair have differences; kept now, since the next rule has other values."""
    kept = ["a.gid"]
    if rule.pair_checks:
        kept += [
            f"struct_pack({', '.join(f'v{n} := {side}.v{n}' for n in rule.pair_checks)}) AS {side}"
            for side in ("l", "r")
        ]
    if rule.sums:
        kept += ["l.amount AS left_amount", "r.amount AS right_amount"]
    session.run(
        f"CREATE TEMP TABLE {groups}_pairs AS SELECT {', '.join(kept)}"
        f" FROM {groups} a JOIN {groups} b"
        " ON a.gid = b.gid AND a.side = 'left' AND b.side = 'right'"
        " JOIN left_rule l ON l.row_id = a.row_id JOIN right_rule r ON r.row_id = b.row_id"
        " WHERE a.cardinality = '1:1'"
    )


def _keep_sums(session: MatchSession, rule: RulePlan, groups: str) -> None:
    """The sums of groups and their currency; stored now, like pairs."""
    if rule.sums is None:
        return
    scale = rule.sum_scale
    halves = ", ".join(
        f"{decimal_sums.halves(unscaled(f'{side}_rule.amount', scale))} AS {side}_total"
        for side in SIDES
    )
    sums = ", ".join(
        f"{decimal_sums.scaled(decimal_sums.whole(f'{side}_total'), scale)} AS {side}_amount"
        for side in SIDES
    )
    currency = "any_value(left_rule.cur)" if rule.currency else "NULL::VARCHAR"
    joins = " ".join(
        f"LEFT JOIN {side}_rule ON g.side = '{side}' AND {side}_rule.row_id = g.row_id"
        for side in SIDES
    )
    session.run(
        f"CREATE TEMP TABLE {groups}_sums AS SELECT gid, {sums}, currency, cardinality FROM"
        f" (SELECT g.gid, {halves}, {currency} AS currency,"
        f" any_value(g.cardinality) AS cardinality FROM {groups} g {joins} GROUP BY g.gid)"
    )


def _match_many(session: MatchSession, rule: RulePlan, groups: str) -> None:
    """Both sides' groups of a key as one, of rows that agree with some row of the other side."""
    keys = group_columns(rule)
    _find_agreeing(session, rule, keys)
    shared = "".join(f"{name}, " for name in keys)
    summed = decimal_sums.halves(unscaled("amount", rule.sum_scale)) if rule.sums else "NULL"
    both = " AND ".join(f"a.{name} = b.{name}" for name in keys) or "true"
    sums = [
        decimal_sums.scaled(decimal_sums.whole(f"{side}.total"), rule.sum_scale) for side in "ab"
    ]
    fits = rule.sum_bound.holds(*sums) if rule.sum_bound else "true"
    shape = (
        "CASE WHEN a.n = 1 AND b.n = 1 THEN '1:1' WHEN a.n = 1 THEN '1:N'"
        " WHEN b.n = 1 THEN 'N:1' ELSE 'M:N' END"
    )
    first = "".join(f"a.{name}, " for name in keys)
    session.run(
        "CREATE OR REPLACE TEMP TABLE agreed AS"
        f" SELECT {first}row_number() OVER () AS gid, {shape} AS cardinality"
        f" FROM (SELECT {shared}count(*) AS n, {summed} AS total FROM left_part GROUP BY ALL) a"
        f" JOIN (SELECT {shared}count(*) AS n, {summed} AS total FROM right_part GROUP BY ALL) b"
        f" ON {both} AND a.n > 0 AND b.n > 0 AND {fits}"
    )
    same = conjunction([f"p.{name} = g.{name}" for name in keys])
    for side in SIDES:
        session.run(
            f"INSERT INTO {groups} SELECT g.gid, '{side}', p.row_id, 'confirmed', g.cardinality"
            f" FROM {side}_part p JOIN agreed g ON {same}"
        )


def _find_agreeing(session: MatchSession, rule: RulePlan, keys: list[str]) -> None:
    """`left_part` and `right_part`: rows that agree with some row of the other side.

    Rows equal in all compared columns agree with the same rows, so distinct kinds of rows are
    compared; a key with too many kinds is not searched.
    """
    compared = [place for place in rule.pair_checks if place != rule.sum_check]
    values = [f"v{place}" for place in (*rule.normalized_key, *compared)]
    names = list(dict.fromkeys([*keys, *key_columns(rule), *values]))
    for side in SIDES:
        session.run(
            f"CREATE OR REPLACE TEMP TABLE {side}_kinds AS"
            f" SELECT DISTINCT {', '.join(['1 AS kind', *names])} FROM {side}_grouped"
        )
    holds = [rule.checks[place].holds for place in compared]
    most = _HOT_TEXTS if any(FUZZY in each for each in holds) else _HOT_KINDS
    shared = "".join(f"{name}, " for name in keys)
    both = conjunction([f"a.{name} = b.{name}" for name in keys])
    listed = "".join(f"a.{name}, " for name in keys)
    session.run(
        "CREATE OR REPLACE TEMP TABLE kids AS"
        f" SELECT {listed}row_number() OVER () AS kid"
        f" FROM (SELECT {shared}count(*) AS n FROM left_kinds GROUP BY ALL) a"
        f" JOIN (SELECT {shared}count(*) AS n FROM right_kinds GROUP BY ALL) b"
        f" ON {both} WHERE a.n * b.n > {most}"
    )
    (hot,) = session.row("SELECT count(*) FROM kids")
    same = [f"l.{name} = r.{name}" for name in keys]
    condition = conjunction([*same, *same_key(rule), *holds])
    for side, alias, other in (("left", "l", "right_kinds r"), ("right", "r", "left_kinds l")):
        kinds = f"SELECT {alias}.* FROM {side}_kinds {alias}"
        if hot:
            cool = conjunction([f"{alias}.{name} = k.{name}" for name in keys])
            kinds += f" ANTI JOIN kids k ON {cool}"
        alike = conjunction([f"t.{name} = k.{name}" for name in names])
        session.run(
            f"CREATE OR REPLACE TEMP TABLE {side}_part AS SELECT t.* FROM {side}_grouped t"
            f" SEMI JOIN (SELECT * FROM ({kinds}) {alias} SEMI JOIN {other} ON {condition}) k"
            f" ON {alike}"
        )
    if hot:
        for side, other in (SIDES, SIDES[::-1]):
            mark_ambiguous_keys(session, rule, side, other, "true")
