"""Sums that fit and the rows that have them, against what is found by trying every way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import product

import pytest

from kalla.reconcile.matching import subset_sum
from kalla.reconcile.matching.subset_sum import Found
from kalla.reconcile.matching.sum_bounds import Fitting, Ranges
from kalla.reconcile.recipe.model import SIDES, Side, Tolerance
from kalla.reconcile.sql.conditions import Bound
from tests.reference.values import within

UNITS = pytest.mark.parametrize("unit", [1, 2**70], ids=["in 64 bits", "in more"])


@pytest.mark.parametrize("one", SIDES)
@pytest.mark.parametrize("negate", [None, *SIDES])
@pytest.mark.parametrize(
    "allowed",
    [
        {"absolute": "0"},
        {"absolute": "0.125"},
        {"below": "0.2"},
        {"percent": "0"},
        {"percent": "33.3"},
        {"percent": "100"},
        {"percent": "250"},
        {"below_percent": "100", "above": "0.05"},
        {"below": "0.31", "above_percent": "7"},
    ],
    ids=str,
)
def test_the_sums_that_fit_are_those_within_the_tolerance(
    allowed: dict[str, str], negate: Side | None, one: Side
) -> None:
    tolerance = Tolerance.model_validate({"left": "a", "right": "b", "negate": negate, **allowed})
    fitting = Fitting(_bound(allowed, negate), one, 2)
    for amount in (-40, -9, -1, 0, 1, 7, 40):
        expected = []
        for total in range(-99, 100):
            left, right = (amount, total) if one == "left" else (total, amount)
            if within(tolerance, Fraction(left, 100), Fraction(right, 100)):
                expected.append(total)
        ranges = fitting(amount, 99)
        found = [total for low, high in ranges for total in range(low, high + 1)]
        assert sorted(found) == expected
        assert all(low <= high for low, high in ranges)


def _bound(allowed: dict[str, str], negate: Side | None) -> Bound:
    given = {name: Decimal(number) for name, number in allowed.items()}
    absolute, percent = given.get("absolute"), given.get("percent")
    return Bound(
        given.get("below", absolute),
        given.get("above", absolute),
        given.get("below_percent", percent),
        given.get("above_percent", percent),
        negate,
    )


@UNITS
def test_ways_to_add_up_to_one_amount_are_those_found_by_trying(unit: int) -> None:
    chance = random.Random(1)
    seen: Counter[str] = Counter()
    for amounts, (fits,) in _groups(chance, unit, rows=8, ones=1):
        found = subset_sum.for_one(amounts, fits, 24, 10**6)
        assert found == _tried_for_one(amounts, _inside(fits))
        seen[found.reason or f"{len(found.groups)} groups"] += 1
    assert min(seen["several_subsets"], seen["1 groups"], seen["0 groups"]) > 50


def _tried_for_one(amounts: Sequence[int], fits: Callable[[int], bool]) -> Found:
    classes = sorted(Counter(amounts).items())
    ways = [
        taken
        for taken in product(*(range(count + 1) for _, count in classes))
        if any(taken)
        and fits(sum(n * amount for n, (amount, _) in zip(taken, classes, strict=True)))
    ]
    used = {amount for way in ways for n, (amount, _) in zip(way, classes, strict=True) if n}
    rows = tuple(place for place, amount in enumerate(amounts) if amount in used)
    if not ways:
        return Found()
    if len(ways) == 1 and all(
        n in (0, count) for n, (_, count) in zip(ways[0], classes, strict=True)
    ):
        return Found(((0, rows),))
    return Found(reason="several_subsets", ones=(0,), users=tuple((row, (0,)) for row in rows))


@UNITS
@pytest.mark.parametrize("ones", [2, 3, 5])
def test_ways_to_serve_several_amounts_are_those_found_by_trying(unit: int, ones: int) -> None:
    chance = random.Random(ones)
    seen: Counter[str] = Counter()
    for amounts, fits in _groups(chance, unit, rows=5 if ones < 5 else 4, ones=ones):
        if chance.random() < 0.3:
            fits = [fits[-1], *fits[1:]]
        likely = chance.choice((0.8, 1))
        admissible = [[one for one in range(ones) if chance.random() < likely] for _ in amounts]
        found = subset_sum.for_several(amounts, admissible, fits, 24, 10**6)
        assert found == _tried_for_several(amounts, admissible, list(map(_inside, fits)))
        seen[found.reason or f"{len(found.groups)} groups"] += 1
    assert min(seen["several_groups"], seen["2 groups"], seen["0 groups"]) >= 10


def _tried_for_several(
    amounts: Sequence[int],
    admissible: Sequence[Sequence[int]],
    fits: Sequence[Callable[[int], bool]],
) -> Found:
    ways = []
    for goes_to in product(*((None, *ones) for ones in admissible)):
        groups: dict[int, list[int]] = {}
        for row, one in enumerate(goes_to):
            if one is not None:
                groups.setdefault(one, []).append(row)
        if all(fits[one](sum(amounts[row] for row in rows)) for one, rows in groups.items()):
            ways.append(groups)
    most = max(map(len, ways))
    best = [groups for groups in ways if len(groups) == most]
    if most == 0:
        return Found()
    if len(best) == 1:
        return Found(tuple((one, tuple(rows)) for one, rows in sorted(best[0].items())))
    users: dict[int, set[int]] = {}
    for groups in best:
        for one, rows in groups.items():
            for row in rows:
                users.setdefault(row, set()).add(one)
    return Found(
        reason="several_groups",
        ones=tuple(sorted({one for each in users.values() for one in each})),
        users=tuple((row, tuple(sorted(each))) for row, each in sorted(users.items())),
    )


def test_of_very_many_that_one_row_would_serve_nobody_knows_which() -> None:
    ones = 100_000
    found = subset_sum.for_several([5], [range(ones)], [[(5, 5)]] * ones, 24, 10**6)
    assert found == Found((), "several_groups", tuple(range(ones)), ((0, tuple(range(ones))),))


def test_more_rows_or_sums_than_the_bound_are_not_tried() -> None:
    for bounds in ((2, 100), (24, 5)):
        found = subset_sum.for_one([5, 5, 7], [(10, 10)], *bounds)  # 3 * 2 sums
        assert found == Found((), "too_large", (0,), ((0, (0,)), (1, (0,)), (2, (0,))))
    assert subset_sum.for_one([5, 5, 7], [(10, 10)], 3, 6).groups == ((0, (0, 1)),)
    for bounds in ((1, 100), (24, 8)):
        found = subset_sum.for_several(
            [5, 7], [[0, 1], [0]], [[(5, 5)], [(7, 7)]], *bounds
        )  # 3 ** 2
        assert found == Found((), "too_large", (0, 1), ((0, (0, 1)), (1, (0, 1))))
    found = subset_sum.for_several([5, 7], [[0, 1], [0]], [[(7, 7)], [(5, 5)]], 2, 9)
    assert found.groups == ((0, (1,)), (1, (0,)))


def _groups(
    chance: random.Random, unit: int, *, rows: int, ones: int
) -> Iterator[tuple[list[int], list[Ranges]]]:
    """Amounts of both signs, and for each of the ones the sums that fit it, within reach."""
    for _ in range(600):
        most = chance.choice((3, 10, 100))
        amounts = [
            chance.choice((1, -1)) * chance.randint(1, most) * unit
            for _ in range(chance.randint(1, rows))
        ]
        reach = sum(map(abs, amounts))
        yield amounts, [_ranges(chance, unit, most, reach) for _ in range(ones)]


def _ranges(chance: random.Random, unit: int, most: int, reach: int) -> Ranges:
    found, low = [], chance.randint(-most, 2 * most)
    for _ in range(chance.choice((0, 1, 1, 1, 1, 2))):
        high = low + chance.choice((0, 0, 0, 2, 50))
        ends = max(low * unit, -reach), min(high * unit, reach)
        found += [ends] if ends[0] <= ends[1] else []
        low = high + 2
    return found


def _inside(ranges: Ranges) -> Callable[[int], bool]:
    return lambda total: any(low <= total <= high for low, high in ranges)
