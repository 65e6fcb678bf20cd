"""Which rows of a group are its k largest, smallest or first, at every step."""

from __future__ import annotations

import numpy as np

from kalla.query.compiling import compiled, helper
from kalla.query.frames import Frame, Mask, Whole

_CODES = {"topk": 0, "bottomk": 1, "limitk": 2}


def best_rows(
    frame: Frame, groups: Whole, count: int, k: Whole, operator: str
) -> tuple[Mask, Whole]:
    """What stays of each row, and (for a single step) the rows in the order of the answer.

    Equal values are taken in the order of the rows, NaN only after every number.
    """
    order = np.argsort(groups, kind="stable")
    bounds = np.searchsorted(groups[order], np.arange(count + 1)).astype(np.int64)
    kept = np.zeros(frame.present.shape, bool)
    sequence = np.full(len(groups), -1, np.int64)
    found = _choose(
        _CODES[operator],
        np.ascontiguousarray(frame.values),
        np.ascontiguousarray(frame.present),
        order,
        bounds,
        k,
        kept,
        sequence,
    )
    return kept, sequence[:found]


@helper
def _ahead(code, value, other):  # type: ignore[no-untyped-def]
    """Whether a later value goes before an earlier one; on a tie it does not."""
    if code == 2:
        return False
    if other != other:
        return value == value
    if code == 0:
        return value > other
    return value < other


@compiled("int: int f2 b2 i1 i1 i1 B2 I1")
def _choose(code, values, present, order, bounds, k, kept, sequence):  # type: ignore[no-untyped-def]
    steps = values.shape[1]
    found = 0
    best = np.empty(len(order) + 1, np.int64)
    for group in range(len(bounds) - 1):
        for step in range(steps):
            limit = k[step]
            held = 0
            for j in range(bounds[group], bounds[group + 1]):
                row = order[j]
                if limit <= 0 or not present[row, step]:
                    continue
                value = values[row, step]
                if held == limit:
                    if not _ahead(code, value, values[best[held - 1], step]):
                        continue
                    held -= 1
                at = held
                while at > 0 and _ahead(code, value, values[best[at - 1], step]):
                    best[at] = best[at - 1]
                    at -= 1
                best[at] = row
                held += 1
            for j in range(held):
                kept[best[j], step] = True
                if steps == 1:
                    sequence[found] = best[j]
                    found += 1
    return found
