"""Checks the CSV options of a recipe: a character must not have two meanings."""

from __future__ import annotations

from collections.abc import Iterator

from kalla.reconcile.recipe.model import Csv
from kalla.reconcile.recipe.recipe_problems import Finding, Path

_LINE_ENDS = ("\n", "\r")


def findings(csv: Csv, path: Path) -> Iterator[Finding]:
    """The problems of the characters themselves, without reading a file."""
    signs = {"delimiter": csv.delimiter, "quote": csv.quote}
    for name, sign in signs.items():
        if sign in _LINE_ENDS:
            yield Finding((*path, name), "is a line end and has no other use", sign,
                          "such as ;" if name == "delimiter" else 'such as "')  # fmt: skip
    if csv.quote not in _LINE_ENDS:
        if csv.quote == csv.delimiter:
            yield Finding((*path, "quote"), "is the delimiter too", csv.quote, 'such as "')
        elif not csv.quote.isascii():
            yield Finding((*path, "quote"), "must be a sign of ASCII", csv.quote, 'such as "')
    if held := [name for name, sign in signs.items() if sign in csv.null]:
        yield Finding((*path, "null"), f"holds the {held[0]}: no value could be recognised by it",
                      csv.null, "such as NULL")  # fmt: skip
    if csv.thousands == csv.decimal:
        other = "." if csv.decimal == "," else ","
        yield Finding((*path, "thousands"), "is the decimal separator too", csv.thousands,
                      f'write decimal: "{other}" beside it, or leave it out')  # fmt: skip
