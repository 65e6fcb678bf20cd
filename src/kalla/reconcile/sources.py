"""Where rows come from: files as they lie, or a table that is staged to Parquet first."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import glob
from math import ceil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import duckdb
import pyarrow.parquet as pq
from pydantic import SecretStr

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.model import DATABASES, ENDINGS, SIDES, Native, Recipe, Side, Source
from kalla.reconcile.plan import Input
from kalla.reconcile.workbench import listed, scan
from kalla.spark.connectors.connector import Predicate, Slice, arrow_schema
from kalla.spark.connectors.postgres import PostgresConnector


@dataclass(frozen=True)
class Limits:
    """What a run may use."""

    memory: str = "2GB"
    threads: int = 2
    chunk_threshold_rows: int = 250_000
    max_parallel_chunks: int = 16


@dataclass(frozen=True)
class Chunk:
    """One slice of a table, and the file it goes to."""

    side: Side
    connector: PostgresConnector
    part: Slice
    path: str


def refuse_unbuilt(recipe: Recipe) -> None:
    """What a recipe may say, but no run can do yet."""
    problems = []
    if recipe.match_sql is not None:
        problems.append(Problem("match_sql", "cannot be run yet: write rules instead"))
    for side in SIDES:
        source = recipe.sources[side]
        if is_staged(source) and source.read == "direct":
            problems.append(
                Problem(f"sources.{side}.read", "direct reads cannot be run yet: say staged")
            )
    if problems:
        raise InvalidInput(*problems)


def is_staged(source: Source) -> bool:
    """Whether the source is a database, from which rows are staged."""
    return urlsplit(source.uri).scheme in DATABASES


def look(source: Source, side: Side) -> Input:
    """The files of a native source, with the columns and types that DuckDB sees in them."""
    files = _files(source, side)
    return _seen(source, side, _format(source, side, files[0]), files)


def preview(source: Source, side: Side, time_zone: str) -> Input:
    """What a table would be staged to, without reading a row of it."""
    connector = _connector(source, side, time_zone)
    estimate = connector.estimate()
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "schema.parquet")
        pq.write_table(arrow_schema(connector.schema(), None).empty_table(), file)
        seen = _seen(source, side, "parquet", [file])
    return replace(
        seen,
        filtered=True,
        files=(),
        rows=estimate.rows,
        bytes=estimate.bytes,
        notes=tuple(estimate.notes),
    )


@contextmanager
def connector(source: Source, side: Side, time_zone: str) -> Iterator[PostgresConnector]:
    """The source's table; with `consistency: snapshot` as it is now, while this is held."""
    found = _connector(source, side, time_zone)
    if source.consistency == "snapshot":
        with found.held_snapshot() as snapshot:
            yield found.at(snapshot)
    else:
        yield found


def chunks(
    connector: PostgresConnector, source: Source, side: Side, folder: Path, limits: Limits
) -> tuple[list[Chunk], list[str]]:
    """A table cut into key ranges, each with its file, and what is to be known about the cut."""
    estimate = connector.estimate()
    parts = connector.split(chunks_wanted(source, estimate.rows, limits))
    return [
        Chunk(side, connector, part, str(folder / f"{side}-{number:05}.parquet"))
        for number, part in enumerate(parts)
    ], list(estimate.notes)


def chunks_wanted(source: Source, rows: int, limits: Limits) -> int:
    """Into how many chunks a table of so many rows is cut."""
    wanted = ceil(rows / (source.chunk_threshold_rows or limits.chunk_threshold_rows))
    return max(1, min(source.max_parallel_chunks or limits.max_parallel_chunks, wanted))


def staged(source: Source, side: Side, files: list[str], notes: list[str]) -> Input:
    """What was staged, as the input it now is."""
    return replace(_seen(source, side, "parquet", files, tuple(notes)), filtered=True)


def _connector(source: Source, side: Side, time_zone: str) -> PostgresConnector:
    if not source.table:
        raise InvalidInput(Problem(f"sources.{side}.table", "a database source names its table"))
    return PostgresConnector(
        source.uri,
        source.table,
        _password(source, side),
        source.partition_key,
        tuple(Predicate(each.column, each.op, each.value, time_zone) for each in source.filters),
    )


def _password(source: Source, side: Side) -> SecretStr:
    """From the environment: the variable KALLA_SECRET_ and the secret's name."""
    if source.password is None:
        return SecretStr("")
    name = source.password.removeprefix("secret://")
    variable = "KALLA_SECRET_" + "".join(c if c.isalnum() else "_" for c in name).upper()
    if variable not in os.environ:
        raise InvalidInput(
            Problem(f"sources.{side}.password", f"there is no secret {name!r}: set {variable}")
        )
    return SecretStr(os.environ[variable])


def _files(source: Source, side: Side) -> list[str]:
    field = f"sources.{side}.uri"
    scheme = urlsplit(source.uri).scheme
    if scheme not in ("", "file"):
        raise InvalidInput(Problem(field, f"sources of {scheme}:// cannot be read yet"))
    path = unquote(source.uri.removeprefix("file://")) if scheme else source.uri
    place = Path(path)
    if place.is_dir():
        found = [
            str(each)
            for each in place.rglob("*")
            if each.is_file()
            and each.suffix.lower() in ENDINGS
            and not any(part.startswith((".", "_")) for part in each.relative_to(place).parts)
        ]
    elif place.is_file():
        found = [str(place)]
    else:
        found = [each for each in glob(path, recursive=True) if Path(each).is_file()]  # noqa: PTH207 -- absolute patterns too
    if not found:
        raise InvalidInput(Problem(field, f"{path} does not exist, or holds no file of rows"))
    return sorted(str(Path(each).absolute()) for each in found)


def _format(source: Source, side: Side, file: str) -> Native:
    if source.format in ("csv", "parquet", "json"):
        return source.format
    if source.format is not None:
        raise InvalidInput(Problem(f"sources.{side}.format", f"{source.format} cannot be read yet"))
    suffix = Path(file).suffix.lower()
    if suffix not in ENDINGS:
        raise InvalidInput(
            Problem(f"sources.{side}.format", f"{file} does not say by its name what it is")
        )
    return ENDINGS[suffix]


def _seen(
    source: Source, side: Side, kind: Native, files: list[str], notes: tuple[str, ...] = ()
) -> Input:
    size = sum(Path(file).stat().st_size for file in files)
    given = Input(kind, tuple(files), {}, source.csv, bytes=size, notes=notes)
    if kind == "csv":
        return replace(given, types=dict.fromkeys(_header(source, side, files), "VARCHAR"))
    options = "union_by_name=true, hive_partitioning=false"
    if kind == "json":  # every line, for a column may come late
        options += ", format='newline_delimited', sample_size=-1, maximum_sample_files=-1"
    try:
        with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:
            described = connection.execute(
                f"DESCRIBE FROM read_{kind}({listed(files)}, {options})"
            ).fetchall()
            if kind == "json":  # read as text, for a number in JSON would become a float
                return replace(given, types={str(name): "VARCHAR" for name, *_ in described})
            given = replace(given, types={str(name): str(type_) for name, type_, *_ in described})
            (rows,) = connection.execute(f"SELECT count(*) FROM {scan(given)}").fetchall()
    except duckdb.Error as error:
        said = str(error).strip().splitlines()[0]
        raise InvalidInput(
            Problem(f"sources.{side}.uri", f"{source.uri} cannot be read: {said}")
        ) from None
    return replace(given, rows=int(rows[0]))


def _header(source: Source, side: Side, files: list[str]) -> list[str]:
    """The columns of CSV files, which must be the same in all: read here, never guessed."""
    headers = {file: _first_line(source, side, file) for file in files}
    first = headers[files[0]]
    for file, header in headers.items():
        if header != first:
            raise InvalidInput(
                Problem(f"sources.{side}.uri", f"{file} has other columns than {files[0]}")
            )
    lowered = [name.lower() for name in first]  # DuckDB does not tell them apart
    doubled = sorted({name for name in first if lowered.count(name.lower()) > 1})
    if doubled or "" in first:
        fault = (
            f"has several columns {', '.join(doubled)}" if doubled else "has a column without name"
        )
        raise InvalidInput(Problem(f"sources.{side}.uri", f"{files[0]} {fault}"))
    return first


def _first_line(source: Source, side: Side, file: str) -> list[str]:
    written = source.csv
    encoding = "utf-8-sig" if written.encoding == "utf-8" else written.encoding
    try:
        with Path(file).open(encoding=encoding, newline="") as opened:
            lines = csv.reader(opened, delimiter=written.delimiter, quotechar=written.quote)
            line = next(lines, [])
    except (UnicodeError, csv.Error) as error:
        raise InvalidInput(
            Problem(f"sources.{side}.uri", f"{file} is not {written.encoding}: {error}")
        ) from None
    if not any(line):
        raise InvalidInput(Problem(f"sources.{side}.uri", f"{file} is empty"))
    return line if written.header else [f"column{number}" for number in range(len(line))]
