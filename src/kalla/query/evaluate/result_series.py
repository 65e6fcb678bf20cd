"""Lines of an answer: a label set with its times and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, overload

from kalla.query.array_types import Floats, Whole
from kalla.query.evaluate.frames import Frame, Steps
from kalla.query.labels.label_sets import Labels


def lines(frame: Frame, steps: Steps) -> Sequence[Series]:
    """Each row's points."""
    frame = frame.filled()
    return ResultRows(frame, steps.times) if len(frame.labels) else ()


class Series(NamedTuple):
    """One line."""

    labels: Labels
    times: Whole
    values: Floats


class ResultRows(Sequence[Series]):
    """The rows of a frame that have a value at some step; each line is built on access.

    Lines without a gap share their times.
    """

    def __init__(self, frame: Frame, times: Whole) -> None:
        self.frame = frame
        self.times = times

    def __len__(self) -> int:
        return len(self.frame.labels)

    @overload
    def __getitem__(self, at: int) -> Series: ...

    @overload
    def __getitem__(self, at: slice) -> ResultRows: ...

    def __getitem__(self, at: int | slice) -> Series | ResultRows:
        frame = self.frame
        if isinstance(at, slice):
            return ResultRows(frame.rows(range(len(self))[at]), self.times)
        there = frame.present[at]
        if there.all():
            return Series(frame.labels[at], self.times, frame.values[at])
        return Series(frame.labels[at], self.times[there], frame.values[at][there])
