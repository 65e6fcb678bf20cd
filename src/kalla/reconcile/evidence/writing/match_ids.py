"""The id of a match: 128 bits made of recipe, rule and keys, the same on every run and machine.

`docs/evidence.md` recomputes it in five lines of Python.
"""

from __future__ import annotations

from kalla.reconcile.sql.column_values import literal

SEPARATOR = "chr(31)"


def of_keys(recipe: str, rule: str, lefts: str, rights: str) -> str:
    """In SQL, as a number: of the left keys in order and the right ones, each joined already."""
    head = literal(f"{recipe}\x1f{rule}\x1f")
    # An empty key separates the sides, so that no key can change sides.
    return f"md5_number(concat({head}, {lefts}, {SEPARATOR} || {SEPARATOR}, {rights}))"
