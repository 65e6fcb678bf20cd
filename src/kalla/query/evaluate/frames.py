"""A query's values between operations: series by steps, with a mask of what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kalla.query.array_types import Floats, Mask, Whole
from kalla.query.labels.interned import are_distinct, joined, nameless, order, taken
from kalla.query.labels.label_sets import Labels
from kalla.query.promql.query_errors import BadRequest, ExecutionFailed

SAME_LABELS = "vector cannot contain metrics with the same labelset"


@dataclass(frozen=True)
class Steps:
    """The times an expression is evaluated at: from start to end, both inside; milliseconds."""

    start: int
    end: int
    step: int

    @property
    def count(self) -> int:
        return (self.end - self.start) // self.step + 1 if self.end >= self.start else 0

    @property
    def times(self) -> Whole:
        return np.arange(self.count, dtype=np.int64) * self.step + self.start

    @property
    def first(self) -> Steps:
        return replace(self, end=self.start)

    def part(self, first: int, beyond: int) -> Steps:
        """Some of them, by their numbers."""
        start, last = (self.start + number * self.step for number in (first, beyond - 1))
        return replace(self, start=start, end=last)


def range_steps(start: int, end: int, step: int, most: int) -> Steps:
    """The steps of a range query, refused as Prometheus refuses them."""
    if end < start:
        raise BadRequest("end timestamp must not be before start time", "end")
    if step <= 0:
        raise BadRequest(
            "zero or negative query resolution step widths are not accepted. Try a positive "
            "integer",
            "step",
        )
    if (end - start) // step > most:
        raise BadRequest(
            f"exceeded maximum resolution of {most:,} points per timeseries. Try decreasing the "
            "query resolution (?step=XX)"
        )
    return Steps(start, end, step)


@dataclass(frozen=True)
class Frame:
    """Rows are series. `drops`: the row's metric name goes when the query is done."""

    labels: Sequence[Labels]
    values: Floats
    present: Mask
    drops: Mask

    @classmethod
    def empty(cls, steps: int) -> Frame:
        shape = (0, steps)
        return cls((), np.empty(shape), np.empty(shape, bool), np.empty(0, bool))

    @classmethod
    def of(cls, labels: Sequence[Labels], values: Floats, present: Mask) -> Frame:
        return cls(labels, values, present, np.zeros(len(labels), bool))

    @property
    def points(self) -> int:
        return int(np.count_nonzero(self.present))

    def rows(self, chosen: Sequence[int] | Whole | Mask) -> Frame:
        index = np.asarray(chosen)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        return Frame(
            taken(self.labels, index),
            self.values[index],
            self.present[index],
            self.drops[index],
        )

    def filled(self) -> Frame:
        """Without the rows that are nowhere present."""
        there = np.asarray(self.present.any(axis=1))
        return self if bool(there.all()) else self.rows(there)

    def trimmed(self) -> Frame:
        """Without them where they are most of the rows; a single step has none of them.

        Otherwise they stay: what is known of the labels then holds for the next block of steps.
        """
        there = np.asarray(self.present.any(axis=1))
        return self.rows(there) if is_sparse(there, self.present.shape[1]) else self

    def columns(self, first: int, beyond: int) -> Frame:
        """The same rows at some of the steps, without a copy."""
        return replace(
            self, values=self.values[:, first:beyond], present=self.present[:, first:beyond]
        )

    def repeated(self, count: int) -> Frame:
        """One step seen at `count` steps, without a copy."""
        shape = (len(self.labels), count)
        return replace(
            self,
            values=np.broadcast_to(self.values, shape),
            present=np.broadcast_to(self.present, shape),
        )

    def dropping_names(self, *, later: bool) -> Frame:
        """Names go now, or are marked to go when the query is done."""
        if later:
            return replace(self, drops=np.ones(len(self.labels), bool))
        return replace(self, labels=nameless(self.labels))

    def relabelled(self, change: Callable[[Labels], Labels]) -> Frame:
        return replace(self, labels=tuple(change(labels) for labels in self.labels))

    def sorted(self) -> Frame:
        index = order(self.labels)
        return self if index is None else self.rows(index)


def is_sparse(there: Mask, steps: int) -> bool:
    """Whether rows that are not there should go."""
    found = int(np.count_nonzero(there))
    return found < len(there) and (steps == 1 or found * 4 <= len(there))


def stacked(frames: Sequence[Frame]) -> Frame:
    if len(frames) == 1:
        return frames[0]
    return Frame(
        joined([frame.labels for frame in frames]),
        np.concatenate([frame.values for frame in frames]),
        np.concatenate([frame.present for frame in frames]),
        np.concatenate([frame.drops for frame in frames]),
    )


def merged(frame: Frame) -> Frame:
    """Rows of the same labels become one; at no step may two of them be there."""
    if are_distinct(frame.labels):
        return frame
    places: dict[Labels, list[int]] = {}
    for row, labels in enumerate(frame.labels):
        places.setdefault(labels, []).append(row)
    values = np.zeros((len(places), frame.values.shape[1]))
    present = np.empty(values.shape, bool)
    for at, rows in enumerate(places.values()):
        there = frame.present[rows]
        if (there.sum(axis=0) > 1).any():
            raise ExecutionFailed(SAME_LABELS)
        present[at] = there.any(axis=0)
        for row in rows:
            np.copyto(values[at], frame.values[row], where=frame.present[row])
    firsts = [rows[0] for rows in places.values()]
    return Frame(tuple(places), values, present, frame.drops[firsts])
