"""Which rows of a group are its k largest, smallest or first, at every step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kalla.compiling import compiled, helper
from kalla.query.array_types import Mask, Whole
from kalla.query.evaluate.frames import Frame

_CODES = {"topk": 0, "bottomk": 1, "limitk": 2}
# Cells that are ranked between two checks of the clock: some hundredths of a second.
_CELLS = 1 << 21


def best_rows(
    frame: Frame, order: Whole, bounds: Whole, k: Whole, operator: str, check: Callable[[], None]
) -> tuple[Mask, Whole]:
    """What stays of each row, and (for a single step) the rows in the order of the answer.

    Rows of group g are order[bounds[g]...]. Equal values are taken in the order of the rows, NaN
    only after every number.
    """
    rows, steps = frame.present.shape
    kept = np.zeros((rows, steps), bool)
    sequence = np.full(rows, -1, np.int64)
    width = max(1, _CELLS // max(rows, 1))
    found = 0
    for first in range(0, steps, width):
        check()
        some = slice(first, first + width)
        part = np.zeros((rows, len(k[some])), bool)
        found = _choose(
            _CODES[operator],
            np.ascontiguousarray(frame.values[:, some]),
            np.ascontiguousarray(frame.present[:, some]),
            order,
            bounds,
            np.ascontiguousarray(k[some]),
            part,
            sequence,
        )
        kept[:, some] = part
    return kept, sequence[: found if steps == 1 else 0]


@helper
def _ahead(code, values, step, one, two, order):  # type: ignore[no-untyped-def]
    """Whether the row at one place of the order goes before that at another."""
    if code == 2:
        return one < two
    value, other = values[order[one], step], values[order[two], step]
    if value == other or (value != value and other != other):
        return one < two
    if value != value:
        return False
    if other != other:
        return True
    return value > other if code == 0 else value < other


@helper
def _sink(code, values, step, heap, held, order):  # type: ignore[no-untyped-def]
    """Puts the first of a heap where it belongs; the first is the one that goes last."""
    at = 0
    while True:
        last = at
        for child in (2 * at + 1, 2 * at + 2):
            if child < held and _ahead(code, values, step, heap[last], heap[child], order):
                last = child
        if last == at:
            return
        heap[at], heap[last] = heap[last], heap[at]
        at = last


@compiled("int: int f2 b2 i1 i1 i1 B2 I1")
def _choose(code, values, present, order, bounds, k, kept, sequence):  # type: ignore[no-untyped-def]
    """Row by row, in memory order; one comparison with a bar excludes nearly all values."""
    steps = values.shape[1]
    found = 0
    most = max(1, min(len(order), k.max())) if steps else 1
    heaps = np.empty((steps, most), np.int64)
    held = np.empty(steps, np.int64)
    bars = np.empty(steps)  # what is not above it stays out, unless the step is open
    is_open = np.empty(steps, np.bool_)
    sign = -1.0 if code == 1 else 1.0
    for group in range(len(bounds) - 1):
        held[:] = 0
        bars[:] = np.inf
        for step in range(steps):
            is_open[step] = k[step] > 0
        for j in range(bounds[group], bounds[group + 1]):
            row = order[j]
            for step in range(steps):
                value = values[row, step]
                if not (is_open[step] or value * sign > bars[step]) or not present[row, step]:
                    continue
                heap = heaps[step]
                if held[step] < k[step]:
                    at = held[step]
                    held[step] += 1
                    heap[at] = j
                    while at > 0 and _ahead(
                        code, values, step, heap[(at - 1) // 2], heap[at], order
                    ):
                        heap[at], heap[(at - 1) // 2] = heap[(at - 1) // 2], heap[at]
                        at = (at - 1) // 2
                elif _ahead(code, values, step, j, heap[0], order):
                    heap[0] = j
                    _sink(code, values, step, heap, held[step], order)
                if held[step] == k[step]:
                    last = values[order[heap[0]], step]
                    is_open[step] = code != 2 and last != last  # any number goes before it
                    if code != 2:
                        bars[step] = last * sign
        for step in range(steps):
            heap = heaps[step]
            for j in range(held[step]):
                kept[order[heap[j]], step] = True
        if steps == 1:
            heap = heaps[0]
            for place in range(held[0] - 1, -1, -1):
                sequence[found + place] = order[heap[0]]
                heap[0] = heap[place]
                _sink(code, values, 0, heap, place, order)
            found += held[0]
    return found
