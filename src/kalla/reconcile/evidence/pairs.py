"""The evidence of 1:1 pairs, made of columns, a block at a time: most of what a match writes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa

from kalla.reconcile import loops
from kalla.reconcile.evidence import identity, parquet, spelling
from kalla.reconcile.evidence.identity import SEPARATOR, WORD, Words
from kalla.reconcile.matching.fates import numbers
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.model import SIDES
from kalla.reconcile.plan import RulePlan

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
_AS_HELD = (pa.int32(), pa.int64())  # whole numbers that need not be copied to be gone through
_CONFIRMED, _ONE_TO_ONE = "confirmed", "1:1"
_MARKS = ("", "i", "f")


@dataclass(frozen=True)
class Said:
    """What is said of all pairs of a rule; the texts of their differences, where they are few."""

    rule: RulePlan
    matched_at: datetime
    texts: list[str] | None


def write(bench: Workbench, said: Said, pairs: pa.Table, path: Path) -> int | None:
    """A file of pairs. Returns its digest; where differences are many, that is for others to do."""
    schema = _SCHEMA
    if said.texts is None:
        schema = schema.set(
            schema.get_field_index("differences"),
            pa.field("differences", pa.string(), nullable=False),
        )
    needed, block_of = pairs, _by_text
    if said.texts is not None and all(bench.has_whole_keys(side) for side in SIDES):
        needed = pairs.select(["lp0", "rp0", "way", "interchangeable", "fifo"])
        block_of = _by_number
    alike = _alike(said, min(_ROWS, len(pairs)))
    total = 0
    with parquet.writer(path, schema, coded=_CODED, plain=_PLAIN, rows=_ROWS) as file:
        for first in range(0, len(pairs), _ROWS):
            block = block_of(bench, said, needed.slice(first, _ROWS).combine_chunks())
            file.write_table(_table(said, block, alike, schema), _ROWS)
            if said.texts is not None:
                total += _digest(said, block)
    return None if said.texts is None else total


@dataclass(frozen=True)
class _Block:
    high: Words
    low: Words
    keys: Sequence[pa.Array]  # left, right
    rows: pa.Table  # way or differences, interchangeable, fifo


def _by_number(bench: Workbench, said: Said, rows: pa.Table) -> _Block:
    """Where all keys are whole numbers, and no difference must be spelled: without SQL."""
    keys = [rows.column(name).chunk(0) for name in ("lp0", "rp0")]
    held = [numbers(key if key.type in _AS_HELD else key.cast(pa.int64())) for key in keys]
    high, low = identity.of_numbers(bench.plan.recipe, said.rule.name, *held)
    return _Block(high, low, [spelling.of_numbers(each) for each in held], rows)


def _by_text(bench: Workbench, said: Said, rows: pa.Table) -> _Block:
    (left, left_join), (right, right_join) = (
        bench.keyed(side, letter, f"{letter}rid") for side, letter in zip(SIDES, "lr", strict=True)
    )
    structs = ", ".join(
        f"struct_pack({listed}) AS {letter}"
        for side, letter in zip(SIDES, "lr", strict=True)
        for parts in [range(len(bench.plan.sides[side].primary_key))]
        for listed in [", ".join(f"p{part} := {letter}p{part}" for part in parts)]
    )
    differences = (
        "way" if said.texts is not None else f"{spelling.of_pairs(said.rule)} AS differences"
    )
    hashed = identity.of_keys(
        bench.plan.recipe, said.rule.name, f"left_key, {SEPARATOR}, right_key"
    )
    bench.connection.register("block", rows)
    found = (
        bench.connection.sql(
            f"""
        WITH keyed AS (
            SELECT *, {left} AS left_key, {right} AS right_key
            FROM (SELECT *, {structs} FROM block) {left_join} {right_join}),
        numbered AS (
            SELECT *, {identity.whole("left_key")} AS a, {identity.whole("right_key")} AS b
            FROM keyed),
        known AS (
            SELECT *, a IS NOT NULL AND b IS NOT NULL AS whole,
                   CASE WHEN NOT whole THEN {hashed} END AS h
            FROM numbered)
        SELECT left_key, right_key, {differences}, interchangeable, fifo, whole,
               coalesce(a, 0) AS a, coalesce(b, 0) AS b,
               coalesce((h >> 64)::UBIGINT, 0) AS high,
               coalesce((h & {WORD}::UHUGEINT)::UBIGINT, 0) AS low
        FROM known
        """
        )
        .to_arrow_table()
        .combine_chunks()
    )
    bench.connection.unregister("block")
    a, b, high, low = (numbers(found.column(name).chunk(0)) for name in ("a", "b", "high", "low"))
    whole = found.column("whole").to_numpy()
    mixed = identity.of_numbers(bench.plan.recipe, said.rule.name, a, b)
    high, low = (np.where(whole, *each) for each in zip(mixed, (high, low), strict=True))
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


def _digest(said: Said, block: _Block) -> int:
    """The sum of the rows' hashes, as `docs/reconcile.md` defines them: of each id with what is
    said of its pair, of which there are few."""
    codes = numbers(block.rows.column("way").chunk(0)) * len(_MARKS)
    flags = ("interchangeable", "fifo")
    if any(_any(block, flag) for flag in flags):
        interchangeable, fifo = (block.rows.column(flag).to_numpy() for flag in flags)
        codes = codes + np.where(interchangeable, 1, np.where(fifo, 2, 0))
    total = 0
    halves = np.zeros((int(codes.max(initial=0)) + 1, 4), np.uint64)
    loops.add_up(codes, block.low, block.high, len(codes), halves)
    for code, parts in enumerate(halves.tolist()):
        if summed := sum(part << (32 * number) for number, part in enumerate(parts)):
            way, mark = divmod(code, len(_MARKS))
            how = (said.rule.name, _CONFIRMED, _ONE_TO_ONE, (said.texts or [])[way])
            text = "\x1f".join(how) + _MARKS[mark]
            digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
            total += summed * (int.from_bytes(digest, "little") | 1)
    return total
