"""Pages of a run's evidence: filtered, totally ordered, with cursors that never skip a row."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any
from uuid import UUID

import duckdb

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.evidence.reading.column_labels import Labels
from kalla.reconcile.evidence.reading.evidence_filters import (
    Filter,
    Order,
    Term,
    condition,
    sortable,
    total_order,
)
from kalla.reconcile.evidence.reading.evidence_reader import (
    Column,
    Dataset,
    Reader,
    column,
    reading,
)
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import Storage

MOST_ROWS = 1000
MOST_PARTS = 100  # of one match that are shown with it


@dataclass(frozen=True)
class Query:
    """Which rows, in which order, and the cursor of the page before or after, if any."""

    filters: tuple[Filter, ...] = ()
    orders: tuple[Order, ...] = ()
    limit: int = 100
    after: str | None = None
    before: str | None = None
    items: bool = False  # a match of several rows is one item, with its parts


@dataclass(frozen=True)
class Page:
    part: str
    columns: tuple[Column, ...]
    rows: tuple[
        dict[str, Any], ...
    ]  # values as JSON has them; amounts are text, so that none is rounded
    first: int  # how many rows of the filter come before this page
    total: int  # of the filter
    next: str | None
    previous: str | None
    labels: Labels
    parts: Mapping[str, tuple[dict[str, Any], ...]]  # rows of items that have several, by match_id


def page(
    url: str,
    part: str,
    query: Query,
    storage: Storage,
    bounds: Bounds = Bounds(),  # noqa: B008
) -> Page:
    """One page of a part of the evidence."""
    if not 1 <= query.limit <= MOST_ROWS:
        raise InvalidInput(Problem("limit", f"must be from 1 to {MOST_ROWS}"))
    if query.after and query.before:
        raise InvalidInput(Problem("after", "cannot be combined with before: send one of them"))
    with reading(storage, bounds) as reader:
        dataset = reader.dataset(url, part)
        where = condition(dataset, query.filters)
        orders = total_order(dataset, query.orders)
        turn = _Turn.of(query, dataset, orders)
        rows = Term(f"{dataset.relation} WHERE {where.sql}", where.values)
        if query.items and any(each.name == "parts" for each in dataset.columns):
            rows = _items(dataset, where)
        ((total,),) = reader.rows(f"SELECT count(*) FROM {rows.sql}", rows.values)
        marks = ", ".join(
            f"CAST({sortable(each, wanted)} AS VARCHAR)"
            for each, wanted in zip(turn.columns, orders, strict=True)
        )
        try:
            # One row more than asked for tells whether there is a next page.
            found = reader.rows(
                f"SELECT *, [{marks}] FROM (FROM {rows.sql}) WHERE {turn.beyond.sql}"
                f" ORDER BY {turn.order} LIMIT {query.limit + 1}",
                (*rows.values, *turn.beyond.values),
            )
        except duckdb.ConversionException:
            raise _foreign_cursor() from None
        made = _page(dataset, query, turn, found, total, reader.labels(url))
        several = [row["match_id"] for row in made.rows if query.items and row.get("parts", 1) > 1]
        return replace(made, parts=_parts(reader, dataset, several)) if several else made


def _items(dataset: Dataset, where: Term) -> Term:
    """The first row of each match of which any row is in the filter, with its sums for amounts."""
    sums = ", ".join(
        f"coalesce({side}_sum, {side}_amount) AS {side}_amount" for side in ("left", "right")
    )
    several = f"SELECT match_id FROM {dataset.relation} WHERE parts > 1 AND ({where.sql})"
    return Term(
        f"(SELECT * REPLACE ({sums}) FROM {dataset.relation}"
        f" WHERE part = 1 AND (({where.sql}) OR (parts > 1 AND match_id IN ({several}))))",
        (*where.values, *where.values),
    )


def _parts(
    reader: Reader, dataset: Dataset, match_ids: Sequence[str]
) -> dict[str, tuple[dict[str, Any], ...]]:
    found: dict[str, list[dict[str, Any]]] = {each: [] for each in match_ids}
    for row in reader.rows(
        f"SELECT * FROM {dataset.relation} WHERE parts > 1"
        " AND list_contains(?::UUID[], match_id) ORDER BY match_id, part",
        (list(match_ids),),
    ):
        values = {each.name: as_json(v) for each, v in zip(dataset.columns, row, strict=True)}
        if len(found[values["match_id"]]) < MOST_PARTS:
            found[values["match_id"]].append(values)
    return {match_id: tuple(rows) for match_id, rows in found.items()}


def as_json(value: Any) -> Any:
    """A value of the evidence as JSON, exactly."""
    if isinstance(value, Decimal):
        return _plain(value)
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo else value
        return moment.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, list):
        return [as_json(each) for each in value]
    return value


def _plain(value: Decimal) -> str:
    """Without the zeros behind two places: those of a text are held with nine."""
    whole, point, places = f"{value:f}".partition(".")
    return whole + point + places[:2] + places[2:].rstrip("0")


@dataclass(frozen=True)
class _Turn:
    """The row a page starts at, and the reading direction."""

    fingerprint: str
    columns: tuple[Column, ...]
    order: str
    beyond: Term
    position: int  # of the row at the cursor; the first one is 0
    backwards: bool
    begins: bool

    @classmethod
    def of(cls, query: Query, dataset: Dataset, orders: Sequence[Order]) -> _Turn:
        columns = tuple(column(dataset.columns, each.column, "sort") for each in orders)
        fingerprint = _fingerprint(dataset.part, query.filters, orders)
        backwards = query.before is not None
        cursor = query.before if backwards else query.after
        position, marks = _unpack(cursor, fingerprint, len(columns)) if cursor else (-1, [])
        order = ", ".join(
            f"{sortable(each, wanted)} {'DESC' if wanted.descending != backwards else 'ASC'}"
            f" NULLS {'FIRST' if backwards else 'LAST'}"
            for each, wanted in zip(columns, orders, strict=True)
        )
        beyond = _beyond(columns, orders, marks, backwards) if cursor else Term("true")
        return cls(fingerprint, columns, order, beyond, position, backwards, cursor is None)


def _page(
    dataset: Dataset,
    query: Query,
    turn: _Turn,
    found: list[tuple[Any, ...]],
    total: int,
    labels: Labels,
) -> Page:
    more, found = len(found) > query.limit, found[: query.limit]
    if turn.backwards:
        found.reverse()
    first = turn.position - len(found) if turn.backwards else turn.position + 1
    ahead = bool(found) and (turn.backwards or more)
    behind = bool(found) and (more if turn.backwards else not turn.begins)

    def cursor(index: int) -> str:
        position = first + index % len(found)
        return _pack(turn.fingerprint, position, found[index][-1])

    return Page(
        part=dataset.part,
        columns=dataset.columns,
        rows=tuple(
            {each.name: as_json(value) for each, value in zip(dataset.columns, row, strict=False)}
            for row in found
        ),
        first=max(first, 0),
        total=total,
        next=cursor(-1) if ahead else None,
        previous=cursor(0) if behind else None,
        labels=labels,
        parts={},
    )


def _beyond(
    columns: Sequence[Column], orders: Sequence[Order], marks: Sequence[str | None], backwards: bool
) -> Term:
    """Rows strictly after the marked one (or before it, backwards), column by column."""
    choices: list[str] = []
    values: list[str] = []
    equal: list[tuple[str, str | None]] = []
    for each, wanted, mark in zip(columns, orders, marks, strict=True):
        place, given = sortable(each, wanted), f"CAST(? AS {each.sorted_as})"
        further = _further(place, given, mark, wanted.descending != backwards, backwards)
        if further is not None:
            choices.append(" AND ".join([term for term, _ in equal] + [further]))
            values += [value for _, value in equal if value is not None]
            values += [mark] if mark is not None else []
        equal.append((f"{place} IS NULL", None) if mark is None else (f"{place} = {given}", mark))
    return Term(" OR ".join(f"({choice})" for choice in choices) or "false", tuple(values))


def _further(
    place: str, given: str, mark: str | None, descending: bool, backwards: bool
) -> str | None:
    """Nulls come last, read backwards first."""
    if mark is None:
        return f"{place} IS NOT NULL" if backwards else None
    sign = "<" if descending else ">"
    return f"{place} {sign} {given}" if backwards else (
        f"({place} {sign} {given} OR {place} IS NULL)"
    )  # fmt: skip


def _pack(fingerprint: str, position: int, marks: Sequence[str | None]) -> str:
    text = json.dumps([fingerprint, position, *marks], ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _unpack(cursor: str, fingerprint: str, columns: int) -> tuple[int, list[str | None]]:
    try:
        found = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        mine, position, *marks = found
        whole = mine == fingerprint and isinstance(position, int) and len(marks) == columns
        whole = whole and all(mark is None or isinstance(mark, str) for mark in marks)
        json.dumps(marks, ensure_ascii=False).encode()  # half of a surrogate pair is a ValueError
    except (binascii.Error, ValueError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise _foreign_cursor()
    return position, marks


def _foreign_cursor() -> InvalidInput:
    return InvalidInput(
        Problem("after", "is not a cursor of this filter and order: start at the first page")
    )


def _fingerprint(part: str, filters: Sequence[Filter], orders: Sequence[Order]) -> str:
    """A cursor belongs to one part, filter and order, however they were written."""

    def parts() -> Iterator[str]:
        yield part
        yield from map(str, filters)
        yield ""
        yield from map(str, orders)

    return sha256("\x1f".join(parts()).encode()).hexdigest()[:12]
