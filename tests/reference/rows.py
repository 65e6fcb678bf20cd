"""Rows and their record keys: every row of a side can be told from every other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kalla.reconcile.recipe.model import Side, Source
from tests.reference.evidence import Table, Value
from tests.reference.values import as_text


@dataclass(frozen=True, eq=False)
class Row:
    """One row; equal to itself alone, however alike another may be."""

    side: Side
    key: str
    values: Mapping[str, Value]
    order: tuple[object, ...] = ()  # the values of its key, null first, then its ordinal


def rows_of(side: Side, source: Source, table: Table) -> tuple[Row, ...]:
    """The rows of a table with their record keys, in the order of these."""
    in_order = sorted(table.rows, key=_all_values)
    names = [_key_text(source, values) for values in in_order]
    times = Counter(names)
    seen: Counter[str] = Counter()
    rows = []
    for name, values in zip(names, in_order, strict=True):
        seen[name] += 1
        needs_ordinal = times[name] > 1 or any(values[each] is None for each in source.primary_key)
        key = f"{name}#{seen[name]}" if needs_ordinal else name
        parts = [values[each] for each in source.primary_key]
        order = (*((part is not None, part) for part in parts), seen[name])
        rows.append(Row(side, key, values, order))
    return in_key_order(rows)


def in_key_order(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: row.order))


def _key_text(source: Source, values: Mapping[str, Value]) -> str:
    parts = (as_text(values[column]) for column in source.primary_key)
    return "|".join("∅" if part is None else part.replace("#", "##") for part in parts)


def _all_values(values: Mapping[str, Value]) -> tuple[tuple[bool, Value], ...]:
    """Each column by its value, null first, columns in name order."""
    return tuple((values[name] is not None, values[name]) for name in sorted(values))
