"""Durations and sums in words, and texts of others that are shown."""

from __future__ import annotations

from decimal import Decimal

import pytest

from kalla.web.text_format import money, money_text, roughly, seconds, visible


def test_what_would_command_a_terminal_is_spelled_out() -> None:
    assert visible("Zoë 一号 #2") == "Zoë 一号 #2"
    assert visible("\x1b[31mL1\x07\n\u202e") == "\\x1b[31mL1\\x07\\n\\u202e"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        (-3, "0 s"),
        (0, "0 s"),
        (0.0004, "0 s"),
        (0.0123, "12 ms"),
        (1, "1.0 s"),
        (9.94, "9.9 s"),
        (10, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3661, "1 h 1 min"),
        (86400, "1 d"),
        (90000, "1 d 1 h"),
    ],
)
def test_a_duration_has_at_most_two_units(value: float | None, words: str) -> None:
    assert seconds(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(0, "0 s"), (1.2, "1 s"), (61, "1 min"), (7300, "2 h"), (90000, "1 d")]
)
def test_the_past_is_told_roughly(value: float, words: str) -> None:
    assert roughly(value) == words


@pytest.mark.parametrize(
    ("amount", "words"),
    [("21705077.710000000", "21,705,077.71"), ("5.0", "5.00"), ("7", "7"), ("-0.125", "-0.125")],
)
def test_a_sum_has_the_places_it_needs_and_two_at_least(amount: str, words: str) -> None:
    assert money(Decimal(amount)) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3777.09", "3,777.09"),
        ("-7.5", "-7.50"),
        ("NaN", "NaN"),
        ("1E+200000000",) * 2,
        ("1E-200000000",) * 2,
        ("3 days",) * 2,
    ],
)
def test_an_amount_in_text_is_grouped_and_other_text_stays(text: str, words: str) -> None:
    assert money_text(text) == words
