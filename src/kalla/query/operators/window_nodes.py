"""Nodes that are computed at all steps at once: leaves, subqueries, and what never changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kalla.query.array_types import Mask
from kalla.query.evaluate.blocks import evaluated, evaluated_frame, evaluated_scalar
from kalla.query.evaluate.evaluation import EvalFlow, Value
from kalla.query.evaluate.exec_nodes import ExecNode
from kalla.query.evaluate.frames import SAME_LABELS, Frame, Steps
from kalla.query.evaluate.leaf import BaseExpr, uncounted_names
from kalla.query.evaluate.sample_source import SeriesBatch
from kalla.query.evaluate.window_computation import compute_all, in_windows
from kalla.query.labels.interned import are_distinct
from kalla.query.promql.query_errors import ExecutionFailed


@dataclass(frozen=True)
class ConstantNode(ExecNode):
    """Something that is the same at every step: evaluated at the first."""

    inner: ExecNode
    whole = True

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,)

    def compute(self, flow: EvalFlow) -> Value:
        with flow.counting_separately(1) as samples_by_step:
            value = evaluated(self.inner, flow)
        if flow.samples_by_step is not None:
            flow.samples_by_step += samples_by_step
        if isinstance(value, Frame):
            return value.repeated(self.steps.count)
        return np.repeat(value, self.steps.count)


@dataclass(frozen=True)
class LeafNode(ExecNode):
    """A leaf; parameters that are not constant are evaluated first and then handed to it."""

    leaf: BaseExpr
    parameters: tuple[ExecNode, ...] = ()
    whole = True

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return self.parameters

    @property
    def leaves(self) -> tuple[BaseExpr, ...]:
        return super().leaves if self.parameters else (self.leaf,)

    def compute(self, flow: EvalFlow) -> Frame:
        leaf = self.leaf
        if self.parameters:
            leaf = replace(leaf, parameters=_parameter_values(self.parameters, flow))
        frame = flow.leaf(leaf)
        if frame.labels:
            _check_smoothing(leaf)
        return frame


def _parameter_values(
    parameters: Sequence[ExecNode], flow: EvalFlow
) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(evaluated_scalar(one, flow).tolist()) for one in parameters)


def _check_smoothing(leaf: BaseExpr) -> None:
    if leaf.function != "double_exponential_smoothing":
        return
    for name, letters, values in zip(
        ("smoothing", "trend"), ("sf", "tf"), leaf.parameters, strict=True
    ):
        for value in values:
            if value <= 0 or value >= 1:
                raise ExecutionFailed(
                    f"invalid {name} factor. Expected: 0 < {letters} < 1, got: {value:f}"
                )


@dataclass(frozen=True)
class SubqueryCall(ExecNode):
    """A range function over the steps of an inner expression."""

    inner: ExecNode
    window: BaseExpr
    parameters: tuple[ExecNode, ...] = ()
    whole = True

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (*self.parameters, self.inner)

    def compute(self, flow: EvalFlow) -> Frame:
        window = self.window
        if self.parameters:
            window = replace(window, parameters=_parameter_values(self.parameters, flow))
        with flow.counting_separately(self.inner.steps.count):
            inner = evaluated_frame(self.inner, flow).filled().sorted()
        if inner.labels:
            _check_smoothing(window)
        flow.budget.cells(len(inner.labels), self.steps.count)
        batch = _as_batch(inner, self.inner.steps)
        if flow.samples_by_step is not None:
            flow.samples_by_step += in_windows(window, batch)
        values = np.zeros((len(batch), self.steps.count))
        present = np.zeros(values.shape, bool)
        flow.budget.points(compute_all(window, batch, values, present, flow.budget))
        self._annotate(flow, window, batch, present)
        drops = inner.drops | window.drops_name
        frame = Frame(inner.labels, values, present, drops if flow.delayed_names else inner.drops)
        if window.drops_name and not flow.delayed_names:
            frame = frame.dropping_names(later=False)
            if not are_distinct(frame.labels):
                raise ExecutionFailed(SAME_LABELS)
        return frame.filled()

    def _annotate(
        self, flow: EvalFlow, window: BaseExpr, batch: SeriesBatch, present: Mask
    ) -> None:
        if window.function in ("rate", "increase"):
            for name in sorted(uncounted_names(batch, np.asarray(present.any(axis=1)))):
                flow.annotations.no_counter(name, window.span)
        if window.function == "quantile_over_time":
            answered = present.any(axis=0)
            quantiles = np.broadcast_to(window.parameters[0], answered.shape)
            for quantile in dict.fromkeys(quantiles[answered].tolist()):
                if not 0 <= quantile <= 1:
                    flow.annotations.bad_quantile(quantile, window.span)


def _as_batch(frame: Frame, steps: Steps) -> SeriesBatch:
    """A frame's points as samples: what a subquery hands to its function."""
    counts = frame.present.sum(axis=1)
    offsets = np.zeros(len(frame.labels) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    rows, columns = np.nonzero(frame.present)
    return SeriesBatch(
        frame.labels,
        offsets,
        steps.times[columns],
        np.ascontiguousarray(frame.values[rows, columns]),
    )
