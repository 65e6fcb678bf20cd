"""Kernels that write points as JSON: the shortest digits of a float, written as Go writes them.

A module of its own because kernels load the compiler. Digits are computed by Schubfach (Giulietti,
"The Schubfach way to render doubles"): of all decimals that read back as the float the shortest,
and of those the closest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kalla.compiling import compiled, helper
from kalla.query.labels.interned import SLACK

# The longest of a number: `-0.00000`, and seventeen digits.
LONGEST = 25

_LEAST, _MOST = -292, 324  # powers of ten that floats lead to


def _binary_exponent(power: int) -> int:
    """Of a power of ten: the largest power of two that is not above it."""
    return (power * 1741647) >> 19


def _power(power: int) -> tuple[int, int]:
    """Its first 128 bits, rounded up, as two halves."""
    shift = 127 - _binary_exponent(power)
    above, below = 10 ** max(power, 0) << max(shift, 0), 10 ** max(-power, 0) << max(-shift, 0)
    whole = -(-above // below)
    return whole >> 64, whole & (2**64 - 1)


_UPPER, _LOWER = (
    np.array(halves, np.uint64)
    for halves in zip(*map(_power, range(_LEAST, _MOST + 1)), strict=True)
)
_TENS = np.array([10**power for power in range(20)], np.uint64)


@compiled("int: i1 b1 i1 i1 i1 u1 i1 u1 i1 i1 flag flag U1")
def write_rows(bits, present, firsts, counts, places, heads, marks, texts, lows, highs, single, more, out):  # type: ignore[no-untyped-def]  # noqa: E501  # fmt: skip
    """Rows of an answer, one JSON object each; returns how many bytes it wrote.

    Row i has `counts[i]` points from `firsts[i]` on, as bits of their floats; that of `places[i]`
    and each after it is headed by the text of its time, from one mark to the next. Its labels are
    the text from its low to its high. `single`: each row has one point, not a list. `more`: there
    are rows before. Bytes are copied eight at a time: every text, and what is written to, is longer
    by SLACK.
    """
    at = 0
    for row in range(len(firsts)):
        if more or row:
            out[at] = _COMMA
            at += 1
        at = _put(_METRIC, 0, _METRIC_SIZE, out, at)
        at = _put(texts, lows[row], highs[row], out, at)
        if single:
            at = _put(_VALUE, 0, _VALUE_SIZE, out, at)
        else:
            at = _put(_VALUES, 0, _VALUES_SIZE, out, at)
        head = places[row]
        begun = at
        for point in range(firsts[row], firsts[row] + counts[row]):
            if present[point]:
                at = _put(heads, marks[head], marks[head + 1], out, at)
                at = _write(bits[point], out, at)
                _store(out, at, _POINT_ENDS)
                at += 3
            head += 1
        if at > begun:
            at -= 1  # the last comma
        _store(out, at, _ROW_ENDS)
        at += 1 if single else 2
        if single:
            out[at - 1] = _DONE
    return at


@compiled("none: i1 I1 U1")
def write_numbers(bits, ends, out):  # type: ignore[no-untyped-def]
    """Numbers one after the other, and where each ends."""
    at = 0
    for place in range(len(bits)):
        at = _write(bits[place], out, at)
        ends[place] = at


def _bytes(text: str) -> Any:
    return np.frombuffer(text.encode() + bytes(SLACK), np.uint8)


def _word(text: str) -> Any:
    return np.uint64(int.from_bytes(text.encode(), "little"))


_METRIC, _VALUE, _VALUES = _bytes('{"metric":'), _bytes(',"value":'), _bytes(',"values":[')
_METRIC_SIZE, _VALUE_SIZE, _VALUES_SIZE = len('{"metric":'), len(',"value":'), len(',"values":[')
_POINT_ENDS, _ROW_ENDS = _word('"],'), _word("]}")
_NAN, _INFINITE, _NEGATIVE, _TINY = _word("NaN"), _word("+Inf"), _word("-Inf"), _word("0.00000")
_COMMA, _DONE, _MINUS, _PLUS, _POINT, _ZERO, _E = b",}-+.0e"
_SPECIAL = 0x7FF
_HIDDEN = 1 << 52


# What a kernel cannot say in Python, as instructions.
machine: Callable[[Any], Any] = intrinsic


@machine
def _product(_: Any, one: Any, other: Any) -> Any:  # noqa: ARG001  (numba asks for their names)
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


@machine
def _load(_: Any, array: Any, at: Any) -> Any:  # noqa: ARG001  (numba asks for their names)
    """Eight bytes, wherever they begin."""

    def generated(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.load(_pointer(context, builder, signature.args[0], *given), align=1)

    return types.uint64(array, types.int64), generated


@machine
def _store(_: Any, array: Any, at: Any, word: Any) -> Any:  # noqa: ARG001  (numba asks for their names)
    def generated(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        builder.store(given[2], _pointer(context, builder, signature.args[0], *given[:2]), align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), generated


@helper
def _put(source, low, high, out, at):  # type: ignore[no-untyped-def]
    for place in range(low, high, 8):
        _store(out, at + place - low, _load(source, place))
    return at + high - low


@helper
def _scaled(upper, lower, times):  # type: ignore[no-untyped-def]
    """A product with a power of ten, with its fraction in the last bit."""
    carried, _ = _product(lower, times)
    whole, rest = _product(upper, times)
    rest += carried
    if rest < carried:
        whole += np.uint64(1)
    if rest > np.uint64(1):
        whole |= np.uint64(1)
    return whole


@helper
def _shortest(significand, exponent):  # type: ignore[no-untyped-def]
    """Digits and the power of ten they are times; trailing zeros are not taken off."""
    four, one = np.uint64(4), np.uint64(1)
    digits = np.uint64(significand)
    power = np.int64(1) - 1075
    if exponent:
        digits |= np.uint64(_HIDDEN)
        power = exponent - 1075
        # A whole number that is exact.
        if -53 < power <= 0 and significand & ((np.int64(1) << -power) - 1) == 0:
            return digits >> np.uint64(-power), np.int64(0)
    closer = significand == 0 and exponent > 1  # the float below is half as far as that above
    outside = digits & one  # an odd one's neighbours take the borders
    k = (power * 1262611 - (524031 if closer else 0)) >> 22
    shift = np.uint64(power + ((-k * 1741647) >> 19) + 1)
    upper, lower = _UPPER[-k - _LEAST], _LOWER[-k - _LEAST]
    middle = digits * four
    low = _scaled(upper, lower, (middle - (one if closer else np.uint64(2))) << shift) + outside
    here = _scaled(upper, lower, middle << shift)
    high = _scaled(upper, lower, (middle + np.uint64(2)) << shift) - outside
    found = here >> np.uint64(2)
    if found >= np.uint64(10):
        tens = found // np.uint64(10)
        below = low <= tens * np.uint64(40)
        above = tens * np.uint64(40) + np.uint64(40) <= high
        if below != above:
            return tens + (one if above else np.uint64(0)), k + 1
    below = low <= found * four
    above = found * four + four <= high
    if below == above:
        half = found * four + np.uint64(2)
        above = here > half or (here == half and found & one != np.uint64(0))
    return found + (one if above else np.uint64(0)), k


@helper
def _write(bits, out, at):  # type: ignore[no-untyped-def]
    exponent = (bits >> 52) & _SPECIAL
    significand = bits & (_HIDDEN - 1)
    if exponent == _SPECIAL:
        if significand:
            _store(out, at, _NAN)
            return at + 3
        _store(out, at, _NEGATIVE if bits < 0 else _INFINITE)
        return at + 4
    out[at] = _MINUS
    at += bits < 0
    if exponent == 0 and significand == 0:
        out[at] = _ZERO
        return at + 1
    digits, power = _shortest(significand, exponent)
    if power == 0:
        return _put_digits(digits, _length(digits), out, at)
    # Half of all digits, or fewer, are zeros at the end.
    if digits % np.uint64(100_000_000) == 0:
        digits //= np.uint64(100_000_000)
        power += 8
    while digits % np.uint64(10) == 0:
        digits //= np.uint64(10)
        power += 1
    length = _length(digits)
    before = length + power  # digits before the point
    if before > 21 or before < -5:
        return _put_exponent(digits, length, before - 1, out, at)
    if power >= 0:
        at = _put_digits(digits, length, out, at)
        for _ in range(power):
            out[at] = _ZERO
            at += 1
        return at
    if before <= 0:
        _store(out, at, _TINY)
        return _put_digits(digits, length, out, at + 2 - before)
    _put_digits(digits, length, out, at)
    # What is after the point moves by one.
    beyond = at + before
    word, further, last = _load(out, beyond), _load(out, beyond + 8), out[beyond + 16]
    _store(out, beyond + 1, word)
    _store(out, beyond + 9, further)
    out[beyond + 17] = last
    out[beyond] = _POINT
    return at + length + 1


@helper
def _put_exponent(digits, length, exponent, out, at):  # type: ignore[no-untyped-def]
    """`d.ddde-07`: at least two digits of an exponent."""
    beyond = _put_digits(digits, length, out, at + 1)
    out[at] = out[at + 1]
    out[at + 1] = _POINT
    at = beyond if length > 1 else at + 1
    out[at] = _E
    out[at + 1] = _MINUS if exponent < 0 else _PLUS
    size = abs(exponent)
    return _put_digits(np.uint64(size), 3 if size > 99 else 2, out, at + 2)


@helper
def _length(digits):  # type: ignore[no-untyped-def]
    length = 16 if digits >= _TENS[15] else (8 if digits >= _TENS[7] else 1)
    while length < 20 and digits >= _TENS[length]:
        length += 1
    return length


@helper
def _put_digits(digits, length, out, at):  # type: ignore[no-untyped-def]
    """So many digits, at most twenty-four; one that is missing is a zero."""
    large = np.uint64(100_000_000)
    if length <= 8:
        _store(out, at, _eight(digits) >> np.uint64(8 * (8 - length)))
        return at + length
    rest = digits // large
    if length <= 16:
        first = length - 8
        _store(out, at, _eight(rest) >> np.uint64(8 * (8 - first)))
    else:
        first = length - 16
        _store(out, at, _eight(rest // large) >> np.uint64(8 * (8 - first)))
        _store(out, at + first, _eight(rest % large))
        first += 8
    _store(out, at + first, _eight(digits - rest * large))
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
