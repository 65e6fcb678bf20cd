"""Queries made up at random, put to a real Prometheus 2.42 and to Kalla: identical answers.

The grammar keeps away from what 2.42 is known to do otherwise than 3.x; test_known_differences
names each of those. KALLA_DIFFERENTIAL_QUERIES asks more of them than `make test` does.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.differential.both_engines import Both
from tests.differential.comparing import difference
from tests.differential.grammar import Maker
from tests.differential.queries import Times
from tests.differential.sample_series import BASE, GRID

BLOCKS = 8
QUERIES = int(os.environ.get("KALLA_DIFFERENTIAL_QUERIES", "640"))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_made_up_queries_have_identical_answers(both: Both, block: int) -> None:
    wrong: list[str] = []
    seen: Counter[str] = Counter()
    for seed in range(block, QUERIES, BLOCKS):
        maker = Maker(seed)
        query, times = maker.query(), maker.times()
        ours, theirs = both.answers(query, times)
        seen["refused" if ours.refusal else "rows" if ours.rows else "nothing"] += 1
        if problem := difference(ours, theirs):
            wrong.append(f"{seed}: {query.ours} at {times}: {problem}")

    assert not wrong, "\n".join(wrong)
    # Answers of nothing, and refusals, alone would prove little.
    assert seen["rows"] > seen.total() / 2, seen


@pytest.mark.parametrize(
    "text",
    [
        "sort(mixed)", "sort_desc(mixed)", "sort(odd > -100)", "sort_desc(-gauge)",
        "topk(3, gauge)", "bottomk(4, mixed)", "sort_desc(sum by (g) (c_total))",
    ],
)  # fmt: skip
def test_sorted_answers_come_in_the_same_order(both: Both, text: str) -> None:
    found = 0
    for minute in range(1, 40, 3):
        times = Times(BASE + minute * 60_000 + 3, BASE + minute * 60_000 + 3, 0)
        ours, theirs = both.ours(text, times), both.theirs(text, times)
        assert list(ours.rows) == list(theirs.rows)
        found += len(ours.rows)
    assert found > 20


@pytest.mark.parametrize("text", ["gauge[3m]", "odd[90s] offset 1m", "grid[2m] @ end()"])
def test_samples_of_a_range_selector_are_the_same(both: Both, text: str) -> None:
    for number in range(12):
        moment = BASE + number * 13 * GRID + 3
        times = Times(moment, moment, 0)
        assert difference(both.ours(text, times), both.theirs(text, times)) == ""


@pytest.mark.parametrize(
    "text", ["sum(", "rate(gauge)", "gauge[5m] + 1", "nothing()", "label_join(gauge, 1)", "1 +"]
)
def test_what_is_no_query_is_refused_alike(both: Both, text: str) -> None:
    times = Times(BASE, BASE, 0)
    ours, theirs = both.ours(text, times), both.theirs(text, times)
    assert (ours.type, bool(ours.refusal)) == (theirs.type, bool(theirs.refusal))
    assert ours.type == "bad_data"


@pytest.mark.parametrize(
    "text",
    [
        "log2(vector(1.0000000341709638))", "acos(vector(0.999999999282907))",
        "sinh(vector(-710))", "cosh(vector(710))", "clamp_min(odd, Inf)", "clamp(odd, -1, NaN)",
        "odd ^ 0.5", "histogram_quantile(0.5, h_bucket * NaN)",
    ],
)  # fmt: skip
def test_numbers_at_the_ends_are_what_go_makes_of_them(both: Both, text: str) -> None:
    for minute in range(1, 40, 3):
        times = Times(BASE + minute * 60_000 + 3, BASE + minute * 60_000 + 3, 0)
        assert difference(both.ours(text, times), both.theirs(text, times)) == ""
