"""Checks that the columns of a recipe exist and have types that its conditions can compare."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal

from kalla.reconcile.recipe.model import (
    DATABASES,
    SIDES,
    Comparison,
    Condition,
    DatePart,
    DateWindow,
    Equal,
    Filter,
    Recipe,
    Side,
    Source,
    Tolerance,
)
from kalla.reconcile.recipe.recipe_problems import Finding, Path, did_you_mean
from kalla.reconcile.recipe.yaml_values import plain

# name -> text, integer, decimal, float, date, timestamp, boolean, other, or why it is Unread
Columns = Mapping[str, str]

_NUMBERS = ("integer", "decimal", "float")
_DELIMITERS = (";", "\t", "|")
_TIMES = ("date", "timestamp")
_AMOUNT = "amounts in text"


class Unread(str):
    """The reason why a column is not read, instead of its type."""

    __slots__ = ()


def findings(recipe: Recipe, columns: Mapping[Side, Columns]) -> Iterator[Finding]:
    """The problems found; a side with unknown columns is not checked."""
    for side, known in columns.items():
        yield from _names(recipe, side, known)
    for index, rule in enumerate(recipe.rules):
        for place, condition in enumerate(rule.conditions):
            yield from _types(condition, columns, ("rules", index, "conditions", place))


def _names(recipe: Recipe, side: Side, known: Columns) -> Iterator[Finding]:
    for path, column, wanted in _mentions(recipe, side):
        if column not in known:
            yield Finding(path, f"is not a column of the {side} source", column,
                          _delimiter(known) or did_you_mean(column, known))  # fmt: skip
        elif isinstance(known[column], Unread):
            yield Finding(path, f"is not read: {known[column]}", column,
                          "or name another column")  # fmt: skip
        elif wanted == "amount" and known[column] in (*_TIMES, "boolean"):
            numbers = [name for name, word in known.items() if word in _NUMBERS]
            yield Finding(path, f"must be an amount, not a {known[column]}", column,
                          did_you_mean(column, numbers) or "name a column of numbers")  # fmt: skip
        elif wanted == "date" and known[column] not in (*_TIMES, "text"):
            times = [name for name, word in known.items() if word in _TIMES]
            yield Finding(path, f"must be a date, not {known[column]}", column,
                          did_you_mean(column, times) or "name a column of dates")  # fmt: skip
    for path, each in _all_filters(recipe, side):
        if (word := known.get(each.column)) is not None:
            is_amount = word == "text" and each.column == recipe.sources[side].amount
            # A database compares its text itself, where it has the filter.
            is_pushed = path[0] == "sources" and _is_database(recipe.sources[side])
            yield from _filter_type(each, _AMOUNT if is_amount and not is_pushed else word, path)


def _delimiter(known: Columns) -> str | None:
    """The probable delimiter of a file that seems to have one column."""
    (only,) = known if len(known) == 1 else ("",)
    found = next((sign for sign in _DELIMITERS if sign in only), None)
    return found and f"its only column is {only!r}: set csv.delimiter to {json.dumps(found)}"


def _mentions(recipe: Recipe, side: Side) -> Iterator[tuple[Path, str, str]]:
    """Every place that names a column of one side, and what the column must be."""
    source, here = recipe.sources[side], ("sources", side)
    for index, column in enumerate(source.primary_key):
        yield (*here, "primary_key", index), column, ""
    for name, wanted in (
        ("amount", "amount"),
        ("currency", ""),
        ("date", "date"),
        ("partition_key", ""),
    ):
        if (column := getattr(source, name)) is not None:
            yield (*here, name), column, wanted
    for index, column in enumerate(source.show or ()):
        yield (*here, "show", index), column, ""
    for path, each in _all_filters(recipe, side):
        yield (*path, "column"), each.column, ""
    for index, rule in enumerate(recipe.rules):
        for place, condition in enumerate(rule.conditions):
            yield ("rules", index, "conditions", place, side), condition.column(side), ""
        for name, wanted in ((f"{side}_order", ""), (f"{side}_sum", "amount")):
            if (column := getattr(rule, name)) is not None:
                yield ("rules", index, name), column, wanted


def _all_filters(recipe: Recipe, side: Side) -> Iterator[tuple[Path, Filter]]:
    for index, each in enumerate(recipe.sources[side].filters):
        yield ("sources", side, "filters", index), each
    for place, rule in enumerate(recipe.rules):
        for index, each in enumerate(rule.filters(side)):
            yield ("rules", place, f"{side}_filters", index), each


def _is_database(source: Source) -> bool:
    return source.format == "postgres" or source.uri.partition("://")[0] in DATABASES


def _filter_type(each: Filter, word: str, path: Path) -> Iterator[Finding]:
    for value in each.value if isinstance(each.value, tuple) else (each.value,):
        read = plain(value.strip()) if isinstance(value, str) else value
        is_number = isinstance(read, int | Decimal) and not isinstance(read, bool)
        if each.op in ("contains", "startswith", "endswith") or value is None:
            continue
        if word in (*_NUMBERS, _AMOUNT) and not is_number:
            yield Finding((*path, "value"), f"is compared with a column of numbers ({word})", value,
                          "write it as 1234.56")  # fmt: skip
        elif word in _TIMES and not isinstance(read, date):
            yield Finding((*path, "value"), f"is compared with a column of dates ({word})", value,
                          "write it as 2026-01-31")  # fmt: skip
        elif word == "date" and isinstance(read, datetime):
            yield Finding((*path, "value"), "has a time, but is compared with a column of dates",
                          value, f"write it as {read.date()}")  # fmt: skip
        elif word == "boolean" and not isinstance(read, bool):
            yield Finding((*path, "value"), "is compared with a column of true and false", value,
                          "write true or false")  # fmt: skip


def _types(condition: Condition, columns: Mapping[Side, Columns], path: Path) -> Iterator[Finding]:
    words: dict[Side, str] = {}
    for side in SIDES:
        column = condition.column(side)
        raw = columns.get(side, {}).get(column)
        if raw is None or isinstance(raw, Unread):
            continue
        if raw == "other":
            others = [name for name, word in columns[side].items() if word != "other"]
            yield Finding((*path, side), "has a type that cannot be compared", column,
                          did_you_mean(column, others))  # fmt: skip
            continue
        derivations = condition.derivations(side)
        if isinstance(next(iter(derivations), None), DatePart) and raw in (*_NUMBERS, "boolean"):
            yield Finding((*path, side), f"is a column of type {raw}, which has no date parts",
                          column, "leave date_part out, or name a column of dates")  # fmt: skip
            continue
        words[side] = _derived(raw, derivations[-1] if derivations else None)
        if misfit := _misfit(condition, words[side]):
            reason, instead = misfit
            yield Finding((*path, side), f"is a column of type {words[side]}, {reason}", column,
                          instead)  # fmt: skip
            del words[side]
    if isinstance(condition, Equal | Comparison) and len(words) == 2:
        left, right = (_family(words[side]) for side in SIDES)
        if left != right and "text" not in (left, right):
            yield Finding(path, f"compares a {words['left']} with a {words['right']}",
                          f"{condition.left} with {condition.right}",
                          "name columns of one kind")  # fmt: skip


def _derived(raw: str, last: object) -> str:
    if last is None:
        return raw
    return "date" if isinstance(last, DatePart) else "text"


def _misfit(condition: Condition, word: str) -> tuple[str, str] | None:
    """Why a condition cannot compare its columns, and an alternative."""
    if isinstance(condition, Tolerance) and word in (*_TIMES, "boolean"):
        return "which is not an amount", "use eq" if word == "boolean" else "use date_window"
    if isinstance(condition, DateWindow) and word in (*_NUMBERS, "boolean"):
        return "which is not a date", "use eq" if word == "boolean" else "use tolerance"
    if isinstance(condition, Comparison) and condition.op != "ne" and word == "boolean":
        return "which has no order", "use eq or ne"
    return None


def _family(word: str) -> str:
    return "number" if word in _NUMBERS else "date" if word in _TIMES else word
