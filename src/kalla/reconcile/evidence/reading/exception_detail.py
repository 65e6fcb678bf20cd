"""An exception with the rows it was compared with: field by field, and why it is open."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from kalla.reconcile.evidence.reading.run_report import why_ambiguous, why_unmatched
from kalla.reconcile.recipe.model import SIDES, Side, opposite
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import Storage

CANDIDATES = 5  # of an ambiguous row that are shown with it

_COMPARED = re.compile(r"\w+\((.*), (.*)\)", re.DOTALL)
_VALUES = ("amount", "currency", "date")


@dataclass(frozen=True)
class Field:
    """One field of both sides; the other side may have several rows."""

    label: str
    own: Any
    others: tuple[Any, ...]
    fails: bool = False  # what the rule's first failing condition compares

    @property
    def differs(self) -> tuple[bool, ...]:
        """For each other row, whether its value differs."""
        return tuple(self.own is not None and each != self.own for each in self.others)


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


class _Condition(BaseModel):
    model_config = ConfigDict(frozen=True)

    left: str
    right: str


class _Rule(BaseModel):
    model_config = ConfigDict(frozen=True)

    conditions: list[_Condition] = []


class _Recipe(BaseModel):
    model_config = ConfigDict(frozen=True)

    rules: list[_Rule] = []


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
        own = _of_row(facts, side, row, "record_key", "")
        try:
            if part == "ambiguous":
                return _ambiguous(reader, url, facts, side, row, own)
            return _unmatched(reader, url, facts, side, row, own)
        except (KeyError, ValidationError) as reason:
            raise damaged(url, f"its rows are not what a run writes ({reason})") from None


def _unmatched(
    reader: Reader,
    url: str,
    facts: _Facts,
    side: Side,
    row: Mapping[str, Any],
    own: Mapping[str, Any],
) -> ExceptionDetail:
    candidate = row["closest_candidate"]
    other = opposite(side)
    theirs = _of_row(facts, other, row, "closest_candidate", "candidate_") if candidate else None
    return ExceptionDetail(
        side,
        reader.labels(url).names,
        row["record_key"],
        (candidate,) if candidate else (),
        (row["candidate_status"],) if candidate else (),
        _fields(facts, side, own, [theirs] if theirs else [], row["failing_condition"]),
        why_unmatched(
            candidate,
            row["candidate_status"],
            row["failing_condition"],
            row["left_value"],
            row["right_value"],
            row["difference"],
            row["rejection_reason"],
        ),
        row["difference"],
    )


def _ambiguous(
    reader: Reader,
    url: str,
    facts: _Facts,
    side: Side,
    row: Mapping[str, Any],
    own: Mapping[str, Any],
) -> ExceptionDetail:
    keys = tuple(row["candidates"])[:CANDIDATES]
    found = [_found(reader, url, facts, opposite(side), key) for key in keys]
    return ExceptionDetail(
        side,
        reader.labels(url).names,
        row["record_key"],
        keys,
        tuple(status for _, status in found),
        _fields(facts, side, own, [values for values, _ in found], None),
        why_ambiguous(row["rule"], row["reason"], row["candidates"], row["candidate_count"]),
        None,
    )


def _found(
    reader: Reader, url: str, facts: _Facts, side: Side, key: str
) -> tuple[Mapping[str, Any], str | None]:
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
            state = "matched" if row["status"] == "confirmed" else row["status"]
            return _of_row(facts, side, row, f"{side}_key", f"{side}_"), state
    return {}, None


def _row(
    reader: Reader, dataset: Dataset, where: str, values: Sequence[str]
) -> dict[str, Any] | None:
    rows = reader.rows(f"SELECT * FROM {dataset.relation} WHERE {where} LIMIT 1", values)
    named = zip(dataset.columns, rows[0], strict=True) if rows else ()
    return {each.name: as_json(value) for each, value in named} if rows else None


def _of_row(
    facts: _Facts, side: Side, row: Mapping[str, Any], key: str, prefix: str
) -> dict[str, Any]:
    """The values of a row by the columns of its source; others by their evidence names."""
    columns = facts.sources[side].columns
    found = {columns.key[0] if len(columns.key) == 1 else "key": row[key]}
    for name in _VALUES:
        if (value := row.get(f"{prefix}{name}")) is not None:
            found[getattr(columns, name) or name] = value
    return found | {name: row.get(f"{side}.{name}") for name in columns.shown}


def _fields(
    facts: _Facts,
    side: Side,
    own: Mapping[str, Any],
    others: Sequence[Mapping[str, Any]],
    failing: str | None,
) -> tuple[Field, ...]:
    """Compared columns come first, in pairs; the others below."""
    left, right = (facts.sources[each].columns for each in SIDES)
    pairs = [(getattr(left, name) or name, getattr(right, name) or name) for name in _VALUES]
    pairs += [(each.left, each.right) for rule in facts.recipe.rules for each in rule.conditions]
    compared = _COMPARED.fullmatch(failing or "")
    failed = compared.groups() if compared else None
    found: list[Field] = []
    seen: dict[Side, set[str]] = {"left": set(), "right": set()}
    other = opposite(side)

    def add(mine: str | None, theirs: str | None, *, fails: bool = False) -> None:
        names = [each for each in (mine, theirs) if each is not None]
        found.append(
            Field(
                " / ".join(dict.fromkeys(names)),
                own.get(mine) if mine is not None else None,
                tuple(each.get(theirs) if theirs is not None else None for each in others),
                fails,
            )
        )
        seen[side] |= {mine} if mine is not None else set()
        seen[other] |= {theirs} if theirs is not None else set()

    for pair in dict.fromkeys(pairs):
        mine, theirs = pair if side == "left" else pair[::-1]
        there = mine in own, any(theirs in each for each in others)
        if all(there) and mine not in seen[side] and theirs not in seen[other]:
            add(mine, theirs, fails=failed == pair)
    for name in own:
        if name not in seen[side]:
            add(name, None)
    for name in dict.fromkeys(name for each in others for name in each):
        if name not in seen[other]:
            add(None, name)
    return tuple(found)
