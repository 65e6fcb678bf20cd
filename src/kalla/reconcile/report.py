"""What a person reads first: counts and sums by rule, the largest exceptions, where to look."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import duckdb

from kalla.reconcile.kernel import STATES, Tally
from kalla.reconcile.model import SIDES, Side
from kalla.reconcile.run import Run
from kalla.reconcile.values import literal

LARGEST = 5

_REASONS = {
    "no_candidate": "nothing like it on the other side",
    "not_attempted": "no rule's filters admit it",
    "taken": "fits {candidate}, which another row took",
    "condition_failed": "closest is {candidate} ({status}): {condition} fails",
}


@dataclass(frozen=True)
class Unsettled:
    """An unmatched row, as the evidence tells of it."""

    side: Side
    record_key: str
    amount: Decimal | None
    closest_candidate: str | None
    candidate_status: str | None
    failing_condition: str | None
    left_value: str | None
    right_value: str | None
    difference: str | None
    rejection_reason: str

    def sentence(self) -> str:
        text = _REASONS[self.rejection_reason].format(
            candidate=self.closest_candidate,
            status=self.candidate_status,
            condition=self.failing_condition,
        )
        if self.rejection_reason == "condition_failed":
            text += f", {self.left_value or 'nothing'} against {self.right_value or 'nothing'}"
            if self.difference:
                text += f" ({self.difference})"
        return text


def match_rate(run: Run) -> float:
    """The share of both sides' rows that are matched, of those that no filter left out."""
    taking_part = matched = 0
    for side in run.facts.sides.values():
        taking_part += side.loaded.rows
        matched += side.states["matched"].rows
        matched += side.states["suggested"].rows if run.plan.accept_suggested else 0
    return matched / taking_part if taking_part else 1.0


def largest(run: Run, count: int = LARGEST) -> list[Unsettled]:
    """The unmatched rows of the largest amounts, of both sides."""
    columns = (
        "record_key, amount, closest_candidate, candidate_status, failing_condition, left_value,"
        " right_value, difference, rejection_reason"
    )
    parts = [
        f"SELECT '{side}' AS side, {columns}"
        f" FROM read_parquet({literal(str(run.folder / f'unmatched_{side}' / '*.parquet'))})"
        for side in SIDES
    ]
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:
        rows = connection.execute(
            f"SELECT * FROM ({' UNION ALL BY NAME '.join(parts)})"
            f" ORDER BY abs(amount) DESC NULLS LAST, side, record_key LIMIT {int(count)}"
        ).fetchall()
    return [Unsettled(*row) for row in rows]


def as_document(run: Run) -> dict[str, Any]:
    """The report for programs."""
    return {
        "recipe": run.plan.recipe,
        "recipe_hash": run.plan.recipe_hash,
        "match_rate": round(match_rate(run), 6),
        "sides": {
            side: {state: _numbers(facts.states[state]) for state in STATES}
            for side, facts in run.facts.sides.items()
        },
        "rules": [
            {
                "name": rule.name,
                "cardinality": rule.cardinality,
                "matches": rule.matches,
                "left": _numbers(rule.left),
                "right": _numbers(rule.right),
                "ambiguous": rule.ambiguous_left + rule.ambiguous_right,
            }
            for rule in run.facts.rules
        ],
        "largest_exceptions": [
            {
                "side": each.side,
                "record_key": each.record_key,
                "amount": None if each.amount is None else str(each.amount),
                "closest_candidate": each.closest_candidate,
                "reason": each.sentence(),
            }
            for each in largest(run)
        ],
        "evidence": str(run.folder),
        "seconds": round(run.seconds, 3),
    }


def _numbers(tally: Tally) -> dict[str, Any]:
    return {"rows": tally.rows, "amount": None if tally.amount is None else str(tally.amount)}
