"""Digits of whole numbers for kernels, eight at a time, and the instructions that this takes.

Eight bytes are written, however many digits there are: what is written to is longer by as many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from kalla.compiling import helper

_TENS = np.array([10**power for power in range(20)], np.uint64)


# What a kernel cannot say in Python, as instructions.
_machine: Callable[[Any], Any] = intrinsic


@_machine
def product(_: Any, one: Any, other: Any) -> Any:  # noqa: ARG001  (numba asks for their names)
    """Both halves of a product of 64 bits by 64, the upper one first."""
    halves = types.UniTuple(types.uint64, 2)  # type: ignore[no-untyped-call]

    def generated(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        wide, half = ir.IntType(128), ir.IntType(64)
        whole = builder.mul(builder.zext(given[0], wide), builder.zext(given[1], wide))
        upper = builder.trunc(builder.lshr(whole, ir.Constant(wide, 64)), half)
        lower = builder.trunc(whole, half)
        return context.make_tuple(builder, signature.return_type, (upper, lower))

    return halves(types.uint64, types.uint64), generated


def _pointer(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), ir.IntType(64).as_pointer())


@_machine
def load(_: Any, array: Any, at: Any) -> Any:  # noqa: ARG001  (numba asks for their names)
    """Eight bytes, wherever they begin."""

    def generated(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.load(_pointer(context, builder, signature.args[0], *given), align=1)

    return types.uint64(array, types.int64), generated


@_machine
def store(_: Any, array: Any, at: Any, word: Any) -> Any:  # noqa: ARG001  (numba asks for their names)
    def generated(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        builder.store(given[2], _pointer(context, builder, signature.args[0], *given[:2]), align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), generated


@helper
def length_of(digits):  # type: ignore[no-untyped-def]
    length = 16 if digits >= _TENS[15] else (8 if digits >= _TENS[7] else 1)
    while length < 20 and digits >= _TENS[length]:
        length += 1
    return length


@helper
def put_digits(digits, length, out, at):  # type: ignore[no-untyped-def]
    """So many digits, at most twenty-four; one that is missing is a zero."""
    large = np.uint64(100_000_000)
    if length <= 8:
        store(out, at, _eight(digits) >> np.uint64(8 * (8 - length)))
        return at + length
    rest = digits // large
    if length <= 16:
        first = length - 8
        store(out, at, _eight(rest) >> np.uint64(8 * (8 - first)))
    else:
        first = length - 16
        store(out, at, _eight(rest // large) >> np.uint64(8 * (8 - first)))
        store(out, at + first, _eight(rest % large))
        first += 8
    store(out, at + first, _eight(digits - rest * large))
    return at + length


@helper
def _eight(number):  # type: ignore[no-untyped-def]
    """Eight digits as a word, the first in its lowest byte: halves, quarters, then each."""
    upper = number // np.uint64(10_000)
    fours = upper | ((number - upper * np.uint64(10_000)) << np.uint64(32))
    hundreds = ((fours * np.uint64(10486)) >> np.uint64(20)) & np.uint64(0x7F0000007F)
    twos = hundreds | ((fours - hundreds * np.uint64(100)) << np.uint64(16))
    tens = ((twos * np.uint64(103)) >> np.uint64(10)) & np.uint64(0x000F000F000F000F)
    ones = tens | ((twos - tens * np.uint64(10)) << np.uint64(8))
    return ones | np.uint64(0x3030303030303030)
