"""The conditions of a rule on arrays: one key of whole numbers, and windows for differences. Shared
by all code that compares rows without SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kalla.reconcile.arrays.arrow_numbers import RowIds
from kalla.reconcile.arrays.column_arrays import Chosen, Column, ColumnArrays, Units
from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.sql.conditions import Check

_FAR = 2**63 - 1  # two words of decimals or dates do not differ by so much


@dataclass(frozen=True)
class Window:
    """A check of two numbers: right less left, with the signs that it gives them, is within."""

    columns: Mapping[Side, Column]
    signs: Mapping[Side, int]
    lowest: int
    highest: int

    def delta(self, row_ids: Mapping[Side, RowIds]) -> Units:
        """Of pairs of rows."""
        return self.apart({side: self.columns[side].units(row_ids[side]) for side in SIDES})

    def apart(self, values: Mapping[Side, Units]) -> Units:
        left, right = (values[side] if self.signs[side] > 0 else -values[side] for side in SIDES)
        return right + left

    def holds(self, delta: Units) -> Chosen:
        return (delta >= self.lowest) & (delta <= self.highest)


@dataclass(frozen=True)
class Compared:
    """The array conditions of a rule: its key, and its other checks by their positions."""

    key: Mapping[Side, Column]
    windows: Mapping[int, Window]

    def same_key(self, row_ids: Mapping[Side, RowIds]) -> Chosen:
        """Of pairs of rows."""
        left, right = (self.key[side].units(row_ids[side]) for side in SIDES)
        return np.asarray(left == right)

    def columns(self, side: Side) -> Iterator[Column]:
        yield self.key[side]
        for window in self.windows.values():
            yield window.columns[side]


def compared(rule: RulePlan, arrays: Mapping[Side, ColumnArrays | None]) -> Compared | None:
    """The columns of a rule that takes arrays; None if one of them is not held as an array, for
    memory or because a number in it is too large."""
    key: Mapping[Side, Column] = {}
    windows = {}
    for place, check in enumerate(rule.checks):
        found = {
            side: column
            for side, held in arrays.items()
            if held and (column := held.column(check.of(side).sql))
        }
        if len(found) < len(SIDES):
            return None
        if check.is_key:
            key = found
        else:
            windows[place] = _window(check, found)
    return Compared(key, windows)


def _window(check: Check, columns: Mapping[Side, Column]) -> Window:
    left, right = (columns[side].kind for side in SIDES)
    if check.window is None or left != right:
        raise TypeError(f"{check.label} compares {left} with {right}, which arrays cannot")
    signs: dict[Side, int] = {"left": -1, "right": 1}
    if check.bound and check.bound.negate:
        signs[check.bound.negate] *= -1
    lowest, highest = (min(max(bound, -_FAR), _FAR) for bound in check.window)
    return Window(columns, signs, lowest, highest)
