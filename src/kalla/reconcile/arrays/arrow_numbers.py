"""Columns of Arrow as arrays of NumPy and back, where they lie: nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

RowIds = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


def numbers(given: pa.Array) -> npt.NDArray[Any]:
    """The numbers of a column without nulls, where they lie; Arrow's own way asks pandas first."""
    if not len(given):  # of nothing there is not even a buffer
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
    if not len(amounts):  # of nothing there is not even a buffer
        return np.empty((0, 2), np.uint64)
    flat: npt.NDArray[np.uint64] = np.frombuffer(amounts.buffers()[1], np.uint64)
    first = 2 * amounts.offset
    return np.asarray(flat[first : first + 2 * len(amounts)]).reshape(-1, 2)
