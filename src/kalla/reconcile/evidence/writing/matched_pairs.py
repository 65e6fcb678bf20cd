"""The evidence of 1:1 pairs, made of columns, a block at a time: most of what a match writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa

from kalla.reconcile.evidence.writing import differences_json, digests, match_ids, parquet_writer
from kalla.reconcile.evidence.writing.digests import Words
from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.recipe.model import SIDES
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.row_status import numbers

# Rows of a row group, which are made at once.
_ROWS = 1 << 18

_NAMES = pa.dictionary(pa.int32(), pa.string())
_CONFIDENCE, _POINT_IN_TIME = pa.decimal32(3, 2), pa.timestamp("us", "UTC")
# Only keys are null somewhere in a dataset: in matches of many rows.
_SCHEMA = pa.schema(
    [
        pa.field("match_id", pa.uuid(), nullable=False),
        pa.field("left_key", pa.string()),
        pa.field("right_key", pa.string()),
        pa.field("rule", _NAMES, nullable=False),
        pa.field("status", _NAMES, nullable=False),
        pa.field("cardinality", _NAMES, nullable=False),
        pa.field("differences", _NAMES, nullable=False),
        pa.field("interchangeable", pa.bool_(), nullable=False),
        pa.field("fifo", pa.bool_(), nullable=False),
        pa.field("confidence", _CONFIDENCE, nullable=False),
        pa.field("matched_at", _POINT_IN_TIME, nullable=False),
    ]
)
# Texts of which there are few. Numbers that are alike are as small once they are compressed, which
# takes less time; ids and keys gain little by it, and flags are small.
_CODED = ["rule", "status", "cardinality", "differences"]
_PLAIN = {"match_id", "left_key", "right_key", "interchangeable", "fifo"}
_CONFIDENCES = pa.array([Decimal("1.00"), Decimal("0.75")], _CONFIDENCE)
_CONFIRMED, _ONE_TO_ONE = "confirmed", "1:1"


@dataclass(frozen=True)
class Said:
    """What is said of all pairs of a rule; the texts of their differences, where they are few."""

    rule: RulePlan
    matched_at: datetime
    texts: list[str] | None


def write(session: MatchSession, said: Said, pairs: pa.Table, path: Path) -> int:
    """A file of pairs. Returns its digest."""
    schema = _SCHEMA
    if said.texts is None:
        schema = schema.set(
            schema.get_field_index("differences"),
            pa.field("differences", pa.string(), nullable=False),
        )
    alike = _alike(said, min(_ROWS, len(pairs)))
    total = 0
    with parquet_writer.writer(path, schema, coded=_CODED, plain=_PLAIN, rows=_ROWS) as file:
        for first in range(0, len(pairs), _ROWS):
            block = _block(session, said, pairs.slice(first, _ROWS).combine_chunks())
            table = _table(said, block, alike, schema)
            file.write_table(table, _ROWS)
            total += _digest(session, block, table)
    return total


@dataclass(frozen=True)
class _Block:
    high: Words
    low: Words
    keys: Sequence[pa.Array]  # left, right
    rows: pa.Table  # way or differences, interchangeable, fifo


def _block(session: MatchSession, said: Said, rows: pa.Table) -> _Block:
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
    differences = (
        "way"
        if said.texts is not None
        else f"{differences_json.of_pairs(said.rule)} AS differences"
    )
    hashed = match_ids.of_keys(session.plan.recipe, said.rule.name, "left_key", "right_key")
    session.connection.register("block", rows)
    found = (
        session.connection.sql(
            f"""
        WITH keyed AS (
            SELECT *, {left} AS left_key, {right} AS right_key
            FROM (SELECT *, {structs} FROM block) {left_join} {right_join})
        SELECT left_key, right_key, {differences}, interchangeable, fifo, {digests.halves("h")}
        FROM (SELECT *, {hashed} AS h FROM keyed)
        """
        )
        .to_arrow_table()
        .combine_chunks()
    )
    session.connection.unregister("block")
    high, low = (numbers(found.column(name).chunk(0)) for name in ("high", "low"))
    keys = [found.column(name).chunk(0).cast(pa.string()) for name in ("left_key", "right_key")]
    return _Block(high, low, keys, found)


def _alike(said: Said, rows: int) -> dict[str, pa.Array]:
    """What is the same for all pairs of a rule, or for nearly all."""
    first = pa.array(np.zeros(rows, np.int32))
    names = {"rule": said.rule.name, "status": _CONFIRMED, "cardinality": _ONE_TO_ONE}
    return {
        **{
            column: pa.DictionaryArray.from_arrays(first, [text], safe=False)
            for column, text in names.items()
        },
        "confidence": pa.repeat(_CONFIDENCES[0], rows),
        "matched_at": pa.repeat(pa.scalar(said.matched_at, _POINT_IN_TIME), rows),
    }


def _table(said: Said, block: _Block, alike: Mapping[str, pa.Array], schema: pa.Schema) -> pa.Table:
    rows = len(block.high)
    ids = np.empty((rows, 2), ">u8")
    ids[:, 0], ids[:, 1] = block.high, block.low
    stored = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), rows, [None, pa.py_buffer(ids)])
    if said.texts is None:
        differences = block.rows.column("differences")
    else:
        differences = pa.DictionaryArray.from_arrays(
            block.rows.column("way").chunk(0), pa.array(said.texts, pa.string()), safe=False
        )
    columns = {
        **{name: column.slice(0, rows) for name, column in alike.items()},
        "match_id": pa.ExtensionArray.from_storage(pa.uuid(), stored),
        "left_key": block.keys[0],
        "right_key": block.keys[1],
        "differences": differences,
        "interchangeable": block.rows.column("interchangeable"),
        "fifo": block.rows.column("fifo"),
    }
    if _any(block, "fifo"):
        columns["confidence"] = _CONFIDENCES.take(columns["fifo"].cast(pa.int8()))
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _any(block: _Block, flag: str) -> bool:
    return any(chunk.true_count for chunk in block.rows.column(flag).chunks)


def _digest(session: MatchSession, block: _Block, table: pa.Table) -> int:
    named = ["rule", "status", "cardinality", "differences", "interchangeable", "fifo"]
    rows = table.select(named).append_column("high", pa.array(block.high))
    session.connection.register("block", rows.append_column("low", pa.array(block.low)))
    found = digests.of_matches(session, "block")
    session.connection.unregister("block")
    return found
