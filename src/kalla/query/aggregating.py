"""Aggregation nodes: those that fold, those that choose rows, and those that need every row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kalla.query import ordering
from kalla.query.flow import EvalFlow
from kalla.query.frames import Floats, Frame, Mask
from kalla.query.labels import Labels, changed
from kalla.query.nodes import ExecNode
from kalla.query.notation import general, plain
from kalla.query.problems import ExecutionFailed
from kalla.query.reductions import Reduction, reduced
from kalla.query.syntax import NOWHERE, Span

_LARGEST_WHOLE = 9223372036854774784.0
_SMALLEST_WHOLE = -9223372036854775808.0
# Cells that are sorted between two looks at the clock: some tenths of a second.
_AT_ONCE = 1 << 23


@dataclass(frozen=True)
class Aggregation(ExecNode):
    """Over rows that are here; a leaf with a reduction has done the same on its shards."""

    inner: ExecNode
    reduction: Reduction

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,)

    def compute(self, flow: EvalFlow) -> Frame:
        return reduced(self.reduction, self.inner.frame(flow))


@dataclass(frozen=True)
class Choice(ExecNode):
    """topk, bottomk, limitk, limit_ratio; `inner` is None where a leaf has the rows chosen."""

    inner: ExecNode
    reduction: Reduction
    parameter: ExecNode
    span: Span
    pushed: bool = False

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.parameter, self.inner)

    def compute(self, flow: EvalFlow) -> Frame:
        parameter = self.parameter.scalar(flow)
        frame = self.inner.frame(flow)
        if not self._sensible(parameter, flow):
            return Frame.empty(self.steps.count)
        if self.pushed:
            return frame
        return reduced(
            Reduction(
                self.reduction.operator,
                self.reduction.grouping,
                self.reduction.without,
                tuple(parameter.tolist()),
            ),
            frame,
        )

    def _sensible(self, parameter: Floats, flow: EvalFlow) -> bool:
        """Whether there can be any row; what makes no sense is refused."""
        ratio = self.reduction.operator == "limit_ratio"
        if np.isnan(parameter).any():
            raise ExecutionFailed("Ratio value is NaN" if ratio else "Parameter value is NaN")
        least, most = float(parameter.min()), float(parameter.max())
        if ratio:
            if most > 1:
                flow.annotations.bad_ratio(most, 1.0, self.span)
            if least < -1:
                flow.annotations.bad_ratio(least, -1.0, self.span)
            return most != 0 or least != 0
        if most < 1:
            return False
        if least <= _SMALLEST_WHOLE:
            raise ExecutionFailed(f"Scalar value {general(least)} underflows int64")
        if most >= _LARGEST_WHOLE:
            raise ExecutionFailed(f"Scalar value {general(most)} overflows int64")
        return True


@dataclass(frozen=True)
class AcrossRows(ExecNode):
    """quantile, stddev, stdvar: of all rows of a group, in the order of their labels."""

    inner: ExecNode
    reduction: Reduction
    parameter: ExecNode | None = None
    span: Span = NOWHERE

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,) if self.parameter is None else (self.parameter, self.inner)

    def compute(self, flow: EvalFlow) -> Frame:
        quantiles = None if self.parameter is None else self.parameter.scalar(flow)
        frame = self.inner.frame(flow).sorted()
        if quantiles is not None:
            self._annotate(quantiles, flow)
        grouped = self.reduction.grouped(frame.labels)
        groups, ids = grouped.groups, grouped.ids
        order = np.argsort(ids, kind="stable")
        bounds = np.searchsorted(ids[order], np.arange(len(groups) + 1)).astype(np.int64)
        values = np.zeros((len(groups), self.steps.count))
        present = np.zeros(values.shape, bool)
        width = max(1, _AT_ONCE // max(len(ids), 1))
        for first in range(0, self.steps.count, width):
            flow.budget.check()
            some = slice(first, first + width)
            rows = np.ascontiguousarray(frame.values[:, some])
            there = np.ascontiguousarray(frame.present[:, some])
            out = np.zeros((len(groups), rows.shape[1]))
            found = np.zeros(out.shape, bool)
            if quantiles is not None:
                asked = np.ascontiguousarray(quantiles[some])
                ordering.quantiles_across(rows, there, order, bounds, asked, out, found)
            else:
                root = self.reduction.operator == "stddev"
                ordering.deviations_across(rows, there, order, bounds, root, out, found)
            values[:, some], present[:, some] = out, found
        drops = np.zeros(len(groups), bool)
        np.logical_or.at(drops, ids, frame.drops)
        return Frame(groups, values, present, drops).filled()

    def _annotate(self, quantiles: Floats, flow: EvalFlow) -> None:
        if np.isnan(quantiles).any():
            flow.annotations.bad_quantile(float("nan"), self.span)
        known = quantiles[~np.isnan(quantiles)]
        if len(known) and known.max() > 1:
            flow.annotations.bad_quantile(float(known.max()), self.span)
        if len(known) and known.min() < 0:
            flow.annotations.bad_quantile(float(known.min()), self.span)


@dataclass(frozen=True)
class CountValues(ExecNode):
    """How many series of a group have each value; the value becomes a label."""

    inner: ExecNode
    reduction: Reduction
    label: str

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,)

    def compute(self, flow: EvalFlow) -> Frame:
        frame = self.inner.frame(flow)
        counts: dict[Labels, Floats] = {}
        for row, labels in enumerate(frame.labels):
            flow.budget.check()
            for value, where in _distinct(frame.values[row], frame.present[row]):
                [group] = self.reduction.groups([changed(labels, {self.label: plain(value)})])
                known = counts.get(group)
                if known is None:
                    known = counts[group] = np.zeros(self.steps.count)
                    flow.budget.cells(len(counts), self.steps.count)
                known += where
        values = np.array(list(counts.values())).reshape(len(counts), self.steps.count)
        return Frame.of(list(counts), values, values > 0)


def _distinct(values: Floats, present: Mask) -> list[tuple[float, Mask]]:
    found: list[tuple[float, Mask]] = []
    there = values[present]
    if np.isnan(there).any():
        found.append((float("nan"), present & np.isnan(values)))
    for bits in np.unique(there[~np.isnan(there)].view(np.int64)):
        same = present & (np.ascontiguousarray(values).view(np.int64) == bits)
        found.append((float(np.int64(bits).view(np.float64)), same))
    return found
