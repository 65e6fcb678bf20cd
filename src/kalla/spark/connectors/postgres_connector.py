"""PostgreSQL as a source: key ranges cut by the data's own distribution, read by COPY into Arrow.

There is no LIMIT or OFFSET anywhere: a slice is a condition, which holds for the same rows always.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.rows import DictRow
from pydantic import SecretStr

from kalla.errors import InvalidInput, Problem, Unavailable
from kalla.spark.connectors import ranges
from kalla.spark.connectors.connector import (
    ColumnType,
    Estimate,
    KeyRange,
    Predicate,
    Slice,
    arrow_schema,
)
from kalla.spark.connectors.postgres_link import Link, SnapshotEnded, parse
from kalla.spark.connectors.postgres_snapshot import Mark, Moment, Snapshot, time_of
from kalla.spark.connectors.postgres_table import LOCKABLE, Key, Table, look_up
from kalla.spark.connectors.postgres_text import (
    CTID,
    identifier,
    key_expression,
    predicate_condition,
    range_condition,
    where,
)
from kalla.spark.connectors.postgres_types import check_dimensions, converted

MOST_SLICES = 10_000

# Neighbouring keys share a page, so that pages, not rows, are what a sample counts: fifty of them
# a slice keep most slices within a third of their due size.
_SAMPLED_PAGES_PER_SLICE = 50
_SAMPLED_PAGES = 1_000
# Rows are scattered if, were the key cut into sixteen, those of a page would be in more than two
# of the ranges: each slice then goes through most of the table, so that four are many.
_LOOKED_AT_PAGES = 250
_LOOKED_AT_RANGES = 16
_SCATTERED_OVER = 2.0
_SCATTERED_SLICES = 4
_FEW_ROWS = 1_000  # of which nobody makes slices
_PLACE = Key((CTID,), (None,), indexed=True)
_NO_PASSWORD = SecretStr("")


@dataclass(frozen=True)
class PostgresConnector:
    """One table (or view) of one database, with its filters; `at` a snapshot, or as it comes.

    With `seconds` no statement takes longer: for a look, while somebody waits.
    """

    uri: str
    table: str
    password: SecretStr = _NO_PASSWORD
    partition_key: str | None = None
    predicates: tuple[Predicate, ...] = ()
    snapshot: Snapshot | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        parse(self.uri)

    def at(self, snapshot: Snapshot) -> PostgresConnector:
        """The same source as it was when the snapshot was taken."""
        return replace(self, snapshot=snapshot)

    @contextmanager
    def held_snapshot(self) -> Iterator[Snapshot]:
        """A snapshot, for `at`: good in every process for as long as this is held.

        Who holds it may try again, with a new one, where it has ended too early.
        """
        link = self._link()
        with link.rows() as connection:
            table = self._look_up(connection)
        with ExitStack() as opened:
            # Nobody rewrites, empties or drops the table under the readers.
            locked = table.quoted if table.kind in LOCKABLE else None
            connection = opened.enter_context(link.rows(locked))
            moment = Moment.of(connection)
            if table.kind == "m":  # for which there is no LOCK; its rows are of any snapshot
                connection.execute(f"SELECT FROM {table.quoted} LIMIT 0".encode())
            name = _only(connection, "SELECT pg_export_snapshot()")
            snapshot = Snapshot(name, table.title, moment)
            held = opened.pop_all()
        try:
            yield snapshot
        except SnapshotEnded as error:
            raise Unavailable(f"{error}; all of it must be read anew") from None
        finally:  # what fails meanwhile elsewhere is not a failure of this line
            held.close()

    def mark(self) -> Mark:
        """Which moment is read; without a snapshot, since when: `clock` tells until when."""
        if self.snapshot is not None:
            return self.snapshot.mark()
        with self._link().rows() as connection:
            table = self._look_up(connection)
            return {"table": table.title, "snapshot": None, "read_from": time_of(connection)}

    def clock(self) -> str:
        """The database's time."""
        with self._link().rows() as connection:
            return time_of(connection)

    def schema(self) -> tuple[ColumnType, ...]:
        with self._link().rows() as connection:
            return tuple(column.described() for column in self._look_up(connection).columns)

    def primary_key(self) -> tuple[str, ...]:
        """The declared one, or else a unique index without nulls; () where there is neither."""
        with self._link().rows() as connection:
            return self._look_up(connection).primary_key

    def tells_apart(self, columns: Collection[str]) -> bool:
        """Whether no two of the rows that are read, in all slices, have the same values in these.

        A row that moves between two ranges is read twice unless they are ranges of these columns.
        """
        with self._link().rows() as connection:
            table = self._look_up(connection)
        key = table.key(self.partition_key)
        still = self.snapshot is not None or key is None or set(key.columns) <= set(columns)
        return still and table.is_unique(columns)

    def estimate(self) -> Estimate:
        with self._link().rows() as connection:
            table = self._look_up(connection)
            rows, width, exact = self._count(connection, table)
            way = self._way(connection, table)
            skew = self._skew(connection, table)
        notes = [column.described().note for column in table.columns]
        return Estimate(rows, rows * width, exact, (way, *filter(None, (skew, *notes))))

    def split(self, n: int) -> tuple[Slice, ...]:
        if not 1 <= n <= MOST_SLICES:
            raise InvalidInput(Problem("slices", f"must be 1 to {MOST_SLICES}, got {n}"))
        if n == 1:
            return ranges.numbered(())
        with self._link().rows() as connection:
            table = self._look_up(connection)
            return ranges.numbered(self._ranges(connection, table, n))

    def read(self, part: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        link = self._link()
        with link.rows() as connection:
            table = self._look_up(connection)
        described = {column.name: column.described() for column in table.columns}
        schema = arrow_schema(list(described.values()), columns)
        lists = [field.name for field in schema if pa.types.is_list(field.type)]
        is_held = self.snapshot is not None  # by who holds the snapshot
        locked = table.quoted if table.may_lock and not is_held else None
        with link.arrow(locked) as session:
            for batch in session.batches(self._query(table, part, schema.names, lists)):
                for place, name in enumerate(lists, len(schema)):
                    check_dimensions(batch.column(place), described[name])
                arrays = [
                    converted(batch.column(place), described[field.name], field.type)
                    for place, field in enumerate(schema)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _link(self) -> Link:
        seen = self.snapshot.name if self.snapshot is not None else None
        return Link(self.uri, self.password, seen, self.seconds)

    def _look_up(self, connection: psycopg.Connection[DictRow]) -> Table:
        return look_up(connection, self.table, self._link().place)

    def _query(
        self, table: Table, part: Slice, columns: Sequence[str], lists: Sequence[str]
    ) -> str:
        known = table.by_name
        selected = [known[name].expression(identifier(name)) for name in columns]
        selected += [f"array_ndims({identifier(name)})" for name in lists]
        conditions = self._filters(table)
        if part.range is not None:
            conditions.append(range_condition(part.range, known))
        return f"SELECT {', '.join(selected)} FROM {table.quoted}{where(conditions)}"  # noqa: S608 -- all quoted

    def _filters(self, table: Table) -> list[str]:
        return [predicate_condition(each, table.by_name) for each in self.predicates]

    def _count(
        self, connection: psycopg.Connection[DictRow], table: Table
    ) -> tuple[int, int, bool]:
        """Rows, bytes a row, and whether the rows were counted; counting is for small tables."""
        body = f"FROM {table.quoted}{where(self._filters(table))}"
        plan = _only(connection, f"EXPLAIN (FORMAT JSON) SELECT * {body}")[0]["Plan"]
        if table.pages is None or table.pages > _SAMPLED_PAGES:
            return int(plan["Plan Rows"]), int(plan["Plan Width"]), False
        counted = _only(connection, f"SELECT count(*) {body}")
        return counted, int(plan["Plan Width"]), True

    def _way(self, connection: psycopg.Connection[DictRow], table: Table) -> str:
        """How the table will be read, in a sentence."""
        key = table.key(self.partition_key)
        if key is not None:
            names = ", ".join(key.columns)
            by = f"{table.title} is read in ranges of {names}"
            if not key.indexed:
                return f"{by}; no index begins with it, so that each slice scans all rows"
            if not self._is_scattered(connection, table, key):
                return by
            if self._has_places(table):
                return (
                    f"{table.title} is read in ctid ranges, all in one snapshot, because its rows "
                    f"do not lie in the order of {names}"
                )
            return (
                f"{by}, {_SCATTERED_SLICES} at the most, because its rows do not lie in that "
                "order; consistency: snapshot would read it faster"
            )
        what = {"v": "is a view", "f": "is a foreign table"}.get(table.kind, "has no usable key")
        if not table.has_places:
            return f"{table.title} {what}: it is read in one piece unless partition_key is given"
        if self.snapshot is None:
            return (
                f"{table.title} {what}: it is read in one piece, because a row that is updated "
                "meanwhile would move between ctid ranges; give partition_key, or "
                "consistency: snapshot"
            )
        return f"{table.title} {what}: it is read in ctid ranges, all in one snapshot"

    def _skew(self, connection: psycopg.Connection[DictRow], table: Table) -> str:
        """What to say of rows that are one slice however many there are: those of one value where
        no unique key cuts it further, and nulls."""
        key = table.key(self.partition_key)
        if key is None or table.pages is None:
            return ""
        first = table.by_name[key.columns[0]]
        is_cut = len(key.columns) > 1 or table.is_unique(key.columns)
        if is_cut and first.not_null:
            return ""
        name = identifier(first.name)
        rows = f"{table.quoted} {_sampled(table, _SAMPLED_PAGES)}{where(self._filters(table))}"
        query = f"""
            SELECT missing, rows, rows / total AS share
            FROM (SELECT {name} IS NULL AS missing, count(*) AS rows, sum(count(*)) OVER () AS total
                  FROM {rows} GROUP BY {name}) sample
            WHERE {"missing" if is_cut else "TRUE"} AND rows > {_FEW_ROWS}
              AND rows > total / {_LOOKED_AT_RANGES}
            ORDER BY rows DESC LIMIT 1
        """  # noqa: S608 -- all quoted
        for row in connection.execute(query.encode()):
            what, why = f"the same {first.name}", ", for no unique key cuts them further"
            if row["missing"]:
                what, why = f"no {first.name}", ""
            return f"{row['share']:.0%} of the rows have {what}: they are one slice{why}"
        return ""

    def _ranges(
        self, connection: psycopg.Connection[DictRow], table: Table, n: int
    ) -> Sequence[KeyRange]:
        key = table.key(self.partition_key)
        if key is None:
            return self._place_ranges(connection, table, n) if self._has_places(table) else ()
        if not self._is_scattered(connection, table, key):
            return self._key_ranges(connection, table, key, n)
        if self._has_places(table):
            return self._place_ranges(connection, table, n)
        return self._key_ranges(connection, table, key, min(n, _SCATTERED_SLICES))

    def _has_places(self, table: Table) -> bool:
        """A row keeps its place within a snapshot alone: an update moves it."""
        return table.has_places and self.snapshot is not None

    def _is_scattered(
        self, connection: psycopg.Connection[DictRow], table: Table, key: Key
    ) -> bool:
        """Whether a range of the key is found all over a table that is too large for that. A key
        that was asked for is taken at its word.
        """
        small = (table.pages or 0) <= _SAMPLED_PAGES
        if small or self.partition_key is not None or not table.permitted:
            return False
        order = key_expression(key.columns[0], key.collations[0])
        query = f"""
            SELECT count(DISTINCT (home, page, part)) / count(DISTINCT (home, page))::float8
            FROM (SELECT tableoid AS home, (ctid::text::point)[0] AS page,
                         ntile({_LOOKED_AT_RANGES}) OVER (ORDER BY {order}) AS part
                  FROM {table.quoted} {_sampled(table, _LOOKED_AT_PAGES)}) sample
            HAVING count(*) > 0
        """  # noqa: S608 -- all quoted
        found = connection.execute(query.encode()).fetchall()
        return any(visits > _SCATTERED_OVER for row in found for visits in row.values())

    def _place_ranges(
        self, connection: psycopg.Connection[DictRow], table: Table, n: int
    ) -> Sequence[KeyRange]:
        """As many pages each; with filters as many of the rows that they leave, where a sample has
        some.
        """
        cuts = self._cuts(connection, table, _PLACE, n) if self.predicates else []
        cuts = cuts or [[f"({page},0)"] for page in ranges.even(table.pages or 0, n)]
        return ranges.cut([CTID], cuts)

    def _key_ranges(
        self, connection: psycopg.Connection[DictRow], table: Table, key: Key, n: int
    ) -> Sequence[KeyRange]:
        first = key.first()
        found = ranges.cut(first.columns, self._cuts(connection, table, first, n), first.collations)
        if len(found) == n or len(key.columns) == 1:
            return found
        # One value of the first column has more than a slice's share of the rows.
        return ranges.cut(key.columns, self._cuts(connection, table, key, n), key.collations)

    def _cuts(
        self, connection: psycopg.Connection[DictRow], table: Table, key: Key, n: int
    ) -> list[list[str]]:
        """The n-quantiles of the key among the filtered rows: of all, or of a sample of pages."""
        pairs = zip(key.columns, key.collations, strict=True)
        order = ", ".join(key_expression(name, collation) for name, collation in pairs)
        quoted = [name if name == CTID else identifier(name) for name in key.columns]
        aliases = [f"key{place}" for place in range(len(quoted))]
        inner = [f"{name} AS {alias}" for name, alias in zip(quoted, aliases, strict=True)]
        conditions = self._filters(table) + [f"{name} IS NOT NULL" for name in quoted]
        pages = max(_SAMPLED_PAGES, _SAMPLED_PAGES_PER_SLICE * n)
        query = f"""
            SELECT {", ".join(f"{alias}::text AS {alias}" for alias in aliases)}
            FROM (SELECT {", ".join(inner)}, row_number() OVER (ORDER BY {order}) - 1 AS place,
                         count(*) OVER () AS total
                  FROM {table.quoted} {_sampled(table, pages)}{where(conditions)}) sample
            WHERE place = 0 OR place * {n} / total > (place - 1) * {n} / total
            ORDER BY place
        """  # noqa: S608
        first, *cuts = [list(row.values()) for row in connection.execute(query.encode())] or [[]]
        return [each for each in cuts if each != first]  # before it there would be nothing


def _only(connection: psycopg.Connection[DictRow], query: str) -> Any:
    """The one value of the one row that such a question is answered with."""
    (row,) = connection.execute(query.encode()).fetchall()
    (value,) = row.values()
    return value


def _sampled(table: Table, wanted: int) -> str:
    if table.pages is None or table.pages <= wanted:
        return ""
    # Repeatable: the same table is cut in the same places.
    return f"TABLESAMPLE SYSTEM ({ceil(10**6 * wanted / table.pages) / 10**4}) REPEATABLE (0)"
