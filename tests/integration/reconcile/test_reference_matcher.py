"""The reference matcher itself: every hand-made case, and what holds whatever the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.reconcile.recipe.model import Condition, Recipe, Rule, Side, Sources
from tests.reference.cases import CASES, Case
from tests.reference.evidence import Matched, Result, Table, Value
from tests.reference.matcher import reconcile
from tests.reference.rows import rows_of
from tests.reference.similarity import damerau_levenshtein, jaro, jaro_winkler, levenshtein
from tests.reference.strategies import MOST_ROWS, Chance, Sample, cases
from tests.reference.values import as_text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_sentence_of_the_definition_holds(case: Case) -> None:
    result = reconcile(case.recipe, case.left_rows, case.right_rows)
    assert result.matched == case.expected.matched
    assert result.ambiguous == case.expected.ambiguous
    assert result.unmatched == case.expected.unmatched


def test_every_case_has_a_name_of_its_own() -> None:
    assert [name for name, times in Counter(case.name for case in CASES).items() if times > 1] == []


@settings(max_examples=150, deadline=None)
@given(cases())
def test_every_row_is_in_one_place(sample: Sample) -> None:
    result = reconcile(sample.recipe, sample.left, sample.right)
    expected = Counter(
        (row.side, row.key)
        for row in (
            *rows_of("left", sample.recipe.sources.left, sample.left),
            *rows_of("right", sample.recipe.sources.right, sample.right),
        )
    )
    assert Counter(_places(result)) == expected
    assert set(expected.values()) <= {1}


def _places(result: Result) -> Iterator[tuple[Side, str]]:
    """Each row once for each match, doubt or explanation that has it."""
    for group in {each.group for each in result.matched}:
        yield from group
    for ambiguous in result.ambiguous:
        yield ambiguous.side, ambiguous.record_key
    for unmatched in result.unmatched:
        yield unmatched.side, unmatched.record_key


@settings(max_examples=150, deadline=None)
@given(cases())
def test_a_match_has_a_row_of_evidence_for_each_pair_or_each_key(sample: Sample) -> None:
    result = reconcile(sample.recipe, sample.left, sample.right)
    for group in {each.group for each in result.matched}:
        of_group = [each for each in result.matched if each.group == group]
        lefts = sum(side == "left" for side, _ in group)
        rights = len(group) - lefts
        shape = f"{'1' if lefts == 1 else 'N'}:{'1' if rights == 1 else 'N'}".replace("N:N", "M:N")
        assert {each.cardinality for each in of_group} == {shape}
        assert len(of_group) == (lefts + rights if shape == "M:N" else lefts * rights)


@settings(max_examples=150, deadline=None)
@given(sample=cases(), chance=st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(sample: Sample, chance: Random) -> None:
    before = reconcile(sample.recipe, sample.left, sample.right)
    left, right = list(sample.left.rows), list(sample.right.rows)
    chance.shuffle(left)
    chance.shuffle(right)
    after = reconcile(
        sample.recipe, Table(sample.left.columns, left), Table(sample.right.columns, right)
    )
    assert after == before


@settings(max_examples=200, deadline=None)
@given(cases(percent=False))
def test_the_mirrored_recipe_gives_the_mirrored_result(sample: Sample) -> None:
    result = reconcile(sample.recipe, sample.left, sample.right)
    mirrored = reconcile(_mirrored(sample.recipe), sample.right, sample.left)
    assert {_matched_rows(each, turned=True) for each in mirrored.matched} == {
        _matched_rows(each, turned=False) for each in result.matched
    }
    assert {
        (_other(each.side), each.record_key, each.rule, each.candidates, each.reason)
        for each in mirrored.ambiguous
    } == {
        (each.side, each.record_key, each.rule, each.candidates, each.reason)
        for each in result.ambiguous
    }
    assert {
        (_other(each.side), each.record_key, each.closest_candidate, each.rejection_reason)
        for each in mirrored.unmatched
    } == {
        (each.side, each.record_key, each.closest_candidate, each.rejection_reason)
        for each in result.unmatched
    }


def _matched_rows(each: Matched, turned: bool) -> tuple[object, ...]:
    """What is known of a match without saying which side is the left one."""
    left, right = (each.right_key, each.left_key) if turned else (each.left_key, each.right_key)
    shape = each.cardinality[::-1] if turned and each.cardinality != "M:N" else each.cardinality
    group = frozenset((_other(side) if turned else side, key) for side, key in each.group)
    return left, right, group, each.rule, each.status, shape, each.interchangeable, each.fifo


def _other(side: Side) -> Side:
    return "right" if side == "left" else "left"


def _mirrored(recipe: Recipe) -> Recipe:
    sources = Sources(left=recipe.sources.right, right=recipe.sources.left)
    rules = tuple(_mirrored_rule(each) for each in recipe.rules)
    return recipe.model_copy(update={"sources": sources, "rules": rules})


def _mirrored_rule(rule: Rule) -> Rule:
    return rule.model_copy(
        update={
            "cardinality": {"1:N": "N:1", "N:1": "1:N"}.get(rule.cardinality, rule.cardinality),
            "conditions": tuple(_mirrored_condition(each) for each in rule.conditions),
            "left_filters": rule.right_filters,
            "right_filters": rule.left_filters,
            "left_order": rule.right_order,
            "right_order": rule.left_order,
            "left_sum": rule.right_sum,
            "right_sum": rule.left_sum,
        }
    )


def _mirrored_condition(condition: Condition) -> Condition:
    """Each thing said of one side is said of the other."""
    twins = {
        "left": "right",
        "derive_left": "derive_right",
        "below": "above",
        "before": "after",
    }
    both = {**twins, **{second: first for first, second in twins.items()}}
    words = {"left": "right", "right": "left", "lt": "gt", "gt": "lt", "lte": "gte", "gte": "lte"}
    said = {name: getattr(condition, name) for name in type(condition).model_fields}
    update = {both.get(name, name): value for name, value in said.items()}
    for name in ("op", "negate", "container"):
        if name in update:
            update[name] = words.get(update[name], update[name])
    return condition.model_copy(update=update)


def test_chance_makes_every_kind_of_evidence() -> None:
    """A strategy that never ties, never sums and never doubts would compare nothing."""
    seen: Counter[str] = Counter()
    chance = Random(7)
    for _ in range(2000):
        sample = Chance(chance.randrange).sample()
        assert max(len(sample.left.rows), len(sample.right.rows)) <= MOST_ROWS
        seen.update(_kinds(reconcile(sample.recipe, sample.left, sample.right)))
    assert {
        *(f"confirmed {each}" for each in ("1:1", "1:N", "N:1", "M:N")),
        *(f"suggested {each}" for each in ("1:1", "1:N", "N:1")),
        *("interchangeable", "fifo"),
        *("tie", "unequal", "too_large", "several_subsets", "several_groups"),
        *("taken", "condition_failed", "no_candidate", "not_attempted"),
        *(f"closest {each}" for each in ("matched", "suggested", "ambiguous", "unmatched")),
        *("eq", "tolerance", "date_window", "fuzzy", "contains", "startswith", "endswith"),
    } <= {kind for kind, times in seen.items() if times >= 5}


def _kinds(result: Result) -> set[str]:
    return {
        *(f"{each.status} {each.cardinality}" for each in result.matched),
        *("interchangeable" for each in result.matched if each.interchangeable),
        *("fifo" for each in result.matched if each.fifo),
        *(each.reason for each in result.ambiguous),
        *(each.rejection_reason for each in result.unmatched),
        *(f"closest {each.candidate_status}" for each in result.unmatched),
        *((each.failing_condition or "").partition("(")[0] for each in result.unmatched),
    }


@pytest.mark.parametrize(
    ("one", "other", "similarity"),
    [
        ("", "", Fraction(1)),
        ("a", "", Fraction(0)),
        ("abc", "xyz", Fraction(0)),
        ("same", "same", Fraction(1)),
        ("martha", "marhta", Fraction(17, 18)),
        ("dwayne", "duane", Fraction(37, 45)),
        ("dixon", "dicksonx", Fraction(23, 30)),
    ],
)
def test_jaro_is_as_published(one: str, other: str, similarity: Fraction) -> None:
    assert jaro(one, other) == jaro(other, one) == similarity


@pytest.mark.parametrize(
    ("one", "other", "similarity"),
    [
        ("martha", "marhta", Fraction(173, 180)),
        ("dwayne", "duane", Fraction(21, 25)),
        ("dixon", "dicksonx", Fraction(61, 75)),
        ("abcdefgh", "abcdefxx", Fraction(9, 10)),  # four of the prefix, no more
        ("abcdefgh", "abcdxxxx", Fraction(2, 3)),  # not above 0.7: not lifted
    ],
)
def test_jaro_winkler_is_as_published(one: str, other: str, similarity: Fraction) -> None:
    assert jaro_winkler(one, other) == similarity


@pytest.mark.parametrize(
    ("one", "other", "edits", "edits_or_swaps"),
    [
        ("kitten", "sitting", 3, 3),
        ("ab", "ba", 2, 1),
        ("ca", "abc", 3, 2),
        ("a", "", 1, 1),
        ("abcdef", "abcfad", 3, 3),
    ],
)
def test_edits_are_counted(one: str, other: str, edits: int, edits_or_swaps: int) -> None:
    longest = max(len(one), len(other))
    assert levenshtein(one, other) == 1 - Fraction(edits, longest)
    assert damerau_levenshtein(one, other) == 1 - Fraction(edits_or_swaps, longest)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Decimal("1.50"), "1.5"),
        (Decimal("-0.010"), "-0.01"),
        (Decimal("1E+3"), "1000"),
        (Decimal("-0.00"), "0"),
        (-12, "-12"),
        (date(2024, 2, 1), "2024-02-01"),
        (datetime(2024, 2, 1, 1, tzinfo=ZoneInfo("Europe/Stockholm")), "2024-02-01T00:00:00Z"),
        (datetime(2024, 2, 1, 0, 0, 0, 5, tzinfo=UTC), "2024-02-01T00:00:00.000005Z"),
        (None, None),
    ],
)
def test_a_value_has_one_text(value: Value, written: str | None) -> None:
    assert as_text(value) == written
