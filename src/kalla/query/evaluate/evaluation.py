"""Evaluates a plan: runs leaves on every shard, merges their parts, then evaluates the tree."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from kalla.query.array_types import Floats, Whole
from kalla.query.evaluate.annotations import Annotations
from kalla.query.evaluate.frames import SAME_LABELS, Frame, Steps, stacked
from kalla.query.evaluate.leaf import BaseExpr, Partial, partial_of
from kalla.query.evaluate.partial_aggregates import merged
from kalla.query.evaluate.sample_source import Source
from kalla.query.labels.interned import are_distinct, order
from kalla.query.promql.query_errors import ExecutionFailed, LimitReached, Stopped, TimedOut

Value = Frame | Floats
Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """Of one query. `samples` counts what is held at once, as Prometheus counts it.

    `memory_bytes` too is of all that is held at once: parts and frames of leaves, and results.
    """

    samples: int = 50_000_000
    series: int = 1_000_000
    memory_bytes: int = 4 << 30
    seconds: float = 120.0
    points: int = 11_000


@dataclass
class LeafCost:
    """What a leaf cost on one shard, for explain and stats."""

    leaf: BaseExpr
    shard: int = 0
    series: int = 0
    samples: int = 0
    seconds: float = 0.0
    read: Mapping[str, int] = field(default_factory=dict)


class Budget:
    """Counts what a query holds; stops it at its limits or when its caller has disconnected."""

    def __init__(self, limits: Limits, stop: threading.Event | None = None) -> None:
        self.limits = limits
        self.stop = stop
        self.deadline = time.monotonic() + limits.seconds
        self.held = 0
        self.held_bytes = 0
        self.peak = 0
        self._kept_bytes = 0
        self._counting = threading.Lock()

    def check(self) -> None:
        if self.stop is not None and self.stop.is_set():
            raise Stopped("query was canceled in expression evaluation")
        if time.monotonic() > self.deadline:
            raise TimedOut("query timed out in expression evaluation")

    def points(self, more: int) -> None:
        """Whether this many more samples can be held."""
        self.peak = max(self.peak, self.held + more)
        if self.held + more > self.limits.samples:
            raise LimitReached(
                "query processing would load too many samples into memory in query execution"
            )

    def keep(self, more: int) -> None:
        """Adds bytes of leaves that are kept; a negative number releases them."""
        with self._counting:
            self._kept_bytes += more
        self._fits(0, "")

    @property
    def crowded(self) -> bool:
        """Whether memory is short: postpone what is not needed yet, aggregate what can be."""
        held_bytes = self._kept_bytes + self.held_bytes
        return held_bytes * 2 > self.limits.memory_bytes or self.held * 4 > self.limits.samples

    def hold(self, value: Value, points: int, held_bytes: int) -> None:
        """Replaces what a node's arguments held by the node's result."""
        size, needed = _size(value)
        self.points(size)
        self._fits(needed, "one intermediate result")
        self.held, self.held_bytes = points + size, held_bytes + needed

    def release(self, value: Value) -> None:
        """Subtracts what is no longer held."""
        size, needed = _size(value)
        self.held, self.held_bytes = self.held - size, self.held_bytes - needed

    def loaded(self, samples: int) -> None:
        """Whether the samples a shard has read fit; a sample is a time, a value and a mark."""
        self._fits(samples * 17, "samples of one shard")

    def cells(self, rows: int, steps: int) -> None:
        """Whether a frame of this size fits; its cells cost memory, filled or not."""
        if rows > self.limits.series:
            raise LimitReached(
                f"query would touch {rows} series, more than the limit of "
                f"{self.limits.series} series per query"
            )
        self._fits(rows * steps * 9, "one intermediate result")

    def texts(self, needed: int) -> None:
        """Whether label values of this many characters fit the limit."""
        self._fits(needed, "label values")

    def _fits(self, needed: int, what: str) -> None:
        total = needed + self._kept_bytes + self.held_bytes
        if total > self.limits.memory_bytes:
            if needed <= self.limits.memory_bytes:
                needed, what = total, "all that it holds at once"
            raise LimitReached(
                f"query would need {needed} bytes for {what}, more than the limit of "
                f"{self.limits.memory_bytes} bytes of memory per query"
            )


def _size(value: Value) -> tuple[int, int]:
    """Its points and its bytes."""
    if isinstance(value, Frame):
        return value.points, _frame_bytes(value)
    return len(value), value.nbytes


def _frame_bytes(frame: Frame) -> int:
    columns: int = frame.values.shape[1]
    if columns > 1 and frame.values.strides[1] == 0:
        columns = 1  # one step, seen at many
    return len(frame.labels) * columns * 9


def _part_bytes(part: Partial) -> int:
    total = 0 if part.frame is None else _frame_bytes(part.frame)
    reduced = part.reduced
    if reduced is None:
        return total
    if reduced.frame is not None:
        total += _frame_bytes(reduced.frame)
    if (sums := reduced.sums) is not None:
        total += sums.limbs.nbytes + sums.counts.nbytes + sums.flags.nbytes
    return total + sum(one.nbytes for one in (reduced.counts, reduced.best) if one is not None)


class MergeSorted:
    """The parts of a leaf's shards as one frame: rows in the order of their labels.

    Shards come back in any order; they are merged by number, rows are put in order, groups are
    summed exactly. So one shard and many give the same bits.
    """

    def __init__(self, leaf: BaseExpr) -> None:
        self.leaf = leaf

    def merge(self, parts: Sequence[Partial], check: Callable[[], None]) -> Frame:
        if self.leaf.reduction is not None:
            reduced = [part.reduced for part in parts if part.reduced is not None]
            return merged(self.leaf.reduction, reduced, self.leaf.steps.count, check)
        frames = [part.frame for part in parts if part.frame is not None and len(part.frame.labels)]
        if not frames:
            return Frame.empty(self.leaf.steps.count)
        frame = stacked(frames).sorted()
        unnamed = self.leaf.drops_name and not self.leaf.delayed_names
        if unnamed and not are_distinct(frame.labels):
            raise ExecutionFailed(SAME_LABELS)
        return frame


@dataclass
class EvalFlow:
    """A running query: its source, limits, annotations, and the leaves it has run.

    `samples_by_step` counts the samples of each step as Prometheus counts them, where asked for.
    `steps` are the current ones: all of a query or subquery, or a block of them. `held` are values
    at all steps, which blocks look at; `ready` are values of this block until the node above takes
    them; both by the identity of their nodes.
    """

    source: Source
    budget: Budget
    annotations: Annotations
    steps: Steps
    width: Callable[[int], int]
    delayed_names: bool = False
    workers: int = 1
    facts: list[LeafCost] = field(default_factory=list)
    samples_by_step: Whole | None = None
    held: dict[int, Value] = field(default_factory=dict)
    ready: dict[int, Value] = field(default_factory=dict)
    _block: tuple[int, int] | None = None
    _cached: dict[Hashable, tuple[object, Any]] = field(default_factory=dict)
    _cached_before: dict[Hashable, tuple[object, Any]] = field(default_factory=dict)
    _ahead: dict[BaseExpr, list[Partial | None]] = field(default_factory=dict)
    _merged: dict[BaseExpr, tuple[Frame, list[Partial]]] = field(default_factory=dict)
    _uses: Counter[BaseExpr] = field(default_factory=Counter)

    def start(self, leaves: Sequence[BaseExpr]) -> None:
        """Runs leaves that wait for nothing, shard by shard, on all workers.

        Each is named as often as it will be used.
        """
        self._uses.update(leaves)
        distinct = list(dict.fromkeys(leaves))
        shards = range(self.source.shards)
        if self.workers < 2 or len(distinct) * len(shards) < 2:
            return
        with ThreadPoolExecutor(self.workers, thread_name_prefix="leaf") as pool:
            running = [
                (
                    leaf,
                    [pool.submit(copy_context().run, self._run_ahead, leaf, one) for one in shards],
                )
                for leaf in distinct
            ]
            try:
                for leaf, parts in running:
                    self._ahead[leaf] = [part.result() for part in parts]
            except BaseException:
                for _, parts in running:
                    for part in parts:
                        part.cancel()
                raise

    def leaf(self, leaf: BaseExpr) -> Frame:
        """The merged answer of a leaf, with its annotations made and its size counted."""
        self.budget.check()
        if leaf not in self._merged:
            self._merged[leaf] = self._merge(leaf)
        frame, parts = self._merged[leaf]
        self.budget.points(frame.points + max((part.fullest for part in parts), default=0))
        self._annotate(leaf, parts)
        for part in parts:
            if self.samples_by_step is not None and part.samples_by_step is not None:
                self.samples_by_step += part.samples_by_step
        self._release_leaf(leaf)
        return frame

    @contextmanager
    def nested(self, steps: Steps) -> Iterator[None]:
        """Evaluates a tree at its own steps; releases what it holds at the end."""
        outer = self.steps, self.held, self._block, self._cached, self._cached_before
        held, held_bytes = self.budget.held, self.budget.held_bytes
        self.steps, self.held, self._block, self._cached, self._cached_before = (
            steps,
            {},
            None,
            {},
            {},
        )
        try:
            yield
        finally:
            self.steps, self.held, self._block, self._cached, self._cached_before = outer
            self.budget.held, self.budget.held_bytes = held, held_bytes

    @contextmanager
    def block(self, first: int, beyond: int) -> Iterator[None]:
        """Only these of the steps."""
        every = self.steps
        if beyond - first < every.count:
            self.steps, self._block = every.part(first, beyond), (first, beyond)
        try:
            yield
        finally:
            self.steps, self._block = every, None
            self._cached, self._cached_before = {}, self._cached

    def at_current_steps(self, value: Value) -> Value:
        """A value held for all steps, cut to the current steps.

        Packed again: what is computed from it has the same bits as from all steps together.
        """
        if self._block is None:
            return value
        first, beyond = self._block
        if not isinstance(value, Frame):
            return value[first:beyond]
        part = value.columns(first, beyond)
        return replace(
            part,
            values=np.ascontiguousarray(part.values),
            present=np.ascontiguousarray(part.present),
        )

    def cached(self, what: Hashable, given: Sequence[object], make: Callable[[], Result]) -> Result:
        """A result that depends on labels alone, computed once for blocks with identical labels."""
        # The entry keeps the arguments alive, so that no other object can get their id.
        key = what, *map(id, given)
        found = self._cached.get(key) or self._cached_before.get(key) or (given, make())
        self._cached[key] = found
        result: Result = found[1]
        return result

    def ordered(self, frame: Frame) -> Frame:
        """Rows in the order of their labels."""
        index = self.cached("order", [frame.labels], lambda: order(frame.labels))
        return frame if index is None else frame.rows(index)

    @contextmanager
    def counting_separately(self, steps: int) -> Iterator[int | Whole]:
        """What is evaluated inside has steps of its own; yields what it has seen at each."""
        outer = self.samples_by_step
        if outer is None:
            yield 0
            return
        self.samples_by_step = inner = np.zeros(steps, np.int64)
        try:
            yield inner
        finally:
            self.samples_by_step = outer

    def _merge(self, leaf: BaseExpr) -> tuple[Frame, list[Partial]]:
        """The whole frame; of the parts only what they tell about it stays."""
        steps = leaf.steps.count
        ahead = self._ahead.pop(leaf, [None] * self.source.shards)
        parts = [
            self._run(leaf, shard) if part is None else part for shard, part in enumerate(ahead)
        ]
        rows = [len(part.frame.labels) for part in parts if part.frame is not None]
        # One part alone becomes the frame, without a copy.
        self.budget.cells(sum(rows), steps if np.count_nonzero(rows) > 1 else 0)
        frame = MergeSorted(leaf).merge(parts, self.budget.check)
        self.budget.keep(-sum(map(_part_bytes, parts)))
        self.budget.cells(len(frame.labels), steps)
        self.budget.keep(_frame_bytes(frame))
        return frame, [replace(part, frame=None, reduced=None) for part in parts]

    def _release_leaf(self, leaf: BaseExpr) -> None:
        """Releases a leaf after its last use. A leaf that no plan counted may be used again."""
        if leaf not in self._uses:
            return
        self._uses[leaf] -= 1
        if self._uses[leaf] <= 0:
            frame, _ = self._merged.pop(leaf)
            self.budget.keep(-_frame_bytes(frame))

    def _run_ahead(self, leaf: BaseExpr, shard: int) -> Partial | None:
        return None if self.budget.crowded else self._run(leaf, shard)

    def _run(self, leaf: BaseExpr, shard: int) -> Partial:
        began = time.perf_counter()
        part = partial_of(leaf, self.source, shard, self.budget)
        self.budget.keep(_part_bytes(part))
        spent = time.perf_counter() - began
        self.facts.append(LeafCost(leaf, shard, part.series, part.samples, spent, part.read))
        return part

    def _annotate(self, leaf: BaseExpr, parts: Sequence[Partial]) -> None:
        for name in sorted(set().union(*(part.uncounted for part in parts))):
            self.annotations.no_counter(name, leaf.span)
        for name in sorted(set().union(*(part.overlapping for part in parts))):
            self.annotations.overlapping_starts(name, leaf.span)
        for part in parts:
            if part.answered is not None:
                quantiles = np.broadcast_to(leaf.parameters[0], part.answered.shape)
                for quantile in dict.fromkeys(quantiles[part.answered].tolist()):
                    if not 0 <= quantile <= 1:
                        self.annotations.bad_quantile(quantile, leaf.span)
