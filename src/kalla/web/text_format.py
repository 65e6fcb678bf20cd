"""Formats durations and sums as text, for pages and commands, without the web server."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal, InvalidOperation

_MOST_DIGITS = 60  # of an amount that is written out


def seconds(value: float | None) -> str:
    """A duration as text: at most two units, no false precision. kalla.js does the same."""
    if value is None:
        return "–"
    if value < 1:
        return f"{max(value, 0) * 1000:.0f} ms" if value >= 0.001 else "0 s"
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    for size, unit, smaller, below in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit} {rest} {below}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def roughly(value: float) -> str:
    """The same with only the largest unit: for times in the past."""
    words = seconds(round(value)).split(" ")
    return " ".join(words[:2]).replace(".0", "")


def shortened(text: str, signs: int = 100) -> str:
    """The beginning of a text, with a mark if it was shortened."""
    return text if len(text) <= signs else f"{text[:signs]} …"


def visible(text: str) -> str:
    """The text with control characters and line breaks escaped."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def visible_lines(text: str) -> str:
    """The same of a text that may have several lines."""
    return "\n".join(map(visible, text.split("\n")))


def money(amount: Decimal) -> str:
    """With the places it has, but at least two if it has any."""
    whole, point, places = f"{amount:,f}".partition(".")
    return f"{whole}.{places.rstrip('0'):0<2}" if point else whole


def money_text(text: str) -> str:
    """The same for an amount that is written as text; any other text as it is."""
    with suppress(InvalidOperation):
        amount = Decimal(text)
        # Evidence may come from elsewhere: writing out 1E+200000000 takes half a minute.
        if amount.is_finite() and abs(amount.adjusted()) <= _MOST_DIGITS:
            return money(amount)
    return text
