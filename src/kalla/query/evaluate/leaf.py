"""A leaf: what is read from one shard and finished there, as plain data that any process can run.

A series' window is finished before anything is aggregated across series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np

from kalla.query.array_types import Mask, Whole
from kalla.query.evaluate.frames import Frame, Steps, stacked
from kalla.query.evaluate.partial_aggregates import FOLDED, Reduced, Reducer, Reduction
from kalla.query.evaluate.sample_source import SeriesBatch, Source
from kalla.query.evaluate.window_computation import in_slices, in_windows, overlapping, parts
from kalla.query.labels.interned import Interned, nameless
from kalla.query.labels.label_sets import Labels, name_of
from kalla.query.promql.matchers import Matcher
from kalla.query.promql.syntax_tree import METRIC_NAME, NOWHERE, Extension, Span

# Functions that act like an offset keep the metric's name. The series below absent_over_time are
# not shown, so two may differ in their names alone.
_KEEP_NAME = frozenset({"", "last_over_time", "first_over_time", "absent_over_time"})
_NAMED_COUNTERS = ("_total", "_sum", "_count", "_bucket")


@dataclass(frozen=True)
class BaseExpr:
    """Selector, matchers, range, offset, @, and what is done per series and across them.

    Times are milliseconds. `parameters` of the function hold one value, or one per step.
    """

    matchers: tuple[Matcher, ...]
    steps: Steps
    lookback: int
    function: str = ""
    range: int = 0
    offset: int = 0
    at: int | None = None
    extension: Extension = ""
    parameters: tuple[tuple[float, ...], ...] = ()
    start_timestamps: bool = False
    delayed_names: bool = False
    reduction: Reduction | None = None
    counted: bool = False
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def ends(self) -> Whole:
        """Where each step's window ends."""
        times = self.steps.times if self.at is None else np.full(self.steps.count, self.at)
        return np.asarray(times - self.offset, np.int64)

    @property
    def bounds(self) -> tuple[int, int]:
        """Samples of (after, until] are all that this leaf can see."""
        first = self.steps.start if self.at is None else self.at
        last = self.steps.start + (self.steps.count - 1) * self.steps.step
        last = last if self.at is None else self.at
        after, until = first - self.offset, last - self.offset
        if self.range:
            after -= self.range + (self.lookback if self.extension else 0)
        else:
            after -= self.lookback
        if self.extension == "smoothed":
            until += self.lookback
        return after, until

    def at_steps(self, first: int, beyond: int) -> BaseExpr:
        """The same at some of its steps only."""
        return replace(
            self,
            steps=self.steps.part(first, beyond),
            parameters=tuple(
                held if len(held) == 1 else held[first:beyond] for held in self.parameters
            ),
        )

    @property
    def drops_name(self) -> bool:
        return self.function not in _KEEP_NAME


@dataclass(frozen=True)
class Partial:
    """What one shard has for a leaf: rows sorted by labels, or groups already reduced.

    `samples_by_step` counts the samples of each step's windows, for a leaf that is `counted`.
    """

    frame: Frame | None = None
    reduced: Reduced | None = None
    series: int = 0
    samples: int = 0
    fullest: int = 0
    uncounted: frozenset[str] = frozenset()
    overlapping: frozenset[str] = frozenset()  # metrics whose start timestamps do
    answered: Mask | None = None
    samples_by_step: Whole | None = None
    read: Mapping[str, int] = field(default_factory=dict)


class Guard(Protocol):
    """Called regularly while a leaf runs; raises when the query must stop."""

    def check(self) -> None: ...

    def loaded(self, samples: int) -> None: ...

    def cells(self, rows: int, steps: int) -> None: ...


@runtime_checkable
class ExecutingSource(Source, Protocol):
    """A source that has leaves executed where its shards are."""

    def execute(self, leaf: BaseExpr, shard: int, guard: Guard) -> Partial: ...


def partial_of(leaf: BaseExpr, source: Source, shard: int, guard: Guard) -> Partial:
    """A leaf's part of one shard, computed by the process that holds the shard."""
    if isinstance(source, ExecutingSource):
        return source.execute(leaf, shard, guard)
    return execute(leaf, source, shard, guard)


def execute(leaf: BaseExpr, source: Source, shard: int, guard: Guard) -> Partial:
    """Reads and computes a leaf on one shard, here."""
    guard.check()
    after, until = leaf.bounds
    batch = source.select(shard, leaf.matchers, after, until)
    guard.loaded(len(batch.values))
    guard.check()
    read = batch.read
    if leaf.range or leaf.extension == "smoothed":
        batch = batch.without_markers()
    facts = _Facts()
    labels = batch.labels
    if leaf.drops_name and not leaf.delayed_names:
        labels = nameless(labels)
    blocks = _blocks(leaf, batch, labels, facts, guard)
    steps = leaf.steps.count
    if leaf.reduction is None:
        guard.cells(len(batch), steps)
        partial = Partial(frame=_rows(leaf, blocks))
    else:
        reducer = Reducer(leaf.reduction, steps, guard.check)
        grouped = leaf.reduction.grouped(labels) if leaf.reduction.operator in FOLDED else None
        for frame, rows in blocks:
            reducer.add(frame, None if grouped is None else grouped.rows(rows))
            guard.cells(len(reducer.ids), steps)
        partial = Partial(reduced=reducer.result())
    return replace(
        partial,
        series=len(batch),
        samples=len(batch.values),
        fullest=facts.fullest,
        uncounted=frozenset(facts.uncounted),
        overlapping=frozenset(facts.overlapping),
        answered=facts.answered,
        samples_by_step=_samples_by_step(leaf, batch, facts),
        read=read,
    )


@dataclass
class _Facts:
    fullest: int = 0
    uncounted: set[str] = field(default_factory=set)
    overlapping: set[str] = field(default_factory=set)
    answered: Mask | None = None
    present: int | Whole = 0


def _samples_by_step(leaf: BaseExpr, batch: SeriesBatch, facts: _Facts) -> Whole | None:
    if not leaf.counted:
        return None
    return (
        in_windows(leaf, batch)
        if leaf.range
        else np.zeros(leaf.steps.count, np.int64) + facts.present
    )


def _rows(leaf: BaseExpr, blocks: Iterator[tuple[Frame, Whole]]) -> Frame:
    frames = [frame for frame, _ in blocks]
    return stacked(frames) if frames else Frame.empty(leaf.steps.count)


def _blocks(
    leaf: BaseExpr, batch: SeriesBatch, labels: Sequence[Labels], facts: _Facts, guard: Guard
) -> Iterator[tuple[Frame, Whole]]:
    """The finished windows of some series at a time, and which series they are."""
    count = leaf.steps.count
    guard.cells(1, count)
    beyond = 0
    for part in parts(leaf, batch, guard):
        first, beyond = beyond, beyond + len(part)
        values = np.zeros((len(part), count))
        present = np.zeros(values.shape, bool)
        facts.fullest = max(facts.fullest, in_slices(leaf, part, values, present, guard))
        there = np.asarray(present.any(axis=1))
        _note(leaf, part, present, there, facts)
        drops = np.full(len(part), leaf.drops_name and leaf.delayed_names)
        frame = Frame(labels[first:beyond], values, present, drops)
        rows = first + np.flatnonzero(there)
        yield frame if len(rows) == len(part) else frame.rows(there), rows


def _note(leaf: BaseExpr, part: SeriesBatch, present: Mask, there: Mask, facts: _Facts) -> None:
    if leaf.counted and not leaf.range:
        facts.present = facts.present + present.sum(axis=0)
    if leaf.function in ("rate", "increase"):
        facts.uncounted |= uncounted_names(part, there)
        if leaf.start_timestamps and not leaf.extension:
            rows = overlapping(leaf, part).tolist()
            facts.overlapping |= {name_of(part.labels[row]) for row in rows}
    if leaf.function == "quantile_over_time":
        answered = np.asarray(present.any(axis=0))
        facts.answered = answered if facts.answered is None else facts.answered | answered


def uncounted_names(part: SeriesBatch, there: Mask) -> set[str]:
    """Metrics that a rate was computed of although their names are not counter names."""
    rows = np.flatnonzero(there)
    if isinstance(part.labels, Interned):  # one series of each name
        rows = rows[np.unique(part.labels.codes(METRIC_NAME)[rows], return_index=True)[1]]
    names = {name_of(part.labels[row]) for row in rows.tolist()}
    return {name for name in names if name and not name.endswith(_NAMED_COUNTERS)}
