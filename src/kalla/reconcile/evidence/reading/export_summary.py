"""The summary sheet of an exported workbook: the run and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

from pydantic import BaseModel, ConfigDict

from kalla.reconcile.evidence.reading.column_labels import Labels
from kalla.reconcile.recipe.model import SIDES, Side

Line = Sequence[str | int | Decimal | None]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class _Figures(_Model):
    rows: int
    amount: Decimal | None = None
    currencies: dict[str, Decimal] = {}


class _Source(_Model):
    states: dict[str, _Figures]


class _Rule(_Model):
    name: str
    cardinality: str
    matches: int
    left: _Figures
    right: _Figures


class _Place(_Model):
    uri: str
    table: str | None = None


class _Recipe(_Model):
    name: str
    sources: dict[Side, _Place]


class Facts(_Model):
    """What is read of metadata.json."""

    recipe: _Recipe
    recipe_hash: str
    started_at: str
    sources: dict[Side, _Source]
    rules: list[_Rule]


def lines(facts: Facts, labels: Labels, part: str, filters: Sequence[str], rows: int) -> list[Line]:
    """Line by line; an empty one between the tables."""
    heads = [f"{labels.names[side]} {of}" for side in SIDES for of in ("rows", "sum")]
    states = list(dict.fromkeys(name for side in SIDES for name in facts.sources[side].states))
    return [
        ("Reconciliation", facts.recipe.name),
        ("Started", facts.started_at),
        *((labels.names[side], _place(facts.recipe.sources[side])) for side in SIDES),
        ("Recipe hash", facts.recipe_hash),
        ("Rows in this file", rows, part.replace("_", " ")),
        *(("Filter", each) for each in filters),
        (),
        ("Status", *heads),
        *(
            line
            for state in states
            for line in _figures(
                (state,), [facts.sources[side].states.get(state) for side in SIDES]
            )
        ),
        (),
        ("Rule", *heads, "Kind", "Matches"),
        *(
            line
            for rule in facts.rules
            for line in _figures(
                (rule.name,), [rule.left, rule.right], (rule.cardinality, rule.matches)
            )
        ),
    ]


def _figures(first: Line, sides: Sequence[_Figures | None], more: Line = ()) -> list[Line]:
    """A line; where there are several currencies, one more for each."""
    given: list[_Figures] = [each or _Figures(rows=0) for each in sides]
    several = sorted({name for each in given for name in each.currencies})
    if len(several) < 2:
        return [(*first, *(value for each in given for value in (each.rows, each.amount)), *more)]
    counted: list[Line] = [(*first, *(v for each in given for v in (each.rows, None)), *more)]
    by_currency: list[Mapping[str, Decimal]] = [each.currencies for each in given]
    return counted + [
        (f"  {name}", *(v for each in by_currency for v in (None, each.get(name))))
        for name in several
    ]


def _place(place: _Place) -> str:
    return f"{place.uri} {place.table}" if place.table else place.uri
