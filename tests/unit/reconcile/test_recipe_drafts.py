"""Recipes as callers send them: the forms of a body, missing parameters, names and ids."""

from __future__ import annotations

import json

import pytest

from kalla.errors import InvalidInput
from kalla.reconcile.recipe import yaml_values
from kalla.reconcile.registry import drafts
from kalla.reconcile.registry.drafts import Named

RECIPE = """
name: May
parameters:
  slack: {type: number}
  zone: {type: text}
time_zone: "${zone}"
sources:
  left: {uri: /data/a.csv, primary_key: [id]}
  right: {uri: /data/b.csv, primary_key: [id]}
rules:
  - name: paid
    conditions:
      - {left: id, op: eq, right: id}
      - {left: amount, op: tolerance, right: amount, absolute: "${slack}"}
"""


def test_a_body_is_the_recipe_itself_or_holds_it_as_text_or_as_an_object() -> None:
    document = {"name": "May", "amount": "x"}
    for body in (
        json.dumps(document),
        json.dumps({"recipe": document}),
        json.dumps({"recipe": json.dumps(document), "parameters": {}}),
        "name: May\r\namount: x\r\n",
        "\ufeffname: May\namount: x\n",
    ):
        found = drafts.sent(body.encode())
        assert yaml_values.parse(found.text).value == document
        assert "\r" not in found.text
        assert not found.text.startswith("\ufeff")


def test_amounts_keep_every_digit() -> None:
    exact = "12345678901234567890.123456789012345678"
    found = drafts.sent(f'{{"recipe": {{"a": {exact}}}, "parameters": {{"b": {exact}}}}}'.encode())
    assert exact in found.text
    assert found.given == {"b": exact}


@pytest.mark.parametrize(
    "body",
    [
        b'{"recipe": {"name": "\\ud800"}}',
        b'{"recipe": "x", "recipe": "y"}',
        b'{"recipe": "x", "parameters": []}',
        b'{"recipe": "x", "parameters": {"a": {}}}',
        b'{"recipe": "x", "parameters": {"a": null}}',
        b'{"recipe": "x", "parameters": {"a": true}}',
        b'{"recipe": ',
        b"{" * 1000,
        b'{"a": ' * 100_000,
        b'{"recipe": "\xff\xfe"}',
        b'{"recipe": "' + b"x" * 1_100_000 + b'"}',
    ],
    ids=range(11),
)
def test_a_body_that_makes_no_sense_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        drafts.sent(body)


def test_a_parameter_without_a_value_is_what_a_run_needs_and_no_problem() -> None:
    judgement = drafts.judge(RECIPE)
    assert judgement.problems == ()
    assert judgement.needs == ("slack", "zone")


def test_other_problems_are_told_though_parameters_are_missing() -> None:
    broken = RECIPE.replace("op: eq", "op: equals").replace('"${slack}"', '"${slak}"')
    judgement = drafts.judge(broken)
    assert {each.field for each in judgement.problems} == {
        "rules[0].conditions[0].op",
        "rules[0].conditions[1].absolute",
    }
    assert judgement.recipe is None


def test_a_value_that_is_given_is_judged() -> None:
    good = drafts.judge(RECIPE, {"slack": "0.01", "zone": "Europe/Paris"})
    assert good.recipe is not None
    assert good.recipe.time_zone == "Europe/Paris"
    (problem,) = drafts.judge(RECIPE, {"slack": "0.01", "zone": "Nowhere"}).problems
    assert problem.field == "time_zone"


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Invoices & Payments, May", "invoices-payments-may"),
        ("Rechnungen über Jahre", "rechnungen-uber-jahre"),
        ("../../etc/passwd", "etc-passwd"),
        ("x" * 300, "x" * 80),
    ],
)
def test_an_id_is_made_of_the_name(name: str, slug: str) -> None:
    assert drafts.slug(name) == slug


def test_a_name_without_latin_letters_has_an_id_too() -> None:
    assert drafts.slug("対帳").startswith("recipe-")
    assert drafts.slug("対帳") != drafts.slug("照合")


def test_a_recipe_has_the_id_it_says_itself() -> None:
    assert drafts.named("name: May\nrecipe_id: m1\n") == Named("May", "m1", True)
    assert drafts.named("name: In May\n") == Named("In May", "in-may", False)
