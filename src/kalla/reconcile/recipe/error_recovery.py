"""Recovers the valid parts of an invalid recipe, so that all problems are reported at once.

Placeholders replace invalid parts: paths stay the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kalla.reconcile.recipe.model import BOUNDS, SIDES, Recipe, Side
from kalla.reconcile.recipe.recipe_problems import Path

_STAND_IN = "-"
_LONGEST_COLUMN = 255
# Problems of these do not affect how a source's columns are found.
_BESIDE_READING = frozenset({
    "primary_key", "alias", "amount", "currency", "date", "show", "filters", "read", "consistency",
    "partition_key", "chunk_threshold_rows", "max_parallel_chunks",
})  # fmt: skip


@dataclass(frozen=True)
class Salvage:
    """A recipe that can be checked, and which parts are the user's."""

    recipe: Recipe
    readable: tuple[Side, ...] = SIDES  # whose columns can be read
    altered: frozenset[int] = frozenset()  # rules, by their number, that are not as they were


def of(document: dict[str, Any], faults: Iterable[Path]) -> Salvage | None:
    """The document with placeholders at these paths; None if it is still not a recipe."""
    mended, paths = deepcopy(document), list(faults)
    for path in paths:
        _mend(mended, path)
    try:
        recipe = Recipe.model_validate(mended)
    except ValidationError:
        return None
    return Salvage(
        recipe,
        tuple(side for side in SIDES if not any(hides(path, side) for path in paths)),
        _altered(paths),
    )


def hides(path: Path, side: Side) -> bool:
    """Whether the problem prevents the columns of a side from being found."""
    if path[:1] != ("sources",) or (len(path) > 1 and path[1] != side):
        return False
    return len(path) < 3 or path[2] not in _BESIDE_READING


def _altered(paths: Iterable[Path]) -> frozenset[int]:
    return frozenset(
        path[1]
        for path in paths
        if path[:1] == ("rules",) and len(path) > 1 and isinstance(path[1], int)
    )


def _mend(document: dict[str, Any], path: Path) -> None:
    match path:
        case ("name", *_):
            document["name"] = _STAND_IN
        case ("sources", ("left" | "right") as side, *rest) if _is_fields(document, "sources"):
            _mend_source(document["sources"], str(side), rest)
        case ("sources", name) if _is_fields(document, "sources"):
            document["sources"].pop(name, None)
        case ("sources", *_):
            document["sources"] = {side: _source() for side in SIDES}
        case ("rules", int(number), *rest) if _has(document.get("rules"), number):
            _mend_rule(document["rules"], number, rest)
        case (name, *_):
            document.pop(str(name), None)


def _mend_source(sources: dict[str, Any], side: str, rest: list[Any]) -> None:
    source = sources.get(side)
    if not isinstance(source, dict) or not rest:
        sources[side] = _source()
        return
    match rest:
        case ["uri", *_]:
            source["uri"] = _STAND_IN
        case ["primary_key", int(place), *_] if _has(source.get("primary_key"), place):
            source["primary_key"][place] = _STAND_IN
        case ["primary_key", *_]:
            source["primary_key"] = [_STAND_IN]
        case ["filters", int(place), *_] if _has(source.get("filters"), place):
            source["filters"][place] = _filter(source["filters"][place])
        case [name, *_]:
            source.pop(name, None)


def _mend_rule(rules: list[Any], number: int, rest: list[Any]) -> None:
    rule = rules[number]
    if not isinstance(rule, dict) or not rest:
        rules[number] = {"name": f"{_STAND_IN}{number}", "conditions": [_condition({})]}
        return
    match rest:
        case ["name", *_]:
            rule["name"] = f"{_STAND_IN}{number}"
        case ["conditions", int(place), *inner] if _has(rule.get("conditions"), place):
            rule["conditions"][place] = _mended_condition(rule["conditions"][place], inner)
        case ["conditions", *_]:
            rule["conditions"] = [_condition({})]
        case [name, int(place), *_] if _has(rule.get(name), place):
            rule[name][place] = _filter(rule[name][place])
        case [name, *_]:
            rule.pop(name, None)


def _mended_condition(condition: object, inner: list[Any]) -> dict[str, Any]:
    if not isinstance(condition, dict):
        return _condition({})
    match inner:
        case [("derive" | "derive_left" | "derive_right") as name, int(place), *_] if _has(
            condition.get(name), place
        ):
            condition[name][place] = "trim"
        case ["threshold", *_] if condition.get("op") == "fuzzy":
            condition["threshold"] = 1
        case [name, *_] if condition.get("op") == "tolerance" and name in BOUNDS:
            condition[name] = 0  # without it, a direction would have no bound
        case [name, *_] if name not in ("op", "left", "right"):
            condition.pop(name, None)
        case _:
            return _condition(condition)
    return condition


def _condition(given: dict[str, Any]) -> dict[str, Any]:
    """The columns of a condition that cannot be parsed."""
    return {"op": "eq"} | {side: _column(given.get(side)) for side in SIDES}


def _filter(given: object) -> dict[str, Any]:
    column = given.get("column") if isinstance(given, dict) else None
    return {"column": _column(column), "op": "not_null"}


def _source() -> dict[str, Any]:
    return {"uri": _STAND_IN, "primary_key": [_STAND_IN]}


def _column(name: object) -> str:
    is_name = isinstance(name, str) and 0 < len(name) <= _LONGEST_COLUMN
    return name if is_name and isinstance(name, str) else _STAND_IN


def _is_fields(document: dict[str, Any], name: str) -> bool:
    return isinstance(document.get(name), dict)


def _has(items: object, place: int) -> bool:
    return isinstance(items, list) and place < len(items)
