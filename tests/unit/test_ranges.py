"""Cutting into ranges: whatever the cuts and whatever the value, it falls in exactly one range."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalla.errors import InvalidInput
from kalla.spark.connectors import ranges
from kalla.spark.connectors.connector import ColumnType, KeyRange, Predicate, Slice, arrow_schema
from kalla.spark.connectors.postgres_text import (
    identifier,
    literal,
    predicate_condition,
    range_condition,
)
from kalla.spark.connectors.postgres_types import PostgresColumn

NUMBERS = st.integers(-50, 50)


def holds(bounds: KeyRange, value: tuple[int, ...] | None) -> bool:
    if value is None:
        return bounds.nulls
    lower = None if bounds.lower is None else tuple(map(int, bounds.lower))
    upper = None if bounds.upper is None else tuple(map(int, bounds.upper))
    return (lower is None or value >= lower) and (upper is None or value < upper)


def texts(cuts: Sequence[tuple[int, ...]]) -> list[list[str]]:
    return [[str(part) for part in each] for each in sorted(cuts)]


@given(st.lists(st.tuples(NUMBERS)), st.none() | st.tuples(NUMBERS))
def test_any_value_and_null_fall_in_exactly_one_range(
    cuts: list[tuple[int]], value: tuple[int] | None
) -> None:
    assert sum(holds(each, value) for each in ranges.cut(["id"], texts(cuts))) == 1


@given(st.lists(st.tuples(NUMBERS, NUMBERS)), st.tuples(NUMBERS, NUMBERS))
def test_any_composite_value_falls_in_exactly_one_range(
    cuts: list[tuple[int, int]], value: tuple[int, int]
) -> None:
    assert sum(holds(each, value) for each in ranges.cut(["a", "b"], texts(cuts))) == 1


@given(st.lists(st.tuples(NUMBERS)))
def test_a_cut_that_repeats_makes_no_empty_range(cuts: list[tuple[int]]) -> None:
    assert len(ranges.cut(["id"], texts(cuts))) == len(set(cuts)) + 1


@given(st.integers(0, 10_000), st.integers(1, 100))
def test_even_parts_differ_by_one_at_most_and_none_is_empty(total: int, n: int) -> None:
    edges = [0, *ranges.even(total, n), total]
    sizes = [upper - lower for lower, upper in pairwise(edges)]
    assert sum(sizes) == total
    assert max(sizes) - min(sizes) <= 1
    assert total == 0 or 0 not in sizes
    assert len(sizes) == max(1, min(n, total))


def test_one_range_is_the_whole_source() -> None:
    assert ranges.numbered(()) == (Slice(0, 1),)
    assert ranges.numbered(ranges.cut(["id"], [])) == (Slice(0, 1),)


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1))
def test_slices_survive_json(cuts: list[tuple[str, str]]) -> None:
    slices = ranges.numbered(ranges.cut(["a", "b"], cuts, ["C", None]))
    assert tuple(Slice.from_json(json.loads(json.dumps(each.as_json()))) for each in slices) == (
        slices
    )


def a_column(name: str, base: str, not_null: bool = True) -> PostgresColumn:
    return PostgresColumn(name, base, base, "b", -1, array=False, not_null=not_null)


def test_neighbours_compare_with_the_same_bound_in_the_same_order() -> None:
    low, high = ranges.cut(["ref"], [["it's"]], ["C"])
    columns = {"ref": a_column("ref", "text", not_null=False)}
    key = '"ref" COLLATE pg_catalog."C"'
    assert range_condition(low, columns) == f"({key} < 'it''s'::text OR \"ref\" IS NULL)"
    assert range_condition(high, columns) == f"({key} >= 'it''s'::text)"


def test_a_slice_that_no_longer_fits_its_table_is_refused() -> None:
    low, _ = ranges.cut(["ref"], [["x"]])
    with pytest.raises(InvalidInput, match="ref"):
        range_condition(low, {"ref": a_column("ref", "money")})


def test_quotes_and_backslashes_stay_inside_their_literal() -> None:
    assert literal("a'; DROP TABLE x; --") == "'a''; DROP TABLE x; --'"
    assert literal("\\'") == " E'\\\\'''"
    assert identifier('a"; --') == '"a""; --"'
    with pytest.raises(InvalidInput):
        literal("a\0b")
    with pytest.raises(InvalidInput):
        literal("a\ud800b")


@pytest.mark.parametrize(
    ("base", "predicate"),
    [
        ("int4", Predicate("c", "eq", "one")),
        ("int4", Predicate("c", "eq", True)),
        ("text", Predicate("c", "eq", 7)),
        ("date", Predicate("c", "lt", "tomorrow")),
        ("bytea", Predicate("c", "eq", "x")),
        ("int4", Predicate("c", "eq", None)),
        ("int4", Predicate("c", "eq", (1, 2))),
        ("numeric", Predicate("c", "contains", "1")),
        ("int4", Predicate("d", "eq", 1)),
    ],
)
def test_a_filter_that_does_not_fit_its_column_is_refused(base: str, predicate: Predicate) -> None:
    with pytest.raises(InvalidInput, match=predicate.column):
        predicate_condition(predicate, {"c": a_column("c", base)})


def test_every_column_that_cannot_be_read_is_named_at_once() -> None:
    schema = (ColumnType("a", "money", None), ColumnType("b", "interval", None))
    with pytest.raises(InvalidInput) as refused:
        arrow_schema(schema, ["a", "b"])
    assert [problem.field for problem in refused.value.problems] == ["a", "b"]
    assert "money" in str(refused.value)
    assert "interval" in str(refused.value)
