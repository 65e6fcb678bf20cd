"""Why a row is left over: the rules it met, and the row of the other side that came closest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from kalla.reconcile.recipe.model import SIDES, Condition, DateWindow, Equal, Rule, Tolerance
from tests.reference.evidence import Fate, Unmatched
from tests.reference.groups import SumsLeft
from tests.reference.row_values import Lens
from tests.reference.rows import Row, in_key_order
from tests.reference.values import as_text, in_time, number_text


@dataclass(frozen=True)
class Candidate:
    rule: Rule
    left: Row
    right: Row
    other: Row


def closest(
    lens: Lens, row: Row, rows: Sequence[Row], fates: Mapping[Row, Fate], sums: SumsLeft
) -> Unmatched:
    """Within the same key first; where no rule finds any, by amount or date."""
    rules = [rule for rule in lens.recipe.rules_in_order if lens.admits(rule, row)]
    attempted = tuple(rule.name for rule in rules)
    if not rules:
        return Unmatched(row.key, row.side, attempted, rejection_reason="not_attempted")
    others = [other for other in rows if other.side != row.side]
    candidates = gather(lens, rules, row, others, same_key) or gather(
        lens, rules, row, others, nearest
    )
    if not candidates:
        return Unmatched(row.key, row.side, attempted, rejection_reason="no_candidate")
    best = min(candidates, key=lambda each: rank(lens, rules, each))
    fail = [
        (name, each)
        for name, each in conditions(lens, best.rule)
        if not lens.holds(each, best.left, best.right)
    ]
    if not fail:
        became = fates[best.other]
        fits = Unmatched(
            row.key, row.side, attempted, best.other.key, became, best.rule.name,
            rejection_reason="taken",
        )  # fmt: skip
        if became != "unmatched":
            return fits
        # Both are left over though they fit each other: it is their groups that do not.
        within = best.rule.tolerance
        summed = [best.rule.summed(side) or (within and within.column(side)) for side in SIDES]
        label = f"sum({', '.join(map(str, summed))})"
        failed = replace(fits, failing_condition=label, rejection_reason="sum_failed")
        totals = sums.get((row, best.rule.name))
        return (
            failed
            if totals is None
            else replace(
                failed,
                left_value=number_text(totals.left),
                right_value=number_text(totals.right),
                difference=number_text(totals.difference),
            )
        )
    name, failing = fail[0]
    return Unmatched(
        record_key=row.key,
        side=row.side,
        attempted_rules=attempted,
        closest_candidate=best.other.key,
        candidate_status=fates[best.other],
        rule=best.rule.name,
        failing_condition=f"{name}({failing.left}, {failing.right})",
        left_value=as_text(lens.value(failing, best.left)),
        right_value=as_text(lens.value(failing, best.right)),
        difference=difference(lens, failing, best),
        rejection_reason="condition_failed",
    )


def conditions(lens: Lens, rule: Rule) -> list[tuple[str, Condition]]:
    """In order and by name; before what the nearest rows are looked for by, else before all, that
    amounts are of one currency."""
    named: list[tuple[str, Condition]] = [(each.op, each) for each in rule.conditions]
    found = searched(rule)
    place = 0 if found is None else rule.conditions.index(found)
    return [*named[:place], *(("currency", same) for same in lens.currency(rule)), *named[place:]]


def searched(rule: Rule) -> Tolerance | DateWindow | None:
    """The amount that the nearest rows are looked for by, else the date."""
    windows = (each for each in rule.conditions if isinstance(each, DateWindow))
    return rule.tolerance or next(windows, None)


def difference(lens: Lens, failing: Condition, pair: Candidate) -> str | None:
    """By how much a condition failed; values that should be equal only differ."""
    return None if isinstance(failing, Equal) else lens.gap_text(failing, pair.left, pair.right)


def gather(
    lens: Lens,
    rules: Sequence[Rule],
    row: Row,
    others: Sequence[Row],
    search: Callable[[Lens, Rule, Row, Sequence[Row]], list[Row]],
) -> list[Candidate]:
    return [
        Candidate(rule, *in_order(row, other), other)
        for rule in rules
        for other in search(lens, rule, row, [each for each in others if lens.admits(rule, each)])
    ]


def rank(lens: Lens, rules: Sequence[Rule], pair: Candidate) -> tuple[object, ...]:
    """Most conditions satisfied, then the earlier rule, then the least distance, then key.

    Distances of two rules are of different things, so the rule decides before they do; amounts of
    two currencies are further apart than any of one.
    """
    rule = pair.rule
    satisfied = sum(lens.holds(each, pair.left, pair.right) for _, each in conditions(lens, rule))
    strange = not all(lens.holds(each, pair.left, pair.right) for each in lens.currency(rule))
    gaps = [lens.gap(each, pair.left, pair.right) for each in rule.checks]
    far = tuple((gap is None, abs(gap or 0)) for gap in gaps)
    return (-satisfied, rules.index(rule), strange, far, pair.other.order)


def same_key(lens: Lens, rule: Rule, row: Row, others: Sequence[Row]) -> list[Row]:
    """Of whatever currency."""
    key = lens.key_alone(rule, row)
    if not rule.key or key is None:
        return []
    return first(lens, [other for other in others if lens.key_alone(rule, other) == key])


def nearest(lens: Lens, rule: Rule, row: Row, others: Sequence[Row]) -> list[Row]:
    """Of the same currency, the rows with the nearest amount (or date) not above the row's, and
    those with the nearest above."""
    same = [
        other
        for other in others
        if all(lens.holds(each, *in_order(row, other)) for each in lens.currency(rule))
    ]
    match searched(rule):
        case Tolerance() as tolerance:
            return around(lens, row, same, lambda each: lens.amount(tolerance, each))
        case DateWindow() as window:
            return around(lens, row, same, lambda each: _in_time(lens, window, each))
    return []


def _in_time(lens: Lens, window: DateWindow, row: Row) -> object:
    value = lens.value(window, row)
    return in_time(value, lens.zone) if isinstance(value, date) else None


def in_order(row: Row, other: Row) -> tuple[Row, Row]:
    return (row, other) if row.side == "left" else (other, row)


def around(lens: Lens, row: Row, others: Sequence[Row], measure: Callable[[Row], Any]) -> list[Row]:
    own = measure(row)
    if own is None:
        return []
    measured = [other for other in others if measure(other) is not None]
    not_above = [other for other in measured if measure(other) <= own]
    above = [other for other in measured if measure(other) > own]
    floor = max((measure(other) for other in not_above), default=None)
    ceiling = min((measure(other) for other in above), default=None)
    return first(lens, [each for each in not_above if measure(each) == floor]) + first(
        lens, [each for each in above if measure(each) == ceiling]
    )


def first(lens: Lens, rows: Sequence[Row]) -> list[Row]:
    """No more than the bound, in the order of their keys."""
    return list(in_key_order(rows)[: lens.recipe.bounds.closest_candidates])
