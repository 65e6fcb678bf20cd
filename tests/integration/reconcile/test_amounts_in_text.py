"""Amounts that a CSV writes as its country does: read where the recipe says how, in one bucket and
in several."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kalla.reconcile import kernel, plan
from kalla.reconcile.kernel import Facts
from kalla.reconcile.matching import buckets
from kalla.reconcile.matching.engine import Resources
from kalla.reconcile.model import SIDES, Recipe
from kalla.reconcile.run import check_conservation
from kalla.reconcile.sources import origins

WHEN = "2026-01-01 00:00:00Z"
BY_REF = {"left": "ref", "op": "eq", "right": "ref"}
EXACTLY = {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "0"}
GERMAN = {"decimal": ",", "thousands": "."}
FRENCH = {"decimal": ",", "thousands": " "}
SWISS = {"thousands": "'"}
ENGLISH = {"thousands": ","}


def match(
    folder: Path,
    left: list[str],
    right: list[str],
    *,
    conditions: tuple[dict[str, Any], ...] = (BY_REF, EXACTLY),
    count: int = 1,
    **options: Any,
) -> Facts:
    """Amounts of the left side against those of the right side that have the same place."""
    sources: dict[str, Any] = {}
    for side, amounts in zip(SIDES, (left, right), strict=True):
        path = folder / f"{side}.csv"
        rows = (f'{side}{place},{place},"{each}"' for place, each in enumerate(amounts))
        path.write_text("\n".join(["id,ref,amount", *rows]) + "\n")
        sources[side] = {"uri": str(path), "primary_key": ["id"], "amount": "amount"}
    sources["left"] |= options
    rules = [{"name": "only", "conditions": conditions}]
    recipe = Recipe.model_validate({"name": "test", "sources": sources, "rules": rules})
    made = plan.make(recipe, {side: origins.look(recipe.sources[side], side) for side in SIDES})
    resources, evidence = Resources("500MB", 1, folder / "temp"), folder / "evidence"
    if count == 1:
        facts = kernel.match(made, evidence, resources, WHEN)
    else:
        facts = buckets.match(
            made, count, evidence, resources, WHEN, lambda run, tasks: [run(each) for each in tasks]
        )
    check_conservation(facts.sides)
    return facts


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("csv", "written"),
    [
        (GERMAN, ["1.234,56", "-1.234.567", "+1234,5", "1,"]),
        (FRENCH, ["1 234,56", "-1\u00a0234\u202f567", "1234,50", "1"]),
        (SWISS, ["1'234.56", "-1\u2019234\u2019567", "1234.5", "001"]),
        (ENGLISH, ["1,234.56", " -1,234,567.0 ", "01,234.5", "1.00"]),
    ],
)
def test_grouped_digits_are_read_where_the_recipe_says_so(
    tmp_path: Path, csv: dict[str, str], written: list[str], count: int
) -> None:
    filters = [{"column": "amount", "op": "ne", "value": 1}]
    right = ["1234.56", "-1234567", "1234.5"]
    facts = match(tmp_path, written, right, count=count, csv=csv, filters=filters)
    left = facts.sides["left"]
    assert left.loaded.unreadable == ()
    assert left.loaded.filtered == 1
    assert left.states["matched"].amount == Decimal("-1232097.94")


@pytest.mark.parametrize(
    ("csv", "written"),
    [
        (GERMAN, ["12.34,5", "1.23.456", "1234.567", "1.234,567.8", "0.125", ".125", "1 234,5"]),
        (FRENCH, ["1.5", "1  234", "- 1 234", "12 34"]),
        (SWISS, ["1,5", "1'2345", "'123"]),
        (ENGLISH, ["1,234,56", "1,234.5,0", "1,234,"]),
        ({"decimal": ","}, ["1.234,56", "1.5"]),
    ],
)
def test_digits_in_other_groups_are_counted_and_named(
    tmp_path: Path, csv: dict[str, str], written: list[str]
) -> None:
    facts = match(tmp_path, written, [], csv=csv)
    ((column, kind, rows, examples),) = facts.sides["left"].loaded.unreadable
    assert (column, kind, rows) == ("amount", "number", len(written))
    assert set(examples) <= set(written)
