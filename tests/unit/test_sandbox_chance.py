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


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, count(*) AS n FROM left_src GROUP BY id ORDER BY n DESC, 1 LIMIT 3",
        "SELECT count(1) FROM left_src GROUP BY id ORDER BY count(1) LIMIT 3",
        "SELECT * FROM left_src ORDER BY 1 LIMIT 3",
        "SELECT id FROM left_src UNION SELECT id FROM right_src ORDER BY 1 LIMIT 3",
        "SELECT rank() OVER (ORDER BY 1, id) FROM left_src",
        "SELECT row_number() OVER (w ORDER BY id) FROM left_src WINDOW w AS (PARTITION BY memo)",
        "SELECT max(1) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
        "SELECT sum(amount) OVER w FROM left_src WINDOW w AS (ORDER BY id ROWS 2 PRECEDING)",
        "SELECT 1 AS id, row_number() OVER (ORDER BY l.id) FROM left_src l",
    ],
)
def test_what_orders_rows_by_a_column_passes(sql: str) -> None:
    hold(sql, KNOWN)
