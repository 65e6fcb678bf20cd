"""Evaluates a tree in time order: windows at all steps first, the nodes above them in blocks.

A block is some steps of everything that is held; its bits do not depend on its width. So points
can be handed over while later ones are computed, no call lasts long, and results in between are
small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kalla.query.array_types import Floats, Whole
from kalla.query.evaluate.evaluation import EvalFlow, Value
from kalla.query.evaluate.exec_nodes import ExecNode
from kalla.query.evaluate.frames import Frame, Steps, merged
from kalla.query.labels.label_sets import Labels

# Cells of each result in a block: some tenths of a second, too few blocks to slow the whole.
_CELLS = 1 << 23
# Few, so that the first points arrive soon.
_EARLY_CELLS = 1 << 20


def usual_width(rows: int) -> int:
    """How many steps are evaluated at a time, for this number of rows."""
    return max(1, _CELLS // max(rows, 1))


def early_width(rows: int) -> int:
    return max(1, _EARLY_CELLS // max(rows, 1))


def evaluated(root: ExecNode, flow: EvalFlow) -> Value:
    """The values of a tree at all its steps."""
    with flow.nested(root.steps):
        _settle(root, flow)
        return _gathered(root, flow)


def evaluated_frame(root: ExecNode, flow: EvalFlow) -> Frame:
    value = evaluated(root, flow)
    if not isinstance(value, Frame):
        raise AssertionError("a scalar where the types say vector")
    return value


def evaluated_scalar(root: ExecNode, flow: EvalFlow) -> Floats:
    value = evaluated(root, flow)
    if isinstance(value, Frame):
        raise AssertionError("a vector where the types say scalar")
    return value


def in_blocks(root: ExecNode, flow: EvalFlow) -> Iterator[tuple[Steps, Value]]:
    """The same, block by block as they are computed."""
    with flow.nested(root.steps):
        _settle(root, flow)
        for first, beyond, value in _blocks(root, flow):
            yield root.steps.part(first, beyond), value


def _settle(root: ExecNode, flow: EvalFlow) -> None:
    """Computes what is whole; where that is much, what can be put together already is, instead."""
    budget = flow.budget
    for node in _upwards(root):
        if node.whole:
            before = budget.held, budget.held_bytes
            budget.check()
            value = node.compute(flow)
            budget.hold(value, *before)
            flow.held[id(node)] = value
        elif node is not root and budget.crowded and len(used := _used(node, flow)) > 1:
            before = budget.held, budget.held_bytes
            value = _gathered(node, flow)
            budget.held, budget.held_bytes = before
            for one in used:
                budget.release(flow.held.pop(id(one)))
            budget.hold(value, budget.held, budget.held_bytes)
            flow.held[id(node)] = value


def _upwards(root: ExecNode) -> Iterator[ExecNode]:
    """Nodes computed whole and all above them: arguments before the nodes that use them."""
    waiting, found = [root], list[ExecNode]()
    while waiting:
        found.append(node := waiting.pop())
        if not node.whole:
            waiting.extend(node.arguments)
    return reversed(found)


def _used(root: ExecNode, flow: EvalFlow) -> list[ExecNode]:
    """What is held of the nodes below."""
    waiting, found = [root], list[ExecNode]()
    while waiting:
        node = waiting.pop()
        if id(node) in flow.held:
            found.append(node)
        else:
            waiting.extend(node.arguments)
    return found


def _blocks(root: ExecNode, flow: EvalFlow) -> Iterator[tuple[int, int, Value]]:
    """Values at [first, beyond) of the steps, in the order of time."""
    count = flow.steps.count
    whole = flow.held.get(id(root))
    values = [flow.held[id(node)] for node in _used(root, flow)]
    width = flow.width(sum(len(one.labels) for one in values if isinstance(one, Frame)))
    for first in range(0, count, width):
        beyond = min(first + width, count)
        flow.budget.check()
        if whole is None:
            with flow.block(first, beyond):
                value = root.eval(flow)
            yield first, beyond, value
        elif isinstance(whole, Frame):
            yield first, beyond, whole.columns(first, beyond)
        else:
            yield first, beyond, whole[first:beyond]


def _gathered(root: ExecNode, flow: EvalFlow) -> Value:
    """All blocks put together again."""
    if id(root) in flow.held:
        return flow.held[id(root)]
    count = flow.steps.count
    scalars: list[Floats] = []
    rows = _Rows(count)
    held_bytes = flow.budget.held_bytes
    for first, beyond, value in _blocks(root, flow):
        if beyond - first == count:
            return value
        if isinstance(value, Frame):
            flow.budget.held_bytes = held_bytes
            rows.add(first, value, flow)
            flow.budget.held_bytes += rows.bytes
        else:
            scalars.append(value)
    return np.concatenate(scalars) if scalars else rows.frame()


class _Rows:
    """Series by all steps, filled block by block; rows come when they are met."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.values, self.present = np.zeros((0, steps)), np.zeros((0, steps), bool)
        self.drops = np.zeros(0, bool)
        self.labels: Sequence[Labels] = ()
        self._places: dict[Labels, int] | None = None
        self._last: Sequence[Labels] | None = None
        self._rows: Whole | slice = slice(0, 0)

    @property
    def bytes(self) -> int:
        return len(self.labels) * self.steps * 9

    def add(self, first: int, frame: Frame, flow: EvalFlow) -> None:
        if frame.labels is not self._last:
            frame = merged(frame)
            self._meet(frame, flow)
        columns = slice(first, first + frame.values.shape[1])
        self.values[self._rows, columns] = frame.values
        self.present[self._rows, columns] = frame.present

    def frame(self) -> Frame:
        rows = slice(0, len(self.labels))
        return Frame(self.labels, self.values[rows], self.present[rows], self.drops).filled()

    def _meet(self, frame: Frame, flow: EvalFlow) -> None:
        """Usually all blocks have the same rows, and their labels need no comparison."""
        known = len(self.labels)
        if self._last is None:
            self.labels, self.drops, self._rows = (
                frame.labels,
                frame.drops,
                slice(0, len(frame.labels)),
            )
        else:
            if self._places is None:
                self._places = {labels: place for place, labels in enumerate(self.labels)}
            places = self._places
            rows = [places.setdefault(labels, len(places)) for labels in frame.labels]
            self._rows = np.array(rows, np.int64)
            new = self._rows >= known
            self.labels = tuple(places)
            self.drops = np.concatenate([self.drops, frame.drops[new]])
        self._last = frame.labels
        flow.budget.cells(len(self.labels), self.steps)
        if (missing := len(self.labels) - len(self.values)) > 0:
            # Space for twice as many: memory that was never written to costs nothing.
            height = len(self.values) + max(missing, len(self.values))
            values, present = np.zeros((height, self.steps)), np.zeros((height, self.steps), bool)
            values[:known], present[:known] = self.values[:known], self.present[:known]
            self.values, self.present = values, present
