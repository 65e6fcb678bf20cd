"""Sums without rounding: a cell is a whole number wide enough for any floats, rounded at the end.

Whatever order or shards the rows came in, the same rows give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from kalla.compiling import compiled
from kalla.query.array_types import Floats, Mask, Whole

_NAN, _PLUS, _MINUS = 1, 2, 4
# The weight of the lowest bit a float can have; limb k weighs 2**(32 k) times that.
_LOWEST = -1074
# Cells between two checks of the clock: some hundredths of a second.
_CELLS = 1 << 20


@dataclass
class ExactSums:
    """One cell per group and step: limbs of 32 bits in int64, so that 2**31 rows need no carry.

    Only the limbs from `base` on that some value needed are held.
    """

    limbs: Whole
    base: int
    counts: Whole
    flags: NDArray[np.uint8]

    @classmethod
    def zero(cls, groups: int, steps: int) -> ExactSums:
        return cls(
            np.zeros((groups, steps, 0), np.int64),
            0,
            np.zeros((groups, steps), np.int64),
            np.zeros((groups, steps), np.uint8),
        )

    def add(self, values: Floats, present: Mask, groups: Whole) -> None:
        """Row r goes into group groups[r]."""
        values, present = np.ascontiguousarray(values), np.ascontiguousarray(present)
        place = np.zeros(2, np.int64)
        while True:
            missing = _add_rows(
                values, present, groups, self.limbs, self.base, self.counts, self.flags, place
            )
            if missing < 0:
                return
            self._widen(missing, missing + 3)

    def absorb(self, other: ExactSums, groups: Whole, check: Callable[[], None]) -> None:
        """Group g of the other becomes part of groups[g] here; no two have the same."""
        if width := other.limbs.shape[2]:
            self._widen(other.base, other.base + width)
        at = other.base - self.base
        for some in stretches(len(groups), other.counts.shape[1], check):
            self.counts[groups[some]] += other.counts[some]
            self.flags[groups[some]] |= other.flags[some]
            if width:
                self.limbs[groups[some], :, at : at + width] += other.limbs[some]

    def extend(self, groups: int) -> None:
        """More groups, at the end, of nothing yet."""
        steps = self.counts.shape[1]
        width = self.limbs.shape[2]
        self.limbs = np.concatenate([self.limbs, np.zeros((groups, steps, width), np.int64)])
        self.counts = np.concatenate([self.counts, np.zeros((groups, steps), np.int64)])
        self.flags = np.concatenate([self.flags, np.zeros((groups, steps), np.uint8)])

    def sums(self, check: Callable[[], None]) -> Floats:
        """The exact sum of each cell, rounded to the nearest float."""
        return self._special(self._rounded(check))

    def _rounded(self, check: Callable[[], None]) -> Floats:
        groups, steps = self.counts.shape
        out = np.empty((groups, steps))
        for some in stretches(groups, steps, check):
            _round(self.limbs[some], self.base, out[some])
        return out

    def means(self, check: Callable[[], None]) -> Floats:
        sums = self._rounded(check)
        with np.errstate(invalid="ignore", divide="ignore"):
            out = sums / self.counts
        for group, step in np.argwhere(np.isinf(sums)):
            # The sum is beyond floats, the mean is not.
            total = sum(
                int(limb) << (32 * (self.base + index))
                for index, limb in enumerate(self.limbs[group, step])
            )
            mean = Fraction(total, int(self.counts[group, step])) * Fraction(2) ** _LOWEST
            out[group, step] = float(mean)
        return self._special(out)

    def _special(self, out: Floats) -> Floats:
        if self.flags.any():
            both = (self.flags & (_PLUS | _MINUS)) == (_PLUS | _MINUS)
            out[(self.flags & _PLUS) > 0] = math.inf
            out[(self.flags & _MINUS) > 0] = -math.inf
            out[both | ((self.flags & _NAN) > 0)] = math.nan
        return out

    def _widen(self, first: int, beyond: int) -> None:
        groups, steps, width = self.limbs.shape
        if width:
            first, beyond = min(first, self.base), max(beyond, self.base + width)
        if beyond - first > width:
            limbs = np.zeros((groups, steps, beyond - first), np.int64)
            at = self.base - first if width else 0
            limbs[:, :, at : at + width] = self.limbs
            self.limbs, self.base = limbs, first


def stretches(rows: int, steps: int, check: Callable[[], None]) -> Iterator[slice]:
    """Some rows at a time, asked between them whether to go on."""
    height = max(1, _CELLS // max(steps, 1))
    for first in range(0, rows, height):
        check()
        yield slice(first, first + height)


@compiled("int: f2 b2 i1 I3 int I2 U2 I1")
def _add_rows(values, present, groups, limbs, base, counts, flags, place):  # type: ignore[no-untyped-def]
    """Goes on at `place`; stops before a value whose limbs are not held and names the lowest."""
    rows, steps = values.shape
    width = limbs.shape[2]
    bits = values.view(np.int64)
    for row in range(place[0], rows):
        group = groups[row]
        for step in range(place[1], steps):
            if not present[row, step]:
                continue
            raw = bits[row, step]
            exponent = (raw >> 52) & 0x7FF
            mantissa = raw & 0xFFFFFFFFFFFFF
            if exponent == 0x7FF:
                if mantissa != 0:
                    flags[group, step] |= 1
                elif raw > 0:
                    flags[group, step] |= 2
                else:
                    flags[group, step] |= 4
                counts[group, step] += 1
                continue
            if exponent != 0:
                mantissa |= 1 << 52
                exponent -= 1
            if mantissa != 0:
                limb = exponent >> 5
                at = limb - base
                if at < 0 or at + 3 > width:
                    place[0] = row
                    place[1] = step
                    return limb
                shift = exponent & 31
                low = (mantissa << shift) & 0xFFFFFFFF
                rest = mantissa >> (32 - shift)
                if raw >= 0:
                    limbs[group, step, at] += low
                    limbs[group, step, at + 1] += rest & 0xFFFFFFFF
                    limbs[group, step, at + 2] += rest >> 32
                else:
                    limbs[group, step, at] -= low
                    limbs[group, step, at + 1] -= rest & 0xFFFFFFFF
                    limbs[group, step, at + 2] -= rest >> 32
            counts[group, step] += 1
        place[1] = 0
    return -1


@compiled("none: i3 int F2")
def _round(limbs, base, out):  # type: ignore[no-untyped-def]
    """Carries the limbs into one magnitude, takes its top 64 bits, rounds half to even."""
    groups, steps, width = limbs.shape
    number = np.empty(width + 2, np.int64)
    for group in range(groups):
        for step in range(steps):
            out[group, step] = 0.0
            carry = 0
            for i in range(width):
                total = limbs[group, step, i] + carry
                number[i] = total & 0xFFFFFFFF
                carry = total >> 32
            number[width] = carry & 0xFFFFFFFF
            number[width + 1] = (carry >> 32) & 0xFFFFFFFF
            negative = carry < 0
            if negative:
                carry = 1
                for i in range(width + 2):
                    total = (number[i] ^ 0xFFFFFFFF) + carry
                    number[i] = total & 0xFFFFFFFF
                    carry = total >> 32
            top = width + 1
            while top >= 0 and number[top] == 0:
                top -= 1
            if top < 0:
                continue
            middle = number[top - 1] if top >= 1 else 0
            bottom = number[top - 2] if top >= 2 else 0
            sticky = False
            for i in range(top - 2):
                if number[i] != 0:
                    sticky = True
                    break
            lead = 0
            while (number[top] << lead) < 0x80000000:
                lead += 1
            word = (np.uint64(number[top]) << np.uint64(32)) | np.uint64(middle)
            if lead > 0:
                word = (word << np.uint64(lead)) | np.uint64(bottom >> (32 - lead))
            if (bottom << lead) & 0xFFFFFFFF != 0:
                sticky = True
            kept = np.int64(word >> np.uint64(11))
            rest = np.int64(word & np.uint64(0x7FF))
            if rest > 0x400 or (rest == 0x400 and (sticky or kept & 1)):
                kept += 1
            power = 32 * (base + top - 1) - lead + 11 - 1074
            value = math.ldexp(float(kept), power)
            out[group, step] = -value if negative else value
