"""Writes the evidence of 1:1 pairs, column by column in blocks: most of what a match writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa

from kalla.reconcile.arrays.arrow_numbers import numbers
from kalla.reconcile.arrays.column_arrays import Column, StoredColumn
from kalla.reconcile.evidence.writing import (
    differences,
    digests,
    match_ids,
    parquet_writer,
)
from kalla.reconcile.evidence.writing.differences import Ways
from kalla.reconcile.plan import shown_columns
from kalla.reconcile.plan.plan import Plan, RulePlan
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.session.duckdb_engine import streamed
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.sql.column_values import held, literal, quote

# Rows of a row group, which are made at once.
_ROWS = 1 << 18

_NAMES = pa.dictionary(pa.int32(), pa.string())
_CONFIDENCE, _POINT_IN_TIME = pa.decimal32(3, 2), pa.timestamp("us", "UTC")
# The same of every pair of a rule, or of nearly all. Of keys some are null in matches of many rows.
_KNOWN = {
    "match_id": pa.uuid(),
    "rule": _NAMES,
    "status": _NAMES,
    "cardinality": _NAMES,
    "part": pa.int32(),
    "parts": pa.int32(),
    "interchangeable": pa.bool_(),
    "fifo": pa.bool_(),
    "confidence": _CONFIDENCE,
    "matched_at": _POINT_IN_TIME,
}
# Texts of which there are few. Numbers that are alike are as small once they are compressed, which
# takes less time; ids and keys gain little by it, and flags are small.
_CODED = ["rule", "status", "cardinality", "left_currency", "right_currency"]
_PLAIN = {"match_id", "left_key", "right_key", "interchangeable", "fifo"}
_CONFIDENCES = Decimal("1.00"), Decimal("0.75")
_CONFIRMED, _ONE_TO_ONE = "confirmed", "1:1"


_HOW = ("rule", "status", "cardinality")
_FLAGS = ("interchangeable", "fifo", "confidence", "matched_at")
_GROUP = ("part", "parts", "left_sum", "right_sum")

_Columns = Mapping[str, Column | StoredColumn]


@dataclass(frozen=True)
class PairContext:
    """Values common to all pairs of a rule; the ways in which they differ, where these are few."""

    rule: RulePlan
    matched_at: datetime
    ways: Ways | None


def columns_of(plan: Plan) -> tuple[str, ...]:
    """The columns of `matched`, in order."""
    keys = ("match_id", "left_key", "right_key")
    sides = [plan.sides[side] for side in SIDES]
    values = tuple(f"{each.side}_{name}" for name in shown_columns.VALUES for each in sides)
    shown = tuple(
        shown_columns.source_column(each.side, name) for each in sides for name in each.shown
    )
    apart = tuple(each.name for each in differences.columns(plan.rules))
    return (*keys, *_HOW, *values, *apart, *_GROUP, *_FLAGS, *shown)


def write(session: MatchSession, context: PairContext, pairs: pa.Table, path: Path) -> int:
    """A file of pairs. Returns its digest."""
    total, schema = 0, None
    alike = _alike(session, context, max(1, min(_ROWS, len(pairs))))
    with ExitStack() as stack:
        for found in _blocks(session, context, pairs):
            block = _Block.of(found)
            columns = _columns(context, block, alike)
            names = columns_of(session.plan)
            if schema is None:
                schema = pa.schema(
                    [pa.field(each, columns[each].type, each not in _KNOWN) for each in names]
                )
                file = stack.enter_context(
                    parquet_writer.writer(path, schema, coded=_CODED, plain=_PLAIN, rows=_ROWS)
                )
            table = pa.table([columns[each] for each in names], schema=schema)
            if len(table):
                file.write_table(table, _ROWS)
                total += _digest(session, context, block, table)
    return total


@dataclass(frozen=True)
class _Block:
    """Some pairs: the matched rows, and the columns that DuckDB computed for them."""

    high: digests.Words
    low: digests.Words
    rows: pa.Table

    @classmethod
    def of(cls, rows: pa.Table) -> _Block:
        high, low = (_words(rows.column(name)) for name in ("high", "low"))
        return cls(high, low, rows.drop(["high", "low"]))


def _words(column: pa.ChunkedArray) -> digests.Words:
    return np.concatenate([np.empty(0, np.uint64), *map(numbers, column.chunks)])


def _blocks(session: MatchSession, context: PairContext, pairs: pa.Table) -> Iterator[pa.Table]:
    """Pairs with all that is shown of them, some at a time; at least one block, for its types."""
    plans = [session.plan.sides[side] for side in SIDES]
    found = {each.side: _from_arrays(session, each.side) for each in plans}
    if all(each is not None for each in found.values()):
        for first in range(0, max(1, len(pairs)), _ROWS):
            block = pairs.slice(first, _ROWS)
            session.connection.register("block", _with_columns(block, found))
            made = session.arrow(_sql(session, context, pairs.column_names, "block"))
            session.connection.unregister("block")
            yield made
        return
    reading = session.fork()  # the session runs other queries while its pairs are read
    try:
        reading.connection.register("block", pairs)
        rows = _joined(reading, pairs.column_names)
        sql = _sql(reading, context, pairs.column_names, rows)
        batches = reading.connection.sql(sql).to_arrow_reader(_ROWS)
        if not len(pairs):
            yield batches.schema.empty_table()
        for batch in streamed(batches):
            yield pa.Table.from_batches([batch])
    finally:
        reading.close()


def _from_arrays(session: MatchSession, side: Side) -> _Columns | None:
    """The display columns of a side's rows, if all are in arrays."""
    found = session.column_arrays(side)
    if found is None:
        return None
    names = shown_columns.needed(session.plan.sides[side])
    columns = {shown_columns.in_pair(side, name): found.values(held(name)) for name in names}
    known = {name: column for name, column in columns.items() if column is not None}
    return known if len(known) == len(columns) else None


def _with_columns(block: pa.Table, columns: Mapping[Side, _Columns | None]) -> pa.Table:
    for side, named in columns.items():
        row_ids = np.concatenate(
            [np.empty(0, np.int64), *map(numbers, block.column(f"{side}_row_id").chunks)]
        )
        for name, column in (named or {}).items():
            block = block.append_column(name, column.at(row_ids))
    return block


def _joined(session: MatchSession, names: Sequence[str]) -> str:
    """The same from the tables of the sides, by one join of each."""
    joins, columns = [], [f"b.{quote(name)}" for name in names]
    for side in SIDES:
        needed = shown_columns.needed(session.plan.sides[side])
        if not needed:
            continue
        named = {shown_columns.in_pair(side, name): held(name) for name in needed}
        columns += [f"{side}_shown.{quote(name)}" for name in named]
        joins.append(
            f"JOIN (SELECT row_id, {shown_columns.listed(named)} FROM {session.all_rows(side)})"
            f" {side}_shown ON {side}_shown.row_id = b.{side}_row_id"
        )
    return f"(SELECT {', '.join(columns)} FROM block b {' '.join(joins)})"


def _sql(session: MatchSession, context: PairContext, names: Sequence[str], pairs: str) -> str:
    """What evidence has of pairs that bring the needed columns of both sides."""
    plans = [session.plan.sides[side] for side in SIDES]
    kept = [*names]
    waiting = [
        shown_columns.in_pair(p.side, name) for p in plans for name in shown_columns.needed(p)
    ]
    for plan in plans:
        own = {shown_columns.in_pair(plan.side, name) for name in shown_columns.needed(plan)}
        waiting = [name for name in waiting if name not in own]
        columns = shown_columns.of_row(plan, f"{plan.side}_")
        beside = shown_columns.named([*kept, *waiting])
        renamed = ", ".join(filter(None, [beside, shown_columns.as_held(plan)]))
        pairs = (
            f"(SELECT {beside}, {shown_columns.listed(columns)}"
            f" FROM (SELECT {renamed} FROM {pairs}))"
        )
        kept += columns
    (left, left_join), (right, right_join) = (
        session.keyed(side, letter, f"{side}_row_id")
        for side, letter in zip(SIDES, "lr", strict=True)
    )
    structs = ", ".join(
        f"struct_pack({listed}) AS {letter}"
        for side, letter in zip(SIDES, "lr", strict=True)
        for parts in [range(len(session.plan.sides[side].primary_key))]
        for listed in [", ".join(f"p{part} := {letter}p{part}" for part in parts)]
    )
    apart = (
        {"way": "way"}
        if context.ways is not None
        else differences.of_pairs(session.plan.rules, context.rule)
    )
    made = [name for name in kept if name not in names]
    hashed = match_ids.of_keys(session.plan.recipe, context.rule.name, "left_key", "right_key")
    return f"""
        WITH keyed AS (
            SELECT *, {left} AS left_key, {right} AS right_key
            FROM (SELECT *, {structs} FROM {pairs}) {left_join} {right_join})
        SELECT left_key, right_key, {shown_columns.listed(apart | {"fifo": "fifo"})},
               interchangeable, {shown_columns.named(made)}, {digests.halves("h")}
        FROM (SELECT *, {hashed} AS h FROM keyed)
        """


def _alike(session: MatchSession, context: PairContext, rows: int) -> dict[str, pa.Array]:
    """The columns that are equal for all pairs of a rule, or nearly all."""
    first = pa.array(np.zeros(rows, np.int32))
    names = {"rule": context.rule.name, "status": _CONFIRMED, "cardinality": _ONE_TO_ONE}
    sums = ", ".join(
        f"NULL::{shown_columns.sum_type(session.plan.sides[side])} AS {side}_sum" for side in SIDES
    )
    none = session.arrow(f"SELECT {sums}").schema
    return {
        **{
            column: pa.DictionaryArray.from_arrays(first, [text], safe=False)
            for column, text in names.items()
        },
        **{field.name: pa.nulls(rows, field.type) for field in none},
        "part": pa.array(np.ones(rows, np.int32)),
        "parts": pa.array(np.ones(rows, np.int32)),
        "confidence": pa.repeat(pa.scalar(_CONFIDENCES[0], _CONFIDENCE), rows),
        "matched_at": pa.repeat(pa.scalar(context.matched_at, _POINT_IN_TIME), rows),
    }


def _columns(
    context: PairContext, block: _Block, alike: Mapping[str, pa.Array]
) -> dict[str, pa.Array | pa.ChunkedArray]:
    rows = len(block.high)
    ids = np.empty((rows, 2), ">u8")
    ids[:, 0], ids[:, 1] = block.high, block.low
    stored = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), rows, [None, pa.py_buffer(ids)])
    columns = {
        **{name: column.slice(0, rows) for name, column in alike.items()},
        **{name: block.rows.column(name) for name in block.rows.column_names},
        "match_id": pa.ExtensionArray.from_storage(pa.uuid(), stored),
    }
    if context.ways is not None:
        way = columns.pop("way")
        columns |= {
            name: context.ways.columns.column(name).take(way)
            for name in context.ways.columns.column_names
        }
    if any(chunk.true_count for chunk in block.rows.column("fifo").chunks):
        confidences = pa.array(_CONFIDENCES, _CONFIDENCE)
        columns["confidence"] = confidences.take(columns["fifo"].cast(pa.int8()))
    return columns


def _digest(session: MatchSession, context: PairContext, block: _Block, table: pa.Table) -> int:
    known = differences.columns(session.plan.rules)
    rows = table.select(["interchangeable", "fifo"])
    if context.ways is None:
        as_text = {each.name: each.text for each in known}
        for name in as_text:
            rows = rows.append_column(name, table.column(name))
        hashed = "block"
    else:
        as_text = {each.name: quote(each.name) for each in known}
        rows = rows.append_column("way", block.rows.column("way"))
        session.connection.register("ways", context.ways.texts)
        hashed = (
            "(SELECT * FROM (SELECT way, interchangeable, fifo, sum(high) AS high, sum(low) AS low"
            " FROM block GROUP BY ALL) JOIN ways USING (way))"
        )
    alike = {
        "rule": literal(context.rule.name),
        "status": literal(_CONFIRMED),
        "cardinality": literal(_ONE_TO_ONE),
    }
    rows = rows.append_column("high", pa.array(block.high))
    session.connection.register("block", rows.append_column("low", pa.array(block.low)))
    found = digests.of_matches(
        session, f"(SELECT *, {shown_columns.listed(alike)} FROM {hashed})", as_text
    )
    session.connection.unregister("block")
    return found
