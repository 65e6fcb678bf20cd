"""Which conditions of a rule two rows of evidence fail, by the SQL that the match itself uses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
from pydantic import TypeAdapter, ValidationError

from kalla.errors import InvalidInput
from kalla.reconcile.evidence.reading.evidence_reader import Reader
from kalla.reconcile.recipe.model import SIDES, AnyCondition, Csv, Fuzzy, Side
from kalla.reconcile.sql.column_values import Columns, held
from kalla.reconcile.sql.conditions import compile_condition

_CONDITION: TypeAdapter[AnyCondition] = TypeAdapter(AnyCondition)
# Older evidence has some values as texts, and imported evidence any recipe: such a condition cannot
# be checked.
_UNCHECKED = (ValidationError, InvalidInput, re.error, duckdb.DataError, duckdb.ProgrammingError)


@dataclass(frozen=True)
class Cell:
    """A value of evidence with its type, as DuckDB calls it."""

    value: Any
    type: str


Pair = Mapping[Side, Mapping[str, Cell]]  # by side and the source's column


def failing(
    reader: Reader,
    conditions: Sequence[Mapping[str, Any]],
    csv: Mapping[Side, Csv],
    time_zone: str,
    pair: Pair,
) -> set[tuple[str, str]]:
    """The left and right column of each condition that both rows have and that does not hold."""
    found = set()
    for document in conditions:
        try:
            condition = _CONDITION.validate_python({"op": "eq", **document})
            names = {side: condition.column(side) for side in SIDES}
            if isinstance(condition, Fuzzy) or any(names[each] not in pair[each] for each in SIDES):
                continue
            cells = {each: pair[each][names[each]] for each in SIDES}
            columns = {
                each: Columns({names[each]: cells[each].type}, csv[each], time_zone)
                for each in SIDES
            }
            if not _holds(reader, condition, columns, cells):
                found.add((names["left"], names["right"]))
        except _UNCHECKED:
            continue
    return found


def _holds(
    reader: Reader,
    condition: AnyCondition,
    columns: Mapping[Side, Columns],
    cells: Mapping[Side, Cell],
) -> bool:
    check = compile_condition(condition, 0, (columns["left"], columns["right"]), "conditions")
    rows = ", ".join(
        f"(SELECT {check.of(side).sql} AS v0 FROM (SELECT ?::{cells[side].type}"
        f" AS {held(condition.column(side))})) AS {side[0]}"
        for side in SIDES
    )
    ((holds,),) = reader.rows(
        f"SELECT coalesce({check.holds}, false) FROM {rows}", [cells[each].value for each in SIDES]
    )
    return bool(holds)
