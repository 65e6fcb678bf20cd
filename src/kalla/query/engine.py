"""Answers a query: takes its text and times, returns an answer in Prometheus' shape."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kalla.query.array_types import Floats, Whole
from kalla.query.evaluate.annotations import Annotations
from kalla.query.evaluate.blocks import evaluated, evaluated_frame, in_blocks, usual_width
from kalla.query.evaluate.evaluation import Budget, EvalFlow, LeafCost, Limits
from kalla.query.evaluate.exec_nodes import ExecNode
from kalla.query.evaluate.frames import Frame, Steps, merged, range_steps
from kalla.query.evaluate.leaf import BaseExpr
from kalla.query.evaluate.result_series import Series, lines
from kalla.query.evaluate.sample_source import Source
from kalla.query.labels.interned import nameless
from kalla.query.labels.label_sets import NONE, Labels, unnamed
from kalla.query.operators.elementwise import distinct
from kalla.query.operators.info_function import InfoJoin
from kalla.query.operators.window_nodes import LeafNode
from kalla.query.plan.planner import Plan, Planner, PlanSettings, plan
from kalla.query.promql.query_errors import BadRequest
from kalla.query.promql.syntax_tree import (
    Expr,
    MatrixSelector,
    StringLiteral,
    Subquery,
    ValueType,
    unwrapped,
)
from kalla.query.promql.type_checker import checked, require_steps

_FURTHEST = 2**61
BlockCallback = Callable[[Steps, Frame], None]


@dataclass(frozen=True)
class Stats:
    """What the query cost: samples read and held at most, seconds per stage, and its leaves.

    `samples_by_step` counts the samples of each step's windows, where the setting asks for it.
    """

    samples_read: int = 0
    samples_held: int = 0
    samples_by_step: tuple[int, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    leaves: tuple[LeafCost, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A vector or matrix has series; a scalar or string has a value."""

    type: ValueType
    series: Sequence[Series] = ()
    scalar: float = math.nan
    string: str = ""
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()
    stats: Stats = Stats()


@dataclass(frozen=True)
class Engine:
    """Answers queries from a source. Keeps nothing between queries.

    `width` gives how many steps are evaluated at a time for a number of rows.
    """

    source: Source
    setting: PlanSettings = field(default_factory=PlanSettings)
    limits: Limits = field(default_factory=Limits)
    workers: int = 1
    width: Callable[[int], int] = usual_width

    def instant(self, text: str, time_ms: int, stop: threading.Event | None = None) -> Answer:
        expr = checked(text, self.setting.features)
        return self.run(expr, text, Steps(time_ms, time_ms, 1), 0, stop)

    def range(
        self,
        text: str,
        start_ms: int,
        end_ms: int,
        step_ms: int,
        stop: threading.Event | None = None,
    ) -> Answer:
        steps = range_steps(start_ms, end_ms, step_ms, self.limits.points)
        expr = checked(text, self.setting.features)
        require_steps(expr)
        return self.run(expr, text, steps, step_ms, stop)

    def run(
        self,
        expr: Expr,
        text: str,
        steps: Steps,
        step_ms: int,
        stop: threading.Event | None = None,
        on_block: BlockCallback | None = None,
    ) -> Answer:
        """A checked expression; `step_ms` is 0 for an instant query.

        The series of a range query go to `on_block` instead, block by block in time order; if the
        query fails later, these blocks are not an answer.
        """
        if max(abs(steps.start), abs(steps.end)) > _FURTHEST:
            raise BadRequest(
                "the time asked for is out of range: it must fit milliseconds in 64 bits"
            )
        return _Query(self, text, expr, steps, step_ms, stop).answered(on_block)

    def explained(self, text: str, steps: Steps, step_ms: int) -> Plan:
        """The plan of a query that is not run."""
        return plan(checked(text, self.setting.features), steps, step_ms, self.planning)

    @property
    def planning(self) -> PlanSettings:
        return replace(self.setting, max_steps=self.limits.samples)


def bounds(expr: Expr, steps: Steps, step_ms: int, setting: PlanSettings) -> tuple[int, int] | None:
    """The query reads only samples of (after, until]; None: it reads none."""
    inner = unwrapped(expr)
    planner = Planner(steps, step_ms, setting)
    if isinstance(inner, StringLiteral):
        return None
    if isinstance(inner, MatrixSelector):
        return planner.ranged(inner, steps).bounds
    if isinstance(inner, Subquery):
        steps, *_ = planner.inner_steps(inner, steps)
        inner = inner.expr
        if steps.count == 0:
            return None
    samples_by_step = list(_read_bounds(planner.node(inner, steps)))
    if not samples_by_step:
        return None
    return min(after for after, _ in samples_by_step), max(until for _, until in samples_by_step)


def _read_bounds(node: ExecNode) -> Iterator[tuple[int, int]]:
    if isinstance(node, LeafNode):
        yield node.leaf.bounds
    if isinstance(node, InfoJoin):
        yield BaseExpr((), node.steps, node.lookback).bounds
    for argument in node.arguments:
        yield from _read_bounds(argument)


class _Query:
    def __init__(
        self,
        engine: Engine,
        text: str,
        expr: Expr,
        steps: Steps,
        step_ms: int,
        stop: threading.Event | None,
    ) -> None:
        self.engine = engine
        self.expr = expr
        self.steps = steps
        self.step_ms = step_ms
        self.annotations = Annotations(text)
        self.flow = EvalFlow(
            engine.source,
            Budget(engine.limits, stop),
            self.annotations,
            steps,
            engine.width,
            engine.setting.features.delayed_name_removal,
            engine.workers,
        )
        if engine.setting.counted:
            self.flow.samples_by_step = np.zeros(steps.count, np.int64)
        self.seconds: dict[str, float] = {}

    def answered(self, on_block: BlockCallback | None) -> Answer:
        inner = unwrapped(self.expr)
        if isinstance(inner, StringLiteral):
            answer = Answer("string", string=inner.value)
        elif isinstance(inner, MatrixSelector):
            answer = Answer("matrix", self._samples(inner))
        elif isinstance(inner, Subquery):
            answer = Answer("matrix", self._subquery(inner))
        else:
            answer = self._evaluated(on_block)
        self.flow.budget.check()
        return replace(
            answer,
            warnings=self.annotations.warnings,
            infos=self.annotations.infos,
            stats=Stats(
                sum(fact.samples for fact in self.flow.facts),
                self.flow.budget.peak,
                ()
                if self.flow.samples_by_step is None
                else tuple(self.flow.samples_by_step.tolist()),
                self.seconds,
                tuple(self.flow.facts),
            ),
        )

    def _evaluated(self, on_block: BlockCallback | None) -> Answer:
        began = time.perf_counter()
        planned = plan(self.expr, self.steps, self.step_ms, self.engine.planning)
        self.seconds["plan"] = time.perf_counter() - began
        began = time.perf_counter()
        self.flow.start(planned.leaves)
        self.seconds["leaves"] = time.perf_counter() - began
        began = time.perf_counter()
        try:
            if on_block is not None:
                self._emit_blocks(planned.root, on_block)
                return Answer("matrix")
            value = evaluated(planned.root, self.flow)
        finally:
            self.seconds["evaluation"] = time.perf_counter() - began
        if not isinstance(value, Frame):
            if self.step_ms == 0:
                return Answer("scalar", scalar=float(value[0]))
            return Answer("matrix", (Series(NONE, self.steps.times, value),))
        frame = self._named(value)
        if self.step_ms == 0:
            return Answer("vector", lines(frame, self.steps))
        return Answer("matrix", lines(frame.sorted(), self.steps))

    def _emit_blocks(self, root: ExecNode, on_block: BlockCallback) -> None:
        met: set[Labels] = set()
        last: Sequence[Labels] = ()
        for steps, value in in_blocks(root, self.flow):
            if not isinstance(value, Frame):
                value = Frame.of([NONE], value[None, :], np.ones((1, steps.count), bool))
            frame = self.flow.ordered(self._named(value.filled()))
            if frame.labels is not last:
                last = frame.labels
                met.update(last)
                self.flow.budget.cells(len(met), 0)
            on_block(steps, frame)

    def _named(self, frame: Frame) -> Frame:
        """Drops the names that were marked to be dropped at the end."""
        if not frame.drops.any():
            return distinct(frame, self.flow)
        if frame.drops.all():
            return merged(replace(frame, labels=nameless(frame.labels)))
        labels = tuple(
            unnamed(one) if drops else one
            for one, drops in zip(frame.labels, frame.drops, strict=True)
        )
        return merged(replace(frame, labels=labels))

    def _planner(self) -> Planner:
        return Planner(self.steps, self.step_ms, self.engine.planning)

    def _subquery(self, subquery: Subquery) -> Sequence[Series]:
        planner = self._planner()
        inner_steps, *_ = planner.inner_steps(subquery, self.steps)
        if inner_steps.count == 0:
            return ()
        root = planner.node(subquery.expr, inner_steps)
        self.flow.start(root.leaves)
        with self.flow.counting_separately(inner_steps.count) as samples_by_step:
            found = evaluated_frame(root, self.flow)
        if self.flow.samples_by_step is not None:
            self.flow.samples_by_step += np.sum(samples_by_step)
        frame = self._named(found)
        return lines(frame.sorted(), inner_steps)

    def _samples(self, selector: MatrixSelector) -> tuple[Series, ...]:
        """The samples themselves: what an instant query of a range selector shows."""
        leaf = self._planner().ranged(selector, self.steps)
        if leaf.range == 0:
            return ()  # the window of a fraction of a millisecond, in which no sample can lie
        after, until = leaf.bounds
        found: list[Series] = []
        for shard in range(self.engine.source.shards):
            self.flow.budget.check()
            began = time.perf_counter()
            batch = self.engine.source.select(shard, leaf.matchers, after, until)
            read, batch = batch.read, batch.without_markers()
            spent = time.perf_counter() - began
            self.flow.facts.append(
                LeafCost(leaf, shard, len(batch), len(batch.values), spent, read)
            )
            self.flow.budget.points(len(batch.values))
            self.flow.budget.held += len(batch.values)
            self.flow.budget.loaded(len(batch.values))
            self.flow.budget.keep(len(batch.values) * 16)
            if self.flow.samples_by_step is not None:
                self.flow.samples_by_step += len(batch.values)
            for index, labels in enumerate(batch.labels):
                low, high = batch.offsets[index], batch.offsets[index + 1]
                times, values = batch.times[low:high], batch.values[low:high]
                if leaf.extension:
                    times, values = _to_the_edges(leaf, times, values)
                if len(times):
                    found.append(Series(labels, times, values))
        return tuple(sorted(found, key=lambda one: one.labels))


def _to_the_edges(leaf: BaseExpr, times: Whole, values: Floats) -> tuple[Whole, Floats]:
    """Samples of an anchored or smoothed window, with values set for its two edges."""
    end = int(leaf.ends[0])
    begin = end - leaf.range
    if len(times) == 0:
        return times, values
    smooth = leaf.extension == "smoothed"
    last = len(times) - 1
    first = max(0, int(np.searchsorted(times[:last], begin, side="right")) - 1)
    if smooth:
        last = int(np.searchsorted(times[:last], end, side="left"))
    if times[last] <= begin:
        return times[:0], values[:0]
    left, right = values[first], values[last]
    if smooth and times[first] < begin:
        left = _between(times, values, first, begin)
    if smooth and last > 0 and times[last] > end:
        right = _between(times, values, last - 1, end)
    inside = slice(first + int(times[first] <= begin), last + int(times[last] < end))
    return (
        np.concatenate([[begin], times[inside], [end]]).astype(np.int64),
        np.concatenate([[left], values[inside], [right]]),
    )


def _between(times: Whole, values: Floats, index: int, at: int) -> float:
    share = (at - times[index]) / (times[index + 1] - times[index])
    return float(values[index] + (values[index + 1] - values[index]) * share)
