"""For every row that stayed unmatched: the nearest row of the other side, and why it did not match.

First among the rows with the same key, then by amount or date. Bounded: a row looks at no more than
a set number of others, always the same ones. Values are spelled for the closest one alone, when
`{side}_near` is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from kalla.reconcile.matching import steps, values
from kalla.reconcile.matching.conditions import Check
from kalla.reconcile.matching.fates import as_column
from kalla.reconcile.matching.phrases import conjunction, key_columns
from kalla.reconcile.matching.steps import Measured
from kalla.reconcile.matching.values import literal
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.model import SIDES, Side
from kalla.reconcile.plan import RulePlan


@dataclass(frozen=True)
class Near:
    """A table of what one rule found closest: rid, other, key, satisfied, failing (the place of the
    first check that does), and the values of both rows, l0… and r0…"""

    rule: RulePlan
    table: str


def search(bench: Workbench, side: Side, *, by_key: bool = True, by_value: bool = True) -> None:
    """Make `{side}_near` of every unmatched row that has a closest one: what is said of it.

    Of a bucket only the keys can be searched: what is nearest by value may be in another.
    """
    other: Side = "right" if side == "left" else "left"
    found: list[Near] = []
    for rule in bench.plan.rules:
        if rule.key and by_key:
            _looking(bench, rule, side)
            found += _same_key(bench, rule, side, other)
    bench.run(
        f"CREATE TEMP TABLE {side}_lonely AS SELECT rid FROM {side}_unmatched"
        f" WHERE rid NOT IN ({_rids(found)})"
    )
    (lonely,) = bench.row(f"SELECT count(*) FROM {side}_lonely")
    for rule in bench.plan.rules if lonely and by_value else ():
        found += _nearest(bench, rule, side, other)
    _tell(bench, side, found)


def _looking(bench: Workbench, rule: RulePlan, side: Side, which: str = "unmatched") -> None:
    """`looking`: the unmatched rows that a rule's filters admit."""
    rows = bench.admit(rule, side, whole=False)
    bench.run(
        f"CREATE OR REPLACE TEMP TABLE looking AS SELECT * FROM {rows}"
        f" WHERE rid IN (SELECT rid FROM {side}_{which})"
    )


def _same_key(bench: Workbench, rule: RulePlan, side: Side, other: Side) -> list[Near]:
    keys = key_columns(rule)
    rows = bench.admit(rule, other, settled=True, whole=False)
    same = conjunction([f"t.{name} = u.{name}" for name in keys])
    key, join = bench.keyed(other, "t", "t.rid")
    bench.run(
        "CREATE OR REPLACE TEMP TABLE offered AS"
        f" SELECT t.*, {key} AS key FROM {rows} t SEMI JOIN looking u ON {same} {join}"
    )
    if not (most := _bound(bench, keys)):
        return []
    own, their = ("l", "r") if side == "left" else ("r", "l")
    together = conjunction([f"{own}.{name} = {their}.{name}" for name in keys])
    near = Near(rule, f"{side}_near_{rule.number}_by_key")
    _rank(bench, near, side, f"JOIN offered {their} ON {together}", alone=most == 1)
    return [near]


def _bound(bench: Workbench, keys: list[str]) -> int:
    """Keep no more of those `offered` than may be looked at of those that share some columns;
    returns the most that did."""
    bound = bench.plan.bounds.closest_candidates
    shared = ", ".join(keys)
    (most,) = bench.row(f"SELECT max(n) FROM (SELECT count(*) AS n FROM offered GROUP BY {shared})")
    if (most or 0) > bound:
        bench.run(
            "CREATE OR REPLACE TEMP TABLE offered AS SELECT * FROM offered"
            f" QUALIFY row_number() OVER (PARTITION BY {shared} ORDER BY key) <= {bound}"
        )
    return int(most or 0)


def _nearest(bench: Workbench, rule: RulePlan, side: Side, other: Side) -> list[Near]:
    """Rows with the nearest amount (else date) not above, and the nearest above."""
    place = steps.searched(rule)
    if place is None:
        return []
    _looking(bench, rule, side, "lonely")
    rows = bench.admit(rule, other, settled=True, whole=False)
    seekers, offers = steps.next_to(*_measured(bench, rule, side, rows, place))
    bench.table("seekers", seekers)
    bench.table("offers", offers)
    key, join = bench.keyed(other, "t", "t.rid")
    bench.run(
        "CREATE OR REPLACE TEMP TABLE offered AS SELECT o.step, t.*,"
        f" {key} AS key FROM {rows} t JOIN offers o ON o.rid = t.rid {join}"
    )
    _bound(bench, ["step"])
    own, their = ("l", "r") if side == "left" else ("r", "l")
    near = Near(rule, f"{side}_near_{rule.number}_by_value")
    _rank(
        bench,
        near,
        side,
        f"JOIN seekers n ON n.seeker = {own}.rid JOIN offered {their} ON {their}.step = n.step",
    )
    return [near]


def _measured(
    bench: Workbench, rule: RulePlan, side: Side, rows: str, place: int
) -> tuple[Measured, Measured]:
    """The rows of the other side, and those that look for the nearest of them, comparable."""
    check = rule.checks[place]
    signed = check.bound.signed("t.v", "t.v") if check.bound else ("t.v", "t.v")
    sides = [sql.replace("t.v", f"t.v{place}") for sql in signed]
    if check.left.scale != check.right.scale:
        sides = [f"CAST({sql} AS {values.amount_type(check.scale)})" for sql in sides]
    mine, theirs = sides if side == "left" else sides[::-1]
    if rule.currency:
        bench.run(
            "CREATE OR REPLACE TEMP TABLE currencies AS"
            " SELECT cur, CAST(row_number() OVER () - 1 AS INTEGER) AS code"
            " FROM (SELECT DISTINCT cur FROM looking WHERE cur IS NOT NULL)"
        )
    most = max(bench.fates[each].rows for each in SIDES)

    def measured(rows: str, value: str) -> Measured:
        code, join = (", c.code", "JOIN currencies c USING (cur)") if rule.currency else ("", "")
        found = f"SELECT t.rid, {value}{code} FROM {rows} t {join} WHERE {value} IS NOT NULL"
        return steps.read(bench.batches(found), most)

    offered, wanted = measured(rows, theirs), measured("looking", mine)
    if steps.comparable(offered, wanted):
        return offered, wanted
    # Numbers of more than 64 bits have their ranks for values.
    bench.table("chosen", as_column(offered.rids[steps.in_sight(offered, wanted)]))
    currency = ", t.cur" if rule.currency else ""
    bench.run(
        "CREATE OR REPLACE TEMP TABLE ranked AS SELECT *, dense_rank() OVER (ORDER BY x) AS n FROM"
        f" (SELECT t.rid, true AS wanted, {mine} AS x{currency} FROM looking t"
        f" WHERE {mine} IS NOT NULL UNION ALL SELECT t.rid, false, {theirs}{currency}"
        f" FROM {rows} t SEMI JOIN chosen c ON c.rid = t.rid)"
    )
    ranks = (f"(SELECT * FROM ranked WHERE {which})" for which in ("NOT wanted", "wanted"))
    offered, wanted = (measured(each, "t.n") for each in ranks)
    return offered, wanted


def _rank(bench: Workbench, near: Near, side: Side, offered: str, *, alone: bool = False) -> None:
    """Of each looking row's offered ones the best: most conditions, least distance, first key.

    Where nobody is offered two, nothing is ranked.
    """
    rule = near.rule
    own, their = ("l", "r") if side == "left" else ("r", "l")
    holds = [f"coalesce({check.holds}, false)" for check in rule.checks]
    satisfied = " + ".join(f"CAST({each} AS INTEGER)" for each in holds)
    failing = " ".join(f"WHEN NOT {each} THEN {place}" for place, each in enumerate(holds))
    compared = [
        f"{letter}.v{place} AS {letter}{place}" for place in range(len(holds)) for letter in "lr"
    ]
    far = [
        part
        for place in rule.pair_checks
        # A null is further than anything, also where a check knows no distance.
        for part in (
            f"(l.v{place} IS NULL OR r.v{place} IS NULL)",
            rule.checks[place].distance,
        )
    ]
    order = ", ".join(["satisfied DESC", *far, f"{their}.key"])
    best = "" if alone else f"row_number() OVER (PARTITION BY {own}.rid ORDER BY {order}) = 1"
    bench.run(
        f"CREATE OR REPLACE TEMP TABLE {near.table} AS SELECT {own}.rid, {their}.rid AS other,"
        f" {their}.key AS key, {satisfied} AS satisfied,"
        f" CASE {failing} END AS failing, {', '.join(compared)} FROM looking {own} {offered}"
        + (f" QUALIFY {best}" if best else "")
    )


def _tell(bench: Workbench, side: Side, found: list[Near]) -> None:
    """`{side}_near`: of each row the best of all rules, and in words what is to be said of it."""
    chosen = ""
    if len(bench.plan.rules) > 1 and found:
        every = " UNION ALL ".join(
            f"SELECT rid, satisfied, {each.rule.number} AS rule FROM {each.table}" for each in found
        )
        bench.run(
            f"CREATE OR REPLACE TEMP TABLE {side}_best AS SELECT rid, rule FROM ({every})"
            " QUALIFY row_number() OVER (PARTITION BY rid ORDER BY satisfied DESC, rule) = 1"
        )
        chosen = f" SEMI JOIN {side}_best b ON b.rid = t.rid AND b.rule = "
    rules = bench.plan.rules
    names = values.enum(rule.name for rule in rules)
    labels = values.enum(check.label for rule in rules for check in rule.checks)
    told = [
        _told(each, names, labels) + (f"{chosen}{each.rule.number}" if chosen else "")
        for each in found
    ]
    nothing = (
        "SELECT NULL::BIGINT AS rid, NULL::VARCHAR AS rule, NULL::BIGINT AS other,"
        " NULL::VARCHAR AS candidate, NULL::VARCHAR AS failing, NULL::VARCHAR AS left_value,"
        " NULL::VARCHAR AS right_value, NULL::VARCHAR AS difference WHERE false"
    )
    bench.run(f"CREATE OR REPLACE TEMP VIEW {side}_near AS {' UNION ALL '.join(told) or nothing}")


def _told(near: Near, names: str, labels: str) -> str:
    checks = near.rule.checks
    spelled = {
        "failing": [literal(check.label) for check in checks],
        "left_value": [values.shown(check.left, f"l{n}") for n, check in enumerate(checks)],
        "right_value": [values.shown(check.right, f"r{n}") for n, check in enumerate(checks)],
        "difference": [_difference(check, n) for n, check in enumerate(checks)],
    }
    kinds = {"failing": labels}
    said = ", ".join(
        "CAST(CASE t.failing "
        + " ".join(f"WHEN {place} THEN {each}" for place, each in enumerate(texts))
        + f" END AS {kinds.get(name, 'VARCHAR')}) AS {name}"
        for name, texts in spelled.items()
    )
    # As conditions see them.
    rows = ", ".join(
        f"struct_pack({', '.join(f'v{n} := {letter}{n}' for n in range(len(checks)))}) AS {letter}"
        for letter in "lr"
    )
    return (
        f"SELECT t.rid, {literal(near.rule.name)}::{names} AS rule, t.other, t.key AS candidate,"
        f" {said}"
        f" FROM (SELECT *, {rows} FROM {near.table}) t"
    )


def _difference(check: Check, place: int) -> str:
    if check.is_key:
        return "NULL::VARCHAR"
    both = f"l{place} IS NOT NULL AND r{place} IS NOT NULL"
    return f"CASE WHEN {both} THEN {check.difference} END"


def _rids(found: list[Near]) -> str:
    every = [f"SELECT rid FROM {each.table}" for each in found]
    return " UNION ALL ".join([*every, "SELECT 0 WHERE false"])
