"""The sums that fit an amount: in units of the last place, computed once for each amount."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from math import lcm

from kalla.reconcile.recipe.model import Side
from kalla.reconcile.sql.conditions import Bound

Ranges = Sequence[tuple[int, int]]  # with both their ends; they share nothing


class Fitting:
    """The sums of one side's rows that fit an amount of side `one`; without a bound, all do."""

    def __init__(self, bound: Bound | None, one: Side, scale: int) -> None:
        self._bound, self._one = bound, one
        if bound is None:
            return
        below = _allowed(bound.below, bound.below_percent, scale)
        above = _allowed(bound.above, bound.above_percent, scale)
        # All in parts of the same size, so that nothing is rounded and nothing is slow.
        self._unit = lcm(*(part.denominator for part in (*below, *above)))
        self._below, self._below_share = (int(part * self._unit) for part in below)
        self._above, self._above_share = (int(part * self._unit) for part in above)

    def __call__(self, amount: int, reach: int) -> Ranges:
        """Sums that are no further from zero than `reach`."""
        if self._bound is None:
            return [(-reach, reach)]
        own = -amount if self._bound.negate == self._one else amount
        found = (self._of_left if self._one == "left" else self._of_right)(own, reach)
        if self._bound.negate not in (None, self._one):
            found = [(-high, -low) for low, high in found]
        return [(low, high) for low, high in found if low <= high]

    def _of_left(self, left: int, reach: int) -> Ranges:
        unit, size = self._unit, abs(left)
        found = (-reach, reach)
        found = _kept(found, -unit, self._below + self._below_share * size - unit * left)
        return [_kept(found, unit, self._above + self._above_share * size + unit * left)]

    def _of_right(self, right: int, reach: int) -> Ranges:
        """The sum is the left value, of whose size a percentage is: its sign makes a difference."""
        unit = self._unit
        ranges = []
        for sign, found in ((1, (0, reach)), (-1, (-reach, -1))):
            found = _kept(found, unit - sign * self._below_share, self._below + unit * right)
            found = _kept(found, -unit - sign * self._above_share, self._above - unit * right)
            ranges.append(found)
        return ranges


def _allowed(
    bound: Decimal | None, percent: Decimal | None, scale: int
) -> tuple[Fraction, Fraction]:
    """The allowed distance of two values: an absolute part in units, and a part relative to the
    left one.
    """
    if percent is not None:
        return Fraction(0), Fraction(percent) / 100
    return Fraction(bound or 0) * 10**scale, Fraction(0)


def _kept(found: tuple[int, int], factor: int, most: int) -> tuple[int, int]:
    """The numbers of a range that are at most so much when they are multiplied."""
    low, high = found
    if factor > 0:
        return low, min(high, most // factor)
    if factor < 0:
        return max(low, -(most // -factor)), high
    return (low, high) if most >= 0 else (1, 0)
