"""The evaluation tree: each node evaluates its arguments at the current steps, then itself.

They are all steps of a query or subquery, or a block of them: see `blocks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from kalla.query.array_types import Floats
from kalla.query.evaluate.evaluation import EvalFlow, Value
from kalla.query.evaluate.frames import Frame, Steps
from kalla.query.evaluate.leaf import BaseExpr
from kalla.query.labels.label_sets import NONE

ScalarName = Literal["time", "pi", "start", "end", "step", "range"]


@dataclass(frozen=True)
class ExecNode:
    """`eval` counts what a node holds; what it does is in `compute`.

    `whole` nodes are computed at all their steps before anything above them is.
    """

    steps: Steps
    whole: ClassVar[bool] = False

    def eval(self, flow: EvalFlow) -> Value:
        """First arguments are walked down to, not called: chains of operators may be long."""
        if id(self) in flow.ready:
            return flow.ready.pop(id(self))
        budget = flow.budget
        before = budget.held, budget.held_bytes
        chain = [self]
        while id(chain[-1]) not in flow.held and chain[-1].arguments:
            chain.append(chain[-1].arguments[0])
        for node in reversed(chain):
            budget.check()
            if id(node) in flow.held:
                value = flow.at_current_steps(flow.held[id(node)])
            else:
                value = node.compute(flow)
                budget.hold(value, *before)
            flow.ready[id(node)] = value
        return flow.ready.pop(id(self))

    def compute(self, flow: EvalFlow, /) -> Value:
        raise NotImplementedError

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        """In the order in which `compute` asks for them."""
        return ()

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

    def compute(self, flow: EvalFlow) -> Floats:
        return np.full(flow.steps.count, self.value)


@dataclass(frozen=True)
class EmptyNode(ExecNode):
    """A subquery without a step inside its window, or a window shorter than a millisecond."""

    def compute(self, flow: EvalFlow) -> Frame:
        return Frame.empty(flow.steps.count)


@dataclass(frozen=True)
class TimeNode(ExecNode):
    """Scalars that come from the query's own times; `query` are those of the whole query."""

    name: ScalarName
    query: Steps
    query_step: int

    def compute(self, flow: EvalFlow) -> Floats:
        query = self.query
        if self.name == "time":
            return flow.steps.times / 1000
        value = {
            "pi": np.pi,
            "start": query.start / 1000,
            "end": query.end / 1000,
            "step": self.query_step / 1000,
            "range": (query.end - query.start) / 1000,
        }[self.name]
        return np.full(flow.steps.count, value)


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
        if not frame.labels:
            return np.full(flow.steps.count, np.nan)
        single = frame.present.sum(axis=0) == 1
        first = np.argmax(frame.present, axis=0)
        return np.where(single, frame.values[first, np.arange(len(first))], np.nan)


@dataclass(frozen=True)
class Absent(ExecNode):
    """1 where the argument has no series; the labels are those of the selector."""

    inner: ExecNode
    labels: tuple[tuple[str, str], ...]

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,)

    def compute(self, flow: EvalFlow) -> Frame:
        frame = self.inner.frame(flow)
        missing = ~np.any(frame.present, axis=0, keepdims=True)
        return Frame.of([self.labels], np.ones(missing.shape), missing).filled()
