"""Loads both sources into one DuckDB, after detecting their file options: profiles and proposals
are computed from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from kalla.errors import InvalidInput, Problem, Unavailable
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import Source
from kalla.reconcile.recipe.validation import word_of
from kalla.reconcile.sources import inspection, native_files
from kalla.reconcile.sources.formats import converted_files, csv_sniffing
from kalla.reconcile.sources.formats.csv_sniffing import Decided
from kalla.reconcile.sources.scanning.scan_sql import reader
from kalla.reconcile.sources.source_columns import readable_rows
from kalla.reconcile.sources.source_planning import (
    Resolve,
    from_environment,
    is_staged,
    password_of,
)
from kalla.reconcile.sql import column_values
from kalla.reconcile.sql.column_values import Columns, held
from kalla.reconcile.sql.duckdb_errors import LINES, said
from kalla.reconcile.sql.duckdb_limits import Bounds, bounded
from kalla.spark.connectors.connector import Slice
from kalla.spark.connectors.postgres_connector import PostgresConnector
from kalla.storage import LOCAL, Storage

PROFILED = Bounds(memory="2GB", threads=2, seconds=120)
MOST_TABLE_ROWS = 200_000  # of a database, whose rows would all have to be fetched
SAMPLED_ROWS = 150_000
EXACT_ROWS = 1_000_000  # of a larger table, most figures are of its sample


@dataclass(frozen=True)
class SideTable:
    """A source as a table of its rows: each column under its internal name, and `rid`."""

    name: str  # of the table
    source: Source  # with the csv options that were found
    columns: Columns
    rows: int
    total: int | None  # of the source, if only a part was read
    decisions: tuple[Decided, ...]
    notes: tuple[str, ...]
    format: str
    bytes: int
    share: int = 1  # every so many rows are in the sample

    @property
    def sample(self) -> str:
        """The table of some rows, the same ones every time: of a small table, all."""
        return self.name if self.share == 1 else f"{self.name}_sample"

    @property
    def is_estimated(self) -> bool:
        """Whether figures are of the sample, because all rows would take too long."""
        return self.rows > EXACT_ROWS

    @property
    def names(self) -> list[str]:
        return list(self.columns.types)

    def text(self, column: str) -> str:
        """The column as text, null where it is blank."""
        found = column_values.as_text(column_values.value(self.columns, column)).sql
        return f"nullif(trim({found}), '')"

    def number(self, column: str) -> str | None:
        try:
            value = column_values.value(self.columns, column)
            return column_values.as_number(value, self.columns).sql
        except InvalidInput:
            return None

    def day(self, column: str) -> str | None:
        try:
            value = column_values.value(self.columns, column)
            return column_values.as_date(value, self.columns).sql
        except InvalidInput:
            return None

    def word(self, column: str) -> str:
        return word_of(self.columns.types[column])


@contextmanager
def opened(storage: Storage, bounds: Bounds) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB for tables of sources, bounded in memory and time."""
    with bounded(storage, bounds) as (connection, is_over):
        try:
            yield connection
        except duckdb.InterruptException:
            reason = "was cancelled" if not is_over.is_set() else f"took over {bounds.seconds:g} s"
            raise Unavailable(
                f"the inspection of the sources {reason}: name a part of them"
            ) from None
        except duckdb.OutOfMemoryException:
            raise Unavailable("the sources need more memory than an inspection may use") from None
        except duckdb.Error as error:
            raise InvalidInput(Problem("uri", f"cannot be read: {said(error, LINES)}")) from None


def load(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    source: Source,
    *,
    storage: Storage = LOCAL,
    resolve: Resolve = from_environment,
    as_said: bool = False,
    most: int | None = None,
) -> SideTable:
    """Read a source into a table of this name, or its first rows. Detects the options of a CSV,
    unless `as_said` demands the given ones.
    """
    if is_staged(source):
        return _load_table(connection, name, source, resolve)
    decisions: tuple[Decided, ...] = ()
    if not as_said:
        source, decisions = sniffed(source, storage)
    given = native_files.inspect_files(
        source, storage=storage, bounds=Bounds(seconds=PROFILED.seconds)
    )
    # One more shows whether there are more.
    limit = "" if most is None else f" LIMIT {most + 1}"
    with native_files.problems_at("", "uri"), readable_rows(source, given, storage):
        connection.execute(
            f"CREATE TABLE {name} AS SELECT row_number() OVER () AS rid, *"
            f" FROM (FROM {reader(given)}{limit})"
        )
    (rows,) = _row(connection, f"SELECT count(*) FROM {name}")
    columns = Columns(given.types, source.csv)
    notes, total = (*given.notes, *_unread(given)), None
    if most is not None and rows > most:
        connection.execute(f"DELETE FROM {name} WHERE rid > {most}")
        rows, total = most, inspection.estimate(given, storage)
        notes = (*notes, f"only the first {rows:,} rows were read")
    share = max(1, rows // SAMPLED_ROWS)
    if share > 1:
        connection.execute(
            f"CREATE TABLE {name}_sample AS FROM {name} WHERE hash(rid) % {share} = 0"
        )
    return SideTable(
        name, source, columns, rows, total, decisions, notes, given.format, given.bytes, share
    )


def sniffed(source: Source, storage: Storage) -> tuple[Source, tuple[Decided, ...]]:
    """The source with the options of its CSV files, given or detected in the first of them. Those
    of a workbook are decided again in each file that is read."""
    if source.format not in (None, "csv", "xlsx"):
        return source, ()
    with native_files.problems_at("", "uri"):
        files = storage.files(source.uri)
        kinds = {native_files.kind_of(each.url) for each in files}
        if source.format is None and kinds not in ({"csv"}, {"xlsx"}):
            return source, ()
        first = next(each for each in files if source.format or native_files.kind_of(each.url))
        if "xlsx" in (source.format, *kinds):
            return source, converted_files.of_workbook(first, source.xlsx, storage).decisions
        given = source.csv
        if first.url.lower().partition(".tsv")[1] and "delimiter" not in given.model_fields_set:
            given = given.model_copy(update={"delimiter": "\t"})
        found = csv_sniffing.sniff(first.url, storage, given)
    return source.model_copy(update={"csv": found.csv}), found.decisions


def _load_table(
    connection: duckdb.DuckDBPyConnection, name: str, source: Source, resolve: Resolve
) -> SideTable:
    """The first rows of a database's table."""
    if not source.table:
        raise InvalidInput(Problem("table", "is missing: a database holds many"))
    password = password_of(source.password, resolve)
    table = PostgresConnector(source.uri, source.table, password, seconds=PROFILED.seconds)
    wanted = [each.name for each in table.schema() if each.arrow is not None]
    batches: list[pa.RecordBatch] = []
    count = 0
    for batch in table.read(Slice(0, 1), wanted):
        batches.append(batch.slice(0, MOST_TABLE_ROWS - count))
        count += batches[-1].num_rows
        if count >= MOST_TABLE_ROWS:
            break
    if not batches:
        raise InvalidInput(Problem("table", f"{source.table} has no rows"))
    read = pa.Table.from_batches(batches)
    connection.register(f"{name}_read", read)
    described = connection.execute(f"DESCRIBE {name}_read").fetchall()
    types = {str(row[0]): str(row[1]) for row in described}
    listed = ", ".join(f"{column_values.quote(each)} AS {held(each)}" for each in types)
    connection.execute(
        f"CREATE TABLE {name} AS SELECT row_number() OVER () AS rid, {listed} FROM {name}_read"
    )
    connection.unregister(f"{name}_read")
    total = table.estimate().rows if count >= MOST_TABLE_ROWS else None
    return SideTable(
        name, source, Columns(types, source.csv), count, total, (), (), "postgres", read.nbytes
    )


def _unread(given: Input) -> list[str]:
    return [f"left out: {reason}" for reason in given.unread.values()]


def _row(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    found = connection.execute(sql).fetchone()
    if found is None:
        raise Unavailable("DuckDB answered without a row")
    return tuple(found)
