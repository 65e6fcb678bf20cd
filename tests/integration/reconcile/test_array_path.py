"""Rows that are in hand, as arrays, are matched as rows that are not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings

from kalla.reconcile.arrays import column_arrays
from kalla.reconcile.arrays.column_arrays import ColumnArrays
from tests.reference import matcher, through_kernel
from tests.reference.cases import CASES, Case
from tests.reference.strategies import Sample, cases

_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
DIGITS = 18  # of a decimal that fits into a word


def _fits(case: Case) -> bool:
    amounts = [
        value
        for table in (case.left_rows, case.right_rows)
        for row in table.rows
        for value in row.values()
        if isinstance(value, Decimal)
    ]
    return bool(amounts) and all(abs(each) < 10**12 for each in amounts)


PAIRS = [
    case
    for case in CASES
    if _fits(case) and any(rule.cardinality == "1:1" for rule in case.recipe.rules)
]


@pytest.fixture(autouse=True, scope="module")
def few_are_many() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(column_arrays, "MANY", 1)
        yield


@pytest.mark.parametrize("case", PAIRS, ids=lambda case: case.name)
def test_the_evidence_of_rows_in_hand_is_the_one_written_by_hand(case: Case) -> None:
    found = through_kernel.reconcile(case.recipe, case.left_rows, case.right_rows, DIGITS)
    assert found == case.expected


@settings(
    max_examples=3_000 if _LONG else 24,
    derandomize=not _LONG,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(cases())
@pytest.mark.timeout(7_200 if _LONG else 600)
def test_the_kernel_agrees_with_the_reference_on_rows_in_hand(sample: Sample) -> None:
    try:
        found = through_kernel.reconcile(sample.recipe, sample.left, sample.right, DIGITS)
    except pa.ArrowInvalid:
        assume(False)
    assert found == matcher.reconcile(sample.recipe, sample.left, sample.right)


def test_these_rows_were_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would say nothing."""
    made: list[ColumnArrays] = []

    def remembered(*given: Any) -> ColumnArrays:
        made.append(ColumnArrays(*given))
        return made[-1]

    monkeypatch.setattr("kalla.reconcile.session.match_session.ColumnArrays", remembered)
    case = next(each for each in PAIRS if each.left_rows.rows and each.right_rows.rows)
    through_kernel.reconcile(case.recipe, case.left_rows, case.right_rows, DIGITS)
    assert [bool(each.columns) for each in made] == [True, True]
