"""Finds nearest candidates in arrays: the same as `nearest_candidates` by SQL, for rules with one
whole-number key and windows. Other rules are left to SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from kalla.reconcile.arrays import compiled_loops, nearest_values
from kalla.reconcile.arrays.array_conditions import Compared, Window, compared
from kalla.reconcile.arrays.arrow_numbers import RowIds
from kalla.reconcile.arrays.column_arrays import PLACES, Chosen, Column, ColumnArrays, Held, typed
from kalla.reconcile.arrays.loaded_rows import LoadedRows
from kalla.reconcile.arrays.nearest_values import Measured, NearestValues, in_parts
from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.recipe.model import SIDES, Side, opposite
from kalla.reconcile.sql.conditions import Check

Found = TypeVar("Found")

_FEW = 5  # others that are offered to a row on average: of more, rows alike are better ranked once


@dataclass(frozen=True)
class NearestCandidates:
    """Unmatched rows, each with its nearest candidate by a rule, and its first failing check."""

    rule: RulePlan
    place: int | None  # None: all hold
    window: Window | None  # None: all hold, or it is the key that fails
    row_ids: RowIds
    others: RowIds


@dataclass(frozen=True)
class _Pairs:
    """Rows that are looking, by their places, and those that are offered to them: of each, all
    stand together."""

    places: RowIds
    others: RowIds


class _Unknown(Exception):
    """The arrays are not enough to decide."""


def search(
    session: LoadedRows, side: Side, *, by_key: bool = True, by_value: bool = True
) -> list[NearestCandidates] | None:
    """Of every unmatched row that has a closest one: which it is, and by which rule."""
    arrays = {each: session.column_arrays(each) for each in SIDES}
    order = _key_order(session, opposite(side), arrays[opposite(side)])
    known = [compared(rule, arrays) for rule in session.plan.rules]
    if not known or order is None:
        return None
    rules = [each for each in known if each and not _has_nulls(each)]
    if len(rules) < len(known):
        return None
    row_ids = session.column(f"SELECT row_id FROM {side}_unmatched")
    named = list(zip(session.plan.rules, rules, strict=True))
    looking = _Looking(side, row_ids, named, order, session.plan.bounds.closest_candidates)
    try:
        return list(looking.found(by_key=by_key, by_value=by_value))
    except _Unknown:
        return None


def table(session: LoadedRows, side: Side, candidates: NearestCandidates) -> pa.Table:
    """What is to be known of both rows of each pair: row_id, other, the values that fail as l and
    r, and the other's primary key as p0…"""
    other = opposite(side)
    row_ids = {side: candidates.row_ids, other: candidates.others}
    arrays = {each: there(session.column_arrays(each)) for each in SIDES}
    found = {
        "row_id": typed(candidates.row_ids, pa.int64()),
        "other": typed(candidates.others, pa.int64()),
    }
    if candidates.place is not None:
        check = candidates.rule.checks[candidates.place]
        for each, letter in zip(SIDES, "lr", strict=True):
            found[letter] = there(arrays[each].column(check.of(each).sql)).at(row_ids[each])
    for part in range(len(session.plan.sides[other].primary_key)):
        found[f"p{part}"] = arrays[other].columns[f"p{part}"].at(candidates.others)
    return pa.table(found)


def there(found: Found | None) -> Found:
    """A value that must be in the arrays, because it was compared there."""
    if found is None:
        raise TypeError("compared columns are in arrays")
    return found


def of_same_key(mine: Column, theirs: Column, row_ids: RowIds) -> RowIds | None:
    """The rows of the other side that have the key of one of these; none if keys lie far apart."""
    wanted = mine.units(row_ids)
    if not len(wanted):
        return np.empty(0, np.int64)
    low, high = int(wanted.min()), int(wanted.max())
    if high - low > PLACES * len(theirs):
        return None
    places = high - low + 1
    marks = compiled_loops.marks(places)
    compiled_loops.mark(wanted, len(wanted), low, marks)
    others = in_parts(
        lambda first, part, found: compiled_loops.marked(
            part, len(part), low, marks, places, first, found
        ),
        theirs.held,
    )
    return others if theirs.nulls is None else others[~theirs.nulls[others]]


def measured(
    check: Check, columns: Mapping[Side, Column], side: Side, row_ids: RowIds
) -> tuple[Measured, Measured]:
    """All rows of the other side, and these of this side, by what a check compares; all known."""
    other = opposite(side)
    offered = None
    if (nulls := columns[other].nulls) is not None:
        offered = np.flatnonzero(~nulls)
    negate = check.bound.negate if check.bound else None
    mine = columns[side].units(row_ids)
    theirs: Held = columns[other].held if offered is None else columns[other].units(offered)
    if negate == other:  # half a word has no place for its lowest number without the sign
        theirs = -theirs.astype(np.int64, copy=False)
    return Measured(offered, theirs), Measured(row_ids, -mine if negate == side else mine)


def _has_nulls(known: Compared) -> bool:
    return any(column.nulls is not None for side in SIDES for column in known.columns(side))


def _key_order(session: LoadedRows, side: Side, arrays: ColumnArrays | None) -> list[Held] | None:
    """What keys are in order by, of every row."""
    parts = [f"p{part}" for part in range(len(session.plan.sides[side].primary_key))]
    if (
        arrays is None
        or session.ordinals[side]
        or any(part not in arrays.columns for part in parts)
    ):
        return None
    return [arrays.columns[part].held for part in parts]


class _Looking:
    """The unmatched rows of a side, and the nearest candidate of each so far."""

    def __init__(
        self,
        side: Side,
        row_ids: RowIds,
        rules: Sequence[tuple[RulePlan, Compared]],
        order: Sequence[Held],
        bound: int,
    ) -> None:
        self._side, self._other = side, opposite(side)
        self._row_ids, self._rules, self._order, self._bound = row_ids, rules, order, bound
        self._closest = np.full(len(row_ids), compiled_loops.NOBODY, np.int64)
        self._satisfied = np.full(len(row_ids), compiled_loops.NOBODY, np.int64)
        self._rule = np.zeros(len(row_ids), np.int64)

    def found(self, *, by_key: bool, by_value: bool) -> Iterator[NearestCandidates]:
        if by_key:
            for number, (_, known) in enumerate(self._rules):
                self._take(number, known, self._of_same_key(known))
        lonely = np.flatnonzero(self._closest == compiled_loops.NOBODY)
        for number, (rule, known) in enumerate(self._rules):
            place = nearest_values.searched(rule)
            if by_value and len(lonely) and place is not None:
                nearest = self._nearest(rule.checks[place], known.windows[place], lonely)
                self._take(number, known, nearest)
        for number, (rule, known) in enumerate(self._rules):
            chosen = np.flatnonzero(
                (self._closest != compiled_loops.NOBODY) & (self._rule == number)
            )
            yield from self._failing(rule, known, self._row_ids[chosen], self._closest[chosen])

    def _failing(
        self, rule: RulePlan, known: Compared, row_ids: RowIds, others: RowIds
    ) -> Iterator[NearestCandidates]:
        """By the first check that fails."""
        for place in (*range(len(rule.checks)), None):
            pairs = {self._side: row_ids, self._other: others}
            window = None if place is None else known.windows.get(place)
            if place is None:
                fails = np.ones(len(row_ids), np.bool_)
            elif window is not None:
                fails = ~window.holds(window.delta(pairs))
            else:
                fails = ~known.same_key(pairs)
            if fails.any():
                yield NearestCandidates(rule, place, window, row_ids[fails], others[fails])
                row_ids, others = row_ids[~fails], others[~fails]

    def _of_same_key(self, known: Compared) -> _Pairs:
        mine, theirs = known.key[self._side], known.key[self._other]
        others = of_same_key(mine, theirs, self._row_ids)
        if others is None:
            raise _Unknown
        keys = theirs.units(others)
        order = nearest_values.in_order(keys)
        keys, others = keys[order], others[order]
        wanted = mine.units(self._row_ids)
        looking = nearest_values.in_order(wanted)  # in order, they are found much sooner
        wanted = wanted[looking]
        first = np.searchsorted(keys, wanted)
        counts = np.searchsorted(keys, wanted, "right") - first
        return self._offered(NearestValues(looking, first, counts, others))

    def _nearest(self, check: Check, window: Window, lonely: RowIds) -> _Pairs:
        """Those with the nearest value not above, and those with the nearest above."""
        there, looking = measured(check, window.columns, self._side, self._row_ids[lonely])
        return self._offered(nearest_values.next_to(there, replace(looking, row_ids=lonely)))

    def _offered(self, found: NearestValues) -> _Pairs:
        """Leaves too many candidates to SQL."""
        if found.most > self._bound or found.pairs > _FEW * len(found.row_ids):
            raise _Unknown
        at, which = nearest_values.ranges(found.first, found.counts)
        return _Pairs(found.row_ids[which], found.candidates[at])

    def _take(self, number: int, known: Compared, pairs: _Pairs) -> None:
        """Of those that are offered the best: most conditions, least distance, first key; what
        earlier rules have found stays, unless this satisfies more."""
        if len(self._rules) == 1 and _begins(pairs.places).all():  # there is nothing to choose
            self._closest[pairs.places] = pairs.others
            return
        row_ids = {self._side: self._row_ids[pairs.places], self._other: pairs.others}
        satisfied = known.same_key(row_ids).astype(np.int64)
        far = []
        for window in known.windows.values():
            delta = window.delta(row_ids)
            satisfied += window.holds(delta)
            far.append(np.abs(delta))
        ranks = [-satisfied, *far, *(column[pairs.others] for column in self._order)]
        best = _first(pairs.places, ranks)
        places = pairs.places[best]
        better = satisfied[best] > self._satisfied[places]
        best, places = best[better], places[better]
        self._closest[places] = pairs.others[best]
        self._satisfied[places] = satisfied[best]
        self._rule[places] = number


def _first(places: RowIds, ranks: Sequence[Held]) -> RowIds:
    """Of those at the same place, which stand together, the one that comes first by its ranks."""
    left = np.arange(len(places))
    for rank in ranks:
        starts = np.flatnonzero(_begins(places[left]))
        if len(starts) == len(left):
            break
        lowest = np.minimum.reduceat(rank[left], starts)
        counts = np.diff(starts, append=len(left))
        left = left[rank[left] == np.repeat(lowest, counts)]
    return left[_begins(places[left])]


def _begins(places: RowIds) -> Chosen:
    begins = np.ones(len(places), np.bool_)
    begins[1:] = places[1:] != places[:-1]
    return begins
