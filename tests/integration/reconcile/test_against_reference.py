"""The kernel and the slow, obvious reference matcher say the same of every row."""

from __future__ import annotations

import os
from decimal import Decimal
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings

from kalla.reconcile.recipe.model import (
    Cardinality,
    Equal,
    Recipe,
    Rule,
    Source,
    Sources,
    Tolerance,
)
from tests.reference import matcher, through_kernel
from tests.reference.cases import CASES, Case
from tests.reference.evidence import Table
from tests.reference.strategies import Sample, cases

_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_kernel_gives_the_evidence_written_by_hand(case: Case) -> None:
    assert through_kernel.reconcile(case.recipe, case.left_rows, case.right_rows) == case.expected


@settings(
    max_examples=3_000 if _LONG else 80,
    derandomize=not _LONG,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(cases())
@pytest.mark.timeout(7_200 if _LONG else 600)
def test_the_kernel_agrees_with_the_reference(sample: Sample) -> None:
    expected = matcher.reconcile(sample.recipe, sample.left, sample.right)
    assert through_kernel.reconcile(sample.recipe, sample.left, sample.right) == expected


CARDINALITIES: tuple[Cardinality, ...] = ("1:1", "1:N", "N:1", "M:N")


@pytest.mark.parametrize(
    "order", list(product(CARDINALITIES, repeat=2)), ids=lambda order: " then ".join(order)
)
def test_rules_of_all_cardinalities_follow_each_other(
    order: tuple[Cardinality, Cardinality],
) -> None:
    """Each leaves something to the next, and nothing of its own making that is in the way."""
    amounts = {"a": (1, 1, 2, 3), "b": (4, 4, 9), "c": (5,), "d": (7, 7)}
    others = {"a": (1, 1, 2, 3), "b": (8, 4, 4), "c": (2, 3), "d": (7, 7, 7)}
    sides = [
        Table(
            {f"{mark}id": "integer", f"{mark}ref": "text", f"{mark}amount": "decimal"},
            [
                {f"{mark}id": at * 10 + n, f"{mark}ref": ref, f"{mark}amount": Decimal(amount)}
                for at, (ref, listed) in enumerate(given.items())
                for n, amount in enumerate(listed)
            ],
        )
        for mark, given in (("", amounts), ("r_", others))
    ]
    key = Equal(op="eq", left="ref", right="r_ref")
    close = Tolerance(left="amount", op="tolerance", right="r_amount", absolute=Decimal(0))
    recipe = Recipe(
        name="in order",
        sources=Sources(
            left=Source(uri="left.parquet", primary_key=("id",), amount="amount"),
            right=Source(uri="right.parquet", primary_key=("r_id",), amount="r_amount"),
        ),
        rules=tuple(
            Rule(name=f"rule {n}", cardinality=cardinality, conditions=(key, close))
            for n, cardinality in enumerate((*order, order[0]))
        ),
    )
    left, right = sides
    expected = matcher.reconcile(recipe, left, right)
    assert through_kernel.reconcile(recipe, left, right) == expected
