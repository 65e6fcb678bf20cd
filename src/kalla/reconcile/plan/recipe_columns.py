"""Which columns of a source a recipe names, and which of them evidence shows."""

from __future__ import annotations

from dataclasses import dataclass

from kalla.reconcile.recipe.model import DateWindow, Derivation, Recipe, Side


@dataclass(frozen=True)
class DateColumn:
    column: str
    derive: tuple[Derivation, ...] = ()


def needed(recipe: Recipe, side: Side) -> tuple[str, ...] | None:
    """The columns that a recipe names; None: any, for SQL of a user may name others."""
    return named(recipe, side) if recipe.match_sql is None else None


def named(recipe: Recipe, side: Side) -> tuple[str, ...]:
    source = recipe.sources[side]
    found = [*source.primary_key, *used(recipe, side)]
    found += [each.column for each in source.filters]
    found += [name for name in (source.amount, source.currency, source.date) if name]
    found += source.show or ()
    return tuple(dict.fromkeys(found))


def used(recipe: Recipe, side: Side) -> list[str]:
    """By rules."""
    names: list[str | None] = []
    for rule in recipe.rules:
        names += [condition.column(side) for condition in rule.conditions]
        names += [each.column for each in rule.filters(side)]
        names += [rule.left_order if side == "left" else rule.right_order, rule.summed(side)]
    return [name for name in names if name is not None]


def amount(recipe: Recipe, side: Side) -> str | None:
    """The column whose sum is conserved: named, or the first that a tolerance compares."""
    tolerances = (rule.tolerance for rule in recipe.rules_in_order)
    first = next((each.column(side) for each in tolerances if each), None)
    return recipe.sources[side].amount or first


def date(recipe: Recipe, side: Side) -> DateColumn | None:
    """The date column: named, or the first that a date window compares."""
    if (name := recipe.sources[side].date) is not None:
        return DateColumn(name)
    for rule in recipe.rules_in_order:
        for each in rule.conditions:
            if isinstance(each, DateWindow):
                return DateColumn(each.column(side), each.derivations(side))
    return None


def shown(recipe: Recipe, side: Side) -> tuple[str, ...]:
    """The columns that evidence shows of a row in addition to its key, amount, currency and date:
    as the recipe says, or what its rules compare.
    """
    source, when = recipe.sources[side], date(recipe, side)
    if source.show is not None:
        return source.show
    apart = {*source.primary_key, amount(recipe, side), source.currency, when and when.column}
    compared = [
        name
        for rule in recipe.rules
        for name in (*(each.column(side) for each in rule.conditions), rule.summed(side))
    ]
    return tuple(name for name in dict.fromkeys(compared) if name and name not in apart)
