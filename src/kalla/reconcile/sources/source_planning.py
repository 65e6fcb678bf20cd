"""Plans how sources are read: files in place, or a table that is staged to Parquet first."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import SecretStr

from kalla.errors import InvalidInput, NotFound, Problem
from kalla.reconcile.plan import recipe_columns
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import DATABASES, Recipe, Side, Source
from kalla.reconcile.sources import native_files
from kalla.reconcile.sources.scanning.column_names import demand_names
from kalla.secrets import variable_of
from kalla.settings import Settings
from kalla.spark.connectors.connector import Predicate, Slice, arrow_schema
from kalla.spark.connectors.postgres_connector import MOST_SLICES, PostgresConnector
from kalla.spark.connectors.postgres_snapshot import Mark
from kalla.storage import LOCAL, Storage, join
from kalla.storage.files import File

Resolve: TypeAlias = Callable[[str], SecretStr]
"""From a secret's name to its value; raises if there is none."""


@dataclass(frozen=True)
class Limits:
    """The limits of a run."""

    memory: str = "2GB"
    threads: int = 2
    chunk_threshold_rows: int = 1_000_000
    max_parallel_chunks: int = 16
    buckets: int | None = None  # that a match is spread over; None: by the data and the cluster
    storage: Storage = LOCAL  # where native sources may lie

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        return cls(
            settings.matching.memory,
            settings.matching.threads,
            settings.staging.chunk_threshold_rows,
            settings.staging.max_parallel_chunks,
            settings.matching.buckets or None,
            Storage.of(settings.storage),
        )


@dataclass(frozen=True)
class Chunk:
    """One slice of a table, and the file it goes to."""

    side: Side
    connector: PostgresConnector
    part: Slice
    url: str
    columns: tuple[str, ...] | None = None  # None: all that can be read


def is_staged(source: Source) -> bool:
    """Whether the source is a database, from which rows are staged."""
    return source.uri.partition("://")[0].lower() in DATABASES


def inspect_files(source: Source, side: Side, *, storage: Storage = LOCAL) -> Input:
    """The files of a native source, with their columns and types."""
    return native_files.inspect_files(source, f"sources.{side}", storage)


def preview(recipe: Recipe, side: Side, *, resolve: Resolve | None = None) -> Input:
    """The input that a table would become, without reading its rows."""
    source, zone = recipe.sources[side], recipe.time_zone
    with connector(source, side, zone, resolve=resolve, at_one_moment=True) as table:
        estimate = table.estimate()
        schema = arrow_schema(table.schema(), columns_to_read(table, recipe, side))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "schema.parquet"
        pq.write_table(schema.empty_table(), file)
        seen = native_files.file_input("parquet", [File(str(file), 0)])
    return replace(
        seen,
        filtered=True,
        files=(),
        marks=(),
        rows=estimate.rows,
        bytes=estimate.bytes,
        notes=tuple(estimate.notes),
    )


@contextmanager
def connector(
    source: Source,
    side: Side,
    time_zone: str,
    *,
    resolve: Resolve | None = None,
    at_one_moment: bool = False,
) -> Iterator[PostgresConnector]:
    """A connector to the source's table; with `consistency: snapshot` as it is now, while this is
    open.

    So too `at_one_moment`, for a caller that reads all rows before closing it: then it is free, and
    rows are read in place. It is not requested by the recipe, so a source may refuse it.
    """
    found = _connector(source, side, time_zone, resolve)
    with ExitStack() as held:
        if source.consistency == "snapshot":
            found = found.at(held.enter_context(found.held_snapshot()))
        elif at_one_moment:
            with suppress(InvalidInput):
                found = found.at(held.enter_context(found.held_snapshot()))
        yield found


def chunks(
    connector: PostgresConnector, recipe: Recipe, side: Side, place: str, limits: Limits
) -> tuple[list[Chunk], list[str]]:
    """A table split into ranges, each with its file, and notes about the split."""
    source = recipe.sources[side]
    estimate = connector.estimate()
    parts = connector.split(chunks_wanted(source, estimate.rows, limits))
    columns = columns_to_read(connector, recipe, side)
    return [
        Chunk(side, connector, part, join(place, f"{side}-{number:05}.parquet"), columns)
        for number, part in enumerate(parts)
    ], list(estimate.notes)


def chunks_wanted(source: Source, rows: int, limits: Limits) -> int:
    """Into how many chunks a table of so many rows is cut."""
    wanted = ceil(rows / (source.chunk_threshold_rows or limits.chunk_threshold_rows))
    return max(1, min(MOST_SLICES, wanted))


def chunks_at_once(source: Source, limits: Limits) -> int:
    """How many chunks of a source may be read at the same time."""
    return source.max_parallel_chunks or limits.max_parallel_chunks


def columns_to_read(
    connector: PostgresConnector, recipe: Recipe, side: Side
) -> tuple[str, ...] | None:
    """The columns that the recipe names; None: all that can be read.

    Rows that share a key are numbered in the order of all their columns: other columns are left out
    only if the database guarantees unique keys.
    """
    wanted = recipe_columns.needed(recipe, side)
    known = {column.name: column for column in connector.schema()}
    with native_files.problems_at(f"sources.{side}", "table"):
        demand_names(list(known), connector.table)
    # a missing column is reported with all existing ones
    if wanted is None or not set(wanted) <= set(known):
        return None
    # reports which of these cannot be read
    arrow_schema(tuple(known.values()), sorted(set(wanted)))
    key = recipe.sources[side].primary_key
    # A key is written with its parts joined: two texts that hold the joint could look like others.
    texts = [name for name in key if known[name].arrow in (None, pa.string())]
    if len(key) > 1 and len(texts) > 1:
        return None
    return tuple(name for name in known if name in wanted) if connector.tells_apart(key) else None


def marked(begun: Mark, ends: Sequence[str]) -> Mark:
    """The mark of a table when all of it was read; without one snapshot, it has the end time."""
    return {**begun, "read_to": max(ends)} if ends else begun


def staged(
    source: Source,
    side: Side,
    files: list[str],
    notes: list[str],
    marks: Sequence[Mark],
    *,
    storage: Storage = LOCAL,
) -> Input:
    """The staged files as an input, with the marks of the table, not of the files."""
    with native_files.problems_at(f"sources.{side}", "uri"):
        found = [storage.info(file) for file in files]
        seen = native_files.file_input("parquet", found, source.csv, storage, tuple(notes))
    return replace(seen, filtered=True, marks=tuple(marks))


def from_environment(name: str) -> SecretStr:
    """A secret from the variable KALLA_SECRET_ and its name: works without a store."""
    variable = variable_of(name)
    if variable not in os.environ:
        raise NotFound(f"there is no secret {name!r}: set {variable}")
    return SecretStr(os.environ[variable])


def _connector(
    source: Source, side: Side, time_zone: str, resolve: Resolve | None
) -> PostgresConnector:
    if not source.table:
        raise InvalidInput(Problem(f"sources.{side}.table", "a database source names its table"))
    with native_files.problems_at(f"sources.{side}", "password"):
        password = password_of(source.password, resolve or from_environment)
    return PostgresConnector(
        source.uri,
        source.table,
        password,
        source.partition_key,
        tuple(Predicate(each.column, each.op, each.value, time_zone) for each in source.filters),
    )


def password_of(given: str | None, resolve: Resolve) -> SecretStr:
    """The password of `secret://name`; None if the source has none."""
    return SecretStr("") if given is None else resolve(given.removeprefix("secret://"))
