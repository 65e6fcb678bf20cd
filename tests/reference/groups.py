"""1:N, N:1 and M:N in the reference: groups that share a key, and subsets whose sum fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod

from kalla.reconcile.recipe.model import Condition, Rule, Side, Tolerance
from tests.reference.evidence import Status
from tests.reference.findings import Doubt, Finding, Match
from tests.reference.row_values import Lens
from tests.reference.rows import Row
from tests.reference.values import amount_difference, number_text, within


def match_groups(lens: Lens, rule: Rule, left: list[Row], right: list[Row]) -> list[Finding]:
    """Per key; a row whose amount is null is in no group."""
    sums = Sums(lens, rule)
    counting = [
        [row for row in rows if not (sums.checked and sums.amount(row) is None)]
        for rows in (left, right)
    ]
    found: list[Finding] = []
    for lefts, rights in of_one_key(lens, rule, *counting):
        if rule.cardinality == "M:N":
            found += many_to_many(sums, lefts, rights)
        else:
            ones, manys = (lefts, rights) if rule.cardinality == "1:N" else (rights, lefts)
            if len(ones) == 1:
                found += one_to_many(sums, ones[0], manys)
            elif ones:
                found += several_to_many(sums, ones, manys)
    return found


def of_one_key(
    lens: Lens, rule: Rule, left: list[Row], right: list[Row]
) -> list[tuple[list[Row], list[Row]]]:
    """Rows that have equal keys, or whose keys are both equal to a third: a date in text is equal
    to all times of its day."""
    rest, groups = [*left, *right], []
    while rest:
        group = [rest.pop(0)]
        while near := [e for e in rest if any(same_key(lens, rule, e, row) for row in group)]:
            group += near
            rest = [row for row in rest if row not in near]
        lefts, rights = ([row for row in side if row in group] for side in (left, right))
        groups.append((lefts, rights))
    return groups


def sums_left(lens: Lens, rule: Rule, left: list[Row], right: list[Row]) -> SumsLeft:
    """What the rows that a rule has left come to, key by key: those that agree with some row of
    the other side that it has left."""
    if rule.cardinality == "1:1":
        return {}
    sums = Sums(lens, rule)
    if not sums.checked:
        return {}
    counting = ([row for row in rows if sums.amount(row) is not None] for rows in (left, right))
    return {
        (row, rule.name): Totals(sums.total(lefts), sums.total(rights), sums.tolerance)
        for lefts, rights in (agreeing(sums, *group) for group in of_one_key(lens, rule, *counting))
        for row in (*lefts, *rights)
    }


def same_key(lens: Lens, rule: Rule, one: Row, other: Row) -> bool:
    if one.side == other.side:
        return False
    left, right = (one, other) if one.side == "left" else (other, one)
    return all(lens.holds(each, left, right) for each in lens.equalities(rule))


def differences(
    lens: Lens, rule: Rule, left: Sequence[Row], right: Sequence[Row]
) -> tuple[str, ...]:
    """What a pair differs by, per check; of a group's rule the tolerance is of its sums. Of several
    rows only that can be told."""
    sums = Sums(lens, rule)
    texts = []
    for check in rule.checks:
        if check is rule.tolerance and rule.cardinality != "1:1":
            text: str | None = number_text(sums.difference(left, right))
        elif len(left) == len(right) == 1:
            text = lens.gap_text(check, left[0], right[0])
        else:
            continue
        assert text is not None, "a pair that matched has no null"
        texts.append(text)
    return tuple(texts)


@dataclass(frozen=True)
class Totals:
    """What two groups come to; a turned sign is the business of their difference."""

    left: Fraction
    right: Fraction
    within: Tolerance | None

    @property
    def difference(self) -> Fraction:
        return amount_difference(self.within, self.left, self.right)


SumsLeft = dict[tuple[Row, str], Totals]  # by row and rule


class Sums:
    """The summed columns of a rule, and whether sums of them fit."""

    def __init__(self, lens: Lens, rule: Rule) -> None:
        self.lens, self.rule, self.tolerance = lens, rule, rule.tolerance
        self.named: dict[Side, str | None] = {"left": rule.left_sum, "right": rule.right_sum}
        names = [name for name in self.named.values() if name]
        if self.tolerance is None and len(names) == 1:
            raise ValueError(f"rule {rule.name} names a sum on one side alone and has no tolerance")
        self.checked = self.tolerance is not None or bool(names)

    def amount(self, row: Row) -> Fraction | None:
        """As in the column: a turned sign is the business of comparing."""
        column = self.named[row.side]
        if column is not None:
            return self.lens.number(column, row)
        assert self.tolerance is not None
        amount = self.lens.value(self.tolerance, row)
        assert amount is None or isinstance(amount, Fraction)
        return amount

    def total(self, rows: Iterable[Row]) -> Fraction:
        return sum((self.amount(row) or Fraction(0) for row in rows), Fraction(0))

    def fits(self, one: Iterable[Row], other: Iterable[Row]) -> bool:
        """Whether the sums of two sides' rows are within the tolerance; without one, equal."""
        if not self.checked:
            return True
        left, right = self._sides(one, other)
        if self.tolerance is None:
            return self.total(left) == self.total(right)
        return within(self.tolerance, self.total(left), self.total(right))

    def difference(self, left: Sequence[Row], right: Sequence[Row]) -> Fraction:
        return amount_difference(self.tolerance, self.total(left), self.total(right))

    def counts(self, row: Row) -> bool:
        """Zero amounts are left out of subsets: with or without them the sum is the same."""
        return not self.checked or self.amount(row) != 0

    def admissible(self, one: Row, other: Row) -> bool:
        """Whether all conditions on single rows hold: all but the tolerance that is of the sums."""
        left, right = (one, other) if one.side == "left" else (other, one)
        return all(self.lens.holds(each, left, right) for each in self._of_pairs())

    def match(self, one: Iterable[Row], other: Iterable[Row], status: Status) -> Match:
        left, right = self._sides(one, other)
        return Match(tuple(left), tuple(right), status)

    @property
    def subset_status(self) -> Status:
        return "confirmed" if self.rule.subset == "confirm" else "suggested"

    def _of_pairs(self) -> list[Condition]:
        conditions: list[Condition] = list(self.rule.conditions)
        if self.tolerance is not None:
            conditions.remove(self.tolerance)  # the first that is equal: a second one stays
        return conditions

    def _sides(self, one: Iterable[Row], other: Iterable[Row]) -> tuple[list[Row], list[Row]]:
        rows = (*one, *other)
        return [r for r in rows if r.side == "left"], [r for r in rows if r.side == "right"]


def many_to_many(sums: Sums, lefts: list[Row], rights: list[Row]) -> list[Finding]:
    left, right = agreeing(sums, lefts, rights)
    if left and right and sums.fits(left, right):
        return [sums.match(left, right, "confirmed")]
    return []


def agreeing(sums: Sums, lefts: list[Row], rights: list[Row]) -> tuple[list[Row], list[Row]]:
    """The rows of a key that agree, in all but the sum, with some row of the other side."""
    return (
        [row for row in lefts if any(sums.admissible(row, other) for other in rights)],
        [row for row in rights if any(sums.admissible(row, other) for other in lefts)],
    )


def one_to_many(sums: Sums, one: Row, manys: list[Row]) -> Sequence[Finding]:
    """One row and its group: the whole of it, else a subset that fits."""
    group = [row for row in manys if sums.admissible(one, row)]
    if not group:
        return []
    if sums.fits([one], group):
        return [sums.match([one], group, "confirmed")]
    if len(group) == 1:
        return []
    alike: dict[Fraction | None, list[Row]] = {}
    for row in group:
        if sums.counts(row):
            alike.setdefault(sums.amount(row), []).append(row)
    classes = list(alike.values())
    rows = [row for each in classes for row in each]
    bounds = sums.lens.recipe.bounds
    if (
        len(rows) > bounds.subset_rows
        or prod(len(each) + 1 for each in classes) > bounds.subset_sums
    ):
        return too_large([one], rows, [one], manys)
    fitting = [
        choice
        for choice in product(*(range(len(each) + 1) for each in classes))
        if any(choice) and sums.fits([one], chosen(classes, choice))
    ]
    if not fitting:
        return []
    if len(fitting) == 1:
        whole = chosen(classes, fitting[0])
        if all(taken in (0, len(each)) for taken, each in zip(fitting[0], classes, strict=True)):
            return [sums.match([one], whole, sums.subset_status)]
    usable = [
        row
        for place, each in enumerate(classes)
        if any(choice[place] for choice in fitting)
        for row in each
    ]
    return [
        Doubt(one, tuple(usable), "several_subsets"),
        *(Doubt(row, (one,), "several_subsets") for row in usable),
    ]


def chosen(classes: list[list[Row]], choice: tuple[int, ...]) -> list[Row]:
    return [row for each, taken in zip(classes, choice, strict=True) for row in each[:taken]]


def several_to_many(sums: Sums, ones: list[Row], manys: list[Row]) -> Sequence[Finding]:
    """Several rows on the one side: solved together, row by row."""
    takers = {row: [one for one in ones if sums.admissible(one, row)] for row in manys}
    rows = [row for row in manys if takers[row] and sums.counts(row)]
    bounds = sums.lens.recipe.bounds
    if len(rows) > bounds.subset_rows or (len(ones) + 1) ** len(rows) > bounds.subset_sums:
        return too_large(ones, rows, ones, manys)
    solutions = []
    for goes_to in product(*([None, *takers[row]] for row in rows)):
        served: dict[Row, list[Row]] = {}
        for row, taker in zip(rows, goes_to, strict=True):
            if taker is not None:
                served.setdefault(taker, []).append(row)
        if all(sums.fits([one], group) for one, group in served.items()):
            solutions.append(served)
    most = max(len(served) for served in solutions)
    best = [served for served in solutions if len(served) == most]
    if most == 0:
        return []
    if len(best) == 1:
        return [sums.match([one], group, sums.subset_status) for one, group in best[0].items()]
    uses = {(one, row) for served in best for one, group in served.items() for row in group}
    return [
        Doubt(one, tuple(row for row in rows if (one, row) in uses), "several_groups")
        for one in ones
        if any(user == one for user, _ in uses)
    ] + [
        Doubt(row, tuple(one for one in ones if (one, row) in uses), "several_groups")
        for row in rows
        if any(used == row for _, used in uses)
    ]


def too_large(
    ones: list[Row], manys: list[Row], all_ones: list[Row], all_manys: list[Row]
) -> Sequence[Finding]:
    """Not tried: the candidates of each are all of the other side in that key."""
    return [Doubt(one, tuple(all_manys), "too_large") for one in ones] + [
        Doubt(row, tuple(all_ones), "too_large") for row in manys
    ]
