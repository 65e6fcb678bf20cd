"""The fenced commit of a refresh into its Delta table: barrier, frontier, check, commit, verify.

Each claim of a refresh has a number; the table's log holds the number of the newest one. Every
commit is made on the version that was checked and on no later one, so a worker that was paused
anywhere commits nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_APP = "kalla-refresh"
_FRONTIER = "kalla.frontier"
_FEED = {"delta.enableChangeDataFeed": "true"}
_LOOK_BACK = (5, 100, None)  # commits; a barrier repeats the frontier, so the first one has it


class Stale(Exception):
    """A newer claim has the table: nothing was committed."""


@dataclass(frozen=True)
class Frontier:
    """What the rows of a table stand for."""

    table_id: int  # of the definition: a table that was dropped and made anew has another
    definition: str  # hash of the query
    tick: int
    refresh: str  # the claim that committed it
    data_version: int  # the Delta version that last changed a row
    inputs: Mapping[str, Any]  # the pin of every source and upstream table


@dataclass(frozen=True)
class Change:
    """Rows to replace: one of each value to delete, and all to insert."""

    deletes: pa.Table
    inserts: pa.Table
    deleted: int  # rows, copies included


@dataclass(frozen=True)
class Committed:
    version: int
    frontier: Frontier


class FencedTable:
    """The Delta table of one refresh, under the number of its claim."""

    def __init__(self, location: str, sequence: int) -> None:
        self._location = location
        self._barrier = 2 * sequence
        self.existed = False

    def raise_barrier(self) -> Frontier | None:
        """Fence off every earlier claim; the frontier that the table has, if there is one."""
        from deltalake import write_deltalake

        table = _open(self._location)
        if table is None:
            return None
        self.existed = True
        newest = table.transaction_version(_APP)
        if newest is not None and newest >= self._barrier:
            raise Stale(f"the table is held by claim {newest // 2}")
        frontier = read_frontier(table)
        nothing = pa.schema(table.schema().to_arrow()).empty_table()
        with _conflicts():
            write_deltalake(
                table,
                nothing,
                mode="append",
                commit_properties=self._properties(self._barrier, frontier),
            )
        return frontier

    def column_names(self) -> list[str]:
        table = _open(self._location)
        return [] if table is None else [field.name for field in table.schema().fields]

    def rows(self) -> pa.Table:
        table = self._checked()
        return pa.table(table.to_pyarrow_table())

    def commit(self, change: Change, frontier: Frontier) -> Committed:
        """Replace rows; the frontier moves also when none changed."""
        from deltalake import write_deltalake

        table = self._checked()
        if not (change.deletes.num_rows or change.inserts.num_rows):
            with _conflicts():
                write_deltalake(
                    table,
                    change.inserts,
                    mode="append",
                    commit_properties=self._properties(self._barrier + 1, frontier),
                )
            return self._verified(frontier)
        frontier = _at(frontier, table.version() + 1)
        names = change.inserts.column_names
        source = pa.concat_tables(
            [
                _marked(change.deletes, "delete"),
                _marked(change.inserts, "insert"),
            ]
        )
        same = " AND ".join(
            f"(target.{_quoted(name)} IS NOT DISTINCT FROM source.{_quoted(name)})"
            for name in names
        )
        with _conflicts():
            (
                table.merge(
                    source,
                    predicate=f"(source.__kalla_act = 'delete') AND {same}",
                    source_alias="source",
                    target_alias="target",
                    commit_properties=self._properties(self._barrier + 1, frontier),
                )
                .when_matched_delete()
                .when_not_matched_insert(
                    {_quoted(name): f"source.{_quoted(name)}" for name in names},
                    predicate="source.__kalla_act = 'insert'",
                )
                .execute()
            )
        return self._verified(frontier)

    def replace(self, rows: pa.Table, frontier: Frontier) -> Committed:
        """Write all rows anew, in the schema that they have; makes the table if there is none."""
        from deltalake import write_deltalake

        if not self.existed:
            frontier = _at(frontier, 0)
            Path(self._location).mkdir(parents=True, exist_ok=True)
            with _conflicts():
                write_deltalake(
                    self._location,
                    rows,
                    mode="error",
                    configuration=_FEED,
                    commit_properties=self._properties(self._barrier + 1, frontier),
                )
            return self._verified(frontier)
        table = self._checked()
        frontier = _at(frontier, table.version() + 1)
        with _conflicts():
            write_deltalake(
                table,
                rows,
                mode="overwrite",
                schema_mode="overwrite",
                commit_properties=self._properties(self._barrier + 1, frontier),
            )
        return self._verified(frontier)

    def _checked(self) -> DeltaTable:
        """The table as it is now, which still has our barrier: what is committed on this object
        succeeds on this version alone."""
        table = _open(self._location)
        newest = None if table is None else table.transaction_version(_APP)
        if table is None or newest != self._barrier:
            raise Stale(f"the table is held by claim {'none' if newest is None else newest // 2}")
        return table

    def _verified(self, frontier: Frontier) -> Committed:
        table = _open(self._location)
        if table is None or table.transaction_version(_APP) != self._barrier + 1:
            raise Stale("another claim committed after this one")
        found = read_frontier(table)
        if found is None or found.refresh != frontier.refresh:
            raise Stale("the newest refresh in the table's log is another one")
        return Committed(table.version(), found)

    def _properties(self, number: int, frontier: Frontier | None) -> CommitProperties:
        from deltalake import CommitProperties, Transaction

        return CommitProperties(
            custom_metadata={} if frontier is None else {_FRONTIER: json.dumps(asdict(frontier))},
            # A retry would commit on a version that nobody has checked.
            max_commit_retries=0,
            app_transactions=[Transaction(_APP, number)],
        )


def read_frontier(table: DeltaTable) -> Frontier | None:
    for limit in _LOOK_BACK:
        for entry in table.history(limit):
            if _FRONTIER in entry:
                return Frontier(**json.loads(entry[_FRONTIER]))
    return None


def difference(old: pa.Table, new: pa.Table) -> Change:
    """The rows whose number of copies differs, by value; NULLs are equal to each other."""
    names = new.column_names
    chosen = ", ".join(_quoted(name) for name in names)
    with duckdb.connect() as connection:
        connection.register("old_rows", _numbered(old.select(names)))
        connection.register("new_rows", _numbered(new))
        found = _arrow(
            connection.sql(
                f"""
            WITH sides AS (
                SELECT {chosen}, 1 AS side, __kalla_row FROM old_rows
                UNION ALL
                SELECT {chosen}, 2 AS side, __kalla_row FROM new_rows
            )
            SELECT
                min(__kalla_row) FILTER (WHERE side = 1) AS old_row,
                min(__kalla_row) FILTER (WHERE side = 2) AS new_row,
                count(*) FILTER (WHERE side = 1) AS old_copies,
                count(*) FILTER (WHERE side = 2) AS new_copies
            FROM sides
            GROUP BY {chosen}
            HAVING old_copies <> new_copies
            """
            )
        )
    copies = found.column("new_copies").to_numpy()
    inserted = np.repeat(found.column("new_row").to_numpy(), copies)
    return Change(
        old.select(names).take(found.column("old_row").combine_chunks().drop_null()),
        new.take(pa.array(inserted.astype(np.int64))),
        int(found.column("old_copies").to_numpy().sum()),
    )


def of_keys(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """The rows that have one of the keys; NULLs are equal to each other."""
    same = " AND ".join(
        f"k.{_quoted(name)} IS NOT DISTINCT FROM r.{_quoted(name)}" for name in keys.column_names
    )
    with duckdb.connect() as connection:
        connection.register("all_rows", _numbered(rows))
        connection.register("wanted", keys)
        found = _arrow(
            connection.sql(f"SELECT r.__kalla_row FROM all_rows r SEMI JOIN wanted k ON {same}")
        )
    return rows.take(found.column(0).combine_chunks())


def _numbered(rows: pa.Table) -> pa.Table:
    return rows.append_column("__kalla_row", pa.array(np.arange(rows.num_rows)))


def _marked(rows: pa.Table, act: str) -> pa.Table:
    return rows.append_column("__kalla_act", pa.repeat(act, rows.num_rows))


def _at(frontier: Frontier, version: int) -> Frontier:
    return Frontier(**{**asdict(frontier), "data_version": version})


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _open(location: str) -> DeltaTable | None:
    from deltalake import DeltaTable

    return DeltaTable(location) if DeltaTable.is_deltatable(location) else None


class _conflicts:  # noqa: N801 -- used as a function
    """A commit that another one preceded was not made."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from deltalake.exceptions import CommitFailedError, DeltaError

        if isinstance(error, CommitFailedError) or (
            isinstance(error, (DeltaError, FileExistsError, OSError)) and "exist" in str(error)
        ):
            raise Stale("another commit came first") from None


def committed_frontier(location: str) -> Committed | None:
    """What the table stands for now, whoever committed it."""
    table = _open(location)
    frontier = None if table is None else read_frontier(table)
    return None if table is None or frontier is None else Committed(table.version(), frontier)


def delta_id(location: str) -> str:
    """The id of the Delta table itself: a reader sees by it that the table was replaced."""
    table = _open(location)
    return "" if table is None else str(table.metadata().id)


def _arrow(result: duckdb.DuckDBPyRelation) -> pa.Table:
    return pa.table(result.to_arrow_table())
