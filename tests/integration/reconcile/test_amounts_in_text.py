"""Amounts that a CSV writes as its country does: read where the recipe says how, in one bucket and
in several."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kalla.errors import InvalidInput
from kalla.reconcile import kernel
from kalla.reconcile.kernel import Facts
from kalla.reconcile.partitioned import partitioned_match
from kalla.reconcile.partitioned.partitioned_match import Places
from kalla.reconcile.plan import plan
from kalla.reconcile.recipe.model import SIDES, Recipe
from kalla.reconcile.runs.execute import check_conservation
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.sources import source_planning

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
    made = plan.make(
        recipe, {side: source_planning.inspect_files(recipe.sources[side], side) for side in SIDES}
    )
    resources, evidence = Resources("500MB", 1, folder / "temp"), folder / "evidence"
    if count == 1:
        facts = kernel.match(made, evidence, resources, WHEN)
    else:
        facts = partitioned_match.match(
            made,
            count,
            Places(str(evidence), str(evidence / "rows")),
            resources,
            WHEN,
            lambda run, tasks: [run(each) for each in tasks],
        )
    check_conservation(facts.sides)
    return facts


def test_amounts_are_read_as_bookkeepers_write_them(tmp_path: Path) -> None:
    written = ["281,72-", "(12,00)", "12,00 €", "$5", "1.000,50-", "-3-", "(-3)"]
    right = ["-281.72", "-12", "12", "5", "-1000.5", "3", "3"]
    facts = match(tmp_path, written, right, csv=GERMAN)
    assert facts.sides["left"].states["matched"].rows == 5
    assert facts.sides["left"].states["unmatched"].rows == 2


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


SAME = {"left": "amount", "op": "eq", "right": "amount"}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("op", "left", "right", "matched"),
    [
        ("eq", ["1500", "1,5", "n/a", "7"], ["1500.00", "1.50", "n/a", "7.01"], 2),
        ("ne", ["1500", "1,5", "n/a", "7"], ["1500.00", "1.50", "x", "7.01"], 1),
        ("lt", ["900", "1000", "n/a", "7"], ["1000.0", "900", "x", "7.01"], 2),
    ],
)
def test_the_amount_of_a_source_is_a_number_to_every_comparison(
    tmp_path: Path, op: str, left: list[str], right: list[str], matched: int, count: int
) -> None:
    conditions = BY_REF, SAME | {"op": op}
    csv = {"decimal": ","}
    facts = match(tmp_path, left, right, conditions=conditions, count=count, csv=csv)
    assert facts.sides["left"].states["matched"].rows == matched
    assert facts.sides["left"].loaded.unreadable == (("amount", "number", 1, ("n/a",)),)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("op", "value", "kept"),
    [
        ("gte", "1000", "1000,00 1500"),
        ("lt", "1e3", "900 -2"),
        ("eq", "1000", "1000,00"),
        ("ne", "1000", "900 1500 -2"),
        ("in", ["900.00", 1500], "900 1500"),
        ("not_in", ["900.00", 1500], "1000,00 -2"),
        ("startswith", "9", "900"),
    ],
)
def test_the_amount_of_a_source_is_a_number_to_its_filters(
    tmp_path: Path, op: str, value: object, kept: str, count: int
) -> None:
    written = ["900", "1000,00", "1500", "-2", "n/a"]
    filters = [{"column": "amount", "op": op, "value": value}]
    options: dict[str, Any] = {"csv": {"decimal": ","}, "filters": filters}
    facts = match(tmp_path, written, [], count=count, **options)
    numbers = [Decimal(each.replace(",", ".")) for each in kept.split()]
    left = facts.sides["left"]
    assert left.states["unmatched"].rows == len(numbers)
    assert left.states["unmatched"].amount == sum(numbers)


def test_a_filter_of_an_amount_by_what_is_no_number_is_refused(tmp_path: Path) -> None:
    filters = [{"column": "amount", "op": "gte", "value": "1.000,00"}]
    with pytest.raises(InvalidInput, match=r"1\.000,00' is not a number"):
        match(tmp_path, ["1"], [], filters=filters)
