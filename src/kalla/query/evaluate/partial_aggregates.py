"""Aggregations across series, in parts that merge: any shards, any order, the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kalla.query.array_types import Floats, Mask, Whole
from kalla.query.evaluate.frames import Frame, stacked
from kalla.query.evaluate.top_k import best_rows
from kalla.query.kernels.exact_sums import ExactSums, stretches
from kalla.query.labels.hashing import series_hash
from kalla.query.labels.interned import group_numbers, taken
from kalla.query.labels.label_sets import NONE, Labels, only, without
from kalla.query.promql.syntax_tree import METRIC_NAME

FOLDED = frozenset({"sum", "avg", "count", "group", "min", "max"})
CHOSEN = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})


@dataclass(frozen=True)
class Reduction:
    """An aggregation as plain data; `parameter` is k or the ratio, one value or one per step."""

    operator: str
    grouping: tuple[str, ...] = ()
    without: bool = False
    parameter: tuple[float, ...] = ()

    def groups(self, known: Sequence[Labels]) -> list[Labels]:
        """The label set of the group each series belongs to."""
        listed = frozenset(self.grouping)
        if self.without:
            listed |= {METRIC_NAME}
            return [without(labels, listed) for labels in known]
        return [only(labels, listed) for labels in known] if listed else [NONE] * len(known)

    def grouped(self, known: Sequence[Labels]) -> Grouped:
        """The group of each series; groups in the order in which they appear."""
        [ids] = group_numbers([known], self.grouping, on=not self.without)
        firsts = np.unique(ids, return_index=True)[1]
        return Grouped(ids, self.groups(taken(known, firsts)))


@dataclass(frozen=True)
class Grouped:
    """The group of each row, by its place among the groups' label sets."""

    ids: Whole
    groups: Sequence[Labels]

    def rows(self, chosen: Whole) -> Grouped:
        return Grouped(self.ids[chosen], self.groups)

    @cached_property
    def members(self) -> tuple[Whole, Whole]:
        """Rows by group in their order, and where each group begins; the last one ends."""
        order = np.argsort(self.ids, kind="stable")
        bounds = np.searchsorted(self.ids[order], np.arange(len(self.groups) + 1))
        return order, bounds.astype(np.int64)


@dataclass(frozen=True)
class Reduced:
    """Groups in the order of their labels. Rows chosen from the input stay rows, in `frame`."""

    groups: tuple[Labels, ...]
    drops: Mask
    sums: ExactSums | None = None
    counts: Whole | None = None
    best: Floats | None = None
    frame: Frame | None = None


class Reducer:
    """Aggregates frames incrementally; its memory does not grow with the number of series."""

    def __init__(self, reduction: Reduction, steps: int, check: Callable[[], None]) -> None:
        self.reduction = reduction
        self.steps = steps
        self.check = check
        self.ids: dict[Labels, int] = {}
        self.drops: list[bool] = []
        self.sums = ExactSums.zero(0, steps)
        self.counts = np.zeros((0, steps), np.int64)
        self.best = np.zeros((0, steps))
        self.frames: list[Frame] = []

    def add(self, frame: Frame, grouped: Grouped | None = None) -> None:
        if self.reduction.operator in CHOSEN:
            self.frames.append(_chosen_rows(frame, self.reduction, self.check).filled())
            return
        if grouped is None:
            grouped = self.reduction.grouped(frame.labels)
        ids = self._registered(grouped, frame.drops)
        match self.reduction.operator:
            case "sum" | "avg":
                self.sums.add(frame.values, frame.present, ids)
            case "min" | "max":
                self._fold_best(ids, frame.values, frame.present.astype(np.int64))
            case _:
                np.add.at(self.counts, ids, frame.present)

    def absorb(self, part: Reduced) -> None:
        if part.frame is not None:
            self.frames.append(part.frame)
            return
        own = Grouped(np.arange(len(part.groups)), part.groups)
        ids = self._registered(own, part.drops)
        if part.sums is not None:
            self.sums.absorb(part.sums, ids, self.check)
            return
        for some in stretches(len(ids), self.steps, self.check):
            if part.best is not None and part.counts is not None:
                self._fold_best(ids[some], part.best[some], part.counts[some])
            elif part.counts is not None:
                self.counts[ids[some]] += part.counts[some]

    def result(self) -> Reduced:
        operator = self.reduction.operator
        if operator in CHOSEN:
            frame = stacked(self.frames) if self.frames else Frame.empty(self.steps)
            return Reduced((), np.empty(0, bool), frame=frame)
        groups, drops = tuple(self.ids), np.array(self.drops, bool)
        if operator in ("sum", "avg"):
            return Reduced(groups, drops, sums=self.sums)
        if operator in ("min", "max"):
            return Reduced(groups, drops, counts=self.counts, best=self.best)
        return Reduced(groups, drops, counts=self.counts)

    def _registered(self, grouped: Grouped, drops: Mask) -> Whole:
        """Our own number of each row's group."""
        numbers = np.full(len(grouped.groups), -1, np.int64)
        for place in np.unique(grouped.ids).tolist():
            numbers[place] = self.ids.setdefault(grouped.groups[place], len(self.ids))
        self.drops += [False] * (len(self.ids) - len(self.drops))
        ids = numbers[grouped.ids]
        for found in np.unique(ids[drops]).tolist():
            self.drops[found] = True
        self._extend(len(self.ids) - self._height())
        return ids

    def _height(self) -> int:
        return len(self.sums.counts if self.reduction.operator in ("sum", "avg") else self.counts)

    def _extend(self, more: int) -> None:
        if more <= 0:
            return
        if self.reduction.operator in ("sum", "avg"):
            self.sums.extend(more)
            return
        self.counts = np.concatenate([self.counts, np.zeros((more, self.steps), np.int64)])
        if self.reduction.operator in ("min", "max"):
            self.best = np.concatenate([self.best, np.full((more, self.steps), np.nan)])

    def _fold_best(self, ids: Whole, values: Floats, counts: Whole) -> None:
        """Any number replaces a NaN; NaN is the result only where there is nothing else."""
        fold = np.fmin if self.reduction.operator == "min" else np.fmax
        masked = np.where(counts > 0, values, np.nan)
        order = np.argsort(ids, kind="stable")
        first = np.flatnonzero(np.diff(ids[order], prepend=-1))
        if len(first) == 0:
            return
        touched = ids[order][first]
        folded = fold.reduceat(masked[order], first, axis=0)
        self.best[touched] = fold(self.best[touched], folded)
        self.counts[touched] += np.add.reduceat(counts[order], first, axis=0)


def merged(
    reduction: Reduction, parts: Sequence[Reduced], steps: int, check: Callable[[], None]
) -> Frame:
    """The finished aggregation of what the shards sent, groups sorted by labels."""
    reducer = Reducer(reduction, steps, check)
    for part in parts:
        reducer.absorb(part)
    result = reducer.result()
    if result.frame is not None:
        return _chosen_rows(result.frame.sorted(), reduction, check).filled()
    return finished(reduction, result, check).filled().sorted()


def reduced(
    reduction: Reduction, frame: Frame, grouped: Grouped, check: Callable[[], None]
) -> Frame:
    """Reduces rows in memory; groups in order of appearance."""
    reducer = Reducer(reduction, frame.values.shape[1], check)
    reducer.add(frame, grouped)
    return finished(reduction, reducer.result(), check)


def finished(reduction: Reduction, result: Reduced, check: Callable[[], None]) -> Frame:
    if result.sums is not None:
        present = result.sums.counts > 0
        mean = reduction.operator == "avg"
        values = result.sums.means(check) if mean else result.sums.sums(check)
    elif result.counts is not None:
        present = result.counts > 0
        if result.best is not None:
            # One zero and one NaN, whichever of them came first.
            values = np.where(np.isnan(result.best), np.nan, result.best + 0.0)
        elif reduction.operator == "group":
            values = np.ones(result.counts.shape)
        else:
            values = result.counts.astype(np.float64)
    else:
        raise AssertionError("a reduction of rows is finished by choosing")
    return Frame(result.groups, values, present, result.drops)


def _chosen_rows(frame: Frame, reduction: Reduction, check: Callable[[], None]) -> Frame:
    if reduction.operator == "limit_ratio":
        return sampled(frame, np.asarray(reduction.parameter), places(frame.labels))
    return chosen(frame, reduction, reduction.grouped(frame.labels), check)


def chosen(
    frame: Frame, reduction: Reduction, grouped: Grouped, check: Callable[[], None]
) -> Frame:
    """Some of the rows of each group at each step; the others are not there."""
    steps = frame.values.shape[1]
    parameter = np.broadcast_to(np.asarray(reduction.parameter, np.float64), (steps,))
    k = np.clip(np.trunc(parameter), 0, len(frame.labels)).astype(np.int64)
    kept, order = best_rows(frame, *grouped.members, k, reduction.operator, check)
    picked = Frame(frame.labels, frame.values, kept, frame.drops)
    return picked.rows(order) if steps == 1 else picked


def places(known: Sequence[Labels]) -> Floats:
    """A number between 0 and 1 for each series, computed from its labels alone."""
    return np.array([series_hash(labels) / float(2**64 - 1) for labels in known])


def sampled(frame: Frame, ratio: Floats, places: Floats) -> Frame:
    """The share of all series that `limit_ratio` shows."""
    capped = np.clip(ratio, -1.0, 1.0)
    at = places[:, None]
    inside = ((capped >= 0) & (at < capped)) | ((capped < 0) & (at >= 1.0 + capped))
    return Frame(frame.labels, frame.values, frame.present & inside, frame.drops)
