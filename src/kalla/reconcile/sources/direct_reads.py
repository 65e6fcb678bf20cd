"""Direct reads: a table's slices straight from its connector into the match, with no file between.

All of them see one snapshot, because a row may be read twice: the opener of such an input keeps it
open until the match is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import duckdb
import pyarrow as pa

from kalla.errors import KallaError
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import Recipe, Side
from kalla.reconcile.sources.source_planning import (
    Limits,
    chunks_at_once,
    chunks_wanted,
    columns_to_read,
)
from kalla.reconcile.sql.column_values import quote
from kalla.spark.connectors.connector import Slice, arrow_schema
from kalla.spark.connectors.postgres_connector import PostgresConnector
from kalla.threads import spread

FORMAT = "direct"


@contextmanager
def open_input(
    connector: PostgresConnector, recipe: Recipe, side: Side, limits: Limits
) -> Iterator[Input]:
    """The table as an input, valid while this is open."""
    source = recipe.sources[side]
    with ExitStack() as held:
        if connector.snapshot is None:
            connector = connector.at(held.enter_context(connector.held_snapshot()))
        schema = arrow_schema(connector.schema(), columns_to_read(connector, recipe, side))
        estimate = connector.estimate()
        slices = connector.split(chunks_wanted(source, estimate.rows, limits))
        with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:
            seen = connection.from_arrow(schema.empty_table())
            types = dict(zip(seen.columns, map(str, seen.types), strict=True))
        yield Input(
            FORMAT,
            (),
            types,
            source.csv,
            rows=estimate.rows,
            bytes=estimate.bytes,
            notes=estimate.notes,
            filtered=True,
            marks=(connector.mark(),),
            connector=connector,
            slices=slices,
            table=f"{side}_direct",
            at_once=chunks_at_once(source, limits),
        )


def fetch(
    connection: duckdb.DuckDBPyConnection,
    given: Input,
    threads: int,
    fetched: Callable[[], None] = lambda: None,
) -> None:
    """Read the slices into the table that the input names, several at once; reports each that is
    complete.
    """

    def read(part: Slice) -> None:
        _fetch(connection, given, part)
        fetched()

    columns = ", ".join(f"{quote(name)} {kind}" for name, kind in given.types.items())
    connection.execute(f"CREATE TABLE {quote(given.table)} ({columns})")
    at_once = max(1, min(threads, given.at_once, len(given.slices)))
    for _ in spread(read, given.slices, at_once):
        pass


def drop(connection: duckdb.DuckDBPyConnection, given: Input) -> None:
    """Drops the fetched table, if there is one."""
    if given.table:
        connection.execute(f"DROP TABLE {quote(given.table)}")


def _fetch(connection: duckdb.DuckDBPyConnection, given: Input, part: Slice) -> None:
    if given.connector is None:
        raise TypeError("an input that is read direct has a connector")
    names = list(given.types)
    schema = arrow_schema(given.connector.schema(), names)
    failed: list[KallaError] = []

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from given.connector.read(part, names)  # type: ignore[union-attr]
        except KallaError as error:
            failed.append(error)
            raise

    with connection.cursor() as cursor:
        cursor.register("fetched", pa.RecordBatchReader.from_batches(schema, batches()))
        try:
            cursor.execute(f"INSERT INTO {quote(given.table)} SELECT * FROM fetched")
        except duckdb.Error:
            if failed:  # on its way through DuckDB it has become a text
                raise failed[0] from None
            raise
