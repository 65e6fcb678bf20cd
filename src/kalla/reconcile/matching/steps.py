"""Which values lie nearest to wanted ones, by doubles: the exact search goes on among these.

A double may be a little off the value that it stands for, hence two steps to each side.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kalla.reconcile.matching.values import Kind
from kalla.reconcile.plan import RulePlan

Floats = npt.NDArray[np.float64]

# With more currencies than this, rows are not looked up currency by currency.
MOST_CURRENCIES = 20

# A grid in which the nearest values are looked for has at most so many bits.
_MOST_CELLS = 22


def searched(rule: RulePlan) -> int | None:
    """The check that the nearest rows are looked for by: an amount, else a date."""
    amounts = (place for place, check in enumerate(rule.checks) if check.bound)
    bands = (place for place, check in enumerate(rule.checks) if check.band)
    return next(amounts, next(bands, None))


def as_double(kind: Kind, sql: str) -> str:
    return {
        "number": f"CAST({sql} AS DOUBLE)",
        "date": f"CAST({sql} - DATE '1970-01-01' AS DOUBLE)",
        "timestamp": f"CAST(epoch_us({sql}) AS DOUBLE)",
    }[kind]


def beside(offered: Floats, wanted: Floats) -> Floats:
    """Of what is offered, the two values below and above each wanted one, and its own; sorted."""
    wanted = np.sort(wanted)
    values = np.unique(_in_sight(offered, wanted))
    at = np.searchsorted(values, wanted)
    near = np.zeros(len(values) + 5, np.bool_)  # two places more on each side
    for offset in range(5):
        near[at + offset] = True
    return values[near[2 : len(values) + 2]]


def _in_sight(offered: Floats, wanted: Floats) -> Floats:
    """Those among which the nearest ones are, found without sorting: those in the same cell of an
    even grid as a wanted one, and in the nearest cells below and above that have any."""
    low, high = (offered.min(), offered.max()) if len(offered) else (0.0, 0.0)
    cells = 1 << min(_MOST_CELLS, len(offered).bit_length())
    scale = (cells - 1) / (high - low) if high > low else 0.0
    if not scale or not np.isfinite(scale) or not len(wanted):
        return offered

    def cell(values: Floats) -> npt.NDArray[np.int32]:
        # It never falls as the value rises, however a double is rounded.
        return np.clip((values - low) * scale, 0, cells - 1).astype(np.int32)

    places = cell(offered)
    filled = np.zeros(cells, np.bool_)
    filled[places] = True
    some = np.flatnonzero(filled)
    sought = cell(wanted)
    below = np.searchsorted(some, sought) - 1
    above = np.searchsorted(some, sought, "right")
    chosen = np.zeros(cells, np.bool_)
    chosen[sought] = True
    chosen[some[np.maximum(below, 0)]] = True
    chosen[some[np.minimum(above, len(some) - 1)]] = True
    return np.asarray(offered[chosen[places]])
