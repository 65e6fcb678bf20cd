"""The status of each row: one number per row in memory, so that no join is needed.

A row is settled once: settling it again is an error, and the match fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from kalla.errors import Permanent
from kalla.reconcile.arrays import compiled_loops
from kalla.reconcile.arrays.arrow_numbers import RowIds, Words

Counted = dict[tuple[str, int], tuple[int, int]]
"""Rows and the sum of their amounts, in units of the last place, by status and rule."""

SETTLED = ("matched", "suggested")
OPEN = ("ambiguous", "unmatched")
OPEN_CODE = 0
_EXACT_ROWS = 2**21


class RowStatus:
    """The status of the rows of one side, numbered from zero."""

    def __init__(self, side: str, rows: int) -> None:
        self._side = side
        self._codes = np.zeros(rows, np.uint16)

    @property
    def rows(self) -> int:
        return len(self._codes)

    def settle(self, parts: Iterable[RowIds], status: str, rule: int) -> None:
        """Settles rows, some at a time."""
        code = 1 + SETTLED.index(status) + len(SETTLED) * rule
        if twice := sum(
            compiled_loops.settle(self._codes, row_ids, len(row_ids), code) for row_ids in parts
        ):
            raise Permanent(
                f"conservation failed: {twice:,} {self._side} rows were matched more than once"
            )

    def open(self) -> RowIds:
        return np.flatnonzero(self.are_open()).astype(np.int64)

    def row_ids(self, status: str) -> RowIds:
        """The rows settled with this status and rule."""
        return self.settled(np.arange(len(self._codes)), status)

    def distinct(self, row_ids: RowIds) -> RowIds:
        """Each row once, in order."""
        named = np.zeros(len(self._codes), np.bool_)
        named[row_ids] = True
        return np.flatnonzero(named).astype(np.int64)

    def settled(self, row_ids: RowIds, status: str) -> RowIds:
        """Which of the rows were settled with this status and rule."""
        codes = self._codes[row_ids]
        by_status = (codes != OPEN_CODE) & ((codes - 1) % len(SETTLED) == SETTLED.index(status))
        return np.asarray(row_ids[by_status])

    def count(self, amounts: Iterable[tuple[RowIds, Words, Words]]) -> Counted:
        """From some rows at a time: which they are, and the low and the high word of each."""
        found: dict[int, tuple[int, int]] = {}
        for row_ids, low, high in amounts:
            codes = self._codes[row_ids]
            counts = np.bincount(codes)
            sums = sums_by_code(codes, low, high)
            for code in np.flatnonzero(counts).tolist():
                rows, total = found.get(code, (0, 0))
                found[code] = (rows + int(counts[code]), total + sums[code])
        return {meaning(code): counted for code, counted in found.items()}

    def count_all(self, amounts: npt.NDArray[np.signedinteger]) -> Counted:
        """The same of all rows in their order, whose amounts have a word each."""
        codes = int(self._codes.max(initial=OPEN_CODE)) + 1
        counts, high = np.zeros(codes, np.int64), np.zeros(codes, np.int64)
        low = np.zeros(codes, np.uint64)
        compiled_loops.tally(self._codes, amounts, len(amounts), counts, low, high)
        return {
            meaning(code): (int(counts[code]), (int(high[code]) << 32) + int(low[code]))
            for code in np.flatnonzero(counts).tolist()
        }

    def codes(self) -> npt.NDArray[np.uint16]:
        """The status of each row, as codes; see `meaning`."""
        return self._codes

    def are_open(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self._codes == OPEN_CODE)


def meaning(code: int) -> tuple[str, int]:
    """The status and the rule of a row with this code."""
    if code == OPEN_CODE:
        return "open", 0
    rule, status = divmod(code - 1, len(SETTLED))
    return SETTLED[status], rule


def sums_by_code(codes: npt.NDArray[Any], lows: Words, highs: Words) -> list[int]:
    """Of signed numbers of two words each. Exact: a double holds the sum of two million numbers of
    32 bits."""
    sums = [0] * (int(codes.max()) + 1 if len(codes) else 0)
    codes, lows, highs = codes.astype(np.intp), *map(np.ascontiguousarray, (lows, highs))
    for first in range(0, len(codes), _EXACT_ROWS):
        here, low, high = (each[first : first + _EXACT_ROWS] for each in (codes, lows, highs))
        parts: tuple[npt.NDArray[Any], ...] = (
            low.view(np.uint32)[0::2],
            low.view(np.uint32)[1::2],
            high.view(np.uint32)[0::2],
            high.view(np.int32)[1::2],
        )
        for number, part in enumerate(parts):
            summed = np.bincount(here, part)
            for code in np.flatnonzero(summed):
                sums[code] += int(summed[code]) << (32 * number)
    return sums
