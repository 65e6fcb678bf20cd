"""A piece of a side: what one task reads of it."""

from __future__ import annotations

from dataclasses import dataclass

from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import Side


@dataclass(frozen=True)
class Piece:
    """What one task reads of a side."""

    side: Side
    input: Input
