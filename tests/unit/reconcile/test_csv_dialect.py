"""Signs of a CSV that would mean two things are told before a file is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kalla.errors import InvalidInput
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import Source
from kalla.reconcile.recipe.validation import check_source


def told(**csv: Any) -> dict[str, str]:
    source = {"uri": "rows.csv", "primary_key": ["id"], "csv": csv}
    problems = check_source(Source.model_validate(source))
    assert all(each.suggestion and each.value is not None for each in problems)
    return {each.field: each.message for each in problems}


@pytest.mark.parametrize(
    ("csv", "field", "message"),
    [
        ({"delimiter": '"'}, "quote", "is the delimiter too"),
        ({"quote": ","}, "quote", "is the delimiter too"),
        ({"null": ","}, "null", "holds the delimiter"),
        ({"null": "n;a", "delimiter": ";"}, "null", "holds the delimiter"),
        ({"null": '""'}, "null", "holds the quote"),
        ({"null": "'n',", "quote": "'"}, "null", "holds the delimiter"),
        ({"delimiter": "\n"}, "delimiter", "is a line end"),
        ({"quote": "\r"}, "quote", "is a line end"),
        ({"quote": "§"}, "quote", "must be a sign of ASCII"),
        ({"thousands": "."}, "thousands", "is the decimal separator too"),
        ({"thousands": ",", "decimal": ","}, "thousands", "is the decimal separator too"),
    ],
)
def test_signs_that_cannot_be_told_apart_are_problems(
    csv: dict[str, str], field: str, message: str
) -> None:
    (found,) = told(**csv).items()
    assert found[0] == f"csv.{field}"
    assert found[1].startswith(message)


def test_other_signs_are_fine() -> None:
    assert told() == {}
    assert told(delimiter=";", quote="'", null="NULL") == {}
    assert told(delimiter="§", null='n"a', quote="|") == {}
    assert told(decimal=",", thousands=".") == told(thousands=",") == told(thousands=" ") == {}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("thousands", """must be ".", ",", "'" or " \""""),
        ("decimal", 'must be "." or ","'),
        ("encoding", "must be utf-8, latin-1, utf-16 or windows-1252"),
    ],
)
def test_signs_that_an_option_may_be_are_told_in_quotes(option: str, message: str) -> None:
    source = {"uri": "rows.csv", "primary_key": ["id"]}
    rule = {"name": "r", "conditions": [{"left": "ref", "op": "eq", "right": "ref"}]}
    sources = {"left": source | {"csv": {option: "_"}}, "right": source}
    with pytest.raises(InvalidInput) as refused:
        parsing.read(json.dumps({"name": "test", "sources": sources, "rules": [rule]}))
    assert [each.message for each in refused.value.problems] == [message]
