"""Labels of evidence columns for people, with the names of the two sources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from kalla.reconcile.recipe.model import SIDES, Side, opposite
from kalla.reconcile.recipe.source_names import name_of, told_apart

_DIFFERENCE = re.compile(r"difference\.(\w+)\((.*)\)( time)?( #\d+)?", re.DOTALL)
_VALUES = ("amount", "currency", "date")
_MEASURES = {"tolerance": "difference of", "date_window": "days between", "fuzzy": "unlikeness of"}


class _Columns(BaseModel):
    """Which columns of a source stand for what; null if the recipe names none."""

    model_config = ConfigDict(frozen=True)

    amount: str | None = None
    currency: str | None = None
    date: str | None = None


class _Side(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str | None = None
    columns: _Columns | None = None


@dataclass(frozen=True)
class Labels:
    """Of one run's evidence."""

    names: Mapping[Side, str]
    columns: Mapping[Side, _Columns | None]  # unknown of evidence of older formats

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Labels:
        """Older formats do not store the names of the sources: these come from their places."""
        sides, recipe = metadata.get("sources") or {}, metadata.get("recipe") or {}
        found = {side: _Side.model_validate(sides.get(side) or {}) for side in SIDES}
        places = {side: (recipe.get("sources") or {}).get(side) or {} for side in SIDES}
        names = {
            side: found[side].name
            or name_of(str(place.get("uri") or ""), place.get("alias"), place.get("table"))
            for side, place in places.items()
        }
        return cls(told_apart(names), {side: each.columns for side, each in found.items()})

    def of_column(self, part: str, column: str) -> str:
        """The label of a column of a part."""
        for side in SIDES:
            if column.startswith(f"{side}."):
                return f"{self.names[side]} {column.removeprefix(f'{side}.')}"
            if column.startswith(f"{side}_"):
                return f"{self.names[side]} {column.removeprefix(f'{side}_').replace('_', ' ')}"
        if found := _DIFFERENCE.fullmatch(column):
            return _measured(*found.groups())
        if part.startswith("unmatched_"):
            own: Side = "left" if part == "unmatched_left" else "right"
            other = self.names[opposite(own)]
            if column == "closest_candidate":
                return f"closest in {other}"
            if column.startswith("candidate_") and column != "candidate_status":
                return f"{other} {column.removeprefix('candidate_')}"
            if column in ("record_key", *_VALUES):
                return f"{self.names[own]} {column.removeprefix('record_')}"
        return column.replace("_", " ")

    def heading(self, column: str) -> str:
        """The heading of a column for programs: its name, with the source's name for the side."""
        for side in SIDES:
            for sign in "_.":
                if column.startswith(f"{side}{sign}"):
                    return f"{self.names[side]}{column.removeprefix(side)}"
        return column

    def is_empty(self, part: str, column: str) -> bool:
        """Whether the column is always empty, because the recipe names no such column."""
        for name in _VALUES:
            for side in SIDES:
                known = self.columns[side]
                if known is not None and getattr(known, name) is None:
                    own = part == f"unmatched_{side}"
                    theirs = part == f"unmatched_{opposite(side)}"
                    if (
                        column == f"{side}_{name}"
                        or (own and column == name)
                        or (theirs and column == f"candidate_{name}")
                        or (name == "amount" and column == f"{side}_sum")
                    ):
                        return True
        return False

    def texts(self, part: str, columns: Sequence[str]) -> dict[str, str]:
        """The labels of all columns of a part, each unique."""
        found: dict[str, str] = {}
        for column in columns:
            label = self.of_column(part, column)
            found[column] = f"{label} ({column})" if label in found.values() else label
        return found


def _measured(op: str, compared: str, time: str | None, more: str | None) -> str:
    left, _, right = compared.partition(", ")
    both = left if left == right else f"{left} and {right}"
    measure = "time between" if time else _MEASURES.get(op, f"{op} of")
    return f"{measure} {both}{more or ''}"
