"""Native sources: which files a source is, their format, and the columns that a run will see.

`kalla recipe check`, the plan and the run share this inspection, so that they cannot differ.
"""

from __future__ import annotations

import csv as csv_lines
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

from kalla.errors import InvalidInput, MissingSource, NotFound, Problem, Unavailable
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import COMPRESSIONS, ENDINGS, Csv, Native, Source
from kalla.reconcile.sources.formats import converted_files, csv_quotes, csv_sniffing, delta_source
from kalla.reconcile.sources.formats.compressed_files import demand_whole, plain
from kalla.reconcile.sources.formats.parquet_schemas import common_schema
from kalla.reconcile.sources.formats.table_shape import numbered
from kalla.reconcile.sources.scanning.column_names import demand_names
from kalla.reconcile.sources.scanning.duckdb_files import opened, readable
from kalla.reconcile.sources.scanning.scan_sql import listed, scan, written_out
from kalla.reconcile.sql.duckdb_errors import names
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import LOCAL, Storage
from kalla.storage.files import File, each_once

_LONGEST_HEADER = 2_000_000  # characters; DuckDB reads no longer line either
_BYTE_ORDER_MARK, _SWAPPED_MARK = "\ufeff", "\ufffe"
# A number with a point or an exponent becomes a float, which keeps 15 digits; DuckDB writes it with
# an exponent where it has more, or four zeros after its point.
_IN_DOUBT = "[0-9.]{16,}|[0-9][eE]|0[.]0000"
_TEXT = r'"(?:[^"\\]|\\.)*"'
_NO_INTEGER = r"[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)"


def inspect_files(
    source: Source,
    where: str = "",
    storage: Storage = LOCAL,
    lines: int | None = None,
    bounds: Bounds | None = None,
) -> Input:
    """The files of a source with their columns and types; problems are reported below `where`.

    Of JSON every line is read, unless `lines` limits them.
    """
    with problems_at(where, "uri"):
        storage.filesystem(source.uri)  # or says why there is none
        if source.format in (None, "delta", "parquet") and delta_source.is_table(
            source.uri, storage
        ):
            if source.format == "parquet":
                raise _wrong(
                    f"{source.uri} is a Delta table: its folder also holds files that "
                    "are not part of it; set format: delta"
                )
            return delta_source.inspect_table(source.uri, storage, bounds)
        if source.format == "delta":
            raise _wrong(f"{source.uri} holds no Delta table (no _delta_log)")
        found = storage.files(source.uri)
        kind, files, left_out = _chosen(source, found)
        files, again = each_once(files)
        if kind == "parquet" and found[0].url != storage.plain(source.uri):
            delta_source.refuse_files_of_tables(files, storage)
        if bounds is None:
            files = storage.tagged(files)
        csv = _dialect(source.csv, files)
        if kind == "xlsx" or (kind == "csv" and converted_files.is_needed(csv)):
            return _without_folders(_converted(kind, files, source, csv, storage, bounds))
        given = file_input(kind, files, csv, storage, _left_out(left_out, again), lines, bounds)
        return _without_folders(given)


def file_input(
    kind: Native,
    files: Sequence[File],
    csv: Csv = Csv(),  # noqa: B008 -- frozen
    storage: Storage = LOCAL,
    notes: tuple[str, ...] = (),
    lines: int | None = None,
    bounds: Bounds | None = None,
) -> Input:
    """These files as an input; in a run, without bounds, compressed files are checked to be
    complete.
    """
    given = Input(
        kind,
        tuple(each.url for each in files),
        {},
        csv,
        bytes=sum(each.size for each in files),
        notes=notes,
        marks=tuple(each.mark for each in files),
    )
    if kind == "parquet":
        return _of_parquet(given, storage, bounds)
    if kind == "csv":
        return _of_csv(given, storage, bounds)
    if bounds is None:
        demand_whole(given.files, storage)
    return _of_json(given, storage, lines, bounds)


def _converted(
    kind: Native,
    files: Sequence[File],
    source: Source,
    csv: Csv,
    storage: Storage,
    bounds: Bounds | None,
) -> Input:
    """Files that are read from copies: with the marks of the files themselves."""
    if kind == "xlsx":
        copies = [converted_files.of_workbook(each, source.xlsx, storage) for each in files]
    else:
        seconds = None if bounds is None else bounds.seconds
        copies = [converted_files.of_csv(each, csv, storage, seconds) for each in files]
    notes = tuple(note for each in copies for note in each.notes)
    copied = [LOCAL.info(each.path) for each in copies]
    read_as: Native = "parquet" if kind == "xlsx" else kind
    given = file_input(
        read_as, copied, converted_files.plain_dialect(csv), LOCAL, notes, bounds=bounds
    )
    size = sum(each.size for each in files)
    return replace(given, format=kind, marks=tuple(each.mark for each in files), bytes=size)


def demand_unchanged(given: Input, storage: Storage = LOCAL) -> None:
    """Checks that every file is as it was when it was inspected; otherwise the read rows are
    undefined.
    """
    marks = {str(mark["file"]): mark for mark in given.marks if "file" in mark}
    are_tagged = any("etag" in mark for mark in marks.values())
    for file, now in storage.now(list(marks), with_tags=are_tagged).items():
        if given.format == "delta":  # the log tells the time of a file, which never changes
            is_same = now is not None and now.size == marks[file]["bytes"]
        else:
            is_same = now is not None and now.mark == marks[file]
        if not is_same:
            raise Unavailable(f"{file} has changed while it was read: start again")


def kind_of(name: str) -> Native | None:
    """The format by a file's name: rows.csv, rows.csv.gz."""
    name = name.lower()
    for ending in COMPRESSIONS:
        name = name.removesuffix(ending)
    return next((kind for ending, kind in ENDINGS.items() if name.endswith(ending)), None)


def _chosen(source: Source, found: Sequence[File]) -> tuple[Native, list[File], list[File]]:
    """The format, the files of that format, and those that are left out."""
    kinds = {each: kind_of(each.url) for each in found}
    known = sorted({kind for kind in kinds.values() if kind is not None})
    if source.format is None:
        if not known:
            raise _wrong(
                f"Cannot tell the format of {names([each.url for each in found])}."
                " Supported: CSV, Parquet, JSON, XLSX, Delta. Set format"
            )
        if len(known) > 1:
            examples = [next(each.url for each in found if kinds[each] == kind) for kind in known]
            raise _wrong(
                f"{source.uri} holds files of several formats ({', '.join(examples)}): "
                "set format, or name the files by a pattern"
            )
    elif source.format not in ("csv", "parquet", "json", "xlsx"):
        raise _wrong(f"files of the format {source.format} cannot be read")
    kind: Native = known[0] if source.format is None else source.format
    if kind in known:
        files = [each for each in found if kinds[each] == kind]
    else:  # names that say nothing, or one that says another thing
        files = [each for each in found if kinds[each] is None] or list(found)
    chosen = set(files)
    return kind, files, [each for each in found if each not in chosen]


def _left_out(others: Sequence[File], again: Sequence[File]) -> tuple[str, ...]:
    reasons = {
        "their names tell of another kind": others,
        "they are other names of files that are read": again,
    }
    return tuple(
        f"left out, for {reason}: {names([each.url.rpartition('/')[2] for each in files])}"
        for reason, files in reasons.items()
        if files
    )


def _without_folders(given: Input) -> Input:
    """Notes for each column that exists only in folder names, as `day=2026-01-31/`, that it is not
    read; if all files have the same value, the recipe can name it.
    """
    values_of: dict[str, set[str]] = {}
    for file in given.files:
        for name, sign, value in (part.partition("=") for part in file.split("/")[:-1]):
            if sign:
                values_of.setdefault(name, set()).add(value)
    unread = {
        name: f"{name} is only in the names of folders ({name}=…), not in the files"
        for name, values in values_of.items()
        if len(values) > 1 and name not in given.types
    }
    notes = (f"left out: {reason}" for reason in unread.values())
    return replace(given, unread={**unread, **given.unread}, notes=(*given.notes, *notes))


def _dialect(csv: Csv, files: Sequence[File]) -> Csv:
    """A .tsv is separated by tabs unless the recipe says otherwise."""
    if "delimiter" in csv.model_fields_set or not re.search(
        r"\.tsv(\.\w+)?$", files[0].url.lower()
    ):
        return csv
    return csv.model_copy(update={"delimiter": "\t"})


def _of_csv(given: Input, storage: Storage, bounds: Bounds | None) -> Input:
    types = dict.fromkeys(_header(given.csv, given.files, storage), "VARCHAR")
    quoted = bounds is None and csv_quotes.are_there(given.csv, given.files, storage)
    return replace(given, types=types, in_one_place=quoted)


def _of_parquet(given: Input, storage: Storage, bounds: Bounds | None) -> Input:
    with opened(storage, bounds) as connection, readable(given.files):
        # reading each footer once is enough
        connection.execute("SET parquet_metadata_cache = true")
        schema = common_schema(connection, given.files)
        left_out = [f"left out: {reason}" for reason in schema.unread.values()]
        notes = (*given.notes, *left_out)
        given = replace(given, types=schema.types, unread=schema.unread, notes=notes)
        ((rows,),) = connection.execute(f"SELECT count(*) FROM {scan(given)}").fetchall()
    return replace(given, rows=int(rows))


def _of_json(given: Input, storage: Storage, lines: int | None, bounds: Bounds | None) -> Input:
    """The names in all lines, for a column may come late, in the order that they have there.

    DuckDB would guess them from samples, and rename those that differ by case alone. All are read
    as text, for a number would become a float.
    """
    numbers = f"regexp_extract_all(regexp_replace(json, '{_TEXT}', '', 'g'), '{_NO_INTEGER}')"
    kept = "CAST(TRY_CAST(each AS DOUBLE) AS VARCHAR)"
    differs = f"CASE WHEN each <> {kept} THEN {_exact('each')} <> {_exact(kept)} END"
    powers = f"list_bool_or([contains({kept}, 'e') FOR each IN {numbers}])"
    rows = f"(SELECT json FROM read_ndjson_objects({listed(given.files)})"
    rows += ")" if lines is None else f" LIMIT {lines})"
    with opened(storage, bounds) as connection, readable(given.files):
        found = connection.execute(
            f"""
            SELECT name, min(place), bool_or(doubt[1]), bool_or(doubt[2])
            FROM (SELECT unnest(names) AS name, generate_subscripts(names, 1) AS place, doubt
                  FROM (SELECT CASE json_type(json) WHEN 'OBJECT' THEN json_keys(json)
                                    ELSE [NULL] END AS names,
                               CASE WHEN regexp_matches(json, '{_IN_DOUBT}')
                                    THEN [list_bool_or([{differs} FOR each IN {numbers}]), {powers}]
                                    END AS doubt
                        FROM {rows}))
            GROUP BY name ORDER BY 2, 1
            """
        ).fetchall()
    fields = [name for name, *_ in found]
    whose = names(given.files)
    if not fields:
        raise _wrong(f"{whose} has no rows, and so no columns")
    if None in fields:
        raise _wrong(f"{whose} is not JSON lines: each line is one object")
    if any(rounded for _, _, rounded, _ in found):
        raise _wrong(
            f"{whose} has numbers that a reader of JSON would round: write them as text, in quotes"
        )
    demand_names(fields, whose)
    given = replace(given, types=dict.fromkeys(fields, "VARCHAR"))
    has_powers = any(powers for *_, powers in found)
    return replace(given, relation=written_out(given)) if has_powers else given


def _exact(number: str) -> str:
    """The same text for the same number, however it is written: its digits, and where they end."""
    mantissa, power = (f"split_part(lower({number}), 'e', {part})" for part in (1, 2))
    digits = f"ltrim(replace({mantissa}, '.', ''), '0')"
    places = f"length(split_part({mantissa}, '.', 2))"
    zeros = f"length({digits}) - length(rtrim({digits}, '0'))"
    end = f"coalesce(TRY_CAST({power} AS HUGEINT), 0) - {places} + {zeros}"
    return f"CASE WHEN {digits} = '' THEN '0' ELSE rtrim({digits}, '0') || 'e' || ({end}) END"


def _header(csv: Csv, files: Sequence[str], storage: Storage) -> list[str]:
    """The columns of CSV files, which must be the same in all: read here, never guessed."""
    first = _first_line(csv, files[0], storage)
    for file in files[1:]:
        if _first_line(csv, file, storage) != first:
            raise _wrong(f"{file} has other columns than {files[0]}")
    demand_names(first, files[0])
    return first


def _first_line(csv: Csv, file: str, storage: Storage) -> list[str]:
    with storage.open(file) as raw:
        try:
            encoding = "utf-16-le" if csv.encoding == "utf-16" else csv.encoding
            text = io.TextIOWrapper(plain(raw, file), encoding=encoding, newline="")
            head = text.readline(_LONGEST_HEADER).removeprefix(_BYTE_ORDER_MARK)
            others = iter(lambda: text.readline(_LONGEST_HEADER), "")
            lines = csv_lines.reader(
                chain([head], others, _beyond()), delimiter=csv.delimiter, quotechar=csv.quote
            )
            line = next(lines)
        except UnicodeError:
            raise _wrong(csv_sniffing.not_in_encoding(file, csv, storage)) from None
        except (csv_lines.Error, OSError) as error:
            raise _wrong(f"{file} cannot be read as CSV: {error}") from None
    if not head:
        raise _wrong(f"{file} is empty")
    if not any(line):
        raise _wrong(f"{file} begins with an empty line")
    if csv.encoding == "utf-16" and head.startswith(_SWAPPED_MARK):  # DuckDB would see no row
        raise _wrong(f"{file} is big-endian UTF-16, which is not read: convert it to UTF-8")
    if csv.header and "\0" in head:
        raise _wrong(
            f"{file} has null bytes in its first line: it is damaged, or is not {csv.encoding}"
        )
    return numbered(line) if csv.header else [f"column{number}" for number in range(len(line))]


def _beyond() -> Iterator[str]:
    """A header that needs a line after the last has an open quote: DuckDB would see no row."""
    yield from ()
    raise csv_lines.Error("a quote in its first line is never closed")


def _wrong(message: str) -> InvalidInput:
    """A problem whose field the caller adds."""
    return InvalidInput(Problem("", message))


@contextmanager
def problems_at(where: str, field: str) -> Iterator[None]:
    """Assigns problems without a place, and sources that are not found, to this field."""
    prefix = f"{where}." if where else ""
    try:
        yield
    except NotFound as error:
        raise MissingSource(Problem(f"{prefix}{field}", str(error))) from None
    except InvalidInput as error:
        raise InvalidInput(
            *(replace(each, field=each.field or f"{prefix}{field}") for each in error.problems)
        ) from None
