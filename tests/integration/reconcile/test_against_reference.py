"""The kernel and the slow, obvious reference matcher say the same of every row."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings

from tests.reference import matcher, through_kernel
from tests.reference.cases import CASES, Case
from tests.reference.strategies import Sample, cases

_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_kernel_gives_the_evidence_written_by_hand(case: Case) -> None:
    assert through_kernel.reconcile(case.recipe, case.left_rows, case.right_rows) == case.expected


@settings(
    max_examples=3_000 if _LONG else 100,
    derandomize=not _LONG,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(cases())
@pytest.mark.timeout(7_200 if _LONG else 600)
def test_the_kernel_agrees_with_the_reference(sample: Sample) -> None:
    expected = matcher.reconcile(sample.recipe, sample.left, sample.right)
    assert through_kernel.reconcile(sample.recipe, sample.left, sample.right) == expected
