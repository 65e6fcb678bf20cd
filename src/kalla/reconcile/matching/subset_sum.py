"""Finds the rows of a group that add up to an amount: counts all solutions, within a fixed bound.

Solutions are not enumerated: the result follows from the sums of two halves, or, for several
amounts, from the sets of rows that each of them could have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kalla.reconcile.matching.sum_bounds import Ranges

Reason = Literal["several_subsets", "several_groups", "too_large"]
Numbers = npt.NDArray[Any]  # of 64 bits, or Python's own where amounts are larger
Sets = npt.NDArray[np.int64]  # of rows: each has a bit
Classes = Sequence[tuple[int, int]]  # an amount, and how many rows have it

_AT_ONCE = 1 << 20  # pairs of sets


@dataclass(frozen=True)
class Found:
    """The result of the search: groups (of a one row, by its place) or rows that stay ambiguous."""

    groups: tuple[tuple[int, tuple[int, ...]], ...] = ()
    reason: Reason | None = None
    ones: tuple[int, ...] = ()
    # For each ambiguous many row, the ones that could use it.
    users: tuple[tuple[int, tuple[int, ...]], ...] = ()


def for_one(amounts: Sequence[int], fits: Ranges, most_rows: int, most_sums: int) -> Found:
    """Subsets of these amounts, none of them zero, whose sum fits the only row of the one side."""
    counts = Counter(amounts)
    if len(amounts) > most_rows or prod(count + 1 for count in counts.values()) > most_sums:
        return _everything(1, len(amounts))
    ways, used, whole = _ways(sorted(counts.items()), fits, _kind(amounts))
    if not ways:
        return Found()
    rows = tuple(place for place, amount in enumerate(amounts) if amount in used)
    if ways == 1 and whole:
        return Found(((0, rows),))
    return Found(reason="several_subsets", ones=(0,), users=tuple((row, (0,)) for row in rows))


def for_several(
    amounts: Sequence[int],
    admissible: Sequence[Sequence[int]],
    fits: Sequence[Ranges],
    most_rows: int,
    most_sums: int,
) -> Found:
    """Several rows on the one side, solved together: each many row goes to one of them or to none.

    `admissible[i]` are the ones that the i-th many row may go to, `fits[i]` the sums that the i-th
    of these could have.
    """
    ones, many = len(fits), len(amounts)
    if many > most_rows or (ones + 1) ** many > most_sums:
        return _everything(ones, many)
    could_have = _could_have(amounts, admissible, fits)
    alike: dict[bytes, list[int]] = {}
    for place in np.flatnonzero(could_have.any(axis=1)):
        alike.setdefault(could_have[place].tobytes(), []).append(int(place))
    # Ones that could have the same sets are as good as each other. No more of them are served than
    # there are rows; a second one shows that it could as well have been another.
    turns = [same for same in alike.values() for _ in same[: max(many, 2)]]
    if not turns:
        return Found()
    is_only, used = _serve([np.flatnonzero(could_have[same[0]]) for same in turns], many)
    users: dict[int, set[int]] = {}
    for same, rows in zip(turns, used, strict=True):
        for row in range(many):
            if rows >> row & 1:
                users.setdefault(row, set()).update(same)
    if is_only:
        groups: dict[int, list[int]] = {}
        for row, (one,) in sorted(users.items()):
            groups.setdefault(one, []).append(row)
        return Found(tuple((one, tuple(rows)) for one, rows in sorted(groups.items())))
    return Found(
        reason="several_groups",
        ones=tuple(sorted({one for found in users.values() for one in found})),
        users=tuple((row, tuple(sorted(found))) for row, found in sorted(users.items())),
    )


def _ways(classes: Classes, fits: Ranges, kind: Any) -> tuple[int, set[int], bool]:
    """In how many ways rows can be taken from these classes, at least one, so that their sum fits;
    the amounts of classes that some way takes from; of an only way, whether it takes them whole."""
    middle, at = isqrt(prod(count + 1 for _, count in classes)), 0
    while prod(count + 1 for _, count in classes[:at]) < middle:
        at += 1
    halves = classes[:at], classes[at:]
    first, second = (_sums(half, kind) for half in halves)
    order = np.argsort(second, kind="stable")
    second = second[order]
    spans = [
        (np.searchsorted(second, low - first), np.searchsorted(second, high - first, "right"))
        for low, high in fits
    ]
    # The empty subset does not count.
    ways = sum(int((end - start).sum()) for start, end in spans)
    ways -= any(low <= 0 <= high for low, high in fits)
    if not ways:
        return 0, set(), False
    firsts = np.zeros(len(first), np.bool_)
    seconds = np.zeros(len(second) + 1, np.int64)
    for start, end in spans:
        some = end > start
        firsts |= some
        np.add.at(seconds, start[some], 1)
        np.add.at(seconds, end[some], -1)
    places = np.flatnonzero(firsts), order[np.flatnonzero(seconds.cumsum()[:-1])]
    most = [
        (amount, count, int(times.max()))
        for half, chosen in zip(halves, places, strict=True)
        for (amount, count), times in zip(half, _taken(chosen, half), strict=True)
    ]
    used = {amount for amount, _, times in most if times}
    return ways, used, all(times in (0, count) for _, count, times in most)


def _sums(classes: Classes, kind: Any) -> Numbers:
    """Of every number of rows from each class: its place, read as a number of mixed base, tells
    which."""
    sums = np.zeros(1, kind)
    for amount, count in classes:
        times = np.array([amount * taken for taken in range(count + 1)], kind)
        sums = (sums[:, None] + times).ravel()
    return sums


def _taken(places: npt.NDArray[np.int64], classes: Classes) -> list[npt.NDArray[np.int64]]:
    """How many rows of each class the sums at these places have."""
    taken = []
    for _, count in reversed(classes):
        places, times = np.divmod(places, count + 1)
        taken.append(times)
    return taken[::-1]


def _could_have(
    amounts: Sequence[int], admissible: Sequence[Sequence[int]], fits: Sequence[Ranges]
) -> npt.NDArray[np.bool_]:
    """For each of the ones, and each set of rows: whether that alone would do."""
    kind = _kind(amounts)
    sums = np.zeros(1, kind)
    allowed = np.zeros(len(fits), np.int64)
    for row, (amount, ones) in enumerate(zip(amounts, admissible, strict=True)):
        sums = np.concatenate([sums, sums + amount])
        allowed[list(ones)] |= 1 << row
    could_have: npt.NDArray[np.bool_] = (np.arange(len(sums)) & ~allowed[:, None]) == 0
    could_have[:, 0] = False
    inside = np.zeros_like(could_have)
    for number in range(max(map(len, fits))):
        ends = [each[number] if number < len(each) else (1, 0) for each in fits]
        lows, highs = np.array(ends, kind).T[:, :, None]
        inside |= ((lows <= sums) & (sums <= highs)).astype(np.bool_)
    return inside & could_have


def _serve(could_have: Sequence[Sets], many: int) -> tuple[bool, list[int]]:
    """Serve as many as can be, each with one of the sets that it could have, of which no two share
    a row: whether there is only one way, and the rows that each has in some way.

    By layers: how many of the first so many can be served out of a set of rows.
    """
    first, *others = could_have
    every = np.arange(1 << many)
    layers = [_marked(first, many, within=True).astype(np.int64)]
    for chosen in others[:-1]:
        layers.append(_most(chosen, layers[-1], every))
    # Back again, but only along the best ways: what each leaves to those before it.
    left, is_only, used = every[-1:], True, []
    for chosen, before in zip(others[::-1], layers[::-1], strict=False):
        best = _most(chosen, before, left)
        rest = [left[before[left] == best]]
        had = 0
        for sets, served in _served(chosen, before, left):
            is_best = served == best
            had |= int(np.bitwise_or.reduce(sets[is_best.any(axis=1)], axis=None))
            rest.append((sets ^ left)[is_best])
        is_only &= sum(map(len, rest)) == 1
        used.append(had)
        left = np.unique(np.concatenate(rest))
    had_by_first = first[_marked(left, many, within=False)[first]]
    used.append(int(np.bitwise_or.reduce(had_by_first)))
    return is_only and len(had_by_first) <= 1, used[::-1]


def _most(chosen: Sets, before: Sets, rows: Sets) -> Sets:
    """Out of these sets of rows, with one more who could have a chosen one."""
    most: Sets = before[rows]
    for _, served in _served(chosen, before, rows):
        most = np.maximum(most, served.max(axis=0))
    return most


def _served(chosen: Sets, before: Sets, rows: Sets) -> Iterator[tuple[Sets, Sets]]:
    """The chosen sets, some at a time, and how many are served if one more has them out of each of
    these; -1 where that has not all of their rows."""
    at_once = max(1, _AT_ONCE // len(rows))
    for first in range(0, len(chosen), at_once):
        sets = chosen[first : first + at_once, None]
        yield sets, np.where((sets & ~rows) == 0, before[sets ^ rows] + 1, -1)


def _marked(sets: Sets, many: int, *, within: bool) -> npt.NDArray[np.bool_]:
    """Of each set of rows, whether it has one of these within, or is itself within one of them."""
    marks = np.zeros(1 << many, np.bool_)
    marks[sets] = True
    for row in range(many):
        without, having = np.moveaxis(marks.reshape(-1, 2, 1 << row), 1, 0)
        if within:
            having |= without
        else:
            without |= having
    return marks


def _kind(amounts: Sequence[int]) -> Any:
    """What the sums of these fit into, and the ends of ranges that they are held to."""
    return np.int64 if sum(map(abs, amounts)) < 2**61 else object


def _everything(ones: int, many: int) -> Found:
    every = tuple(range(ones))
    return Found(reason="too_large", ones=every, users=tuple((row, every) for row in range(many)))
