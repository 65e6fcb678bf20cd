"""An exception with the rows it was compared with: field by field, and why it is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from kalla.errors import NotFound
from kalla.reconcile.evidence.reading.evidence_pages import as_json
from kalla.reconcile.evidence.reading.evidence_reader import (
    Dataset,
    Reader,
    damaged,
    reading,
    understood,
)
from kalla.reconcile.evidence.reading.exception_reasons import (
    LABEL,
    RuleConditions,
    conditions_of,
    why_ambiguous,
    why_unmatched,
)
from kalla.reconcile.evidence.reading.pair_conditions import Cell, failing
from kalla.reconcile.recipe.model import SIDES, Csv, Side, opposite
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import Storage
from kalla.web.text_format import money

CANDIDATES = 5  # of an ambiguous row that are shown with it

_VALUES = ("amount", "currency", "date")
_NOTHING = Cell(None, "VARCHAR")


@dataclass(frozen=True)
class Field:
    """One field of both sides; the other side may have several rows."""

    label: str
    own: Any
    others: tuple[Any, ...]
    differs: tuple[bool, ...]  # for each other row, whether it fails the rule's condition on this
    fails: bool = False  # what the rule's first failing condition compares


@dataclass(frozen=True)
class ExceptionDetail:
    side: Side
    names: Mapping[Side, str]
    record_key: str
    candidates: tuple[str, ...]
    statuses: tuple[str | None, ...]
    fields: tuple[Field, ...]
    reason: str
    difference: str | None


class _Columns(BaseModel):
    model_config = ConfigDict(frozen=True)

    key: list[str] = []
    amount: str | None = None
    currency: str | None = None
    date: str | None = None
    shown: list[str] = []


class _Source(BaseModel):
    model_config = ConfigDict(frozen=True)

    columns: _Columns = _Columns()  # evidence of older formats does not say


class _RecipeSource(BaseModel):
    model_config = ConfigDict(frozen=True)

    csv: Csv = Csv()


class _Recipe(BaseModel):
    model_config = ConfigDict(frozen=True)

    rules: list[RuleConditions] = []
    sources: dict[Side, _RecipeSource] = {}
    time_zone: str = "UTC"

    @property
    def csv(self) -> dict[Side, Csv]:
        return {side: self.sources.get(side, _RecipeSource()).csv for side in SIDES}


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True)

    recipe: _Recipe
    sources: dict[Side, _Source]


def open_exception(
    url: str,
    part: str,
    side: Side,
    record_key: str,
    storage: Storage,
    bounds: Bounds = Bounds(),  # noqa: B008
) -> ExceptionDetail:
    """A row that is unmatched or ambiguous; NotFound if no such row is."""
    with reading(storage, bounds) as reader:
        facts = understood(url, _Facts, reader.metadata(url))
        dataset = reader.dataset(url, part)
        where = "record_key = ?" + (" AND side = ?" if part == "ambiguous" else "")
        values = (record_key, side) if part == "ambiguous" else (record_key,)
        row = _row(reader, dataset, where, values)
        if row is None:
            raise NotFound(f"no row of {part} has the key {record_key!r}")
        try:
            if part == "ambiguous":
                return _ambiguous(reader, url, facts, side, row)
            return _unmatched(reader, url, facts, side, row)
        except (KeyError, ValidationError) as reason:
            raise damaged(url, f"its rows are not what a run writes ({reason})") from None


_Row = Mapping[str, Cell]


def _unmatched(reader: Reader, url: str, facts: _Facts, side: Side, row: _Row) -> ExceptionDetail:
    text = {name: as_json(cell.value) for name, cell in row.items()}
    candidate, status, failed = (
        text[name] for name in ("closest_candidate", "candidate_status", "failing_condition")
    )
    own = _of_row(facts, side, row, "record_key", "")
    theirs = _of_row(facts, opposite(side), row, "closest_candidate", "candidate_")
    others = [theirs] if candidate else []
    return ExceptionDetail(
        side,
        reader.labels(url).names,
        text["record_key"],
        (candidate,) if candidate else (),
        (status,) if candidate else (),
        _fields(reader, facts, side, text["rule"], own, others, failed),
        why_unmatched(text, facts.recipe.rules),
        text["difference"],
    )


def _ambiguous(reader: Reader, url: str, facts: _Facts, side: Side, row: _Row) -> ExceptionDetail:
    text = {name: as_json(cell.value) for name, cell in row.items()}
    keys = tuple(text["candidates"])[:CANDIDATES]
    found = [_found(reader, url, facts, opposite(side), key) for key in keys]
    own = _of_row(facts, side, row, "record_key", "")
    return ExceptionDetail(
        side,
        reader.labels(url).names,
        text["record_key"],
        keys,
        tuple(status for _, status in found),
        _fields(reader, facts, side, text["rule"], own, [values for values, _ in found], None),
        why_ambiguous(text["rule"], text["reason"], text["candidates"], text["candidate_count"]),
        None,
    )


def _found(
    reader: Reader, url: str, facts: _Facts, side: Side, key: str
) -> tuple[_Row, str | None]:
    """A row of a side in any part, and its status."""
    for part, where in (
        ("ambiguous", "record_key = ? AND side = ?"),
        (f"unmatched_{side}", "record_key = ?"),
        ("matched", f"{side}_key = ?"),
    ):
        values = (key, side) if part == "ambiguous" else (key,)
        row = _row(reader, reader.dataset(url, part), where, values)
        if row is not None:
            if part != "matched":
                return _of_row(facts, side, row, "record_key", ""), part.partition("_")[0]
            status = str(row["status"].value)
            state = "matched" if status == "confirmed" else status
            return _of_row(facts, side, row, f"{side}_key", f"{side}_"), state
    return {}, None


def _row(reader: Reader, dataset: Dataset, where: str, values: Sequence[str]) -> _Row | None:
    rows = reader.rows(f"SELECT * FROM {dataset.relation} WHERE {where} LIMIT 1", values)
    if not rows:
        return None
    named = zip(dataset.columns, rows[0], strict=True)
    return {column.name: Cell(value, column.type) for column, value in named}


def _of_row(facts: _Facts, side: Side, row: _Row, key: str, prefix: str) -> _Row:
    """The values of a row by the columns of its source; others by their evidence names."""
    columns = facts.sources[side].columns
    found = {columns.key[0] if len(columns.key) == 1 else "key": row[key]}
    for name in _VALUES:
        if (cell := row.get(f"{prefix}{name}")) is not None and cell.value is not None:
            found[getattr(columns, name) or name] = cell
    shown = {name: row.get(f"{side}.{name}", _NOTHING) for name in columns.shown}
    return found | shown


def _fields(
    reader: Reader,
    facts: _Facts,
    side: Side,
    rule: str | None,
    own: _Row,
    others: Sequence[_Row],
    failed: str | None,
) -> tuple[Field, ...]:
    """Compared columns come first, in pairs; the others below."""
    left, right = (facts.sources[each].columns for each in SIDES)
    pairs = [(getattr(left, name) or name, getattr(right, name) or name) for name in _VALUES]
    pairs += [
        (str(condition.get("left")), str(condition.get("right")))
        for each in facts.recipe.rules
        for condition in each.conditions
    ]
    compared = LABEL.fullmatch(failed or "")
    first_failed = compared.groups()[1:] if compared else None
    other = opposite(side)
    fail = [
        failing(
            reader,
            conditions_of(facts.recipe.rules, rule),
            facts.recipe.csv,
            facts.recipe.time_zone,
            {side: own, other: each},
        )
        for each in others
    ]
    found: list[Field] = []
    seen: dict[Side, set[str]] = {"left": set(), "right": set()}
    for pair in dict.fromkeys(pairs):
        mine, theirs = pair if side == "left" else pair[::-1]
        there = mine in own, any(theirs in each for each in others)
        if all(there) and mine not in seen[side] and theirs not in seen[other]:
            fails = first_failed == pair
            found.append(
                Field(
                    " / ".join(dict.fromkeys((mine, theirs))),
                    _shown(facts, side, own, mine),
                    tuple(_shown(facts, other, each, theirs) for each in others),
                    tuple(fails or pair in each for each in fail),
                    fails,
                )
            )
            seen[side].add(mine)
            seen[other].add(theirs)
    nothing = (None,) * len(others)
    alike = (False,) * len(others)
    found += [
        Field(name, _shown(facts, side, own, name), nothing, alike)
        for name in own
        if name not in seen[side]
    ]
    found += [
        Field(name, None, tuple(_shown(facts, other, each, name) for each in others), alike)
        for name in dict.fromkeys(name for each in others for name in each)
        if name not in seen[other]
    ]
    return tuple(found)


def _shown(facts: _Facts, side: Side, row: _Row, column: str) -> Any:
    value = row.get(column, _NOTHING).value
    is_amount = column == (facts.sources[side].columns.amount or "amount")
    return money(value) if is_amount and isinstance(value, Decimal) else as_json(value)
