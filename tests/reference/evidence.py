"""What goes into the reference matcher and what comes out: tables, and evidence for every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Literal

from kalla.reconcile.recipe.model import Cardinality, Side

Type = Literal["text", "integer", "decimal", "date", "timestamp"]
Value = str | int | Decimal | date | datetime | None  # a datetime is aware
Rows = Sequence[Mapping[str, Value]]

Status = Literal["confirmed", "suggested"]
Reason = Literal["tie", "unequal", "too_large", "several_subsets", "several_groups"]
Fate = Literal["matched", "suggested", "ambiguous", "unmatched"]
Rejection = Literal["taken", "sum_failed", "condition_failed", "no_candidate", "not_attempted"]

CANDIDATES_LISTED = 20


@dataclass(frozen=True)
class Table:
    """The rows of one side as delivered; every row has every column."""

    columns: Mapping[str, Type]
    rows: Rows


@dataclass(frozen=True)
class Matched:
    """One row of evidence: a pair of a match, or, of an M:N match, one of its keys."""

    left_key: str | None
    right_key: str | None
    group: frozenset[tuple[Side, str]]
    rule: str
    status: Status
    cardinality: Cardinality
    differences: tuple[str, ...] = ()
    interchangeable: bool = False
    fifo: bool = False


@dataclass(frozen=True)
class Ambiguous:
    record_key: str
    side: Side
    rule: str
    candidates: tuple[str, ...]
    candidate_count: int
    reason: Reason


@dataclass(frozen=True)
class Unmatched:
    record_key: str
    side: Side
    attempted_rules: tuple[str, ...]
    closest_candidate: str | None = None
    candidate_status: Fate | None = None
    rule: str | None = None
    failing_condition: str | None = None
    left_value: str | None = None
    right_value: str | None = None
    difference: str | None = None
    rejection_reason: Rejection = "no_candidate"


@dataclass(frozen=True)
class Result:
    """The evidence of a run, in an order of its own, so that two results compare with `==`."""

    matched: tuple[Matched, ...]
    ambiguous: tuple[Ambiguous, ...]
    unmatched: tuple[Unmatched, ...]

    @classmethod
    def of(cls, *evidence: Matched | Ambiguous | Unmatched) -> Result:
        return cls(
            matched=tuple(
                sorted(
                    (each for each in evidence if isinstance(each, Matched)),
                    key=lambda each: (each.left_key or "", each.right_key or ""),
                )
            ),
            ambiguous=tuple(
                sorted(
                    (each for each in evidence if isinstance(each, Ambiguous)),
                    key=lambda each: (each.side, each.record_key),
                )
            ),
            unmatched=tuple(
                sorted(
                    (each for each in evidence if isinstance(each, Unmatched)),
                    key=lambda each: (each.side, each.record_key),
                )
            ),
        )
