"""For every row that stayed unmatched: the nearest row of the other side, and why it did not match.

First among the rows with the same key, then by amount or date. Bounded: a row looks at no more than
a set number of others, always the same ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kalla.reconcile.matching import values
from kalla.reconcile.matching.conditions import Check
from kalla.reconcile.matching.values import literal
from kalla.reconcile.matching.workbench import Workbench, conjunction, key_columns
from kalla.reconcile.model import Side
from kalla.reconcile.plan import RulePlan

Floats = npt.NDArray[np.float64]

# With more currencies than this, rows are not looked up currency by currency.
_CURRENCIES = 20


def search(bench: Workbench, side: Side, *, by_key: bool = True, by_value: bool = True) -> None:
    """Fill `{side}_near` and `{side}_tried`, the rules that met it, for every unmatched row.

    Of a bucket only the keys can be searched: what is nearest by value may be in another.
    """
    other: Side = "right" if side == "left" else "left"
    bench.run(
        f"CREATE TEMP TABLE {side}_near (rid BIGINT, rule INTEGER, satisfied INTEGER, other BIGINT,"
        " candidate VARCHAR, failing VARCHAR, left_value VARCHAR, right_value VARCHAR,"
        " difference VARCHAR)"
    )
    bench.run(f"CREATE TEMP TABLE {side}_tried (rid BIGINT, rule INTEGER)")
    for rule in bench.plan.rules:
        looking = _looking(bench, rule, side)
        bench.run(f"INSERT INTO {side}_tried SELECT rid, {rule.number} FROM {looking}")
        if rule.key and by_key:
            _same_key(bench, rule, side, other)
    bench.run(
        f"CREATE TEMP TABLE {side}_lonely AS SELECT rid FROM {side}_unmatched"
        f" WHERE rid NOT IN (SELECT rid FROM {side}_near)"
    )
    (lonely,) = bench.row(f"SELECT count(*) FROM {side}_lonely")
    for rule in bench.plan.rules if lonely and by_value else ():
        _nearest(bench, rule, side, other)


def _looking(bench: Workbench, rule: RulePlan, side: Side, which: str = "unmatched") -> str:
    """`looking`: the unmatched rows that a rule's filters admit."""
    rows = bench.admit(rule, side, whole=False)
    bench.run(
        f"CREATE OR REPLACE TEMP TABLE looking AS SELECT * FROM {rows}"
        f" WHERE rid IN (SELECT rid FROM {side}_{which})"
    )
    return "looking"


def _same_key(bench: Workbench, rule: RulePlan, side: Side, other: Side) -> None:
    keys = key_columns(rule)
    rows = bench.admit(rule, other, settled=True, whole=False)
    same = conjunction([f"t.{name} = u.{name}" for name in keys])
    bench.run(
        "CREATE OR REPLACE TEMP TABLE within AS"
        f" SELECT t.* FROM {rows} t SEMI JOIN looking u ON {same}"
    )
    most = bench.plan.bounds.closest_candidates
    shared = ", ".join(keys)
    crowd = (
        f"SELECT count(*) FROM (SELECT 1 FROM within GROUP BY {shared} HAVING count(*) > {most})"
    )
    bounded = (
        f" QUALIFY row_number() OVER (PARTITION BY {shared} ORDER BY key) <= {most}"
        if bench.row(crowd)[0]
        else ""
    )
    key, join = bench.keyed(other, "t", "t.rid")
    bench.run(
        "CREATE OR REPLACE TEMP TABLE offered AS"
        f" SELECT t.*, {key} AS key FROM within t {join}{bounded}"
    )
    own, their = ("l", "r") if side == "left" else ("r", "l")
    together = conjunction([f"{own}.{name} = {their}.{name}" for name in keys])
    _rank(bench, rule, side, f"JOIN offered {their} ON {together}")


def _nearest(bench: Workbench, rule: RulePlan, side: Side, other: Side) -> None:
    """Rows with the nearest amount (else date) not above, and the nearest above."""
    place = next(
        (number for number, check in enumerate(rule.checks) if check.bound),
        next((number for number, check in enumerate(rule.checks) if check.band), None),
    )
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
    shared = "x, cur" if rule.currency else "x"
    key, join = bench.keyed(other, "t", "t.rid")
    bench.run(
        f"CREATE OR REPLACE TEMP TABLE offered AS SELECT t.*, {key} AS key FROM"
        f" (SELECT * FROM {around} t SEMI JOIN nearby n ON {here}) t {join}"
        f" QUALIFY row_number() OVER (PARTITION BY {shared}"
        f" ORDER BY key) <= {bench.plan.bounds.closest_candidates}"
    )
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

    Numbers are looked up as doubles, two steps to each side, since a double may be a little off;
    the exact search goes on among what is found.
    """
    kind = rule.checks[place].left.kind
    double = {
        "number": "CAST(x AS DOUBLE)",
        "date": "CAST(x - DATE '1970-01-01' AS DOUBLE)",
        "timestamp": "CAST(epoch_us(x) AS DOUBLE)",
    }[kind]
    currencies: list[str | None] = [None]
    if rule.currency:
        found = bench.rows("SELECT DISTINCT cur FROM wanted WHERE cur IS NOT NULL")
        currencies = [currency for (currency,) in found]
    if len(currencies) > _CURRENCIES:
        bench.run(f"CREATE OR REPLACE TEMP TABLE around AS {rows}")
        return "around"
    bench.run("CREATE OR REPLACE TEMP TABLE lookups (d DOUBLE, cur VARCHAR)")
    for currency in currencies:
        where = "" if currency is None else f" WHERE cur = {literal(currency)}"
        steps = np.sort(bench.column(f"SELECT {double} FROM ({rows}){where}"))
        wanted = np.sort(bench.column(f"SELECT {double} FROM wanted{where}"))
        chosen = _beside(steps, wanted)
        said = "NULL" if currency is None else literal(currency)
        bench.add("lookups", chosen, f"SELECT given, {said}")
    same = f"{double} = u.d" + (" AND t.cur = u.cur" if rule.currency else "")
    bench.run(
        f"CREATE OR REPLACE TEMP TABLE around AS SELECT * FROM ({rows}) t"
        f" SEMI JOIN lookups u ON {same}"
    )
    return "around"


def _beside(steps: Floats, wanted: Floats) -> Floats:
    """The two steps below and above each wanted one, and its own; both are sorted."""
    if len(steps):
        steps = steps[np.concatenate([[True], steps[1:] != steps[:-1]])]
    at = np.searchsorted(steps, wanted)
    near = np.zeros(len(steps) + 5, np.bool_)  # two places more on each side
    for offset in range(5):
        near[at + offset] = True
    return steps[near[2 : len(steps) + 2]]


def _rank(bench: Workbench, rule: RulePlan, side: Side, offered: str) -> None:
    """Of each looking row's offered ones the best: most conditions, least distance, first key."""
    own, their = ("l", "r") if side == "left" else ("r", "l")
    holds = [f"coalesce({check.holds}, false)" for check in rule.checks]
    satisfied = " + ".join(f"CAST({each} AS INTEGER)" for each in holds)
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

    def first_failing(texts: list[str]) -> str:
        cases = " ".join(
            f"WHEN NOT {each} THEN {text}" for each, text in zip(holds, texts, strict=True)
        )
        return f"CASE {cases} END"

    reported = ", ".join(
        [
            first_failing([literal(check.label) for check in rule.checks]),
            first_failing(
                [values.shown(check.left, f"l.v{n}") for n, check in enumerate(rule.checks)]
            ),
            first_failing(
                [values.shown(check.right, f"r.v{n}") for n, check in enumerate(rule.checks)]
            ),
            first_failing([_difference(check, n) for n, check in enumerate(rule.checks)]),
        ]
    )
    bench.run(
        f"INSERT INTO {side}_near SELECT {own}.rid, {rule.number}, {satisfied} AS satisfied,"
        f" {their}.rid, {their}.key, {reported} FROM looking {own} {offered}"
        f" QUALIFY row_number() OVER (PARTITION BY {own}.rid ORDER BY {order}) = 1"
    )


def _difference(check: Check, place: int) -> str:
    if check.is_key:
        return "NULL"
    both = f"l.v{place} IS NOT NULL AND r.v{place} IS NOT NULL"
    return f"CASE WHEN {both} THEN {check.difference} END"
