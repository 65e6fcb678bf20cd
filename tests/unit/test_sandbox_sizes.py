"""How large SQL may be to the sandbox: what people need passes, and what the parser or Spark would
take years for, or all memory, does not.
"""

from __future__ import annotations

import pytest

from kalla.spark.sandbox import LONGEST, hold, result_columns
from tests.unit.test_sandbox import KNOWN, UNKNOWN, problems


@pytest.mark.parametrize(
    ("before", "inside", "after"),
    [
        ("SELECT ", "(", ")"),
        ("SELECT ", "abs(", ")"),
        ("SELECT ", "CASE WHEN TRUE THEN ", " END"),
        ("SELECT ", "1 + (SELECT ", ")"),
        ("SELECT 1 FROM left_src WHERE ", "EXISTS (SELECT 1 FROM left_src WHERE ", ")"),
        ("SELECT 1 FROM left_src WHERE ", "id IN (SELECT id FROM left_src WHERE ", ")"),
        ("SELECT ", "- ", ""),
        ("SELECT ", "NOT ", ""),
        ("SELECT ", "NOT - ", ""),
        ("SELECT ", "@", ""),
        ("SELECT ", "INTERVAL ", ""),
        ("", "SELECT ", ""),
        ("", "WITH ", ""),
        ("SELECT ", "x -> ", ""),
        ("SELECT ", "1 + ", ""),
        ("SELECT ", "TRUE AND ", ""),
        ("SELECT ", "CASE ", ""),
        ("SELECT 1", "::int", ""),
        ("SELECT CAST(1 AS ", "ARRAY<", ""),
        ("SELECT a", "[0]", ""),
        ("SELECT a", ".a", ""),
        ("SELECT * FROM ", "(", ""),
        ("SELECT * FROM left_src ", "JOIN right_src ", "ON TRUE "),
        ("SELECT * FROM left_src UNION ALL ", "SELECT * FROM left_src UNION ALL ", ""),
        ("SELECT ", "/*", "*/"),
        ("SELECT ", "int(", ")"),
    ],
)
@pytest.mark.parametrize("times", [300, 1_000, 2_500])
def test_deep_nesting_is_refused_and_breaks_nothing(
    before: str, inside: str, after: str, times: int
) -> None:
    assert problems(f"{before}{inside * times}1{after * times} FROM left_src", UNKNOWN)


@pytest.mark.parametrize(
    ("inside", "after"),
    [("(", ")"), ("abs(", ")"), ("CASE WHEN TRUE THEN ", " END"), ("1 + (SELECT ", ")")],
)
def test_nesting_that_people_need_passes(inside: str, after: str) -> None:
    hold(f"SELECT {inside * 20}1{after * 20} FROM left_src", UNKNOWN)


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT {'int(' * 25}1{')' * 25} FROM left_src",
        f"SELECT 1 FROM left_src{' JOIN right_src' * 30}",
    ],
)
def test_a_text_that_the_parser_would_read_for_years_is_refused(sql: str) -> None:
    assert problems(sql, UNKNOWN) == ["the SQL is too complicated to read"]


def test_a_text_may_be_long_but_not_longer() -> None:
    sql = "SELECT id FROM left_src WHERE memo = '"
    hold(sql + "x" * (LONGEST - len(sql) - 1) + "'", UNKNOWN)
    assert "at most 100,000 are allowed" in problems(sql + "x" * LONGEST + "'")[0]


def test_with_names_that_multiply_are_refused() -> None:
    names = [("left_src" if number == 0 else f"c{number - 1}") for number in range(20)]
    parts = [
        f"c{number} AS (SELECT a.id FROM {name} a JOIN {name} b ON a.id = b.id)"
        for number, name in enumerate(names)
    ]
    assert "1,048,576 times" in problems(f"WITH {', '.join(parts)} SELECT * FROM c19")[0]


def test_columns_that_multiply_are_counted_as_doubled() -> None:
    parts = [
        f"c{number} AS (SELECT t.*, t.* FROM {f'c{number - 1}' if number else 'left_src'} t)"
        for number in range(60)
    ]
    sql = f"WITH {', '.join(parts)} SELECT * FROM c59"
    assert sorted(result_columns(sql, KNOWN) or ()) == sorted(KNOWN["left_src"] * 2)
    assert "once each name stands for what it was made with" in problems(sql)[0]


def test_a_column_is_counted_as_often_as_it_is_read_again() -> None:
    """Not as often as others are: what a report is made of, step by step, passes."""

    def steps(count: int, column: str) -> str:
        parts = ["c0 AS (SELECT * FROM left_src)"]
        parts += [
            f"c{number} AS (SELECT *, {column} AS x{number} FROM c{number - 1})"
            for number in range(1, count + 1)
        ]
        return f"WITH {', '.join(parts)} SELECT * FROM c{count} WHERE x{count} > 0"

    hold(
        steps(60, "CASE WHEN memo = 'a' OR memo = 'b' THEN amount + amount ELSE -amount END"), KNOWN
    )
    doubled = "WITH c0 AS (SELECT id, amount AS x FROM left_src)"
    for number in range(1, 14):
        doubled += f", c{number} AS (SELECT id, x + x AS x FROM c{number - 1})"
    hold(f"{doubled} SELECT id FROM c13", KNOWN)
    assert "32,769 parts" in problems(f"{doubled} SELECT id FROM c13 WHERE x < x")[0]


def test_so_many_joins_and_no_more() -> None:
    hold("SELECT 1 FROM left_src" + " CROSS JOIN right_src" * 32, UNKNOWN)
    assert "33 joins" in problems("SELECT 1 FROM left_src" + " CROSS JOIN right_src" * 33)[0]


@pytest.mark.attack
@pytest.mark.timeout(10)
def test_many_misspelled_names_are_told_without_comparing_each_with_all() -> None:
    known = ", ".join(f"id AS some_quite_long_column_name_{number}" for number in range(900))
    wrong = ", ".join(f"another_quite_long_wrong_name_{number}" for number in range(1_100))
    found = problems(f"WITH t AS (SELECT {known} FROM left_src) SELECT {wrong} FROM t", KNOWN)
    assert len(found) == 51
