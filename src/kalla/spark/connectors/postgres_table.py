"""A table as the catalogue describes it, and by which key its rows are cut into ranges. No I/O
but the catalogue's."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import psycopg
from psycopg.rows import DictRow

from kalla.errors import InvalidInput, NotFound, Problem
from kalla.spark.connectors.postgres_link import sql
from kalla.spark.connectors.postgres_schemas import is_reserved
from kalla.spark.connectors.postgres_text import identifier
from kalla.spark.connectors.postgres_types import KEY_TYPES, TEXT_TYPES, PostgresColumn

LOCKABLE = "rpv"  # kinds of relations that LOCK TABLE takes

_TID_RANGE_SCANS = 140_000  # the version that has them; before, each slice would scan the table


@dataclass(frozen=True)
class Index:
    primary: bool
    unique: bool
    columns: tuple[str, ...]
    collations: tuple[str | None, ...]


@dataclass(frozen=True)
class Key:
    """Columns whose values are cut into ranges. More than one: where the first repeats too much."""

    columns: tuple[str, ...]
    collations: tuple[str | None, ...]
    indexed: bool

    def first(self) -> Key:
        return Key(self.columns[:1], self.collations[:1], self.indexed)


@dataclass(frozen=True)
class Table:
    oid: int
    schema: str
    name: str
    kind: str  # pg_class.relkind: r, p (partitioned), m (materialized view), v (view), f (foreign)
    inherited: bool
    permitted: bool  # to read all of it, and not some columns alone: so may its ctid be
    version: int
    pages: int | None
    columns: tuple[PostgresColumn, ...]
    indexes: tuple[Index, ...]

    @property
    def quoted(self) -> str:
        return f"{identifier(self.schema)}.{identifier(self.name)}"

    @property
    def title(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def by_name(self) -> dict[str, PostgresColumn]:
        return {column.name: column for column in self.columns}

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Declared, or as good as: the indexes are in that order."""
        known = self.by_name
        for index in self.indexes:
            if index.unique and all(known[name].not_null for name in index.columns):
                return index.columns
        return ()

    def is_unique(self, columns: Collection[str]) -> bool:
        """Whether the database holds no two rows that are alike in these columns."""
        known = self.by_name
        return not self.inherited and any(
            index.unique
            and set(index.columns) <= set(columns)
            and all(known[name].not_null for name in index.columns)
            for index in self.indexes
        )

    @property
    def has_places(self) -> bool:
        """Rows have a ctid that is theirs alone, and ranges of it are read without the rest."""
        plain = self.kind in "rm" and not self.inherited and self.permitted
        return plain and self.version >= _TID_RANGE_SCANS

    @property
    def may_lock(self) -> bool:
        """Whether the reader surely may keep others from emptying it: what is below a view is
        locked by the right of its owner, who may have none to all of a table."""
        return self.kind in "rp" and self.permitted

    def key(self, partition_key: str | None) -> Key | None:
        """The key to cut by: the one that was asked for, else the primary or a unique one."""
        if partition_key is not None:
            return self._named_key(partition_key)
        return next(self._unique_keys(), None)

    def _named_key(self, name: str) -> Key:
        column = self.by_name.get(name)
        if column is None or not _cuttable(column):
            has = f"has the type {column.declared}" if column else "is not a column"
            raise InvalidInput(
                Problem(
                    "partition_key",
                    f"{name} {has} of {self.title}; a number, date, time stamp, uuid or text "
                    "column is needed",
                )
            )
        for index in self.indexes:
            if index.columns[0] == name:
                return self._refined(self._key_of(index, 1))
        order = "C" if column.base in TEXT_TYPES else None
        return self._refined(Key((name,), (order,), indexed=False))

    def _refined(self, key: Key) -> Key:
        """With a unique key behind it, where there is one: a value may have too many rows."""
        whole = [index for index in self.indexes if index.unique and self._is_whole(index)]
        if not whole:
            return key
        index = min(whole, key=lambda each: each.columns[0] != key.columns[0])
        more = self._key_of(index, len(index.columns))
        pairs = zip(more.columns, more.collations, strict=True)
        rest = [(name, order) for name, order in pairs if name not in key.columns]
        names, orders = [name for name, _ in rest], [order for _, order in rest]
        return Key((*key.columns, *names), (*key.collations, *orders), key.indexed)

    def _is_whole(self, index: Index) -> bool:
        """Whether each of its columns can be cut by, and none is ever null."""
        known = self.by_name
        return all(_cuttable(known[name]) and known[name].not_null for name in index.columns)

    def _unique_keys(self) -> Iterator[Key]:
        known = self.by_name
        for index in self.indexes:
            if index.unique and _cuttable(known[index.columns[0]]):
                yield self._key_of(index, len(index.columns) if self._is_whole(index) else 1)

    def _key_of(self, index: Index, width: int) -> Key:
        """In the index's own order, or it would be of no use; both sides of a cut name it."""
        orders = [
            (collation or "C") if self.by_name[name].base in TEXT_TYPES else None
            for name, collation in zip(index.columns, index.collations, strict=True)
        ]
        return Key(index.columns[:width], tuple(orders[:width]), indexed=True)


def look_up(connection: psycopg.Connection[DictRow], name: str, place: str) -> Table:
    named = connection.execute(sql.relation, {"table": name}).fetchall()
    if sum(f"{each['schema']}.{each['name']}" == name for each in named) > 1:
        raise InvalidInput(
            Problem("table", f"{name} is the name of two tables, for names with a dot are joined")
        )
    found = next(iter(named), None)
    if found is None:
        raise NotFound(
            f"there is no table {name} in Postgres at {place}, or it may not be seen; "
            "write schema.table exactly as they are stored"
        )
    if is_reserved(found["schema"]):  # where a name without schema can lead too
        raise InvalidInput(
            Problem(
                "table", f"{name} is in the schema {found['schema']}, which is not a source of rows"
            )
        )
    columns = connection.execute(sql.columns, {"oid": found["oid"]}).fetchall()
    indexes = connection.execute(sql.indexes, {"oid": found["oid"]}).fetchall()
    return Table(
        **found,
        columns=tuple(PostgresColumn(**row) for row in columns),
        indexes=tuple(
            Index(row["primary"], row["unique"], tuple(row["columns"]), tuple(row["collations"]))
            for row in indexes
        ),
    )


def _cuttable(column: PostgresColumn) -> bool:
    return not column.array and column.kind == "b" and column.base in KEY_TYPES
