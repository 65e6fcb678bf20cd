"""Rows spread over buckets by a key, in files: one task reads and writes them, another matches.

Rows of equal key are in one bucket, whichever side and piece they come from. A task writes below
its own new folder, which its facts name: files of a duplicate task are never read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar
from uuid import uuid4

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from kalla.reconcile.arrays.arrow_numbers import as_column
from kalla.reconcile.matching import sum_mismatches
from kalla.reconcile.partitioned import shuffle_files
from kalla.reconcile.plan.pieces import Piece
from kalla.reconcile.plan.plan import Input, Plan, RulePlan, SidePlan
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.session import side_loading
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.rule_sql import hashable, key_part
from kalla.reconcile.session.side_loading import Loaded
from kalla.reconcile.sources import direct_reads
from kalla.reconcile.sources.formats import converted_files
from kalla.reconcile.sources.formats.parquet_schemas import footers
from kalla.reconcile.sources.scanning.scan_sql import listed, parquet, reader
from kalla.reconcile.sql import duckdb_errors
from kalla.reconcile.sql.column_values import Value, held, literal, quote
from kalla.storage import Storage, join

# The state of a row, next to the columns of its source. Source columns keep their internal names,
# so they never collide with these.
STATE: Mapping[str, str] = {
    "kalla:ordinal": "BIGINT",
    "kalla:rule": "INTEGER",  # and so on, of one that is ambiguous
    "kalla:reason": "VARCHAR",
    "kalla:candidates": "VARCHAR[]",
    "kalla:candidate_count": "BIGINT",
    "kalla:sum_mismatches": sum_mismatches.KIND,
    "kalla:explained": "BOOLEAN",  # unmatched, and its evidence is written
}

Thing = TypeVar("Thing")

ALL = "0"  # the bucket of rows that stay together

_PIECE_ROWS = 1_000_000
_WINDOW = "file_row_number"
_KEYS = "keys.npy"


@dataclass(frozen=True)
class Key:
    """What brings rows together: pairs of values, left and right; none is one bucket for all."""

    pairs: frozenset[tuple[Value, Value]]

    @classmethod
    def of(cls, rule: RulePlan) -> Key:
        checks = [rule.checks[place] for place in rule.key]
        pairs = {check.normalized_key or (check.left, check.right) for check in checks}
        if not pairs and rule.currency:
            pairs = {rule.currency}
        # Else rows of other currencies stay with them: one may be the closest to another.
        return cls(frozenset(pairs))

    def serves(self, other: Key) -> bool:
        """Whether rows that are equal in the other key are so in this one."""
        return self.pairs <= other.pairs and bool(self.pairs) == bool(other.pairs)

    def bucket(self, side: Side, own_key: str, count: int) -> str:
        """The bucket of a row; one that lacks a part of the key meets nobody: it may be in any."""
        if count == 1 or not self.pairs:
            return ALL
        return f"coalesce({self.hashed(side)}, hash({own_key})) % {count}"

    def hashed(self, side: Side) -> str:
        """The same number for rows of equal key, whichever side they are of; null without a key."""
        place = SIDES.index(side)
        ordered = sorted(self.pairs, key=lambda pair: (pair[0].sql, pair[1].sql))
        parts = [hashable(*pair)[place] for pair in ordered]
        whole = " AND ".join(f"{pair[place].sql} IS NOT NULL" for pair in ordered)
        return f"CASE WHEN {whole} THEN hash({', '.join(parts)}) END"


@dataclass(frozen=True)
class Spread:
    """The files that a reading task has written."""

    side: Side
    place: str
    loaded: Loaded
    null_keys: bool


def pieces(plan: Plan, most: int, storage: Storage) -> list[Piece]:
    """Each side in at most so many pieces: files, ranges of a large file's rows, slices."""
    return [
        Piece(side, part)
        for side in SIDES
        for part in _parts(plan.sides[side].input, max(1, most), storage)
    ]


def _parts(given: Input, most: int, storage: Storage) -> list[Input]:
    if given.connector is not None:
        sets = _dealt(given.slices, min(most, given.at_once))
        return [replace(given, slices=each) for each in sets]
    if given.relation is not None or not given.files:
        return [given]
    if given.format not in ("parquet", "delta", "xlsx"):
        return [replace(given, files=each) for each in _dealt(given.files, most)]
    described = footers(given.files, storage)
    names = [each.schema.to_arrow_schema().names for each in described]
    if any(each != names[0] for each in names):
        return [given]  # a file that lacks a column can only be read together with one that has it
    if len(given.files) > 1:
        return [replace(given, files=each) for each in _dealt(given.files, most)]
    rows = described[0].num_rows
    cuts = max(1, min(most, -(-rows // _PIECE_ROWS)))
    bounds = [rows * number // cuts for number in range(cuts + 1)]
    if cuts == 1 or _WINDOW in map(str.lower, names[0]):  # DuckDB does not tell them apart
        return [given]
    scan = f"read_parquet({listed(given.files)}, {_WINDOW}=true, hive_partitioning=false)"
    return [
        replace(
            given,
            relation=f"(SELECT * EXCLUDE ({_WINDOW}) FROM {scan}"
            f" WHERE {_WINDOW} >= {low} AND {_WINDOW} < {high})",
        )
        for low, high in pairwise(bounds)
    ]


def _dealt(things: Sequence[Thing], most: int) -> list[tuple[Thing, ...]]:
    hands = min(most, len(things)) or 1
    return [tuple(things[number::hands]) for number in range(hands)]


def spread(
    plan: Plan, piece: Piece, key: Key, count: int, place: str, resources: Resources
) -> Spread:
    """A kernel: read a piece, and write its rows by bucket, and a hash of each row's own key."""
    side = piece.side
    part = replace(plan.sides[side], input=piece.input)
    session = MatchSession(replace(plan, sides={**plan.sides, side: part}), resources)
    try:
        if piece.input.connector is not None:
            direct_reads.fetch(session.connection, piece.input, resources.threads)
        own = own_place(place)
        bucket = key.bucket(side, key_of_source(part), count)
        where = f" WHERE {part.filters}" if part.filters else ""
        try:
            write(session, side, {}, bucket, count, own, f"{reader(part.input)}{where}")
        except duckdb.Error as error:
            files, skipped = converted_files.originals(part.input), part.input.csv.skip
            raise duckdb_errors.of_reading(error, f"the {side} source", files, skipped) from None
        _read_back(session, side, own)
        named = [f"p{place}" for place in range(len(part.primary_key))]
        hashes = session.column(f"SELECT {_key_hash(part, named)} FROM {side}_rows")
        shuffle_files.save(np.sort(hashes), join(own, _KEYS), resources.storage)
        nulls = " OR ".join(f"{each} IS NULL" for each in named)
        (null_keys,) = session.row(f"SELECT count(*) > 0 FROM {side}_rows WHERE {nulls}")
        loaded = side_loading.count(session, side)
    finally:
        session.close()
    return Spread(side, own, loaded, bool(null_keys))


def _read_back(session: MatchSession, side: Side, place: str) -> None:
    """`{side}_rows`: a view of the written files."""
    part = session.plan.sides[side]
    written = shuffle_files.read([place], session.storage)
    session.connection.register(f"{side}_written", written)
    keys = [f"{value.sql} AS p{place}" for place, value in enumerate(part.primary_key)]
    session.run(f"CREATE TEMP VIEW {side}_rows AS SELECT *, {', '.join(keys)} FROM {side}_written")


def write(
    session: MatchSession,
    side: Side,
    state: Mapping[str, str],
    bucket: str,
    count: int,
    place: str,
    source: str = "",
) -> None:
    """Rows to a place, by bucket, and what is known of them, if anything is.

    `source` is what they and their state are selected from, unless it is the rows alone.
    """
    part = session.plan.sides[side]
    # Of the types that the source has, however they were held.
    columns = [
        f"CAST({held(name)} AS {part.input.types[name]}) AS {held(name)}" for name in part.columns
    ]
    if state:
        columns += [
            f"CAST({state.get(name, 'NULL')} AS {kind}) AS {quote(name)}"
            for name, kind in STATE.items()
        ]
    columns.append(f"{bucket} AS {shuffle_files.BUCKET}")
    rows = f"SELECT {', '.join(columns)} FROM {source or f'{side}_rows'}"
    shuffle_files.write(session, rows, count, place)


def stored(plan: Plan, side: Side, places: Iterable[str], *, fresh: bool = False) -> SidePlan:
    """The rows at these places as a side to load; `fresh` ones have no state."""
    part = plan.sides[side]
    types = {name: part.input.types[name] for name in part.columns}
    known = () if fresh else tuple(STATE)
    table = f"{side}_fresh" if fresh else f"{side}_known"
    return replace(
        part,
        input=Input("arrow", tuple(places), types, table=table, known=known),
        filters=None,
        unreadable=(),
    )


def lay_out(session: MatchSession, given: Input, bucket: int | None = None) -> None:
    """Let stored rows be read, of one bucket or all."""
    rows = shuffle_files.read(given.files, session.storage, bucket)
    session.connection.register(given.table, rows)


def kept(plan: Plan, side: Side) -> list[str]:
    """The columns of a row that the matching uses: rows equal in all are interchangeable."""
    return [held(name) for name in plan.sides[side].columns]


def key_of_source(part: SidePlan) -> str:
    """The record key without its ordinal, from the columns of the source."""
    parts = [key_part(value, value.sql) for value in part.primary_key]
    return parts[0] if len(parts) == 1 else f"concat_ws('|', {', '.join(parts)})"


# Keys that are not unique


@dataclass(frozen=True)
class KeyTask:
    """One of so many ranges of the hashes of both sides' own keys."""

    number: int
    of: int
    places: Mapping[Side, tuple[str, ...]]


def find_doubled(task: KeyTask, place: str, storage: Storage) -> dict[Side, str]:
    """A kernel: hashes of keys that occur more than once, as a file for each side that has any."""
    found: dict[Side, str] = {}
    for side in SIDES:
        hashes_of = [shuffle_files.load(join(each, _KEYS), storage) for each in task.places[side]]
        ranges = [_range(each, task) for each in hashes_of]
        # Each is in order already, so that they are merged.
        hashes = np.sort(np.concatenate([np.empty(0, np.uint64), *ranges]), kind="stable")
        doubled = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
        if len(doubled):
            found[side] = join(own_place(place), "doubled.parquet")
            with storage.writing(found[side]) as path:
                pq.write_table(as_column(doubled, "h"), path)
    return found


def _range(hashes: npt.NDArray[np.uint64], task: KeyTask) -> npt.NDArray[np.uint64]:
    first, end = ((2**64 * number) // task.of for number in (task.number, task.number + 1))
    low = int(np.searchsorted(hashes, np.uint64(first)))
    high = len(hashes) if end == 2**64 else int(np.searchsorted(hashes, np.uint64(end)))
    return hashes[low:high]


def _key_hash(part: SidePlan, parts: Sequence[str]) -> str:
    """Of a row's own key, its parts given as SQL: as text where different values may be the same.

    Several may be once they are joined, and a text may be what stands for a null.
    """
    if len(parts) == 1 and part.primary_key[0].kind != "text":
        return f"hash({parts[0]})"
    texts = [key_part(value, sql) for value, sql in zip(part.primary_key, parts, strict=True)]
    return f"hash(concat_ws('|', {', '.join(texts)}))"


@dataclass(frozen=True)
class Ordinals:
    """Rows whose key is not unique, or null, with their ordinals (kept columns, ordinal, twin)."""

    url: str
    rows: int


def number(
    plan: Plan, side: Side, doubled: Sequence[str], place: str, resources: Resources
) -> Ordinals:
    """A kernel: read a side once more, for the rows whose keys may be doubled, and number them."""
    part = plan.sides[side]
    own_key = _key_hash(part, [value.sql for value in part.primary_key])
    asked = [f"{value.sql} IS NULL" for value in part.primary_key]
    if doubled:
        asked.append(f"{own_key} IN (SELECT h FROM {parquet(doubled)})")
    filters = f"({' OR '.join(asked)})" + (f" AND ({part.filters})" if part.filters else "")
    narrow = replace(part, filters=filters)
    session = MatchSession(replace(plan, sides={**plan.sides, side: narrow}), resources)
    try:
        if part.input.connector is not None:
            direct_reads.fetch(session.connection, part.input, resources.threads)
        loaded = side_loading.load(session, side)
        columns = ", ".join(kept(plan, side))
        url = join(own_place(place), "ordinals.parquet")
        with resources.storage.writing(url) as path:
            session.run(
                f"COPY (SELECT {columns}, ordinal,"
                f" row_number() OVER (PARTITION BY {columns} ORDER BY ordinal) AS twin"
                f" FROM {session.all_rows(side)} JOIN {side}_ordinals USING (row_id))"
                f" TO {literal(str(path))} (FORMAT parquet)"
            )
    finally:
        session.close()
    return Ordinals(url, loaded.doubled_keys)


def own_place(place: str) -> str:
    """A new name below it, which no other attempt has."""
    return join(place, uuid4().hex)
