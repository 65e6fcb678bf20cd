"""Durations and sums in words, for pages and commands alike, which need no web server for them."""

from __future__ import annotations

from decimal import Decimal


def seconds(value: float | None) -> str:
    """A duration in words: at most two units, no false precision. kalla.js says the same."""
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
    """The same with the largest unit alone: for what lies in the past, a glance must do."""
    words = seconds(round(value)).split(" ")
    return " ".join(words[:2]).replace(".0", "")


def shortened(text: str, signs: int = 100) -> str:
    """What a glance takes in of a text, with a mark where something is left out."""
    return text if len(text) <= signs else f"{text[:signs]} …"


def visible(text: str) -> str:
    """The text without what would command a terminal or break its line: it is spelled out."""
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
