"""Which rules take arrays is decided in one place, with a reason that `--dry-run` prints."""

from __future__ import annotations

from typing import Any

import pytest

from kalla.reconcile.arrays import array_path
from kalla.reconcile.arrays.column_arrays import MANY
from kalla.reconcile.plan import plan
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import SIDES, Recipe, Side

TYPES = {
    "id": "BIGINT",
    "of": "INTEGER",
    "text": "VARCHAR",
    "amount": "DECIMAL(18,2)",
    "large": "DECIMAL(30,2)",
    "day": "DATE",
    "at": "TIMESTAMP",
    "currency": "VARCHAR",
}
MANY_ROWS: dict[Side, int | None] = {"left": MANY, "right": 5 * MANY}
BY_ID = {"left": "id", "op": "eq", "right": "of"}
AMOUNT = {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "0.01"}
DAY = {"left": "day", "op": "date_window", "right": "day", "before": 1, "after": 1}
BOTH = "pairs and closest candidates by arrays"


def chosen(
    *rules: dict[str, Any], rows: dict[Side, int | None] = MANY_ROWS, **more: Any
) -> list[str]:
    side = {"uri": "-", "primary_key": ["id"], **more}
    named = [{"name": f"rule {number}", **rule} for number, rule in enumerate(rules)]
    document = {"name": "test", "sources": {"left": side, "right": side}, "rules": named}
    inputs = {each: Input("parquet", (), TYPES) for each in SIDES}
    made = plan.make(Recipe.model_validate(document), inputs)
    return [str(choice) for choice in array_path.decide(made, rows)]


def test_whole_number_keys_with_ranges_of_decimals_and_dates_take_arrays() -> None:
    assert chosen({"conditions": [BY_ID]}) == [BOTH]
    assert chosen({"conditions": [BY_ID, AMOUNT, DAY]}) == [BOTH]


@pytest.mark.parametrize("rows", [{"left": MANY - 1, "right": MANY}, {"left": None, "right": MANY}])
def test_of_few_rows_and_of_rows_nobody_counted_it_is_sql(rows: dict[Side, int | None]) -> None:
    few = f"by SQL: the left side has fewer than {MANY:,} rows"
    assert chosen({"conditions": [BY_ID]}, rows=rows) == [few]


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"conditions": [{**BY_ID, "left": "text", "right": "text"}]}, "not a whole number"),
        ({"conditions": [BY_ID, {**BY_ID, "right": "id"}]}, "not one column"),
        ({"conditions": [AMOUNT]}, "not one column"),
        (
            {"conditions": [{**BY_ID, "left": "text", "derive_left": ["trim"]}]},
            "derived, or read from text",
        ),
        ({"conditions": [BY_ID, {**AMOUNT, "left": "large", "right": "large"}]}, "is not a range"),
        ({"conditions": [BY_ID, {**AMOUNT, "left": "large"}]}, "is not a range"),
        ({"conditions": [BY_ID, {**AMOUNT, "absolute": None, "percent": "1"}]}, "is not a range"),
        ({"conditions": [BY_ID, {**DAY, "left": "at", "right": "at"}]}, "is derived"),
        (
            {"conditions": [BY_ID], "left_filters": [{"column": "of", "op": "gt", "value": 1}]},
            "has filters",
        ),
    ],
)
def test_whatever_arrays_cannot_compare_is_sql(rule: dict[str, Any], reason: str) -> None:
    (choice,) = chosen(rule)
    assert choice.startswith("by SQL: ")
    assert reason in choice


def test_amounts_of_one_currency_are_compared_by_sql() -> None:
    (choice,) = chosen({"conditions": [BY_ID, AMOUNT]}, amount="amount", currency="currency")
    assert choice == "by SQL: it compares amounts of one currency"


def test_candidates_take_arrays_only_where_all_rules_do() -> None:
    by_text = {"conditions": [{**BY_ID, "left": "text", "right": "text"}]}
    first, second = chosen({"conditions": [BY_ID]}, by_text)
    assert first == (
        "pairs by arrays, closest candidates by SQL:"
        " another rule needs SQL (its key is not a whole number)"
    )
    assert second == "by SQL: its key is not a whole number"


def test_pairs_take_arrays_only_by_the_key_of_a_side_in_a_rule_of_one_to_one() -> None:
    no_key = {"conditions": [{**BY_ID, "left": "of"}]}
    many = {"conditions": [BY_ID, AMOUNT], "cardinality": "1:N"}
    candidates = "closest candidates by arrays, pairs by SQL: "
    assert chosen(no_key) == [candidates + "its key is the primary key of neither side"]
    assert chosen(many) == [candidates + "the rule is 1:N"]
