"""The door of this room: a query text and its times in, an answer in Prometheus' shape out."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field, replace

import numpy as np

from kalla.query.annotations import Annotations
from kalla.query.checking import checked, type_of
from kalla.query.flow import Budget, EvalFlow, LeafFacts, Limits
from kalla.query.frames import Floats, Frame, Steps, Whole, merged
from kalla.query.labels import NONE, Labels, unnamed
from kalla.query.leaves import BaseExpr
from kalla.query.plan import Plan, Planner, Setting, plan
from kalla.query.problems import BadRequest
from kalla.query.samples import Source
from kalla.query.syntax import (
    Expr,
    MatrixSelector,
    StringLiteral,
    Subquery,
    ValueType,
    unwrapped,
)

_FURTHEST = 2**61
_DOCUMENTED = {"matrix": "range vector", "string": "string"}


@dataclass(frozen=True)
class Series:
    labels: Labels
    times: Whole
    values: Floats


@dataclass(frozen=True)
class Stats:
    """What the query cost: samples read and held at most, seconds per stage, and its leaves."""

    samples_read: int = 0
    samples_held: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    leaves: tuple[LeafFacts, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A vector or matrix has series; a scalar or string has a value."""

    type: ValueType
    series: tuple[Series, ...] = ()
    scalar: float = math.nan
    string: str = ""
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()
    stats: Stats = Stats()


@dataclass(frozen=True)
class Engine:
    """Answers queries from a source. Nothing is remembered between them."""

    source: Source
    setting: Setting = field(default_factory=Setting)
    limits: Limits = field(default_factory=Limits)
    workers: int = 1

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
        if end_ms < start_ms:
            raise BadRequest("end timestamp must not be before start time")
        if step_ms <= 0:
            raise BadRequest(
                "zero or negative query resolution step widths are not accepted. Try a positive "
                "integer"
            )
        if (end_ms - start_ms) // step_ms > self.limits.points:
            raise BadRequest(
                "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the "
                "query resolution (?step=XX)".replace("11,000", f"{self.limits.points:,}")
            )
        expr = checked(text, self.setting.features)
        if (kind := type_of(expr)) in ("matrix", "string"):
            raise BadRequest(
                f'invalid expression type "{_DOCUMENTED[kind]}" for range query, must be Scalar or '
                "instant Vector"
            )
        return self.run(expr, text, Steps(start_ms, end_ms, step_ms), step_ms, stop)

    def run(
        self,
        expr: Expr,
        text: str,
        steps: Steps,
        step_ms: int,
        stop: threading.Event | None = None,
    ) -> Answer:
        """A checked expression; `step_ms` is 0 for an instant query."""
        if max(abs(steps.start), abs(steps.end)) > _FURTHEST:
            raise BadRequest(
                "the time asked for is out of range: it must fit milliseconds in 64 bits"
            )
        return _Query(self, text, expr, steps, step_ms, stop).answered()

    def explained(self, text: str, steps: Steps, step_ms: int) -> Plan:
        """The plan of a query that is not run."""
        return plan(checked(text, self.setting.features), steps, step_ms, self.planning)

    @property
    def planning(self) -> Setting:
        return replace(self.setting, most_steps=self.limits.samples)


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
            engine.setting.features.delayed_name_removal,
            engine.workers,
        )
        self.seconds: dict[str, float] = {}

    def answered(self) -> Answer:
        inner = unwrapped(self.expr)
        if isinstance(inner, StringLiteral):
            return Answer("string", string=inner.value)
        if isinstance(inner, MatrixSelector):
            answer = Answer("matrix", self._samples(inner))
        elif isinstance(inner, Subquery):
            answer = Answer("matrix", self._subquery(inner))
        else:
            answer = self._evaluated()
        return replace(
            answer,
            warnings=self.annotations.warnings,
            infos=self.annotations.infos,
            stats=Stats(
                sum(fact.samples for fact in self.flow.facts),
                self.flow.budget.peak,
                self.seconds,
                tuple(self.flow.facts),
            ),
        )

    def _evaluated(self) -> Answer:
        began = time.perf_counter()
        planned = plan(self.expr, self.steps, self.step_ms, self.engine.planning)
        self.seconds["plan"] = time.perf_counter() - began
        began = time.perf_counter()
        self.flow.start(planned.leaves)
        self.seconds["leaves"] = time.perf_counter() - began
        began = time.perf_counter()
        value = planned.root.eval(self.flow)
        self.seconds["evaluation"] = time.perf_counter() - began
        if not isinstance(value, Frame):
            if self.step_ms == 0:
                return Answer("scalar", scalar=float(value[0]))
            return Answer("matrix", (Series(NONE, self.steps.times, value),))
        frame = self._named(value)
        if self.step_ms == 0:
            return Answer("vector", series(frame, self.steps))
        return Answer("matrix", series(frame.sorted(), self.steps))

    def _named(self, frame: Frame) -> Frame:
        """Names that were to go when the query is done go now."""
        if not frame.drops.any():
            return merged(frame)
        labels = tuple(
            unnamed(one) if drops else one
            for one, drops in zip(frame.labels, frame.drops, strict=True)
        )
        return merged(replace(frame, labels=labels))

    def _planner(self) -> Planner:
        return Planner(self.steps, self.step_ms, self.engine.planning)

    def _subquery(self, subquery: Subquery) -> tuple[Series, ...]:
        planner = self._planner()
        inner_steps, *_ = planner.inner_steps(subquery, self.steps)
        if inner_steps.count == 0:
            return ()
        frame = self._named(planner.node(subquery.expr, inner_steps).frame(self.flow))
        return series(frame.sorted(), inner_steps)

    def _samples(self, selector: MatrixSelector) -> tuple[Series, ...]:
        """The samples themselves: what an instant query of a range selector shows."""
        leaf = self._planner().ranged(selector, self.steps)
        after, until = leaf.bounds
        found: list[Series] = []
        for shard in range(self.engine.source.shards):
            self.flow.budget.check()
            batch = self.engine.source.select(shard, leaf.matchers, after, until)
            batch = batch.without_markers()
            self.flow.budget.points(len(batch.values))
            for index, labels in enumerate(batch.labels):
                low, high = batch.offsets[index], batch.offsets[index + 1]
                times, values = batch.times[low:high], batch.values[low:high]
                if leaf.extension:
                    times, values = _to_the_edges(leaf, times, values)
                if len(times):
                    found.append(Series(labels, times, values))
        return tuple(sorted(found, key=lambda one: one.labels))


def series(frame: Frame, steps: Steps) -> tuple[Series, ...]:
    """Each row's points; rows without a gap share their times."""
    times = steps.times
    counts = frame.present.sum(axis=1).tolist()
    found: list[Series] = []
    for row, labels in enumerate(frame.labels):
        if counts[row] == len(times):
            found.append(Series(labels, times, frame.values[row]))
        elif counts[row]:
            there = frame.present[row]
            found.append(Series(labels, times[there], frame.values[row][there]))
    return tuple(found)


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
