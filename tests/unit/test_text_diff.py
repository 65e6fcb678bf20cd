"""Differences of texts are small for people, and end in time for whatever is compared."""

from __future__ import annotations

import pytest

from kalla.tables.http.explanation import shown_versions
from kalla.text_diff import changed_lines


def test_a_changed_line_is_shown_between_its_neighbours() -> None:
    assert changed_lines(("a", "b", "c"), ("a", "x", "c"), ("version 1", "version 2")) == (
        "--- version 1", "+++ version 2", "@@ -1,3 +1,3 @@", " a", "-b", "+x", " c",
    )  # fmt: skip


@pytest.mark.attack
@pytest.mark.timeout(10)
def test_long_texts_that_agree_in_every_second_line_are_counted_alone() -> None:
    old = tuple(f"a{each}" if each % 2 else f"s{each}" for each in range(12_000))
    new = tuple(f"b{each}" if each % 2 else f"s{each}" for each in range(12_000))
    (told,) = changed_lines(old, new)[2:]
    assert told == "6,000 lines removed, 6,000 lines added: too long to compare"
    assert changed_lines(old, old) == ()
    rows = [
        {
            "version": version,
            "applied_at": "2026-01-01T00:00:00Z",
            "applied_by": "ann",
            "definition": {"query": "\n".join(new if version % 2 else old)},
        }
        for version in range(30, 0, -1)
    ]
    assert [bool(each.diff) for each in shown_versions(rows)] == [True] * 20 + [False] * 10
