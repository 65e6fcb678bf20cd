"""Samples suggest a mapping under which they become rows."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.sinks.model import RowRules, rule_problems
from kalla.sinks.rows.inference import infer
from kalla.sinks.rows.preview import preview
from kalla.sinks.servers.message_ranges import Message


def messages(*values: Any) -> list[Message]:
    return [
        Message("t", 0, offset, 0, None, each if each is None else json.dumps(each).encode())
        for offset, each in enumerate(values)
    ]


def types(*values: Any) -> dict[str, str]:
    return {each.column: each.type for each in infer(messages(*values)).mapping}


def test_types_follow_from_what_was_seen() -> None:
    document = {
        "id": 7,
        "big": 2**63,
        "rate": 1.5,
        "paid": True,
        "amount": "12.50",
        "day": "2026-01-31",
        "at": 1_790_000_000_000,
        "seen": "2026-01-31T10:00:00Z",
        "key": "6f1c1d3a-57cf-4f0f-9c4e-0d6d1a1b2c3d",
        "tags": ["a"],
        "customer": {"address": {"city": "Kyiv"}},
        "free": {},
    }
    assert types(document, document) == {
        "id": "Int64",
        "big": "UInt64",
        "rate": "Float64",
        "paid": "Bool",
        "amount": "Decimal(18, 2)",
        "day": "Date32",
        "at": "DateTime64(3, 'UTC')",
        "seen": "DateTime64(3, 'UTC')",
        "key": "UUID",
        "tags": "Array(String)",
        "customer_address_city": "String",
        "free": "JSON",
    }


def test_absent_and_null_fields_are_nullable_and_counted() -> None:
    found = infer(messages({"a": 1, "b": "x"}, {"a": None, "b": "y"}, {"b": "z"}, None, [1]))
    a, b = found.fields
    assert (a.presence, a.nulls, a.column and a.column.type) == (2 / 3, 1, "Nullable(Int64)")
    assert (b.presence, b.nulls, b.column and b.column.type) == (1.0, 0, "String")
    assert (found.samples, found.empty, found.unreadable) == (5, 1, 1)


def test_a_conflict_of_types_is_named_and_the_more_frequent_type_is_proposed() -> None:
    (field,) = infer(messages({"a": 1}, {"a": 2}, {"a": "x"})).fields
    assert field.conflict is not None
    assert "2 integer, 1 text" in field.conflict
    assert field.column is not None
    assert field.column.type == "Int64"


def test_two_paths_never_share_a_column_nor_take_one_of_ours() -> None:
    mapping = infer(messages({"a": {"b": 1}, "a_b": 2, "A_B": 4, "_offset": 3})).mapping
    assert sorted(each.column for each in mapping) == ["A_B_3", "_offset_2", "a_b", "a_b_2"]


def test_samples_that_are_no_text_and_numbers_without_end_are_shown() -> None:
    values = [b'{"a": "\\ud800", "b": {"\\ud800": 1}}', b'{"a": 1e9999999999999999999}']
    found = infer([Message("t", 0, row, 0, None, value) for row, value in enumerate(values)])
    assert '"examples":["?"]' in found.model_dump_json()
    assert [each.path for each in found.fields] == ["a"]
    assert found.unreadable == 1


DOCUMENTS = st.dictionaries(
    st.text("abcä_ .-", min_size=1, max_size=4),
    st.recursive(
        st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.booleans()
        | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
        lambda inner: st.dictionaries(st.text("xy", min_size=1, max_size=2), inner, max_size=2),
        max_leaves=4,
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS)
def test_copies_of_one_document_become_rows_of_the_mapping_they_suggest(
    document: dict[str, Any],
) -> None:
    samples = messages(document, document)
    mapping = tuple(infer(samples).mapping)
    if mapping:
        assert rule_problems(mapping, ()) == []
        found = preview(samples, RowRules(0, mapping))
        assert found.row_count == 2, found.refusals
