"""Which rows of a group add up to an amount: every way, counted, within a bound set beforehand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Literal

Reason = Literal["several_subsets", "several_groups", "too_large"]


@dataclass(frozen=True)
class Found:
    """What the search says: groups (of a one row, by its place) or rows that stay ambiguous."""

    groups: tuple[tuple[int, tuple[int, ...]], ...] = ()
    reason: Reason | None = None
    ones: tuple[int, ...] = ()
    # For each ambiguous many row, the ones that could use it.
    users: tuple[tuple[int, tuple[int, ...]], ...] = ()


def for_one(
    amounts: Sequence[int], fits: Callable[[int], bool], most_rows: int, most_sums: int
) -> Found:
    """Subsets of these amounts, none of them zero, whose sum fits the only row of the one side."""
    counts = Counter(amounts)
    if len(amounts) > most_rows or prod(count + 1 for count in counts.values()) > most_sums:
        return _everything(1, len(amounts))
    classes = sorted(counts.items())
    choices = _fitting(classes, fits)
    if not choices:
        return Found()
    if len(choices) == 1 and all(
        taken in (0, count) for taken, (_, count) in zip(choices[0], classes, strict=True)
    ):
        used = {amount for taken, (amount, _) in zip(choices[0], classes, strict=True) if taken}
        return Found(((0, tuple(i for i, amount in enumerate(amounts) if amount in used)),))
    used = {
        amount
        for choice in choices
        for taken, (amount, _) in zip(choice, classes, strict=True)
        if taken
    }
    users = tuple((i, (0,)) for i, amount in enumerate(amounts) if amount in used)
    return Found(reason="several_subsets", ones=(0,), users=users)


def for_several(
    ones: int,
    amounts: Sequence[int],
    admissible: Sequence[Sequence[int]],
    fits: Callable[[int, int], bool],
    most_rows: int,
    most_sums: int,
) -> Found:
    """Several rows on the one side, solved together: each many row goes to one of them or to none.

    `admissible[i]` are the ones that the i-th many row may go to.
    """
    if len(amounts) > most_rows or (ones + 1) ** len(amounts) > most_sums:
        return _everything(ones, len(amounts))
    best: list[tuple[int | None, ...]] = []
    served = 0
    for owners in product(*((None, *owners) for owners in admissible)):
        sums: dict[int, int] = {}
        for amount, owner in zip(amounts, owners, strict=True):
            if owner is not None:
                sums[owner] = sums.get(owner, 0) + amount
        if len(sums) < max(served, 1) or not all(fits(one, total) for one, total in sums.items()):
            continue
        if len(sums) > served:
            best, served = [], len(sums)
        best.append(owners)
    if len(best) == 1:
        groups: dict[int, list[int]] = {}
        for place, owner in enumerate(best[0]):
            if owner is not None:
                groups.setdefault(owner, []).append(place)
        return Found(tuple((one, tuple(rows)) for one, rows in sorted(groups.items())))
    users: dict[int, set[int]] = {}
    for owners in best:
        for place, owner in enumerate(owners):
            if owner is not None:
                users.setdefault(place, set()).add(owner)
    if not users:
        return Found()
    return Found(
        reason="several_groups",
        ones=tuple(sorted({one for used in users.values() for one in used})),
        users=tuple((place, tuple(sorted(used))) for place, used in sorted(users.items())),
    )


def _fitting(
    classes: Sequence[tuple[int, int]], fits: Callable[[int], bool]
) -> list[tuple[int, ...]]:
    """Every number of rows from each class, not all zero, whose sum fits."""
    totals = [0]  # a choice is its place in this list, read as a number of mixed base
    for amount, count in classes:
        totals = [total + amount * times for total in totals for times in range(count + 1)]
    return [_choice(place, classes) for place in range(1, len(totals)) if fits(totals[place])]


def _choice(place: int, classes: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    taken = []
    for _, count in reversed(classes):
        place, times = divmod(place, count + 1)
        taken.append(times)
    return tuple(reversed(taken))


def _everything(ones: int, many: int) -> Found:
    every = tuple(range(ones))
    return Found(reason="too_large", ones=every, users=tuple((row, every) for row in range(many)))
