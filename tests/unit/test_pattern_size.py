"""How large regular expressions become is known before they are compiled."""

from __future__ import annotations

import json

import pytest

from kalla.errors import InvalidInput
from kalla.pattern_size import MOST_EXPRESSIONS, MOST_OF_ONE, ExpressionBudget, compiled_size
from kalla.query.promql.query_errors import ParseFailed
from kalla.query.promql.type_checker import checked
from kalla.reconcile.recipe import parsing

pytestmark = [pytest.mark.attack, pytest.mark.timeout(30)]

HUGE = r"(?i:[\\pL\\pN]{30}){2}0"


@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        (r"(?i:[\pL\pN]{30}){2}0", 60_000),
        (r"\pL{60}", 30_000),
        (r"((\pL{9}){9}){9}", 300_000),
        (r"[^a]{1000}", 10_000),
        ("a{1000}{1000}", 1_000_000),
        (r"(\p{Greek}|b){30,60}", 30_000),
    ],
)
def test_a_short_text_that_stands_for_much_is_large(pattern: str, least: int) -> None:
    assert compiled_size(pattern) >= least


@pytest.mark.parametrize(
    "pattern",
    [
        "api|web|db", "node-[0-9]{1,3}", r"https?://[^/]+/v\d+/.*", ".+", r"(?i)prod.*",
        "|".join(f"host{number}.example" for number in range(500)), r"\p{L}+ \p{L}+",
        r"\Q(a{1000}\E",
    ],
)  # fmt: skip
def test_what_people_write_is_small(pattern: str) -> None:
    assert compiled_size(pattern) < MOST_OF_ONE


def test_an_expression_that_comes_again_costs_nothing() -> None:
    budget = ExpressionBudget()
    assert not any(budget.refusal(r"\pL{30}") for _ in range(1000))


def test_a_query_of_many_large_matchers_is_refused_before_they_are_compiled() -> None:
    matchers = ",".join(f'a=~"{HUGE}{number}"' for number in range(3000))
    with pytest.raises(ParseFailed, match="expression too large"):
        checked(f"m{{{matchers}}}")
    several = ",".join(f'a=~"\\\\pL{{30}}{number}"' for number in range(3000))
    with pytest.raises(ParseFailed, match="too many large regular expressions"):
        checked(f"m{{{several}}}")
    small = ",".join(f'a=~"x{number}.*"' for number in range(MOST_EXPRESSIONS + 1))
    with pytest.raises(ParseFailed, match="more than 500 regular expressions"):
        checked(f"m{{{small}}}")


def test_large_expressions_of_label_replace_are_refused_too() -> None:
    with pytest.raises(ParseFailed, match=r"label_replace\(\): expression too large"):
        checked(f'label_replace(up, "a", "$1", "b", "{HUGE}")')


def test_a_recipe_of_many_large_expressions_is_refused_before_they_are_compiled() -> None:
    source = {"uri": "a.csv", "primary_key": ["id"]}
    expressions = [{"regex": rf"(?i:[\pL\pN]{{30}}){{2}}{number}"} for number in range(3000)]
    rules = [
        {
            "name": f"r{number}",
            "conditions": [
                {"left": "a", "op": "eq", "right": "a", "derive": expressions[number : number + 20]}
            ],
        }
        for number in range(0, 2000, 20)
    ]
    recipe = {"name": "x", "sources": {"left": source, "right": source}, "rules": rules}
    with pytest.raises(InvalidInput) as caught:
        parsing.read(json.dumps(recipe))
    assert "would take too long to compile" in str(caught.value)


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    "opening", ["[", "[[:", "(?P<", "(?<", r"\x{", r"\p{", r"\Q", "[\\", "(?", "a{", "a{1"]
)
def test_what_is_opened_again_and_again_is_looked_at_once(opening: str) -> None:
    compiled_size(opening * (100_000 // len(opening)))
