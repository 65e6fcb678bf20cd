"""The token of a repair stands for exactly the offsets that it inserts."""

from __future__ import annotations

from kalla.sinks.kernel import repair_suffix


def test_two_repairs_of_a_range_share_a_token_only_if_they_insert_the_same_offsets() -> None:
    # Same count and same first offset: under one token ClickHouse would drop the second.
    assert repair_suffix([3, 5, 9]) != repair_suffix([3, 5, 8])
    assert repair_suffix([3, 5, 9]) == repair_suffix([3, 5, 9])


def test_nothing_missing_adds_nothing_to_the_token() -> None:
    assert repair_suffix([]) == ""
