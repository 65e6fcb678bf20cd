"""Binary operators: between scalars, a vector and a scalar, and two vectors that are matched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kalla.query.array_types import Floats, Mask, Whole
from kalla.query.evaluate.evaluation import EvalFlow
from kalla.query.evaluate.exec_nodes import ExecNode
from kalla.query.evaluate.frames import Frame, is_sparse, stacked
from kalla.query.labels.interned import group, group_numbers, joined, nameless, taken
from kalla.query.labels.label_sets import METADATA, Labels, changed, only, shown, value_of, without
from kalla.query.operators.elementwise import distinct, quiet, renamed, some_alike
from kalla.query.promql.query_errors import ExecutionFailed
from kalla.query.promql.syntax_tree import ARITHMETIC, Matching

COMPARED: dict[str, Callable[[Floats, Floats], Mask]] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}


def _power(base: Floats, exponent: Floats) -> Floats:
    found = np.power(base, exponent)
    roots = exponent == 0.5
    if not roots.any():
        return found
    # An exponent that all share becomes a square root in numpy: -Inf has none, -0 has -0.
    return np.where(roots & ((base == 0) | (base == -np.inf)), np.abs(base), found)


COMPUTED: dict[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": _power,
    "atan2": np.arctan2,
}


def computed(operator: str, left: Floats, right: Floats) -> Floats:
    return quiet(COMPUTED[operator], left, right)


def compared(operator: str, left: Floats, right: Floats) -> Mask:
    with np.errstate(invalid="ignore"):
        return COMPARED[operator](left, right)


@dataclass(frozen=True)
class ScalarOperation(ExecNode):
    operator: str
    left: ExecNode
    right: ExecNode

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.left, self.right)

    def compute(self, flow: EvalFlow) -> Floats:
        left, right = self.left.scalar(flow), self.right.scalar(flow)
        if self.operator in COMPARED:
            return compared(self.operator, left, right).astype(np.float64)
        return computed(self.operator, left, right)


@dataclass(frozen=True)
class VectorScalar(ExecNode):
    """`swapped`: the scalar was written first. A comparison keeps the vector's values."""

    operator: str
    vector: ExecNode
    scalar_side: ExecNode
    swapped: bool
    return_bool: bool

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.vector, self.scalar_side)

    def compute(self, flow: EvalFlow) -> Frame:
        frame, scalar = self.vector.frame(flow), self.scalar_side.scalar(flow)[None, :]
        left, right = (scalar, frame.values) if self.swapped else (frame.values, scalar)
        if self.operator in ARITHMETIC:
            return renamed(replace(frame, values=computed(self.operator, left, right)), flow)
        kept = compared(self.operator, left, right)
        if self.return_bool:
            return renamed(replace(frame, values=kept.astype(np.float64)), flow)
        return replace(frame, present=frame.present & kept).trimmed()


@dataclass(frozen=True)
class SetOperation(ExecNode):
    operator: str
    left: ExecNode
    right: ExecNode
    matching: Matching

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.left, self.right)

    def compute(self, flow: EvalFlow) -> Frame:
        left, right = self.left.frame(flow), self.right.frame(flow)
        if self.operator == "or":
            taken = self._has_match(right, left, flow)
            extra = replace(right, present=right.present & ~taken)
            labels = flow.cached(
                (id(self), "both"),
                [left.labels, right.labels],
                lambda: joined([left.labels, right.labels]),
            )
            return distinct(replace(stacked([left, extra]), labels=labels).trimmed(), flow)
        matched = self._has_match(left, right, flow)
        kept = left.present & (matched if self.operator == "and" else ~matched)
        return replace(left, present=kept).trimmed()

    def _has_match(self, frame: Frame, other: Frame, flow: EvalFlow) -> Mask:
        """For each row: at which steps the other side has something of its group."""
        own_groups, other_groups = _groups(frame, other, self.matching, flow)
        count = int(max(own_groups.max(initial=-1), other_groups.max(initial=-1))) + 1
        there = np.zeros((count, frame.values.shape[1]), bool)
        order = np.argsort(other_groups, kind="stable")
        firsts = np.flatnonzero(np.diff(other_groups[order], prepend=-1))
        if len(firsts):
            there[other_groups[order][firsts]] = np.logical_or.reduceat(
                other.present[order], firsts
            )
        return np.asarray(there[own_groups])


def _groups(one: Frame, two: Frame, matching: Matching, flow: EvalFlow) -> Sequence[Whole]:
    sides = [one.labels, two.labels]
    return flow.cached(
        (matching.labels, matching.on),
        sides,
        lambda: group_numbers(sides, matching.labels, on=matching.on),
    )


@dataclass(frozen=True)
class VectorOperation(ExecNode):
    """Every pair of series whose labels match, at the steps where both are there."""

    operator: str
    left: ExecNode
    right: ExecNode
    matching: Matching
    return_bool: bool

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.left, self.right)

    def compute(self, flow: EvalFlow) -> Frame:
        left, right = self.left.frame(flow), self.right.frame(flow)
        matching = self.matching
        swapped = matching.cardinality == "one-to-many"
        # From here on the "one" side is the right one; fill_left fills the "many" side.
        many, one = (right, left) if swapped else (left, right)
        both = many.present.any(axis=0) & one.present.any(axis=0)
        filled = matching.fill_left is not None or matching.fill_right is not None
        active = np.ones_like(both) if filled else both
        many = replace(many, present=many.present & active)
        one = replace(one, present=one.present & active)
        groups, one_groups = _groups(many, one, matching, flow)
        self._unique(one, one_groups)
        pairs = self._simple_pairs(many, one, groups, one_groups, flow)
        if pairs is None:
            found = self._pairs(many, one, groups.tolist(), one_groups.tolist())
            pairs = _Pairs.of(found, flow.steps.count)
        flow.budget.cells(len(pairs.groups), flow.steps.count)
        return self._operated(many, one, pairs, swapped, flow)

    def _unique(self, one: Frame, groups: Whole) -> None:
        if len(np.unique(groups)) == len(groups):
            return
        places: dict[int, list[int]] = {}
        for row, number in enumerate(groups.tolist()):
            places.setdefault(number, []).append(row)
        for rows in places.values():
            if len(rows) < 2:
                continue
            crowded = one.present[rows].sum(axis=0) > 1
            if crowded.any():
                step = int(np.argmax(crowded))
                first, second = [row for row in rows if one.present[row, step]][:2]
                side = "left" if self.matching.cardinality == "one-to-many" else "right"
                raise ExecutionFailed(
                    f"found duplicate series for the match group {shown(self._group(one, first))} "
                    f"on the {side} hand-side of the operation: [{shown(one.labels[second])}, "
                    f"{shown(one.labels[first])}];many-to-many matching not allowed: matching "
                    "labels must be unique on one side"
                )

    def _group(self, frame: Frame, row: int) -> Labels:
        return group(frame.labels[row], self.matching.labels, on=self.matching.on)

    def _simple_pairs(
        self, many: Frame, one: Frame, groups: Whole, one_groups: Whole, flow: EvalFlow
    ) -> _Pairs | None:
        """The pairs where no group has two series on the "one" side and nothing is filled in."""
        found = flow.cached(
            (id(self), "rows"), [groups, one_groups], lambda: self._simple_rows(groups, one_groups)
        )
        if found is None:
            return None
        numbers, rows, others = found
        there = many.present[rows] & one.present[others]
        kept = np.asarray(there.any(axis=1))
        if is_sparse(kept, there.shape[1]):
            numbers, rows, others, there = numbers[kept], rows[kept], others[kept], there[kept]
        return _Pairs(numbers, rows, others, there)

    def _simple_rows(self, groups: Whole, one_groups: Whole) -> tuple[Whole, Whole, Whole] | None:
        """The group of each such pair, and its rows on both sides."""
        matching = self.matching
        if matching.fill_left is not None or matching.fill_right is not None:
            return None
        count = int(max(groups.max(initial=-1), one_groups.max(initial=-1))) + 1
        crowded = (np.bincount(one_groups, minlength=count) > 1).any()
        if matching.cardinality == "one-to-one":
            crowded |= (np.bincount(groups, minlength=count) > 1).any()
        if crowded:
            return None
        ones = np.full(count, -1, np.int64)
        ones[one_groups] = np.arange(len(one_groups))
        others = ones[groups]
        rows = np.flatnonzero(others >= 0)
        return groups[rows], rows, others[rows]

    def _pairs(
        self, many: Frame, one: Frame, many_groups: Sequence[int], one_groups: Sequence[int]
    ) -> list[_Pair]:
        matching = self.matching
        ones: dict[int, list[int]] = {}
        for row, number in enumerate(one_groups):
            ones.setdefault(number, []).append(row)
        pairs: list[_Pair] = []
        served: dict[int, Mask] = {}
        for row, number in enumerate(many_groups):
            there = many.present[row]
            rows = ones.get(number, [])
            pairs.extend(_Pair(number, row, other, there & one.present[other]) for other in rows)
            if matching.fill_right is not None:
                alone = there.copy()
                for other in rows:
                    alone &= ~one.present[other]
                pairs.append(_Pair(number, row, -1, alone))
            matched = there if matching.fill_right is not None else (
                there & one.present[rows].any(axis=0) if rows else np.zeros_like(there)
            )  # fmt: skip
            self._counted(served, number, matched)
        if matching.fill_left is not None:
            nowhere = np.zeros(one.present.shape[1], bool)
            for row, number in enumerate(one_groups):
                alone = one.present[row] & ~served.get(number, nowhere)
                pairs.append(_Pair(number, -1, row, alone))
        return [pair for pair in pairs if pair.there.any()]

    def _counted(self, served: dict[int, Mask], number: int, matched: Mask) -> None:
        known = served.get(number)
        if known is None:
            served[number] = matched
            return
        if self.matching.cardinality == "one-to-one" and (known & matched).any():
            raise ExecutionFailed(
                "multiple matches for labels: many-to-one matching must be explicit "
                "(group_left/group_right)"
            )
        served[number] = known | matched

    def _operated(
        self, many: Frame, one: Frame, pairs: _Pairs, swapped: bool, flow: EvalFlow
    ) -> Frame:
        if not len(pairs.groups):
            return Frame.empty(flow.steps.count)
        own_groups = _taken(many, pairs.many, self.matching.fill_left)
        other_groups = _taken(one, pairs.one, self.matching.fill_right)
        left, right = (other_groups, own_groups) if swapped else (own_groups, other_groups)
        labels = flow.cached(
            (id(self), "labels"),
            [many.labels, one.labels, pairs.many, pairs.one],
            lambda: self._results(many, one, pairs, flow.delayed_names),
        )
        if self.matching.cardinality != "one-to-one":
            _unambiguous(labels, pairs, flow)
        kept = pairs.there
        if self.operator in ARITHMETIC:
            values = computed(self.operator, left, right)
        else:
            truth = compared(self.operator, left, right)
            values = truth.astype(np.float64) if self.return_bool else left
            kept = kept if self.return_bool else kept & truth
        drops = np.full(len(labels), self.return_bool and flow.delayed_names)
        return distinct(Frame(labels, values, kept, drops).trimmed(), flow)

    def _results(self, many: Frame, one: Frame, pairs: _Pairs, delayed: bool) -> Sequence[Labels]:
        """What each pair's series is called."""
        matching = self.matching
        changes = self.operator in ARITHMETIC or (self.return_bool and not delayed)
        single = matching.cardinality == "one-to-one"
        listed = frozenset(matching.labels)
        as_they_are = not matching.include and not (single and (listed or matching.on))
        if as_they_are and bool((pairs.many >= 0).all()):
            labels = taken(many.labels, pairs.many)
            return nameless(labels) if changes else labels
        dropped = METADATA if changes else frozenset[str]()
        if single and not matching.on:
            dropped |= listed
        results: list[Labels] = []
        for row, other in zip(pairs.many.tolist(), pairs.one.tolist(), strict=True):
            source = many.labels[row] if row >= 0 else self._group(one, other)
            if dropped:
                source = without(source, dropped)
            if single and matching.on:
                source = only(source, listed)
            if matching.include:
                included = one.labels[other] if other >= 0 else self._group(many, row)
                source = changed(
                    source, {name: value_of(included, name) for name in matching.include}
                )
            results.append(source)
        return results


@dataclass(frozen=True)
class _Pair:
    """Rows of the two sides, -1 for one that is filled in; `there`: the steps it holds at."""

    group: int
    many: int
    one: int
    there: Mask


@dataclass(frozen=True)
class _Pairs:
    """The same, as columns."""

    groups: Whole
    many: Whole
    one: Whole
    there: Mask

    @classmethod
    def of(cls, pairs: Sequence[_Pair], steps: int) -> _Pairs:
        return cls(
            np.array([pair.group for pair in pairs], np.int64),
            np.array([pair.many for pair in pairs], np.int64),
            np.array([pair.one for pair in pairs], np.int64),
            np.array([pair.there for pair in pairs], bool).reshape(len(pairs), steps),
        )


def _taken(frame: Frame, rows: Whole, fill: float | None) -> Floats:
    if fill is None or (rows >= 0).all():
        return frame.values[rows]
    padded = np.concatenate([frame.values, np.full((1, frame.values.shape[1]), fill)])
    return padded[rows]


def _unambiguous(labels: Sequence[Labels], pairs: _Pairs, flow: EvalFlow) -> None:
    if not some_alike(labels, flow):
        return
    seen: dict[tuple[int, Labels], Mask] = {}
    keys = zip(pairs.groups.tolist(), labels, strict=True)
    for key, there in zip(keys, pairs.there, strict=True):
        known = seen.get(key)
        if known is not None and (known & there).any():
            raise ExecutionFailed(
                "multiple matches for labels: grouping labels must ensure unique matches"
            )
        seen[key] = there if known is None else known | there


@dataclass(frozen=True)
class Negated(ExecNode):
    """Unary minus of a scalar."""

    inner: ExecNode

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,)

    def compute(self, flow: EvalFlow) -> Floats:
        return -self.inner.scalar(flow)
