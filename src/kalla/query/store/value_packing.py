"""Packs values of samples into columns of lists, exactly: decimal numbers as integers with their
count of decimals, all others as floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kalla.query.array_types import Floats, Mask, Whole

_MOST_DECIMALS = 6
# Up to here every whole number is a float of its own.
_EXACT = float(1 << 53)
_LARGEST = float(1 << 62)


def value_columns(values: Floats, offsets: Whole, stale: Mask) -> dict[str, Any]:
    firsts, counts = offsets[:-1], np.diff(offsets)
    marks = np.flatnonzero(stale)
    marked_rows = np.searchsorted(offsets, marks, side="right") - 1
    if len(marks):
        values = _without_markers(values, stale, firsts)
    decimals = _decimals(values, firsts, counts)
    is_whole = decimals >= 0
    scales = 10.0 ** np.maximum(decimals, 0)
    if is_whole.all():
        of_whole: slice | Mask = slice(None)
        floats = np.empty(0)
    else:
        of_whole = np.repeat(is_whole, counts)
        floats = np.where(stale, np.nan, values)[~of_whole]
    whole = values[of_whole]
    if decimals.max(initial=0) > 0:
        whole = np.rint(whole * np.repeat(scales, counts)[of_whole])
    return {
        "decimals": pa.array(np.maximum(decimals, 0).astype(np.int8)),
        "whole": list_array(sums(np.where(is_whole, counts, 0)), whole.astype(np.int64)),
        "floats": list_array(sums(np.where(is_whole, 0, counts)), floats),
        "stale": list_array(
            sums(np.bincount(marked_rows, minlength=len(counts))),
            (marks - firsts[marked_rows]).astype(np.int32),
        ),
    }


def _without_markers(values: Floats, stale: Mask, firsts: Whole) -> Floats:
    """Each marker as the value before it, so that it changes nothing in how the others are kept."""
    places = np.where(stale, 0, np.arange(len(values)))
    places[firsts] = firsts
    return np.where(stale & stale[places := np.maximum.accumulate(places)], 0.0, values[places])


def _decimals(values: Floats, firsts: Whole, counts: Whole) -> Whole:
    """The fewest decimals that make every value of a row exact, or -1 where none do."""
    found = np.full(len(counts), -1, np.int64)
    left = np.arange(len(counts))
    for decimals in range(_MOST_DECIMALS + 1):
        # Most rows that do not fit show it in their first value.
        rows = left[_exact(values[firsts[left]], decimals)]
        if len(rows) == len(counts):
            exact = _exact(values, decimals)
        else:
            within = sums(counts[rows])
            index = np.repeat(firsts[rows] - within[:-1], counts[rows]) + np.arange(within[-1])
            exact = _exact(values[index], decimals)
        if len(rows):
            fits = np.logical_and.reduceat(exact, sums(counts[rows])[:-1])
            found[rows[fits]] = decimals
            left = left[found[left] < 0]
        if not len(left):
            break
    return found


def _exact(values: Floats, decimals: int) -> Mask:
    """Where a whole number with so many decimals is this very float, by its bits."""
    with np.errstate(over="ignore", invalid="ignore"):
        whole = np.rint(values * 10.0**decimals)
        small = np.abs(whole) <= (_EXACT if decimals else _LARGEST)
        back = np.where(small, whole, 0.0).astype(np.int64) / 10.0**decimals
    return np.asarray(small & (back.view(np.uint64) == values.view(np.uint64)))


def some_lists(offsets: Whole, values: Whole | None) -> pa.ListArray:
    """Lists of the rows in which any value is not zero; the others are empty."""
    if values is None:
        return list_array(np.zeros(len(offsets), np.int64), np.empty(0, np.int64))
    counts = np.diff(offsets)
    filled = np.logical_or.reduceat(values != 0, offsets[:-1])
    return list_array(sums(np.where(filled, counts, 0)), values[np.repeat(filled, counts)])


def list_array(offsets: Whole, values: NDArray[Any]) -> pa.ListArray:
    elements = pa.array(values)
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), elements, type=lists(elements.type)
    )


def sums(counts: Whole) -> Whole:
    found = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=found[1:])
    return found


def lists(of: pa.DataType) -> pa.ListType:
    return pa.list_(pa.field("element", of, nullable=False))
