"""The array path: the only interface of this folder for matching and explaining rows.

From a number of rows on, whole numbers, decimals and dates are held as arrays beside DuckDB, and
rules that compare nothing else are carried out by loops over them. `decide` says which rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from kalla.reconcile.arrays import column_arrays, dense_key_join, nearest_in_arrays
from kalla.reconcile.arrays.column_arrays import Column
from kalla.reconcile.arrays.loaded_rows import LoadedRows
from kalla.reconcile.arrays.nearest_in_arrays import NearestCandidates as NearestCandidates
from kalla.reconcile.arrays.nearest_in_arrays import measured as measured
from kalla.reconcile.arrays.nearest_in_arrays import of_same_key as of_same_key
from kalla.reconcile.arrays.nearest_in_arrays import table as table
from kalla.reconcile.plan.plan import Plan, RulePlan
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.sql.column_values import WHOLE

_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*\d+\)")


@dataclass(frozen=True)
class Choice:
    """What of a rule arrays do, and why they do not do the rest."""

    pairs: bool
    candidates: bool
    reason: str = ""

    def __str__(self) -> str:
        if self.pairs and self.candidates:
            return "pairs and closest candidates by arrays"
        done = "pairs" if self.pairs else "closest candidates" if self.candidates else ""
        rest = "closest candidates" if self.pairs else "pairs" if self.candidates else ""
        why = f"SQL: {self.reason}"
        return f"{done} by arrays, {rest} by {why}" if done else f"by {why}"


def decide(plan: Plan, rows: Mapping[Side, int | None]) -> tuple[Choice, ...]:
    """Whether the rules take arrays, each in its place, for sides of so many rows.

    Even then the data may not allow it: numbers that lie far apart, or more than memory holds.
    """
    reasons = [_needs_sql(plan, rule, rows) for rule in plan.rules]
    others = next(filter(None, reasons), "")  # candidates are searched by all rules together
    return tuple(
        _choice(plan, rule, reason, others)
        for rule, reason in zip(plan.rules, reasons, strict=True)
    )


def _choice(plan: Plan, rule: RulePlan, reason: str, others: str) -> Choice:
    if reason:
        return Choice(False, False, reason)
    if rule.cardinality != "1:1":
        return Choice(False, not others, f"the rule is {rule.cardinality}")
    if not any(rule.holds_key_of(side) for side in plan.sides.values()):
        return Choice(False, not others, "its key is the primary key of neither side")
    return Choice(True, not others, f"another rule needs SQL ({others})" if others else "")


def _needs_sql(plan: Plan, rule: RulePlan, rows: Mapping[Side, int | None]) -> str:
    """Why a rule cannot take arrays; empty if it can."""
    if plan.statement is not None:
        return "match_sql is carried out by Spark"
    few = [side for side in SIDES if (rows[side] or 0) < column_arrays.MANY]
    if few:
        return f"the {few[0]} side has fewer than {column_arrays.MANY:,} rows"
    if any(rule.filters):
        return "the rule has filters"
    if not all(map(rule.reads_unchanged, SIDES)):
        return "what it compares is derived, or read from text"
    if len(rule.key) != 1:
        return "its key is not one column"
    if rule.currency:
        return "it compares amounts of one currency"
    for check in rule.checks:
        left, right = (plan.sides[side].input.types[check.of(side).column] for side in SIDES)
        if check.is_key:
            if not {left, right} <= WHOLE:
                return "its key is not a whole number"
        elif check.window is None or left != right or not _has_differences(left):
            return f"{check.label} is not a range of two decimals or dates of one type"
    return ""


def _has_differences(kind: str) -> bool:
    """Whether two of its values differ by a number of one word: points in time may be infinite."""
    decimal = _DECIMAL.fullmatch(kind)
    return int(decimal[1]) <= column_arrays.DIGITS if decimal else kind == "DATE"


def choices(session: LoadedRows) -> tuple[Choice, ...]:
    """Of the rules of a session, by the rows that it has loaded."""
    return decide(session.plan, {side: session.row_status[side].rows for side in SIDES})


def pairs(session: LoadedRows, rule: RulePlan) -> pa.Table | None:
    """All pairs of rows that satisfy key and checks of a 1:1 rule; none if SQL has to find them."""
    if not choices(session)[session.plan.rules.index(rule)].pairs:
        return None
    for side in SIDES:
        if rule.holds_key_of(session.plan.sides[side]) and session.ordinals.get(side) is False:
            found = dense_key_join.join(session, rule, side)
            if found is not None:
                return found
    return None


def candidates(
    session: LoadedRows, side: Side, *, by_key: bool = True, by_value: bool = True
) -> list[NearestCandidates] | None:
    """Of every unmatched row that has a closest one: which it is, and by which rule; none if SQL
    has to find them."""
    if not all(choice.candidates for choice in choices(session)):
        return None
    return nearest_in_arrays.search(session, side, by_key=by_key, by_value=by_value)


def column(session: LoadedRows, rule: RulePlan, place: int, side: Side) -> Column | None:
    """What a check compares, of all rows, for a search by SQL that has it already."""
    found = session.column_arrays(side)
    if found is None or not rule.reads_unchanged(side):
        return None
    return found.column(rule.checks[place].of(side).sql)
