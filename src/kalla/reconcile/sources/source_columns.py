"""The columns of a source's files, with the type names that recipe checks use, and a sample of
their rows, read as a run reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import duckdb

from kalla.errors import InvalidInput, Unavailable
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.column_checks import Unread
from kalla.reconcile.recipe.model import DATABASES, Source
from kalla.reconcile.recipe.validation import scheme_of, word_of
from kalla.reconcile.sources import native_files
from kalla.reconcile.sources.formats import converted_files, csv_sniffing
from kalla.reconcile.sources.scanning.duckdb_files import opened, readable
from kalla.reconcile.sources.scanning.scan_sql import scan
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import LOCAL, Storage

SAMPLE_ROWS = 100_000


def columns_of(
    source: Source,
    *,
    storage: Storage = LOCAL,
    bounds: Bounds | None = None,
) -> dict[str, str]:
    """The columns of a source's files with their types. Unavailable where only the API can read it,
    MissingSource where nothing is there, other InvalidInput where a run could not read it either.

    CSV and JSON have no types: their values are text that is read as what it meets. Of JSON every
    line is read, of other files the first rows.
    """
    if scheme_of(source.uri) in (*DATABASES, "source"):
        raise Unavailable(
            f"{source.uri} is inspected by the API only: submit the run, or POST the recipe to"
            " /api/recipes/validate"
        )
    seen = native_files.inspect_files(source, storage=storage, bounds=bounds)
    with native_files.problems_at("", "uri"), read_first(source, seen, storage, bounds):
        words = {name: word_of(type_) for name, type_ in seen.types.items()}
    return words | {name: Unread(reason) for name, reason in seen.unread.items()}


@contextmanager
def read_first(
    source: Source, given: Input, storage: Storage, bounds: Bounds | None
) -> Iterator[None]:
    """Reads the first rows. One of a Parquet file is enough: its footer describes the others."""
    rows = SAMPLE_ROWS if given.format in ("csv", "json") else 1
    with sampled(source, given, "*", storage, bounds, rows):
        yield


@contextmanager
def sampled(
    source: Source,
    given: Input,
    columns: str,
    storage: Storage,
    bounds: Bounds | None,
    rows: int = SAMPLE_ROWS,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """The first rows as a table `sample`, or the reason why a run could not read them either."""
    with opened(storage, bounds) as connection, readable_rows(source, given, storage):
        connection.execute(
            f"CREATE TEMP TABLE sample AS SELECT {columns} FROM {scan(given)} LIMIT {rows}"
        )
        yield connection


@contextmanager
def readable_rows(source: Source, given: Input, storage: Storage) -> Iterator[None]:
    """Turns errors in rows into messages that name the source's own file and line, and the lines
    above its header that `csv.skip` does not leave out.
    """
    try:
        with readable(converted_files.originals(given), given.csv.skip):
            yield
    except InvalidInput as error:
        if given.format != "csv" or "skip" in source.csv.model_fields_set:
            raise
        first = converted_files.originals(given)[0]
        skip = csv_sniffing.sniff(first, storage, source.csv).csv.skip
        hint = (
            f"; the header seems to be in line {skip + 1}: set csv.skip to {skip}" if skip else ""
        )
        raise InvalidInput(
            *(replace(each, message=f"{each.message}{hint}") for each in error.problems)
        ) from None
