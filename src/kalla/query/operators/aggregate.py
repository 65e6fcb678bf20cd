"""Aggregation nodes: those that fold, those that choose rows, and those that need every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kalla.query.array_types import Floats, Whole
from kalla.query.evaluate.evaluation import EvalFlow
from kalla.query.evaluate.exec_nodes import ExecNode
from kalla.query.evaluate.frames import Frame
from kalla.query.evaluate.partial_aggregates import (
    Grouped,
    Reduction,
    chosen,
    places,
    reduced,
    sampled,
)
from kalla.query.kernels import order_statistics
from kalla.query.labels.label_sets import Labels, changed, without
from kalla.query.promql.number_format import plain


@dataclass(frozen=True)
class Aggregation(ExecNode):
    """Over rows that are here; a leaf with a reduction has done the same on its shards."""

    inner: ExecNode
    reduction: Reduction

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,)

    def compute(self, flow: EvalFlow) -> Frame:
        frame = self.inner.frame(flow)
        grouped = _grouped(frame, self.reduction, flow)
        return reduced(self.reduction, frame, grouped, flow.budget.check).trimmed()


@dataclass(frozen=True)
class RowSelection(ExecNode):
    """topk, bottomk, limitk, limit_ratio."""

    inner: ExecNode
    reduction: Reduction
    parameter: ExecNode

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.parameter, self.inner)

    def compute(self, flow: EvalFlow) -> Frame:
        parameter = self.parameter.scalar(flow)
        frame = self.inner.frame(flow)
        if self.reduction.operator == "limit_ratio":
            return sampled(
                frame,
                parameter,
                flow.cached("places", [frame.labels], lambda: places(frame.labels)),
            ).trimmed()
        frame = flow.ordered(frame)
        reduction = replace(self.reduction, parameter=tuple(parameter.tolist()))
        grouped = _grouped(frame, reduction, flow)
        return chosen(frame, reduction, grouped, flow.budget.check).trimmed()


@dataclass(frozen=True)
class GroupStatistics(ExecNode):
    """quantile, stddev, stdvar: of all rows of a group, in the order of their labels."""

    inner: ExecNode
    reduction: Reduction
    parameter: ExecNode | None = None

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,) if self.parameter is None else (self.parameter, self.inner)

    def compute(self, flow: EvalFlow) -> Frame:
        quantiles = None if self.parameter is None else self.parameter.scalar(flow)
        frame = flow.ordered(self.inner.frame(flow))
        grouped = _grouped(frame, self.reduction, flow)
        order, bounds = grouped.members
        values = np.zeros((len(grouped.groups), frame.values.shape[1]))
        present = np.zeros(values.shape, bool)
        rows, there = np.ascontiguousarray(frame.values), np.ascontiguousarray(frame.present)
        if quantiles is not None:
            asked = np.ascontiguousarray(quantiles)
            order_statistics.quantiles_across(rows, there, order, bounds, asked, values, present)
        else:
            root = self.reduction.operator == "stddev"
            order_statistics.deviations_across(rows, there, order, bounds, root, values, present)
        drops = np.zeros(len(grouped.groups), bool)
        np.logical_or.at(drops, grouped.ids, frame.drops)
        return Frame(grouped.groups, values, present, drops).trimmed()


def _grouped(frame: Frame, reduction: Reduction, flow: EvalFlow) -> Grouped:
    return flow.cached(
        (reduction.grouping, reduction.without),
        [frame.labels],
        lambda: reduction.grouped(frame.labels),
    )


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
        grouped = flow.cached(id(self), [frame.labels], lambda: self._rest(frame.labels))
        rows, columns = np.nonzero(frame.present)
        pairs, ids = _pairs(grouped.ids[rows], frame.values[rows, columns])
        counts: dict[Labels, int] = {}
        numbers = np.array(
            [
                counts.setdefault(self._group(grouped.groups[rest], value), len(counts))
                for rest, value in pairs
            ],
            np.int64,
        )
        steps = frame.values.shape[1]
        flow.budget.cells(len(counts), steps)
        cells = numbers[ids] * steps + columns if len(ids) else columns
        values = np.bincount(cells, minlength=len(counts) * steps).astype(np.float64)
        values = values.reshape(len(counts), steps)
        return Frame.of(list(counts), values, values > 0)

    def _rest(self, known: Sequence[Labels]) -> Grouped:
        """Series that are in one group if they have one value."""
        own = frozenset({self.label})
        return self.reduction.grouped([without(labels, own) for labels in known])

    def _group(self, rest: Labels, value: float) -> Labels:
        [group] = self.reduction.groups([changed(rest, {self.label: plain(value)})])
        return group


def _pairs(groups: Whole, values: Floats) -> tuple[list[tuple[int, float]], Whole]:
    """The distinct pairs, and which of them each is; zeros differ by their sign, NaNs do not."""
    values = np.where(np.isnan(values), np.nan, values)
    bits, codes = np.unique(values.view(np.int64), return_inverse=True)
    both, ids = np.unique(groups * max(len(bits), 1) + codes, return_inverse=True)
    found = bits.view(np.float64)[both % max(len(bits), 1)].tolist()
    return list(zip((both // max(len(bits), 1)).tolist(), found, strict=True)), ids
