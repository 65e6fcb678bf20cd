"""Filters hold to one predicate over the mapped columns, and drop no row that they cannot judge."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.errors import InvalidInput
from kalla.sinks import plan
from kalla.sinks.model import Column, RowRules
from kalla.sinks.rows.filters import filter_problems, held, translated
from kalla.sinks.rows.transform import Transform
from kalla.sinks.servers.message_ranges import Message, MessageBatch, OffsetRange

MAPPING = (
    Column(column="id", type="Int64", path="id"),
    Column(column="name", type="LowCardinality(String)", path="name"),
    Column(column="amount", type="Decimal(18, 2)", path="amount", default=0),
    Column(column="at", type="DateTime64(3, 'UTC')", path="at", unit="ms", default=0),
    Column(column="city", type="Nullable(String)", path="city"),
    Column(column="paid", type="Bool", path="paid", default=False),
)


def messages(*documents: dict[str, Any]) -> MessageBatch:
    listed = [
        Message("t", 3, offset, 0, None, json.dumps({"id": offset, "name": "x"} | each).encode())
        for offset, each in enumerate(documents)
    ]
    return MessageBatch.of(listed)


def passing(filters: list[str], *documents: dict[str, Any]) -> list[int]:
    transform = Transform(RowRules(1, MAPPING, tuple(filters)))
    result = transform.apply(messages(*documents))
    assert not result.dead
    transform.close()
    return list(result.offsets)


def test_rows_pass_where_every_filter_is_true() -> None:
    documents: tuple[dict[str, Any], ...] = (
        {"city": "Kyiv"},
        {"city": None},
        {"city": "Oslo", "amount": "5.00"},
        {},
    )
    assert passing(["city IS NOT NULL"], *documents) == [0, 2]
    assert passing(["city <> 'Kyiv'"], *documents) == [2]  # null is neither
    assert passing(["city IS NOT NULL", "amount >= 5"], *documents) == [2]
    assert passing(["city IN ('Kyiv', 'Lima') OR id = 3"], *documents) == [0, 3]
    assert passing(["_partition = 3 AND _offset < 2"], *documents) == [0, 1]
    assert passing(["startswith(lower(city), 'o')"], *documents) == [2]


def test_times_are_compared_in_utc() -> None:
    documents = ({"at": 1_767_225_599_999}, {"at": 1_767_225_600_000})
    assert passing(["at >= '2026-01-01 00:00:00'"], *documents) == [1]


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ('name == "x" && amount > 3', "name = 'x' AND amount > 3"),
        ("!(paid) || id != 4", "NOT ( paid ) OR id != 4"),
        ("city == null && name != 'it\\'s'", "city IS NULL AND name != 'it''s'"),
        ("city != null && id >= -2", "city IS NOT NULL AND id >= - 2"),
        ("name = 'a == b'", "name = 'a == b'"),
    ],
)
def test_simple_comparisons_of_the_older_form_are_translated(text: str, sql: str) -> None:
    assert translated(text) == sql
    assert filter_problems([text], MAPPING) == []


@pytest.mark.parametrize(
    "text",
    [
        "nope = 1",
        "id",
        "count(*) > 1",
        "id = (SELECT 1)",
        "id > 1) UNION SELECT * FROM (message",
        "id > 1; DROP TABLE x",
        "id = 'abc'",
        "CAST(name AS INT) > 1",
        "rand() > 0.5",
        "name RLIKE 'a'",
        "read_text('/etc/passwd') = ''",
        "exists(SELECT 1 FROM other)",
        "size(x) == 1 && y.exists(z, z > 1)",
        "",
        "a" * 3000,
    ],
)
def test_what_is_no_predicate_over_the_columns_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        held([text], MAPPING)
    assert all(each.field == "filters.0" for each in refused.value.problems)


def test_a_substring_that_begins_at_0_is_refused_and_stored_ones_go_on() -> None:
    begins = "substring(name, 0, 2) = 'x'"  # Spark and DuckDB do not agree on it
    assert [each.field for each in filter_problems(["id > 1", begins], MAPPING)] == ["filters.1"]
    assert passing([begins], {}) == [0]


def test_patterns_are_searched_in_long_texts_at_once_and_none_is_a_regular_expression() -> None:
    """DuckDB's LIKE never goes back: Java's would try for hours on the second text."""
    wild = "name {} '%a_%a_%b'"
    documents = [{"name": "axaxaxaxaxab"}, {"name": "a" * 300_000}, {"name": "b"}]
    assert passing([wild.format("LIKE")], *documents) == [0]
    assert passing([wild.format("ILIKE")], *documents) == [0]
    for each in ("name RLIKE '(a+)+b'", "regexp_like(name, '(a+)+b')", "name SIMILAR TO 'a'"):
        assert filter_problems([each], MAPPING), each


def test_a_row_that_the_filter_cannot_judge_is_a_dead_letter_and_the_others_go_on() -> None:
    transform = Transform(RowRules(1, MAPPING, ("id * id > 0",)))
    result = transform.apply(messages({"id": 1}, {"id": 4_000_000_000}, {"id": 0}))
    assert result.offsets.tolist() == [0]
    assert [each.message.offset for each in result.dead] == [1]
    assert result.dead[0].reason == (
        "the filter cannot be evaluated: Out of Range Error: Overflow in multiplication of INT64!"
    )
    assert result.filtered.tolist() == [2]


@pytest.mark.parametrize("kind", ["Decimal(50, 2)", "Array(Decimal(50, 2))"])
def test_a_column_that_filters_cannot_read_does_not_hinder_those_of_others(kind: str) -> None:
    wide = Column(column="wide", type=kind, path="wide", default=[] if "Array" in kind else 0)
    assert filter_problems(["id > 0"], (*MAPPING, wide)) == []
    assert filter_problems(["wide > 0"], (*MAPPING, wide))
    transform = Transform(RowRules(1, (*MAPPING, wide), ("id > 0",)))
    result = transform.apply(messages({}, {}))
    assert (result.offsets.tolist(), result.filtered.tolist(), result.dead) == ([1], [0], [])


@pytest.mark.parametrize("name", ["Id", "_Offset"])
def test_columns_that_differ_by_case_cannot_be_filtered(name: str) -> None:
    """DuckDB would take the first one for both."""
    twin = Column(column=name, type="Int64", path="other")
    (problem,) = filter_problems(["id > 2"], (*MAPPING, twin))
    assert name.lower() in problem.message
    assert filter_problems([], (*MAPPING, twin)) == []


@pytest.fixture(scope="module")
def by_city() -> Iterator[Transform]:
    transform = Transform(RowRules(1, MAPPING, ("id > 0 AND city = 'a'",)))
    yield transform
    transform.close()


@settings(max_examples=30, deadline=None)
@given(cells=st.lists(st.tuples(st.integers(-5, 5), st.sampled_from(["a", "b", None]))))
def test_filtered_rows_and_the_rest_are_all_there(
    by_city: Transform, cells: list[tuple[int, str | None]]
) -> None:
    result = by_city.apply(messages(*({"id": a, "city": b} for a, b in cells)))
    wanted = [row for row, (a, b) in enumerate(cells) if a > 0 and b == "a"]
    assert result.offsets.tolist() == wanted
    assert sorted([*result.offsets, *result.filtered]) == list(range(len(cells)))


def test_the_check_of_one_result_a_message_finds_one_that_was_lost_or_doubled() -> None:
    transform = Transform(RowRules(1, MAPPING))
    given_ = messages({}, {})
    mapped = transform.mapper.map(given_)
    for offsets in ([0], [0, 0], [0, 1, 2]):
        broken = replace(mapped, offsets=np.array(offsets))
        transform.mapper.map = lambda _messages, broken=broken: broken  # type: ignore
        with pytest.raises(AssertionError):
            transform.apply(given_)


def test_a_token_changes_with_the_rules_the_generation_and_the_topic() -> None:
    wanted = OffsetRange("t", 0, 5, 9)
    tokens = {
        plan.token("p", topic, generation, version, wanted)
        for topic in ("a", "b")
        for generation in (0, 1)
        for version in (1, 2)
    }
    assert len(tokens) == 8
