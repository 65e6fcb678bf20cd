"""The evaluation tree: each node asks its arguments for all steps at once and gives all steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from kalla.query.flow import EvalFlow, Value
from kalla.query.frames import SAME_LABELS, Floats, Frame, Mask, Steps
from kalla.query.interned import are_distinct
from kalla.query.labels import NONE
from kalla.query.leaves import BaseExpr, compute_all, in_windows, uncounted_names
from kalla.query.problems import ExecutionFailed
from kalla.query.samples import SeriesBatch

ScalarName = Literal["time", "pi", "start", "end", "step", "range"]


@dataclass(frozen=True)
class ExecNode:
    """`eval` counts what a node holds; what it does is in `compute`."""

    steps: Steps

    def eval(self, flow: EvalFlow) -> Value:
        """First arguments are walked down to, not called: chains of operators may be long."""
        if id(self) in flow.ready:
            return flow.ready.pop(id(self))
        budget = flow.budget
        before = budget.held, budget.held_bytes
        chain = [self]
        while (first := chain[-1].first) is not None:
            chain.append(first)
        for node in reversed(chain):
            budget.check()
            value = node.compute(flow)
            budget.hold(value, *before)
            flow.ready[id(node)] = value
        return flow.ready.pop(id(self))

    def compute(self, flow: EvalFlow, /) -> Value:
        raise NotImplementedError

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return ()

    @property
    def first(self) -> ExecNode | None:
        """The argument that `compute` asks for before all else, if it is one at our own steps."""
        return next(iter(self.arguments), None)

    @property
    def leaves(self) -> tuple[BaseExpr, ...]:
        """Leaves below that can run before anything is evaluated."""
        return tuple(leaf for argument in self.arguments for leaf in argument.leaves)

    def frame(self, flow: EvalFlow) -> Frame:
        value = self.eval(flow)
        if not isinstance(value, Frame):
            raise AssertionError("a scalar where the types say vector")
        return value

    def scalar(self, flow: EvalFlow) -> Floats:
        value = self.eval(flow)
        if isinstance(value, Frame):
            raise AssertionError("a vector where the types say scalar")
        return value


@dataclass(frozen=True)
class NumberNode(ExecNode):
    value: float

    def compute(self, _: EvalFlow) -> Floats:
        return np.full(self.steps.count, self.value)


@dataclass(frozen=True)
class Nothing(ExecNode):
    """A subquery that has no step inside its window, or a window shorter than a millisecond."""

    def compute(self, _: EvalFlow) -> Frame:
        return Frame.empty(self.steps.count)


@dataclass(frozen=True)
class TimeNode(ExecNode):
    """Scalars that come from the query's own times; `query` are those of the whole query."""

    name: ScalarName
    query: Steps
    query_step: int

    def compute(self, _: EvalFlow) -> Floats:
        query = self.query
        if self.name == "time":
            return self.steps.times / 1000
        value = {
            "pi": np.pi,
            "start": query.start / 1000,
            "end": query.end / 1000,
            "step": self.query_step / 1000,
            "range": (query.end - query.start) / 1000,
        }[self.name]
        return np.full(self.steps.count, value)


@dataclass(frozen=True)
class Repeated(ExecNode):
    """Something that is the same at every step: evaluated at the first."""

    inner: ExecNode

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,)

    @property
    def first(self) -> None:
        return None

    def compute(self, flow: EvalFlow) -> Value:
        with flow.counting_apart(1) as seen:
            value = self.inner.eval(flow)
        if flow.seen is not None:
            flow.seen += seen
        if isinstance(value, Frame):
            return value.repeated(self.steps.count)
        return np.repeat(value, self.steps.count)


@dataclass(frozen=True)
class LeafNode(ExecNode):
    """A leaf; parameters that are not constant are evaluated first and then handed to it."""

    leaf: BaseExpr
    parameters: tuple[ExecNode, ...] = ()

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return self.parameters

    @property
    def leaves(self) -> tuple[BaseExpr, ...]:
        return super().leaves if self.parameters else (self.leaf,)

    def compute(self, flow: EvalFlow) -> Frame:
        leaf = self.leaf
        if self.parameters:
            held = tuple(tuple(one.scalar(flow).tolist()) for one in self.parameters)
            leaf = replace(leaf, parameters=held)
        frame = flow.leaf(leaf)
        if frame.labels:
            check_smoothing(leaf)
        return frame


def check_smoothing(leaf: BaseExpr) -> None:
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

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (*self.parameters, self.inner)

    @property
    def first(self) -> ExecNode | None:
        return next(iter(self.parameters), None)

    def compute(self, flow: EvalFlow) -> Frame:
        window = self.window
        if self.parameters:
            held = tuple(tuple(one.scalar(flow).tolist()) for one in self.parameters)
            window = replace(window, parameters=held)
        with flow.counting_apart(self.inner.steps.count):
            inner = self.inner.frame(flow)
        if inner.labels:
            check_smoothing(window)
        flow.budget.cells(len(inner.labels), self.steps.count)
        batch = as_batch(inner, self.inner.steps)
        if flow.seen is not None:
            flow.seen += in_windows(window, batch)
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
            seen = present.any(axis=0)
            quantiles = np.broadcast_to(window.parameters[0], seen.shape)
            for quantile in dict.fromkeys(quantiles[seen].tolist()):
                if not 0 <= quantile <= 1:
                    flow.annotations.bad_quantile(quantile, window.span)


def as_batch(frame: Frame, steps: Steps) -> SeriesBatch:
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


@dataclass(frozen=True)
class VectorOf(ExecNode):
    inner: ExecNode

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,)

    def compute(self, flow: EvalFlow) -> Frame:
        values = self.inner.scalar(flow)[None, :]
        return Frame.of([NONE], values, np.ones(values.shape, bool))


@dataclass(frozen=True)
class ScalarOf(ExecNode):
    """The only value of a vector; NaN where there is none or more than one."""

    inner: ExecNode

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,)

    def compute(self, flow: EvalFlow) -> Floats:
        frame = self.inner.frame(flow)
        single = frame.present.sum(axis=0) == 1
        values = np.full(self.steps.count, np.nan)
        for row in range(len(frame.labels)):
            np.copyto(values, frame.values[row], where=frame.present[row] & single)
        return values


@dataclass(frozen=True)
class Absent(ExecNode):
    """One, where the argument has nothing; the labels say what was looked for."""

    inner: ExecNode
    labels: tuple[tuple[str, str], ...]

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,)

    def compute(self, flow: EvalFlow) -> Frame:
        frame = self.inner.frame(flow)
        missing = ~np.any(frame.present, axis=0, keepdims=True)
        return Frame.of([self.labels], np.ones(missing.shape), missing).filled()
