"""The status of each row: one number per row in memory, so that no join is needed.

A row is settled once: settling it again is an error, and the match fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kalla.errors import Permanent
from kalla.reconcile.session import compiled_loops

RowIds = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Counted = dict[tuple[str, int], tuple[int, int]]
"""Rows and the sum of their amounts, in units of the last place, by status and rule."""

SETTLED = ("matched", "suggested")
OPEN = ("ambiguous", "unmatched")
OPEN_CODE = 0
_HALF = np.uint64(2**32 - 1)
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


def numbers(given: pa.Array) -> npt.NDArray[Any]:
    """The numbers of a column without nulls, where they lie; Arrow's own way asks pandas first."""
    if not len(given):  # an empty array has no buffer
        return np.empty(0, given.type.to_pandas_dtype())
    whole: npt.NDArray[Any] = np.frombuffer(given.buffers()[1], given.type.to_pandas_dtype())
    return np.asarray(whole[given.offset : given.offset + len(given)])


def words(column: pa.Array) -> npt.NDArray[Any]:
    """Whole numbers of a word each, as narrow as they lie there: dates as days, points in time as
    microseconds, decimals (of at most 18 digits) in units of their last place."""
    if pa.types.is_decimal128(column.type):
        return halves(column)[:, 0].view(np.int64)
    if pa.types.is_integer(column.type):
        return numbers(column)
    return numbers(column.view(pa.int32() if column.type.bit_width == 32 else pa.int64()))


def as_column(values: npt.NDArray[Any], name: str = "row_id") -> pa.Table:
    return as_table({name: values})


def as_table(columns: Mapping[str, npt.NDArray[Any]]) -> pa.Table:
    """The same way back."""
    held = {name: np.ascontiguousarray(values) for name, values in columns.items()}
    return pa.table(
        {
            name: pa.Array.from_buffers(
                pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)]
            )
            for name, values in held.items()
        }
    )


def as_decimal(units: int, scale: int) -> Decimal:
    with localcontext(prec=100):
        return Decimal(units).scaleb(-scale)


def halves(amounts: pa.Array) -> npt.NDArray[np.uint64]:
    """The two words of each 128-bit decimal, low one first."""
    if not len(amounts):  # an empty array has no buffer
        return np.empty((0, 2), np.uint64)
    flat: npt.NDArray[np.uint64] = np.frombuffer(amounts.buffers()[1], np.uint64)
    first = 2 * amounts.offset
    return np.asarray(flat[first : first + 2 * len(amounts)]).reshape(-1, 2)


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
