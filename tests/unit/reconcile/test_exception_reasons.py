"""Why a row is an exception, in words."""

from __future__ import annotations

from typing import Any

import pytest

from kalla.reconcile.evidence.reading.exception_reasons import RuleConditions, why_unmatched


@pytest.mark.parametrize(
    ("condition", "allowed"),
    [
        ({"op": "date_window", "days": 0}, "no difference"),
        ({"op": "date_window", "days": 1}, "1 day"),
        ({"op": "date_window", "before": 1, "after": 3}, "1 day before and 3 days after"),
        ({"op": "fuzzy", "threshold": "0.9"}, "a similarity of at least 0.9"),
        ({"op": "tolerance", "absolute": "0"}, "no difference"),
    ],
)
def test_a_reason_says_what_the_rule_allows(condition: dict[str, Any], allowed: str) -> None:
    rule = RuleConditions(name="one", conditions=[{"left": "a", "right": "b", **condition}])
    row = {
        "rejection_reason": "condition_failed",
        "failing_condition": f"{condition['op']}(a, b)",
        "left_value": "1",
        "right_value": "2",
        "difference": "-1",
        "rule": "one",
        "closest_candidate": "K",
        "candidate_status": "unmatched",
    }
    assert why_unmatched(row, [rule]).endswith(f"; the rule allows {allowed}")
