"""How alike texts are: as the metrics' definitions have it, in exact fractions."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kalla.reconcile.sql.similarity import of_pairs
from tests.reference.similarity import METRICS, ten_thousandths

TEXTS = st.text("abcdeå ", max_size=12)


def similarity(metric: str, *pairs: tuple[str, str]) -> list[int]:
    left, right = zip(*pairs, strict=True)
    found: list[int] = of_pairs(
        pa.array([metric] * len(pairs)), pa.array(left), pa.array(right)
    ).to_pylist()
    return found


@pytest.mark.parametrize("metric", METRICS)
@given(one=TEXTS, other=TEXTS)
@example("abcxyz", "abcuv")  # Jaro is 0.7
@example("abcdefgh", "abdcefgi")
def test_a_metric_is_what_its_definition_says(metric: str, one: str, other: str) -> None:
    assert similarity(metric, (one, other)) == [ten_thousandths(metric, one, other)]


def test_jaro_winkler_lifts_what_is_above_seven_tenths_by_jaro_and_nothing_else() -> None:
    pairs = [("abcxyz", "abcuv"), ("martha", "marhta"), ("abcdefgh", "abcdxxxx"), ("a", "b")]
    assert similarity("jaro_winkler", *pairs) == [7000, 9611, 6667, 0]


def test_halves_are_rounded_to_even_however_a_float_has_them() -> None:
    one, other = "a" * 160, "a" * 53
    assert similarity("levenshtein", (one, other)) == [3312]


@pytest.mark.parametrize("metric", METRICS)
def test_of_texts_that_are_too_long_only_the_same_are_alike(metric: str) -> None:
    most = 1_000 if metric == "damerau_levenshtein" else 10_000
    whole, longer = "a" * most, "a" * (most + 1)
    pairs = [(whole, whole[:-1] + "b"), (longer, longer), (longer, whole), ("ab", "ab")]
    first, *others = similarity(metric, *pairs)
    assert first > 9_900
    assert others == [10_000, 0, 10_000]
