"""What a rule finds about rows: that they match, or that it cannot tell."""

from __future__ import annotations

from dataclasses import dataclass

from kalla.reconcile.recipe.model import Cardinality
from tests.reference.evidence import Reason, Status
from tests.reference.rows import Row


@dataclass(frozen=True)
class Match:
    left: tuple[Row, ...]
    right: tuple[Row, ...]
    status: Status
    interchangeable: bool = False
    fifo: bool = False

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.left + self.right

    @property
    def cardinality(self) -> Cardinality:
        """The true shape, whatever the rule allows."""
        match len(self.left) > 1, len(self.right) > 1:
            case False, False:
                return "1:1"
            case False, True:
                return "1:N"
            case True, False:
                return "N:1"
        return "M:N"


@dataclass(frozen=True)
class Doubt:
    row: Row
    candidates: tuple[Row, ...]
    reason: Reason


Finding = Match | Doubt
