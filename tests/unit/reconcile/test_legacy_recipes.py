"""Older recipes: they become present ones, and their problems keep their own paths."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kalla.errors import InvalidInput
from kalla.reconcile.recipe import legacy_formats, parsing
from kalla.reconcile.recipe.model import Comparison, Equal, Filter, Fuzzy, Text, Tolerance
from kalla.reconcile.recipe.parsing import RecipeProblem

RECIPES = Path(__file__).parents[2] / "recipes"


def sample(name: str) -> str:
    return (RECIPES / name).read_text("utf-8")


def problems(text: str) -> dict[str, RecipeProblem]:
    with pytest.raises(InvalidInput) as caught:
        parsing.read(text)
    found = [each for each in caught.value.problems if isinstance(each, RecipeProblem)]
    told = {each.field: each for each in found}
    assert len(told) == len(caught.value.problems), "a place is told twice"
    return told


def with_rule(**fields: Any) -> str:
    document = json.loads(sample("older_rules.json"))
    document["match_rules"] = [document["match_rules"][0] | fields]
    return json.dumps(document)


def with_condition(**fields: Any) -> str:
    key = {"left": "id", "op": "eq", "right": "id"}
    return with_rule(conditions=[key, {"left": "a", "right": "b"} | fields])


def with_filter(**fields: Any) -> str:
    document = json.loads(sample("older_sql.json"))
    document["sources"]["right"]["filters"] = [{"column": "c"} | fields]
    return json.dumps(document)


def test_rules_of_the_first_shape_become_rules() -> None:
    recipe = parsing.read(sample("older_rules.json"))
    assert (recipe.name, recipe.recipe_id) == ("invoice-payment", "invoice-payment")
    assert recipe.output == "evidence"
    first, second = recipe.rules
    assert (first.name, first.cardinality, first.priority) == ("exact", "1:1", 1)
    assert first.conditions == (
        Equal(left="invoice_id", right="reference"),
        Tolerance(left="amount", right="paid", absolute=Decimal("0.01")),
    )
    assert second.cardinality == "1:N"
    assert second.conditions == (
        Equal(left="customer", right="customer"),
        Text(left="note", op="contains", right="reference"),
        Comparison(left="issued", op="lte", right="paid_at"),
    )


def test_sources_of_the_first_shape_keep_alias_key_and_table() -> None:
    sources = parsing.read(sample("older_rules.json")).sources
    assert (sources.left.alias, sources.left.primary_key) == ("invoices", ("invoice_id",))
    assert sources.right.primary_key == ("payment_id",)
    assert sources.right.uri == "postgres://reader@db/bank?sslmode=require"
    assert sources.right.table == "payments"


def test_the_second_shape_becomes_a_recipe_with_sql() -> None:
    recipe = parsing.read(sample("older_sql.json"))
    assert recipe.match_sql is not None
    assert recipe.match_sql.startswith("SELECT l.order_id")
    assert (recipe.sources.left.format, recipe.sources.right.format) == ("postgres", "parquet")
    assert recipe.sources.left.filters == (
        Filter(column="state", op="ne", value="void"),
        Filter(column="created", op="gte", value="2026-01-01"),
        Filter(column="created", op="lte", value="2026-01-31"),
        Filter(column="country", op="in", value=("NO", "SE")),
        Filter(column="sku", op="startswith", value="AB"),
    )


@pytest.mark.parametrize("version", ["7.3", "2", 2, True])
def test_an_older_recipe_of_an_unknown_version_is_refused(version: object) -> None:
    document = json.loads(sample("older_rules.json")) | {"version": version}
    (problem,) = problems(json.dumps(document)).values()
    assert (problem.field, problem.message, problem.value) == ("version", "must be 1", version)


@pytest.mark.parametrize("version", ["1.0", "1", 1, 1.0, None])
def test_an_older_recipe_may_say_its_version_in_any_way(version: object) -> None:
    document = json.loads(sample("older_rules.json")) | {"version": version}
    assert parsing.read(json.dumps(document)) == parsing.read(sample("older_rules.json"))


def test_problems_have_the_paths_of_the_older_document() -> None:
    told = problems(sample("older_broken.json"))
    rule = "match_rules[0]"
    assert set(told) == {
        "sources.left.type", "sources.right.primary_keys", "sources.right.primary_key",
        "sources.right.filters[0].op", f"{rule}.pattern", f"{rule}.priority",
        f"{rule}.conditions[0].threshold", f"{rule}.conditions[1].op",
        f"{rule}.conditions[1].treshold", f"{rule}.conditions[2].threshold",
        f"{rule}.conditions[3].threshold",
    }  # fmt: skip
    assert told[f"{rule}.conditions[1].op"].suggestion == "did you mean tolerance?"
    assert told[f"{rule}.conditions[1].treshold"].suggestion == "did you mean threshold?"
    assert told[f"{rule}.conditions[3].threshold"].value == "a cent"
    assert told["sources.right.primary_keys"].suggestion == "did you mean primary_key?"


def test_problems_of_sense_have_the_older_paths_too() -> None:
    too_fine = with_condition(op="fuzzy", threshold=0.91234)
    assert list(problems(too_fine)) == ["match_rules[0].conditions[1].threshold"]
    both_ends = with_filter(op="between", value=["a", ["b"]])
    assert list(problems(both_ends)) == ["sources.right.filters[0].value"]


def test_a_column_that_is_not_there_has_the_older_path() -> None:
    with pytest.raises(InvalidInput) as caught:
        parsing.read(
            sample("older_rules.json"),
            columns=lambda *_: {"right": {"payment_id": "integer", "reference": "text"}},
        )
    assert {each.field for each in caught.value.problems} == {
        "match_rules[0].conditions[1].right",
        "match_rules[1].conditions[0].right",
        "match_rules[1].conditions[2].right",
    }


@pytest.mark.parametrize(
    ("pattern", "cardinality"),
    [
        ("1:1", "1:1"),
        ("one_to_one", "1:1"),
        ("1:N", "1:N"),
        ("1:n", "1:N"),
        ("one_to_many", "1:N"),
        ("one-to-many", "1:N"),
        ("N:1", "N:1"),
        ("many_to_one", "N:1"),
        ("N:M", "M:N"),
        ("M:N", "M:N"),
        ("many_to_many", "M:N"),
    ],
)
def test_a_pattern_becomes_a_cardinality(pattern: str, cardinality: str) -> None:
    assert parsing.read(with_rule(pattern=pattern)).rules[0].cardinality == cardinality


@pytest.mark.parametrize("op", ["eq", "gt", "lt", "gte", "lte", "contains", "startswith"])
def test_operations_keep_their_names(op: str) -> None:
    assert parsing.read(with_condition(op=op)).rules[0].conditions[1].op == op


def test_the_threshold_of_fuzzy_is_the_similarity() -> None:
    condition = parsing.read(with_condition(op="fuzzy", threshold=0.9)).rules[0].conditions[1]
    assert condition == Fuzzy(left="a", right="b", threshold=Decimal("0.9"))


@pytest.mark.parametrize(
    ("op", "value", "present", "kept"),
    [
        ("=", 5, "eq", 5),
        ("<>", "x", "ne", "x"),
        (">", 5, "gt", 5),
        (">=", 5, "gte", 5),
        ("<", 5, "lt", 5),
        ("<=", 5, "lte", 5),
        ("NOT IN", ["a"], "not_in", ("a",)),
        ("is null", None, "is_null", None),
        ("IS NOT NULL", None, "not_null", None),
        ("like", "%x", "endswith", "x"),
        ("like", "%x%", "contains", "x"),
        ("like", "x", "eq", "x"),
    ],
)
def test_filters_have_many_names_for_one_operation(
    op: str, value: object, present: Any, kept: Any
) -> None:
    (found,) = parsing.read(with_filter(op=op, value=value)).sources.right.filters
    assert found == Filter(column="c", op=present, value=kept)


@pytest.mark.parametrize("value", ["a%b", "a_b", "%", 5, None])
def test_a_pattern_that_no_filter_has_is_refused(value: object) -> None:
    assert list(problems(with_filter(op="like", value=value))) == ["sources.right.filters[0].value"]


def test_evidence_in_several_folders_is_refused() -> None:
    document = json.loads(sample("older_rules.json"))
    document["output"]["matched"] = "elsewhere/matched.parquet"
    assert list(problems(json.dumps(document))) == ["output"]


def test_evidence_in_a_bucket_stays_there() -> None:
    document = json.loads(sample("older_rules.json"))
    document["output"] = {"matched": "s3://bucket/run/matched.parquet"}
    assert parsing.read(json.dumps(document)).output == "s3://bucket/run"


def test_an_older_recipe_written_anew_is_a_present_one() -> None:
    recipe = parsing.read(sample("older_rules.json"))
    written = parsing.write(recipe)
    assert "match_rules" not in written
    assert parsing.read(written) == recipe


def test_a_present_document_is_left_alone() -> None:
    document = json.loads(sample("sql.json"))
    assert legacy_formats.modernise(document) == legacy_formats.Modern(document)
