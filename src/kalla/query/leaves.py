"""A leaf: what is read from one shard and finished there, as plain data that any process can run.

A series' window is finished before anything is aggregated across series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from kalla.query import counters, extended, ordering, overtime
from kalla.query.frames import Floats, Frame, Mask, Steps, Whole, stacked
from kalla.query.interned import Interned, nameless
from kalla.query.labels import Labels, name_of
from kalla.query.matchers import Matcher
from kalla.query.reductions import FOLDED, Reduced, Reducer, Reduction
from kalla.query.samples import SeriesBatch, Source
from kalla.query.syntax import METRIC_NAME, NOWHERE, Extension, Span

# What acts like an offset returns what is still the metric. Of absent_over_time nobody sees the
# series: two may be alike but for their names.
_KEEP_NAME = frozenset({"", "last_over_time", "first_over_time", "absent_over_time"})
_NAMED_COUNTERS = ("_total", "_sum", "_count", "_bucket")
# Cells of the scratch a leaf computes in before it reduces: a few megabytes.
_BLOCK = 1 << 20
# Samples that windows look at between two looks at the clock: some tenths of a second, where
# they are sorted.
_WORK = 1 << 24


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

    `seen` counts the samples of each step's windows, for a leaf that is `counted`.
    """

    frame: Frame | None = None
    reduced: Reduced | None = None
    series: int = 0
    samples: int = 0
    fullest: int = 0
    uncounted: frozenset[str] = frozenset()
    answered: Mask | None = None
    seen: Whole | None = None
    read: Mapping[str, int] = field(default_factory=dict)


class Guard(Protocol):
    """Asked now and then while a leaf runs; it raises when the query must stop."""

    def check(self) -> None: ...

    def loaded(self, samples: int) -> None: ...

    def cells(self, rows: int, steps: int) -> None: ...


def execute(leaf: BaseExpr, source: Source, shard: int, guard: Guard) -> Partial:
    """Reads and computes a leaf on one shard."""
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
        answered=facts.answered,
        seen=_seen(leaf, batch, facts),
        read=read,
    )


@dataclass
class _Facts:
    fullest: int = 0
    uncounted: set[str] = field(default_factory=set)
    answered: Mask | None = None
    present: int | Whole = 0


def _seen(leaf: BaseExpr, batch: SeriesBatch, facts: _Facts) -> Whole | None:
    if not leaf.counted:
        return None
    return (
        in_windows(leaf, batch)
        if leaf.range
        else np.zeros(leaf.steps.count, np.int64) + facts.present
    )


def in_windows(leaf: BaseExpr, batch: SeriesBatch) -> Whole:
    """How many samples each step's windows hold, of all series together."""
    times, ends = np.sort(batch.times), leaf.ends
    high, low = (np.searchsorted(times, edge, side="right") for edge in (ends, ends - leaf.range))
    return np.asarray(high - low, np.int64)


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
    for part in _parts(leaf, batch, guard):
        first, beyond = beyond, beyond + len(part)
        values = np.zeros((len(part), count))
        present = np.zeros(values.shape, bool)
        facts.fullest = max(facts.fullest, _in_slices(leaf, part, values, present, guard))
        there = np.asarray(present.any(axis=1))
        _note(leaf, part, present, there, facts)
        drops = np.full(len(part), leaf.drops_name and leaf.delayed_names)
        frame = Frame(labels[first:beyond], values, present, drops)
        rows = first + np.flatnonzero(there)
        yield frame if len(rows) == len(part) else frame.rows(there), rows


def _parts(leaf: BaseExpr, batch: SeriesBatch, guard: Guard) -> Iterator[SeriesBatch]:
    """Some series at a time: so many that a query which must stop does so soon."""
    height = max(1, _BLOCK // max(leaf.steps.count, 1))
    samples = _WORK // _times_seen(leaf)
    beyond = 0
    while beyond < len(batch):
        guard.check()
        first, most = beyond, batch.offsets[beyond] + samples
        fitting = int(np.searchsorted(batch.offsets, most, side="right")) - 1
        beyond = min(max(fitting, first + 1), first + height, len(batch))
        yield _part(batch, first, beyond)


def _times_seen(leaf: BaseExpr) -> int:
    """How many windows a sample lies in."""
    if leaf.at is not None:
        return 1 if _is_constant(leaf) else max(leaf.steps.count, 1)
    return max(1, min(leaf.steps.count, leaf.range // leaf.steps.step + 1))


def _is_constant(leaf: BaseExpr) -> bool:
    """Whether all steps have the window and the parameters of the first."""
    timeless = leaf.at is not None and leaf.function != "predict_linear"
    return timeless and all(len(held) == 1 for held in leaf.parameters)


def _in_slices(
    leaf: BaseExpr, part: SeriesBatch, values: Floats, present: Mask, guard: Guard
) -> int:
    """Some steps at a time, where the windows of a single series are too much work for once."""
    count = leaf.steps.count
    work = len(part.values) * _times_seen(leaf)
    width = max(1, count * _WORK // max(work, 1))
    if len(part) != 1 or width >= count or _is_constant(leaf):
        return compute(leaf, part, values, present)
    fullest = 0
    for first in range(0, count, width):
        guard.check()
        some = leaf.at_steps(first, min(first + width, count))
        columns = slice(first, first + some.steps.count)
        block, there = np.zeros((1, some.steps.count)), np.zeros((1, some.steps.count), bool)
        fullest = max(fullest, compute(some, _within(part, *some.bounds), block, there))
        values[:, columns], present[:, columns] = block, there
    return fullest


def _note(leaf: BaseExpr, part: SeriesBatch, present: Mask, there: Mask, facts: _Facts) -> None:
    if leaf.counted and not leaf.range:
        facts.present = facts.present + present.sum(axis=0)
    if leaf.function in ("rate", "increase"):
        facts.uncounted |= uncounted_names(part, there)
    if leaf.function == "quantile_over_time":
        seen = np.asarray(present.any(axis=0))
        facts.answered = seen if facts.answered is None else facts.answered | seen


def uncounted_names(part: SeriesBatch, there: Mask) -> set[str]:
    """Metrics that a rate was taken of though their names are not those of counters."""
    rows = np.flatnonzero(there)
    if isinstance(part.labels, Interned):  # one series of each name
        rows = rows[np.unique(part.labels.codes(METRIC_NAME)[rows], return_index=True)[1]]
    names = {name_of(part.labels[row]) for row in rows.tolist()}
    return {name for name in names if name and not name.endswith(_NAMED_COUNTERS)}


def _part(batch: SeriesBatch, first: int, beyond: int) -> SeriesBatch:
    if first == 0 and beyond == len(batch):
        return batch
    low, high = int(batch.offsets[first]), int(batch.offsets[beyond])
    return replace(
        _samples(batch, low, high),
        labels=batch.labels[first:beyond],
        offsets=batch.offsets[first : beyond + 1] - low,
    )


def _within(single: SeriesBatch, after: int, until: int) -> SeriesBatch:
    """The samples of one series that windows between these times can see."""
    low, high = np.searchsorted(single.times, (after, until), side="right").tolist()
    return replace(_samples(single, low, high), offsets=np.array([0, high - low], np.int64))


def _samples(batch: SeriesBatch, low: int, high: int) -> SeriesBatch:
    return replace(
        batch,
        times=batch.times[low:high],
        values=batch.values[low:high],
        stale=None if batch.stale is None else batch.stale[low:high],
        starts=None if batch.starts is None else batch.starts[low:high],
    )


def compute_all(
    leaf: BaseExpr, batch: SeriesBatch, values: Floats, present: Mask, guard: Guard
) -> int:
    """The same for a batch of any size: the guard is asked between parts of it."""
    fullest = 0
    first = 0
    for part in _parts(leaf, batch, guard):
        beyond = first + len(part)
        found = _in_slices(leaf, part, values[first:beyond], present[first:beyond], guard)
        fullest = max(fullest, found)
        first = beyond
    return fullest


def compute(leaf: BaseExpr, batch: SeriesBatch, values: Floats, present: Mask) -> int:
    """Fills the window of every series at every step; returns how full the fullest was."""
    ends = leaf.ends
    if _is_constant(leaf) and len(ends) > 1:
        single = replace(leaf, steps=leaf.steps.first)
        first, there = np.zeros((len(batch), 1)), np.zeros((len(batch), 1), bool)
        fullest = compute(single, batch, first, there)
        values[:], present[:] = first, there
        return fullest
    times = np.ascontiguousarray(batch.times, np.int64)
    samples = np.ascontiguousarray(batch.values, np.float64)
    offsets = np.ascontiguousarray(batch.offsets, np.int64)
    if not leaf.range:
        _instants(leaf, batch, times, samples, offsets, values, present)
        return 0
    name = leaf.function
    held = [_spread(parameter, len(ends)) for parameter in leaf.parameters]
    none = np.empty(0, np.int64)
    started = leaf.start_timestamps and batch.starts is not None
    starts = batch.starts if started and batch.starts is not None else none
    if leaf.extension:
        return int(
            extended.windows(
                extended.CODES[name], times, samples, starts, offsets, ends, leaf.range,
                leaf.lookback, leaf.extension == "smoothed", values, present, started,
            )
        )  # fmt: skip
    if name in counters.RATES:
        code = counters.RATES[name]
        return int(
            counters.rates(
                code, times, samples, starts, offsets, ends, leaf.range, values, present, started
            )
        )
    if name in overtime.OVER_TIME:
        code = overtime.OVER_TIME[name]
        return int(
            overtime.over_time(code, times, samples, offsets, ends, leaf.range, values, present)
        )
    if name in overtime.TRENDS:
        held += [np.zeros(len(ends))] * (2 - len(held))
        return int(
            overtime.trends(
                overtime.TRENDS[name], times, samples, offsets, ends, leaf.steps.times, leaf.range,
                held[0], held[1], values, present,
            )
        )  # fmt: skip
    quantiles = held[0] if held else np.zeros(len(ends))
    return int(
        ordering.ranks(
            ordering.RANKS[name], times, samples, offsets, ends, leaf.range, quantiles, values,
            present,
        )
    )  # fmt: skip


def _instants(
    leaf: BaseExpr,
    batch: SeriesBatch,
    times: Whole,
    samples: Floats,
    offsets: Whole,
    values: Floats,
    present: Mask,
) -> None:
    if leaf.extension == "smoothed":
        extended.instants(times, samples, offsets, leaf.ends, leaf.lookback, values, present)
        return
    stale = np.empty(0, bool) if batch.stale is None else np.ascontiguousarray(batch.stale)
    wants_time = leaf.function == "timestamp"
    counters.instants(
        times, samples, stale, offsets, leaf.ends, leaf.lookback, values, present,
        batch.stale is not None, wants_time,
    )  # fmt: skip


def _spread(parameter: tuple[float, ...], count: int) -> Floats:
    if len(parameter) == 1:
        return np.full(count, parameter[0])
    return np.asarray(parameter, np.float64)
