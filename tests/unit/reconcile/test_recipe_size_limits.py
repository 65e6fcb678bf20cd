"""What a recipe may cost who reads it: a short text must not take long, or grow without an end."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.recipe import parameter_values, parsing, yaml_values
from kalla.reconcile.recipe.model import Recipe, Side
from kalla.reconcile.recipe.recipe_problems import did_you_mean
from kalla.reconcile.runs.handlers import first_jobs
from kalla.settings import Settings

pytestmark = pytest.mark.timeout(15)


def document(**fields: Any) -> dict[str, Any]:
    source = {"uri": "a.csv", "primary_key": ["id"]}
    condition = {"left": "a", "op": "eq", "right": "a"}
    return {
        "name": "bounds",
        "sources": {"left": source, "right": source},
        "rules": [{"name": "r", "conditions": [condition]}],
    } | fields


def problems(found: dict[str, Any], wide: int = 0) -> list[Problem]:
    columns = {f"a_rather_long_name_of_a_column_{number:05}": "text" for number in range(wide)}

    def look(_: Recipe, sides: Collection[Side]) -> Mapping[Side, Mapping[str, str]]:
        return dict.fromkeys(sides, columns)

    with pytest.raises(InvalidInput) as caught:
        parsing.read(json.dumps(found), columns=look if wide else None)
    return list(caught.value.problems)


def test_many_undeclared_parameters_beside_many_declared_are_told_at_once() -> None:
    declared = {f"the_amount_of_parameter_{number:05}": {"type": "number"} for number in range(900)}
    used = [f"${{the_amuont_of_paramter_{number:05}}}" for number in range(900)]
    filled = parameter_values.fill({"parameters": declared, "name": used}, {})
    assert len(filled.unfilled) == 900
    assert len(filled.findings) == 201, "one more than is told, so that it is told that more are"
    assert filled.findings[0].suggestion == "did you mean the_amount_of_parameter_00000?"
    assert filled.findings[-1].suggestion == "declare the_amuont_of_paramter_00200"
    many = {f"unknown_parameter_of_the_caller_{number}": "1" for number in range(900)}
    assert len(parameter_values.fill({"parameters": declared}, many).findings) == 201


def test_many_wrong_columns_of_a_wide_source_are_told_at_once() -> None:
    rules = [
        {"name": f"r{number}", "conditions": [{"left": name, "op": "eq", "right": name}]}
        for number in range(100)
        for name in [f"a_rathr_long_nam_of_a_colum_{number:05}"]
    ]
    told = problems(document(rules=rules), wide=1500)
    assert len(told) == 201
    by_place = {each.field: each.suggestion for each in told}
    near = "did you mean a_rather_long_name_of_a_column_00007?"
    assert by_place["rules[7].conditions[0].left"] == near


def test_many_places_that_are_wrong_already_are_passed_over_at_once() -> None:
    conditions = [{"left": "${x}", "op": "eq", "right": "${x}"}] * 50
    rules = [{"name": f"r{number}", "conditions": conditions} for number in range(100)]
    told = problems(document(rules=rules, parameters={"x": {"type": "bogus"}}), wide=2)
    assert [each.field for each in told if each.field.startswith("parameters")]


def test_names_that_are_listed_are_cut() -> None:
    assert len(did_you_mean("z", ["a" * 100_000, "b" * 100_000])) < 1000


@pytest.mark.parametrize("use", ["${x}", "${x}${x}"], ids=["whole", "part"])
def test_what_parameters_make_of_a_recipe_is_bounded(use: str) -> None:
    """5 GB of 290 KB: before it is made, and wherever it is used."""
    filled = parameter_values.fill(
        {"parameters": {"x": {"default": "é" * 50_000}}, "name": [use * 10] * 2000}, {}
    )
    (told,) = filled.findings
    assert told.message.startswith("grows by its parameters to more than")
    whole = parameter_values.fill(
        {"parameters": {"x": {"default": "a" * 90_000}}, "name": [use] * 20}, {}
    )
    assert len(whole.findings) == 1
    for found in (filled, whole):
        size = len(json.dumps(found.document["name"], ensure_ascii=False).encode())
        assert size < 2 * yaml_values.LARGEST_BYTES
        assert set(found.unfilled) > {told.path for told in found.findings}


def test_a_recipe_is_no_larger_than_a_job_carries() -> None:
    """Written out, a list of short values is several times as long as in one line."""

    def recipe(values: int) -> str:
        long = {"column": "c", "op": "in", "value": ["a"] * values}
        found = document()
        found["sources"]["left"] = {**found["sources"]["left"], "filters": [long]}
        return json.dumps(found)

    with pytest.raises(InvalidInput) as caught:
        parsing.read(recipe(45_000))
    (told,) = caught.value.problems
    assert told.field == ""
    assert "a run carries 250,000 at the most" in told.message
    carried = first_jobs(parsing.read(recipe(20_000)))[0][0].payload
    size = len(json.dumps(carried, ensure_ascii=False).encode())
    assert 200_000 < size < Settings().limits.payload_bytes
