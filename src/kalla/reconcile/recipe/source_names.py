"""The names of the two sides of a recipe for people: those of their sources, not left and right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from kalla.reconcile.recipe.model import SIDES, Side, Sources

_WILD = frozenset("*?[")
_LONGEST = 40


def source_names(sources: Sources) -> dict[Side, str]:
    """By alias, registered name, table or file; two equal names get their side added."""
    return told_apart(
        {
            side: name_of(sources[side].uri, sources[side].alias, sources[side].table)
            for side in SIDES
        }
    )


def told_apart(names: Mapping[Side, str]) -> dict[Side, str]:
    found: dict[Side, str] = {side: names[side] or side for side in SIDES}
    if found["left"].casefold() == found["right"].casefold():
        return {side: f"{name} ({side})" for side, name in found.items()}
    return found


def name_of(uri: str, alias: str | None = None, table: str | None = None) -> str:
    """Empty where nothing names it."""
    if alias:
        return alias[:_LONGEST]
    if table:
        return table.replace('"', "").rpartition(".")[2][:_LONGEST]
    scheme, _, rest = uri.partition("://")
    parts = [each for each in PurePosixPath(rest or scheme).parts if not _WILD & set(each)]
    last = parts[-1] if parts else ""
    stem = last if scheme == "source" else last.partition(".")[0]
    return stem[:_LONGEST].strip()
