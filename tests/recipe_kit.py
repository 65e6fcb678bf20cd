"""Recipes for tests: small ones with something changed, samples, and what is told of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kalla.errors import InvalidInput
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import Recipe
from kalla.reconcile.recipe.parsing import RecipeProblem
from kalla.reconcile.recipe.validation import check

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "tests" / "recipes"
SMALL = (RECIPES / "small.yaml").read_text("utf-8")


def sample(name: str) -> str:
    return (RECIPES / name).read_text("utf-8")


def problems(text: str, given: dict[str, str] | None = None) -> dict[str, RecipeProblem]:
    with pytest.raises(InvalidInput) as caught:
        parsing.read(text, given or {})
    found = [each for each in caught.value.problems if isinstance(each, RecipeProblem)]
    assert len(found) == len(caught.value.problems)
    told = {each.field: each for each in found}
    assert len(told) == len(found), "a place is told twice"
    return told


def small_with_filter(value: str) -> str:
    return SMALL.replace(
        "primary_key: [id]}\n  right",
        f"primary_key: [id], filters: [{{column: c, op: eq, value: {value}}}]}}\n  right",
    )


def filter_value(text: str, given: dict[str, str] | None = None) -> Any:
    return parsing.read(text, given or {}).sources.left.filters[0].value


KEY = {"left": "id", "op": "eq", "right": "id"}
AMOUNT = {"left": "a", "op": "tolerance", "right": "b", "absolute": "0.01"}


def recipe(**fields: Any) -> Recipe:
    side = {"uri": "rows.csv", "primary_key": ["id"]}
    rule = {"name": "only", "conditions": [KEY]}
    return Recipe.model_validate(
        {"name": "x", "sources": {"left": side, "right": side}, "rules": [rule]} | fields
    )


def with_source(**fields: Any) -> Recipe:
    left = {"uri": "rows.csv", "primary_key": ["id"]} | fields
    return recipe(sources={"left": left, "right": {"uri": "rows.csv", "primary_key": ["id"]}})


def with_rule(*conditions: dict[str, Any], **fields: Any) -> Recipe:
    return recipe(rules=[{"name": "only", "conditions": conditions or [KEY]} | fields])


def with_condition(**fields: Any) -> Recipe:
    return with_rule(KEY, {"left": "a", "right": "b"} | fields)


def told(given: Recipe, columns: Any = None) -> dict[str, str]:
    problems = check(given, columns)
    assert len({each.field for each in problems}) == len(problems)
    for each in problems:
        assert each.suggestion, each
        assert each.value is not None or " missing" in each.message, each
    return {each.field: each.message for each in problems}
