"""Any text is a recipe or a refusal that can be read, and what is written is read again."""

from __future__ import annotations

import json
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kalla.errors import InvalidInput
from kalla.reconcile.plan.plan import recipe_hash
from kalla.reconcile.recipe import parsing, validation
from kalla.reconcile.recipe.model import SIDES, Fuzzy, Recipe, Tolerance
from kalla.reconcile.recipe.parsing import RecipeProblem

ROOT = Path(__file__).parents[3]
RECIPES = ROOT / "tests" / "recipes"


def sample(name: str) -> str:
    return (RECIPES / name).read_text("utf-8")


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["eq", "tolerance", "${x}", "$${", "1:N", "postgres", "id", "secret://x"])
)
names = st.text(max_size=8) | st.sampled_from(
    [
        *Recipe.model_fields, *Tolerance.model_fields, *Fuzzy.model_fields, "match_rules", "uri",
        "primary_key", "filters", "column", "value", "csv", "regex", "date_part", "type", "pattern",
        "default", "conditions",
    ]
)  # fmt: skip
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=6),
    max_leaves=25,
)


@st.composite
def changed_recipes(draw: st.DrawFn) -> object:
    """A good document with some of its parts replaced: errors deep inside are reached this way."""
    name = draw(
        st.sampled_from(["invoices.yaml", "sql.json", "older_rules.json", "older_sql.json"])
    )
    document = yaml.safe_load(sample(name).replace("\t", " "))
    for _ in range(draw(st.integers(1, 4))):
        place = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and draw(st.booleans()):
                place = place[key]
                continue
            if draw(st.booleans()) and isinstance(place, dict):
                place[draw(names)] = place.pop(key)
            else:
                place[key] = draw(documents)
            break
    return document


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents | changed_recipes(), st.dictionaries(st.sampled_from("xyz"), st.text(max_size=5)))
def test_any_document_is_a_recipe_or_invalid(document: object, values: dict[str, str]) -> None:
    for text in (json.dumps(document, default=str), yaml.dump(document, allow_unicode=True)):
        try:
            assert isinstance(parsing.read(text, values), Recipe)
            continue
        except InvalidInput as error:
            told = error.problems
        assert told
        for each in told:
            assert isinstance(each, RecipeProblem)
            json.dumps(each.facts(), allow_nan=False)


@settings(max_examples=200, deadline=None)
@given(st.text() | st.text("{}[]\":,-&*!|>'#%@ \n\tab1.~?").map(lambda text: "{" + text))
def test_any_text_is_a_recipe_or_invalid(text: str) -> None:
    with pytest.raises(InvalidInput):
        parsing.read(text)


words = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12
) | st.sampled_from(
    ["no", "007", "5", "1.0", "2026-01-31", "${x}", "$${x}", "~", " a", "a: b", "#"]
)
decimals = st.decimals(0, 10**9, places=4) | st.decimals(0, 1, places=2)
thresholds = st.decimals(0, 1, places=4)
values = (
    words
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | decimals
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(UTC))
)
filters: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(dict, column=words, op=st.sampled_from(["eq", "ne", "lt"]), value=values),
    st.builds(
        dict, column=words, op=st.sampled_from(["in", "not_in"]),
        value=st.lists(values, min_size=1, max_size=3),
    ),
    st.builds(dict, column=words, op=st.just("is_null")),
)  # fmt: skip
derivations = st.lists(st.sampled_from(["trim", "upper", {"regex": r"a(\d+)"}]), max_size=2)
conditions = st.one_of(
    st.builds(dict, left=words, right=words, op=st.just("eq"), derive=derivations),
    st.builds(dict, left=words, right=words, op=st.just("tolerance"), absolute=decimals),
    st.builds(
        dict, left=words, right=words, op=st.just("tolerance"), below=decimals,
        above_percent=decimals, negate=st.sampled_from(["left", "right"]),
    ),
    st.builds(dict, left=words, right=words, op=st.just("date_window"), days=st.integers(0, 9)),
    st.builds(dict, left=words, right=words, op=st.just("fuzzy"), threshold=thresholds),
    st.builds(dict, left=words, right=words, op=st.sampled_from(["contains", "ne", "gte"])),
)  # fmt: skip
sources: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict, uri=st.just("a.csv") | words, primary_key=st.lists(words, min_size=1, max_size=2),
    filters=st.lists(filters, max_size=2),
    csv=st.fixed_dictionaries({}, optional={"header": st.booleans(), "null": words}),
)  # fmt: skip
rules: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict, name=words, cardinality=st.sampled_from(["1:1", "1:N", "N:1", "M:N"]),
    conditions=st.lists(conditions, min_size=1, max_size=3), priority=st.none() | st.integers(0, 9),
    left_filters=st.lists(filters, max_size=1),
)  # fmt: skip
recipes: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict, name=words, description=st.text(max_size=5) | words,
    sources=st.fixed_dictionaries({"left": sources, "right": sources}),
    rules=st.lists(rules, min_size=1, max_size=2), accept_suggested=st.booleans(),
    parameters=st.dictionaries(words, st.fixed_dictionaries({"default": words}), max_size=2),
)  # fmt: skip


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(recipes)
def test_a_recipe_written_and_read_again_is_equal(document: dict[str, Any]) -> None:
    recipe = Recipe.model_validate(document)
    assume(not validation.check(recipe))
    assert parsing.read(parsing.write(recipe)) == recipe
    for side in SIDES:
        source = recipe.sources[side]
        assert parsing.read_source(parsing.write_source(source)) == source


def test_an_option_that_came_later_leaves_the_hash_of_other_recipes_as_it_was() -> None:
    """By it evidence of one recipe is told from that of another, and its matches have their ids."""
    source = {"uri": "left.csv", "primary_key": ["id"]}
    rule = {"name": "r", "conditions": [{"left": "ref", "op": "eq", "right": "ref"}]}

    def hashed(**csv: str) -> str:
        sources = {"left": source | {"csv": csv}, "right": source | {"uri": "right.csv"}}
        document = {"name": "small", "sources": sources, "rules": [rule]}
        return recipe_hash(Recipe.model_validate(document))

    assert hashed() == "43d2079c4f22a41f0ee5c0419680b49fd3da12a856e3e97c33ba77d924337f54"
    assert hashed(thousands=",") != hashed()
