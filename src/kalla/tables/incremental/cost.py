"""Predicts the time of each strategy of a refresh, and picks the cheapest. Pure functions.

A recently used strategy is predicted from its own times; others from a share of FULL. Only the
newest refreshes count, so a strategy that was slow once is tried again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict

Strategy = Literal["DELTA", "AFFECTED_KEYS", "FULL"]

# Of FULL's time without history: a share that every refresh takes, and one that grows with the
# share of changed rows.
_PRIOR: dict[str, tuple[float, float]] = {"DELTA": (0.15, 1.5), "AFFECTED_KEYS": (0.3, 3.0)}
_DAMPING = 0.1  # a refresh costs as much as handling a tenth of the rows, whatever changed
_NEAREST = 3


class Sample(BaseModel):
    """The cost of one earlier refresh."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategy: str
    seconds: float
    changed_rows: int | None = None
    affected_keys: int | None = None


@dataclass(frozen=True)
class Size:
    changed_rows: int
    source_rows: int  # 0: not known
    table_rows: int

    @property
    def share(self) -> float:
        return min(1.0, self.changed_rows / self.source_rows) if self.source_rows else 0.0


@dataclass(frozen=True)
class Choice:
    strategy: Strategy
    predicted_seconds: float | None
    reason: str


def predict(strategy: Strategy, size: Size, samples: Sequence[Sample]) -> float | None:
    """The predicted seconds; None without history."""
    own = [each for each in samples if each.strategy == strategy]
    if strategy == "FULL":
        return median(each.seconds for each in own) if own else None
    fixed = max(1.0, _DAMPING * size.source_rows)
    known = [each for each in own if each.changed_rows is not None]
    if known:
        nearest = sorted(known, key=lambda each: abs((each.changed_rows or 0) - size.changed_rows))
        return median(
            each.seconds * (size.changed_rows + fixed) / ((each.changed_rows or 0) + fixed)
            for each in nearest[:_NEAREST]
        )
    full = predict("FULL", size, samples)
    least, growth = _PRIOR[strategy]
    return None if full is None else full * (least + growth * size.share)


def choose(
    possible: Collection[Strategy], size: Size, samples: Sequence[Sample], threshold: float
) -> Choice:
    """The cheapest of the possible strategies; FULL is always possible."""
    costs: dict[Strategy, float | None] = {}
    notes = []
    for strategy in ("DELTA", "AFFECTED_KEYS", "FULL"):
        if strategy not in possible and strategy != "FULL":
            continue
        if strategy == "AFFECTED_KEYS" and (too_many := _too_many_keys(size, samples, threshold)):
            notes.append(too_many)
            continue
        costs[strategy] = predict(strategy, size, samples)
    known = {name: cost for name, cost in costs.items() if cost is not None}
    # Without any history the first one is tried: it reads the least.
    best: Strategy = min(known, key=lambda name: known[name]) if known else next(iter(costs))
    shown = ", ".join(
        f"{name} {'unknown' if cost is None else f'{cost:.2g} s'}" for name, cost in costs.items()
    )
    return Choice(best, costs[best], "; ".join([f"predicted {shown}", *notes]))


def _too_many_keys(size: Size, samples: Sequence[Sample], threshold: float) -> str | None:
    """Whether more keys are expected to be affected than CARDINALITY_THRESHOLD allows."""
    if not size.table_rows:
        return None
    measured = [
        each.affected_keys / each.changed_rows
        for each in samples
        if each.affected_keys is not None and each.changed_rows
    ]
    keys = min(size.changed_rows * (measured[0] if measured else 1.0), size.table_rows)
    if keys <= max(1.0, threshold * size.table_rows):
        return None
    return (
        f"about {keys:,.0f} keys of {size.table_rows:,} rows would be affected, more than"
        f" CARDINALITY_THRESHOLD = {threshold:g}"
    )
