"""A DuckDB for inspecting files of sources, with its errors as messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import duckdb

from kalla.errors import InvalidInput, Problem, Unavailable
from kalla.reconcile.sql.duckdb_errors import LINES, names, said
from kalla.reconcile.sql.duckdb_limits import Bounds, bounded
from kalla.storage import Storage


@contextmanager
def opened(storage: Storage, bounds: Bounds | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that reads the storage's files in their order; a run's has no bounds."""
    if bounds is not None:
        with bounded(storage, bounds) as (connection, _):
            connection.execute("SET preserve_insertion_order = true")
            yield connection
        return
    with duckdb.connect(config={"autoload_known_extensions": "false"}) as connection:
        storage.register(connection)
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


@contextmanager
def readable(files: Sequence[str], skipped: int = 0) -> Iterator[None]:
    """Turns DuckDB's errors into messages that name the files, and lines as they count them."""
    try:
        yield
    except duckdb.InterruptException:
        raise Unavailable(
            f"{names(files)} took too long to inspect: name a part of it, or try again later"
        ) from None
    except duckdb.OutOfMemoryException:
        raise Unavailable(
            f"{names(files)} needs more memory than an inspection may use: name a part of it"
        ) from None
    except duckdb.Error as error:
        reason = said(error, LINES, skipped)
        raise InvalidInput(Problem("", f"{names(files)} cannot be read: {reason}")) from None
