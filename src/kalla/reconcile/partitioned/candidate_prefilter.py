"""Selects the few rows of a side that can be nearest candidates.

No task holds all of a side: rows that cannot be near any unmatched row are not read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from kalla.reconcile.arrays import nearest_values
from kalla.reconcile.arrays.arrow_numbers import numbers
from kalla.reconcile.partitioned.shuffle import Key
from kalla.reconcile.plan.plan import Input, RulePlan, SidePlan
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.rule_sql import conjunction
from kalla.reconcile.sources.scanning.scan_sql import reader
from kalla.reconcile.sql.column_values import literal

_HELPING = 2_000_000  # values


def only(given: Input, where: str) -> Input:
    """Of rows that were written, those that a condition over them admits; nobody counts others."""
    return replace(given, relation=f"(FROM {reader(given)} WHERE {where})", table="")


def around(session: MatchSession, side: Side, rows: SidePlan, *, by_key: bool) -> str:
    """A condition over `rows`, the other side: whether an asking row of `side` may find it closest.

    It admits too much rather than too little. The asking rows are loaded.
    """
    asked = [
        found
        for rule in session.plan.rules
        for found in (
            _same_key(session, rule, side, rows.side) if by_key else None,
            _near_values(session, rule, side, rows),
        )
        if found is not None
    ]
    return " OR ".join(f"({each})" for each in asked) or "false"


def _same_key(session: MatchSession, rule: RulePlan, side: Side, other: Side) -> str | None:
    if not rule.key:
        return None
    key, table = Key.of(rule), f"keys_{rule.number}"
    mine, theirs = (key.hashed(each) for each in (side, other))
    session.run(
        f"CREATE TEMP TABLE {table} AS SELECT DISTINCT {mine} AS h FROM {session.all_rows(side)}"
    )
    return f"{theirs} IN (SELECT h FROM {table} WHERE h IS NOT NULL)"


def _near_values(session: MatchSession, rule: RulePlan, side: Side, rows: SidePlan) -> str | None:
    """By the amount (else the date) that the search goes by."""
    place = nearest_values.searched(rule)
    if place is None:
        return None
    compared = rule.checks[place]
    values = (compared.left.sql, compared.right.sql)
    signed = compared.bound.signed(*values) if compared.bound else values
    doubles = {
        each: nearest_values.as_double(compared.left.kind, signed[SIDES.index(each)])
        for each in SIDES
    }
    mine, theirs = doubles[side], doubles[rows.side]
    currency = {each: rule.currency[SIDES.index(each)].sql for each in SIDES if rule.currency}
    admitted = [f"{theirs} IS NOT NULL", *filter(None, [rule.filters[SIDES.index(rows.side)]])]
    found: list[str | None] = [None]
    if currency:
        found_rows = session.rows(
            f"SELECT DISTINCT {currency[side]} AS c FROM {session.all_rows(side)} WHERE c NOT NULL"
        )
        found = [each for (each,) in found_rows]
    if len(found) > nearest_values.MOST_CURRENCIES:
        return conjunction(admitted)
    table = f"near_{rule.number}"
    session.run(f"CREATE TEMP TABLE {table} (d DOUBLE)")
    for each in found:
        same = {
            of: [] if each is None else [f"{sql} = {literal(each)}"]
            for of, sql in (currency or dict.fromkeys(SIDES, "")).items()
        }
        where = conjunction([f"{mine} IS NOT NULL", *same[side]])
        wanted = session.column(f"SELECT {mine} FROM {session.all_rows(side)} WHERE {where}")
        offered = conjunction([*admitted, *same[rows.side]])
        batches = session.batches(f"SELECT {theirs} FROM {reader(rows.input)} WHERE {offered}")
        near = _nearest((numbers(batch.column(0)) for batch in batches), wanted)
        session.add(table, near, "SELECT given")
    return conjunction([*admitted, f"{theirs} IN (SELECT d FROM {table})"])


def _nearest(
    offered: Iterable[nearest_values.Floats], wanted: nearest_values.Floats
) -> nearest_values.Floats:
    """In few and large helpings, though not all at once: for each, all that is wanted is sought."""
    near = np.empty(0, np.float64)
    waiting: list[nearest_values.Floats] = []
    for each in offered:
        waiting.append(each)
        if sum(map(len, waiting)) >= _HELPING:
            near, waiting = nearest_values.beside(np.concatenate([near, *waiting]), wanted), []
    return nearest_values.beside(np.concatenate([near, *waiting]), wanted)
