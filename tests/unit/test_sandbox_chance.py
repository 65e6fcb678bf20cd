"""The clock and chance in the SQL sandbox: what comes out the same on every run passes."""

from __future__ import annotations

import pytest

from kalla.spark.sandbox import hold
from tests.unit.test_sandbox import KNOWN


@pytest.mark.parametrize(
    "condition",
    [
        "substring(memo, 1, 5) = '10:00'", "upper(memo) IN ('10:00', '11:00')",
        "date_format(booked, 'HH:mm') BETWEEN '09:00' AND '17:30'",
        "CAST(booked AS STRING) > '10:00'",
        "memo LIKE '10:00'", "memo RLIKE '10:00'", "startswith(memo, '10:00')",
        "replace(memo, '10:00', '') = 'x'", "booked > CAST(booked AS DATE) || ' ' || '10:00'",
        "booked > concat('2024-01-30 ', '10:00')", "booked > to_timestamp('10:00', 'HH:mm')",
        "booked - INTERVAL '10:00' HOUR TO MINUTE > booked", "memo = '4711:12'", "memo = 'T1'",
        "coalesce(memo, 'T1') = 'x'", "if(amount > 0, 'x', '10:00') = lower(memo)",
        "CASE lower(memo) WHEN '10:00' THEN 1 END = 1", "length('10:00') = 5",
        "CASE WHEN amount > 0 THEN '10:00' ELSE upper(memo) END = upper(memo)",
    ],
)  # fmt: skip
def test_a_time_without_its_day_is_fine_where_it_stays_a_text(condition: str) -> None:
    hold(f"SELECT id FROM left_src WHERE {condition}", KNOWN)
