"""Of all rows of a side, the few that the search for closest candidates can come upon.

In buckets nobody holds all of a side. What the rows that ask cannot be near to is left in its file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from kalla.reconcile.matching import steps
from kalla.reconcile.matching.exchange import Key
from kalla.reconcile.matching.fates import numbers
from kalla.reconcile.matching.phrases import conjunction
from kalla.reconcile.matching.values import literal
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.model import SIDES, Side
from kalla.reconcile.plan import Input, RulePlan, SidePlan
from kalla.reconcile.sources.scans import reader

_HELPING = 2_000_000  # values


def only(given: Input, where: str) -> Input:
    """Of rows that were written, those that a condition over them admits; nobody counts others."""
    return replace(given, relation=f"(FROM {reader(given)} WHERE {where})", table="")


def around(bench: Workbench, side: Side, rows: SidePlan, *, by_key: bool) -> str:
    """A condition over `rows`, the other side: whether an asking row of `side` may find it closest.

    It admits too much rather than too little. The asking rows are loaded.
    """
    asked = [
        found
        for rule in bench.plan.rules
        for found in (
            _same_key(bench, rule, side, rows.side) if by_key else None,
            _near_values(bench, rule, side, rows),
        )
        if found is not None
    ]
    return " OR ".join(f"({each})" for each in asked) or "false"


def _same_key(bench: Workbench, rule: RulePlan, side: Side, other: Side) -> str | None:
    if not rule.key:
        return None
    key, table = Key.of(rule), f"keys_{rule.number}"
    mine, theirs = (key.hashed(each) for each in (side, other))
    bench.run(
        f"CREATE TEMP TABLE {table} AS SELECT DISTINCT {mine} AS h FROM {bench.all_rows(side)}"
    )
    return f"{theirs} IN (SELECT h FROM {table} WHERE h IS NOT NULL)"


def _near_values(bench: Workbench, rule: RulePlan, side: Side, rows: SidePlan) -> str | None:
    """By the amount (else the date) that the search goes by."""
    place = steps.searched(rule)
    if place is None:
        return None
    compared = rule.checks[place]
    values = (compared.left.sql, compared.right.sql)
    signed = compared.bound.signed(*values) if compared.bound else values
    doubles = {
        each: steps.as_double(compared.left.kind, signed[SIDES.index(each)]) for each in SIDES
    }
    mine, theirs = doubles[side], doubles[rows.side]
    currency = {each: rule.currency[SIDES.index(each)].sql for each in SIDES if rule.currency}
    admitted = [f"{theirs} IS NOT NULL", *filter(None, [rule.filters[SIDES.index(rows.side)]])]
    found: list[str | None] = [None]
    if currency:
        told = bench.rows(
            f"SELECT DISTINCT {currency[side]} AS c FROM {bench.all_rows(side)} WHERE c NOT NULL"
        )
        found = [each for (each,) in told]
    if len(found) > steps.MOST_CURRENCIES:
        return conjunction(admitted)
    table = f"near_{rule.number}"
    bench.run(f"CREATE TEMP TABLE {table} (d DOUBLE)")
    for each in found:
        same = {
            of: [] if each is None else [f"{sql} = {literal(each)}"]
            for of, sql in (currency or dict.fromkeys(SIDES, "")).items()
        }
        where = conjunction([f"{mine} IS NOT NULL", *same[side]])
        wanted = bench.column(f"SELECT {mine} FROM {bench.all_rows(side)} WHERE {where}")
        offered = conjunction([*admitted, *same[rows.side]])
        batches = bench.batches(f"SELECT {theirs} FROM {reader(rows.input)} WHERE {offered}")
        near = _nearest((numbers(batch.column(0)) for batch in batches), wanted)
        bench.add(table, near, "SELECT given")
    return conjunction([*admitted, f"{theirs} IN (SELECT d FROM {table})"])


def _nearest(offered: Iterable[steps.Floats], wanted: steps.Floats) -> steps.Floats:
    """In few and large helpings, though not all at once: for each, all that is wanted is sought."""
    near = np.empty(0, np.float64)
    waiting: list[steps.Floats] = []
    for each in offered:
        waiting.append(each)
        if sum(map(len, waiting)) >= _HELPING:
            near, waiting = steps.beside(np.concatenate([near, *waiting]), wanted), []
    return steps.beside(np.concatenate([near, *waiting]), wanted)
