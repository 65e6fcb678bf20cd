"""Parameters of recipes: filled in where they stand, and never more than a value."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import Parameter
from tests.recipe_kit import SMALL, filter_value, problems, sample, small_with_filter


def with_parameters(declared: str, uri: str = "left.csv") -> str:
    return SMALL.replace("left.csv", uri) + f"parameters: {declared}\n"


def test_a_parameter_in_a_longer_text_is_spelled_out() -> None:
    text = with_parameters("{d: {type: date}, n: {type: number, default: 1.50}}", '"${d}/${n}.csv"')
    recipe = parsing.read(text, {"d": "2026-01-31"})
    assert recipe.sources.left.uri == "2026-01-31/1.50.csv"


def test_a_given_value_wins_over_the_default_and_has_the_type() -> None:
    text = small_with_filter('"${n}"') + "parameters: {n: {type: number, default: 1}}\n"
    assert filter_value(text) == 1
    assert filter_value(text, {"n": "2.50"}) == Decimal("2.50")
    as_text = text.replace("type: number, default: 1", "type: text")
    assert filter_value(as_text, {"n": "2.50"}) == "2.50"


def test_a_doubled_dollar_sign_is_no_parameter() -> None:
    assert parsing.read(SMALL.replace("left.csv", '"$${a}$$.csv"')).sources.left.uri == "${a}$$.csv"


@pytest.mark.parametrize(
    ("declared", "given_values", "field", "sentence"),
    [
        ("{}", {}, "sources.left.uri", "uses the parameter `x`, which is not declared"),
        ("{x: {}}", {}, "sources.left.uri", "needs the parameter `x`, which has no value"),
        ("{x: {}}", {"x": "a", "y": "b"}, "parameters.y", "has a value but is not declared"),
        ("{x: {type: number}}", {"x": "a"}, "parameters.x", "must be a number"),
        ("{x: {type: date}}", {"x": "2026-02-30"}, "parameters.x", "must be a date"),
        ("{x: {default: 5}}", {}, "parameters.x.default", "must be text"),
        ("{x: {type: day}}", {"x": "a"}, "parameters.x.type", "must be text, number or date"),
        ("{x: {type: [day]}}", {"x": "a"}, "parameters.x.type", "must be text, number or date"),
        ("{x: {type: number, default: [1]}}", {}, "parameters.x.default", "must be a number"),
        ("{x: 5}", {"x": "1"}, "parameters.x", "must be fields and their values"),
    ],
)
def test_a_parameter_without_its_value_is_told_once(
    declared: str, given_values: dict[str, str], field: str, sentence: str
) -> None:
    told = problems(with_parameters(declared, '"${x}"'), given_values)
    assert list(told) == [field]
    assert told[field].message.startswith(sentence)


def test_a_parameter_that_nobody_uses_needs_no_value() -> None:
    assert parsing.read(with_parameters("{x: {}}")).parameters == {"x": Parameter()}


@pytest.mark.parametrize("value", ["a' OR '1'='1", 'a"', "a; DROP TABLE b", "a -- b", "a\\"])
def test_a_parameter_cannot_leave_its_place_in_sql(value: str) -> None:
    text = json.dumps(
        json.loads(sample("sql.json"))
        | {"match_sql": "SELECT '${x}'", "parameters": {"x": {"type": "text"}}}
    )
    assert parsing.read(text, {"x": "EU-1"}).match_sql == "SELECT 'EU-1'"
    assert "match_sql" in problems(text, {"x": value})


@pytest.mark.parametrize("sql", ["$${env:HOME}", "${x}{env:HOME}", "${y}", "${z}"])
def test_a_parameter_brings_no_variable_of_spark_into_sql(sql: str) -> None:
    values = {"x": "$", "y": "${env:HOME}", "z": "${"}
    text = json.dumps(
        json.loads(sample("sql.json"))
        | {"match_sql": f"SELECT '{sql}'", "parameters": {name: {} for name in values}}
    )
    assert problems(text, values)["match_sql"].message.startswith("${ is not allowed")


def with_sql(sql: str) -> str:
    declared = {"n": {"type": "number", "default": 2}, "x": {"type": "text", "default": "a"}}
    document = json.loads(sample("sql.json")) | {"match_sql": sql, "parameters": declared}
    return json.dumps(document)


@pytest.mark.parametrize(
    ("sql", "filled"),
    [
        ("SELECT 1 -${n}", "SELECT 1 -(-1)"),
        ("SELECT 1 ${n}", "SELECT 1 -1"),
        ("SELECT '${n}'", "SELECT '-1'"),
    ],
)
def test_a_negative_number_makes_no_comment_with_a_sign_before_it(sql: str, filled: str) -> None:
    assert parsing.read(with_sql(sql), {"n": "-1"}).match_sql == filled


@pytest.mark.parametrize(
    ("sql", "value"),
    [("1 -${x}", "-1"), ("1 ${x}*", "/"), ("${x}${n}", "-"), ("1 -${x}-", ""), ("${n}${x}", "-")],
)
def test_a_parameter_makes_no_comment_with_what_is_beside_it(sql: str, value: str) -> None:
    told = problems(with_sql(f"SELECT {sql}"), {"x": value})
    assert "comments into the SQL" in told["match_sql"].message


def test_a_parameter_of_a_replaced_uri_needs_no_value() -> None:
    text = with_parameters("{x: {}}", '"${x}"')
    assert parsing.read(text, left="x.csv").sources.left.uri == "x.csv"
