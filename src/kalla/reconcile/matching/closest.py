"""For every row that stayed unmatched: the nearest row of the other side, and why it did not match.

First among the rows with the same key, then by amount or date. Bounded: a row looks at no more than
a set number of others, always the same ones.
"""

from __future__ import annotations

from kalla.reconcile.matching import steps, values
from kalla.reconcile.matching.conditions import Check
from kalla.reconcile.matching.values import literal
from kalla.reconcile.matching.workbench import Workbench, conjunction, key_columns
from kalla.reconcile.model import Side
from kalla.reconcile.plan import RulePlan


def search(bench: Workbench, side: Side, *, by_key: bool = True, by_value: bool = True) -> None:
    """Fill `{side}_near` for every unmatched row.

    Of a bucket only the keys can be searched: what is nearest by value may be in another.
    """
    other: Side = "right" if side == "left" else "left"
    bench.run(
        f"CREATE TEMP TABLE {side}_near (rid BIGINT, rule INTEGER, satisfied INTEGER, other BIGINT,"
        " candidate VARCHAR, failing VARCHAR, left_value VARCHAR, right_value VARCHAR,"
        " difference VARCHAR)"
    )
    for rule in bench.plan.rules:
        if rule.key and by_key:
            _looking(bench, rule, side)
            _same_key(bench, rule, side, other)
    bench.run(
        f"CREATE TEMP TABLE {side}_lonely AS SELECT rid FROM {side}_unmatched"
        f" WHERE rid NOT IN (SELECT rid FROM {side}_near)"
    )
    (lonely,) = bench.row(f"SELECT count(*) FROM {side}_lonely")
    for rule in bench.plan.rules if lonely and by_value else ():
        _nearest(bench, rule, side, other)


def _looking(bench: Workbench, rule: RulePlan, side: Side, which: str = "unmatched") -> None:
    """`looking`: the unmatched rows that a rule's filters admit."""
    rows = bench.admit(rule, side, whole=False)
    bench.run(
        f"CREATE OR REPLACE TEMP TABLE looking AS SELECT * FROM {rows}"
        f" WHERE rid IN (SELECT rid FROM {side}_{which})"
    )


def _same_key(bench: Workbench, rule: RulePlan, side: Side, other: Side) -> None:
    keys = key_columns(rule)
    rows = bench.admit(rule, other, settled=True, whole=False)
    same = conjunction([f"t.{name} = u.{name}" for name in keys])
    bench.run(
        "CREATE OR REPLACE TEMP TABLE within AS"
        f" SELECT t.* FROM {rows} t SEMI JOIN looking u ON {same}"
    )
    most = _offer(bench, other, keys)
    own, their = ("l", "r") if side == "left" else ("r", "l")
    together = conjunction([f"{own}.{name} = {their}.{name}" for name in keys])
    if most:
        _rank(bench, rule, side, f"JOIN offered {their} ON {together}", alone=most == 1)


def _offer(bench: Workbench, other: Side, keys: list[str]) -> int:
    """`offered`: the rows `within` with their record keys, no more than may be looked at of those
    that share some columns; returns the most that did."""
    bound = bench.plan.bounds.closest_candidates
    shared = ", ".join(keys)
    (most,) = bench.row(f"SELECT max(n) FROM (SELECT count(*) AS n FROM within GROUP BY {shared})")
    bounded = (
        f" QUALIFY row_number() OVER (PARTITION BY {shared} ORDER BY key) <= {bound}"
        if (most or 0) > bound
        else ""
    )
    key, join = bench.keyed(other, "t", "t.rid")
    bench.run(
        "CREATE OR REPLACE TEMP TABLE offered AS"
        f" SELECT t.*, {key} AS key FROM within t {join}{bounded}"
    )
    return int(most or 0)


def _nearest(bench: Workbench, rule: RulePlan, side: Side, other: Side) -> None:
    """Rows with the nearest amount (else date) not above, and the nearest above."""
    place = steps.searched(rule)
    if place is None:
        return
    _looking(bench, rule, side, "lonely")
    rows = bench.admit(rule, other, settled=True, whole=False)
    bound = rule.checks[place].bound
    signed = bound.signed("t.v", "t.v") if bound else ("t.v", "t.v")
    mine, theirs = (
        sql.replace("t.v", f"t.v{place}") for sql in (signed if side == "left" else signed[::-1])
    )
    currency = ", t.cur" if rule.currency else ""
    equal = ["u.cur = o.cur"] if rule.currency else []
    bench.run(
        f"CREATE OR REPLACE TEMP TABLE wanted AS SELECT t.rid, {mine} AS x{currency} FROM looking t"
        f" WHERE t.v{place} IS NOT NULL"
    )
    around = _around(
        bench, rule, f"SELECT {theirs} AS x, t.* FROM {rows} t WHERE t.v{place} IS NOT NULL", place
    )
    bench.run(f"CREATE OR REPLACE TEMP TABLE steps AS SELECT DISTINCT x{currency} FROM {around} t")
    found = " UNION ALL ".join(
        f"SELECT u.rid AS seeker, o.* FROM wanted u ASOF JOIN steps o"
        f" ON {conjunction([*equal, f'u.x {sign} o.x'])}"
        for sign in (">=", "<")
    )
    bench.run(f"CREATE OR REPLACE TEMP TABLE nearby AS {found}")
    here = conjunction(["t.x = n.x", *(["t.cur = n.cur"] if rule.currency else [])])
    bench.run(
        "CREATE OR REPLACE TEMP TABLE within AS"
        f" SELECT t.* FROM {around} t SEMI JOIN nearby n ON {here}"
    )
    _offer(bench, other, ["x", "cur"] if rule.currency else ["x"])
    own, their = ("l", "r") if side == "left" else ("r", "l")
    together = [f"{their}.x = n.x"] + ([f"{their}.cur = n.cur"] if rule.currency else [])
    _rank(
        bench,
        rule,
        side,
        f"JOIN nearby n ON n.seeker = {own}.rid JOIN offered {their} ON {conjunction(together)}",
    )


def _around(bench: Workbench, rule: RulePlan, rows: str, place: int) -> str:
    """Of rows (x, cur, …) those that can be nearest to a wanted one: to sort all of them is slow.

    The exact search goes on among what is found.
    """
    double = steps.as_double(rule.checks[place].left.kind, "x")
    currencies: list[str | None] = [None]
    if rule.currency:
        found = bench.rows("SELECT DISTINCT cur FROM wanted WHERE cur IS NOT NULL")
        currencies = [currency for (currency,) in found]
    if len(currencies) > steps.MOST_CURRENCIES:
        bench.run(f"CREATE OR REPLACE TEMP TABLE around AS {rows}")
        return "around"
    bench.run("CREATE OR REPLACE TEMP TABLE lookups (d DOUBLE, cur VARCHAR)")
    for currency in currencies:
        where = "" if currency is None else f" WHERE cur = {literal(currency)}"
        offered = bench.column(f"SELECT {double} FROM ({rows}){where}")
        wanted = bench.column(f"SELECT {double} FROM wanted{where}")
        chosen = steps.beside(offered, wanted)
        said = "NULL" if currency is None else literal(currency)
        bench.add("lookups", chosen, f"SELECT given, {said}")
    same = f"{double} = u.d" + (" AND t.cur = u.cur" if rule.currency else "")
    bench.run(
        f"CREATE OR REPLACE TEMP TABLE around AS SELECT * FROM ({rows}) t"
        f" SEMI JOIN lookups u ON {same}"
    )
    return "around"


def _rank(
    bench: Workbench, rule: RulePlan, side: Side, offered: str, *, alone: bool = False
) -> None:
    """Of each looking row's offered ones the best: most conditions, least distance, first key.

    What is said of a pair is spelled for the best. Where nobody is offered two, nothing is ranked.
    """
    own, their = ("l", "r") if side == "left" else ("r", "l")
    holds = [f"coalesce({check.holds}, false)" for check in rule.checks]
    satisfied = " + ".join(f"CAST({each} AS INTEGER)" for each in holds)
    held = ", ".join(f"{each} AS h{place}" for place, each in enumerate(holds))
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
    best = f"SELECT l, r, {satisfied} AS satisfied, {held} FROM looking {own} {offered}"
    if not alone:
        best += f" QUALIFY row_number() OVER (PARTITION BY {own}.rid ORDER BY {order}) = 1"
    reported = ", ".join(
        "CASE "
        + " ".join(f"WHEN NOT h{place} THEN {each}" for place, each in enumerate(texts))
        + " END"
        for texts in (
            [literal(check.label) for check in rule.checks],
            [values.shown(check.left, f"l.v{n}") for n, check in enumerate(rule.checks)],
            [values.shown(check.right, f"r.v{n}") for n, check in enumerate(rule.checks)],
            [_difference(check, n) for n, check in enumerate(rule.checks)],
        )
    )
    bench.run(
        f"INSERT INTO {side}_near SELECT {own}.rid, {rule.number}, satisfied, {their}.rid,"
        f" {their}.key, {reported} FROM ({best})"
    )


def _difference(check: Check, place: int) -> str:
    if check.is_key:
        return "NULL"
    both = f"l.v{place} IS NOT NULL AND r.v{place} IS NOT NULL"
    return f"CASE WHEN {both} THEN {check.difference} END"
