"""Classic histograms: quantiles and fractions from the cumulative counts of `le` buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kalla.compiling import compiled, helper
from kalla.query.array_types import Floats, Mask, Whole
from kalla.query.evaluate.annotations import MonotonicityFix
from kalla.query.evaluate.evaluation import EvalFlow
from kalla.query.evaluate.exec_nodes import ExecNode
from kalla.query.evaluate.frames import Frame, merged, stacked
from kalla.query.labels.interned import group_numbers, names_in, taken, values_of
from kalla.query.labels.label_sets import Labels, changed, name_of, value_of, without
from kalla.query.operators.elementwise import renamed
from kalla.query.promql.number_format import open_metrics, parsed_float
from kalla.query.promql.syntax_tree import Span

_BOUND = frozenset({"le"})
# Annotations added between two checks of the clock.
_FIXES = 10_000


@dataclass(frozen=True)
class Histograms:
    """Bucket rows by histogram, each histogram's in the order of their bounds."""

    labels: tuple[Labels, ...]
    drops: Mask
    order: Whole
    uppers: Floats
    limits: Whole


@dataclass(frozen=True)
class BucketQuantiles(ExecNode):
    """`label` is set for histogram_quantiles: each quantile's answer carries it."""

    inner: ExecNode
    quantiles: tuple[ExecNode, ...]
    span: Span
    label: str = ""

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (*self.quantiles, self.inner)

    def compute(self, flow: EvalFlow) -> Frame:
        asked = [one.scalar(flow) for one in self.quantiles]
        frame = self.inner.frame(flow)
        found = histograms(frame, flow, self.span)
        frames = [self._one(frame, found, quantiles, flow) for quantiles in asked]
        return merged(stacked(frames)) if self.label else frames[0]

    def _one(self, frame: Frame, found: Histograms, asked: Floats, flow: EvalFlow) -> Frame:
        count = len(found.labels)
        values = np.zeros((count, flow.steps.count))
        present = np.zeros(values.shape, bool)
        bent = np.zeros((3, *values.shape))
        forced = np.zeros(values.shape, bool)
        _quantiles(
            np.ascontiguousarray(frame.values), np.ascontiguousarray(frame.present), found.order,
            found.uppers, found.limits, np.ascontiguousarray(asked), values, present, forced, bent,
        )  # fmt: skip
        self._annotate(found, forced, bent, flow)
        result = Frame(found.labels, values, present, found.drops)
        if self.label:
            result = _labelled(result, self.label, asked)
        return renamed(result, flow)

    def _annotate(self, found: Histograms, forced: Mask, bent: Floats, flow: EvalFlow) -> None:
        times = flow.steps.times
        for number, (row, step) in enumerate(np.argwhere(forced).tolist()):
            if number % _FIXES == 0:
                flow.budget.check()
            name = name_of(found.labels[row]) if flow.delayed_names else ""
            lowest, highest, difference = bent[:, row, step].tolist()
            at = int(times[step])
            fix = MonotonicityFix(lowest, highest, difference, at, at)
            flow.annotations.fixed_monotonicity(name, self.span, fix)


def _labelled(frame: Frame, label: str, asked: Floats) -> Frame:
    """The quantile as a label; where it changes from step to step, so do the series."""
    parts = []
    for quantile in np.unique(asked).tolist():
        here = np.isnan(asked) if np.isnan(quantile) else asked == quantile
        part = replace(frame, present=frame.present & here)
        text = open_metrics(quantile)
        parts.append(part.relabelled(lambda labels, text=text: changed(labels, {label: text})))  # type: ignore[misc]
    return stacked(parts).filled()


@dataclass(frozen=True)
class BucketFraction(ExecNode):
    lower: ExecNode
    upper: ExecNode
    inner: ExecNode
    span: Span

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.lower, self.upper, self.inner)

    def compute(self, flow: EvalFlow) -> Frame:
        lower, upper = self.lower.scalar(flow), self.upper.scalar(flow)
        frame = self.inner.frame(flow)
        found = histograms(frame, flow, self.span)
        values = np.zeros((len(found.labels), flow.steps.count))
        present = np.zeros(values.shape, bool)
        _fractions(
            np.ascontiguousarray(frame.values), np.ascontiguousarray(frame.present), found.order,
            found.uppers, found.limits, np.ascontiguousarray(lower), np.ascontiguousarray(upper),
            values, present,
        )  # fmt: skip
        return renamed(Frame(found.labels, values, present, found.drops), flow)


def histograms(frame: Frame, flow: EvalFlow, span: Span) -> Histograms:
    """Rows with a readable `le`, gathered by the rest of their labels."""
    found, firsts, unreadable = flow.cached(
        "histograms", [frame.labels], lambda: _by_bounds(frame.labels)
    )
    for row in unreadable:
        if frame.present[row].any():
            labels = frame.labels[row]
            name = name_of(labels) if flow.delayed_names else ""
            flow.annotations.bad_bucket(name, value_of(labels, "le"), span)
    return replace(found, drops=frame.drops[firsts])


def _by_bounds(known: Sequence[Labels]) -> tuple[Histograms, Whole, list[int]]:
    """Also the row of each histogram's first bucket, and the rows without a bound."""
    texts, which = values_of(known, "le")
    bounds = [parsed_float(text) for text in texts]
    readable = np.array([bound is not None for bound in bounds], bool)[which]
    uppers = np.array([0.0 if bound is None else bound for bound in bounds])[which]
    rows = np.flatnonzero(readable)
    buckets = taken(known, rows)
    [ids] = group_numbers([buckets], sorted(names_in(buckets) - _BOUND), on=True)
    order = np.lexsort((uppers[rows], ids))
    limits = np.append(0, np.cumsum(np.bincount(ids)))
    appearing = taken(buckets, np.unique(ids, return_index=True)[1])
    found = Histograms(
        tuple([without(labels, _BOUND) for labels in appearing]),
        np.zeros(len(appearing), bool),
        rows[order],
        uppers[rows][order],
        limits,
    )
    return found, rows[order[limits[:-1]]], np.flatnonzero(~readable).tolist()


@helper
def _gather(values, present, order, uppers, first, beyond, step, bounds, counts):  # type: ignore[no-untyped-def]
    """The buckets of a histogram that are there, those of one bound added up."""
    n = 0
    for j in range(first, beyond):
        row = order[j]
        if not present[row, step]:
            continue
        if n > 0 and bounds[n - 1] == uppers[j]:
            counts[n - 1] += values[row, step]
        else:
            bounds[n] = uppers[j]
            counts[n] = values[row, step]
            n += 1
    return n


@helper
def _near(a, b):  # type: ignore[no-untyped-def]
    """Equal but for the rounding of floats."""
    if a == b:
        return True
    if a == 0 or b == 0 or abs(a) + abs(b) < 2.2250738585072014e-308:
        return abs(a - b) < 1e-12 * 2.2250738585072014e-308
    return abs(a - b) / min(abs(a) + abs(b), 1.7976931348623157e308) < 1e-12


@helper
def _quantile(q, bounds, counts, n):  # type: ignore[no-untyped-def]
    if n < 2 or counts[n - 1] == 0:
        return np.nan
    rank = q * counts[n - 1]
    low, high = 0, n - 1
    while low < high:
        middle = (low + high) // 2
        if counts[middle] >= rank:
            high = middle
        else:
            low = middle + 1
    if low == n - 1:
        return bounds[n - 2]
    if low == 0 and bounds[0] <= 0:
        return bounds[0]
    start = 0.0
    count = counts[low]
    if low > 0:
        start = bounds[low - 1]
        count -= counts[low - 1]
        rank -= counts[low - 1]
    return start + (bounds[low] - start) * (rank / count)


@compiled("none: f2 b2 i1 f1 i1 f1 F2 B2 B2 F3")
def _quantiles(values, present, order, uppers, limits, asked, out, there, forced, bent):  # type: ignore[no-untyped-def]
    """Counts must not fall as the bound grows: rounding is ignored, real falls are corrected and
    annotated.
    """
    bounds = np.empty(len(order) + 1)
    counts = np.empty(len(order) + 1)
    for group in range(len(limits) - 1):
        for step in range(values.shape[1]):
            n = _gather(
                values,
                present,
                order,
                uppers,
                limits[group],
                limits[group + 1],
                step,
                bounds,
                counts,
            )
            if n == 0:
                continue
            there[group, step] = True
            q = asked[step]
            if q != q:
                out[group, step] = np.nan
            elif q < 0:
                out[group, step] = -np.inf
            elif q > 1:
                out[group, step] = np.inf
            elif bounds[n - 1] != np.inf:
                out[group, step] = np.nan
            else:
                before = counts[0]
                lowest, highest, difference = np.inf, -np.inf, 0.0
                for j in range(1, n):
                    now = counts[j]
                    if now == before:
                        continue
                    if _near(before, now):
                        counts[j] = before
                    elif now < before:
                        counts[j] = before
                        forced[group, step] = True
                        lowest = min(lowest, bounds[j])
                        highest = max(highest, bounds[j])
                        difference = max(difference, before - now)
                    else:
                        before = now
                if forced[group, step]:
                    bent[0, group, step] = lowest
                    bent[1, group, step] = highest
                    bent[2, group, step] = difference
                out[group, step] = _quantile(q, bounds, counts, n)


@helper
def _rank(value, below, upper, before, count):  # type: ignore[no-untyped-def]
    if below == -np.inf:
        return count
    return before + (count - before) * (value - below) / (upper - below)


@compiled("none: f2 b2 i1 f1 i1 f1 f1 F2 B2")
def _fractions(values, present, order, uppers, limits, lower, upper, out, there):  # type: ignore[no-untyped-def]
    bounds = np.empty(len(order) + 1)
    counts = np.empty(len(order) + 1)
    for group in range(len(limits) - 1):
        for step in range(values.shape[1]):
            n = _gather(
                values,
                present,
                order,
                uppers,
                limits[group],
                limits[group + 1],
                step,
                bounds,
                counts,
            )
            if n == 0:
                continue
            there[group, step] = True
            a, b = lower[step], upper[step]
            total = counts[n - 1]
            if bounds[n - 1] != np.inf or total == 0 or a != a or b != b:
                out[group, step] = np.nan
                continue
            if a >= b:
                out[group, step] = 0.0
                continue
            before, low_rank, high_rank = 0.0, 0.0, 0.0
            low_set, high_set = False, False
            below = -np.inf if bounds[0] <= 0 else 0.0
            for j in range(n):
                if j > 0:
                    below = bounds[j - 1]
                if not low_set and below >= a:
                    low_rank = before
                    low_set = True
                if not high_set and below >= b:
                    high_rank = before
                    high_set = True
                if low_set and high_set:
                    break
                if not low_set and below < a and bounds[j] > a:
                    low_rank = _rank(a, below, bounds[j], before, counts[j])
                    low_set = True
                if not high_set and below < b and bounds[j] > b:
                    high_rank = _rank(b, below, bounds[j], before, counts[j])
                    high_set = True
                if low_set and high_set:
                    break
                before = counts[j]
            if not low_set or low_rank > total:
                low_rank = total
            if not high_set or high_rank > total:
                high_rank = total
            out[group, step] = (high_rank - low_rank) / total
