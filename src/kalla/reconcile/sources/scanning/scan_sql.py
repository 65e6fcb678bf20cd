"""The SQL by which DuckDB reads an input: its files, their types and their notation."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kalla.reconcile.plan.plan import Input
from kalla.reconcile.sql.column_values import held, literal, quote

_POWER = "-?[0-9.]+[eE][+-]?[0-9]+"


def reader(given: Input) -> str:
    """The FROM of an input: every file, with the inspected types, under internal names.

    A column may have another type in some files than in all.
    """
    called = quote if given.known is None else held
    columns = [
        f"CAST({called(name)} AS {kind}) AS {held(name)}" for name, kind in given.types.items()
    ]
    columns += map(quote, given.known or ())
    return f"(SELECT {', '.join(columns)} FROM {scan(given)})"


def listed(files: Iterable[str]) -> str:
    """Files as DuckDB takes them: each by its name, not as a pattern."""
    return "[" + ", ".join(literal(re.sub(r"([*?\[])", r"[\1]", file)) for file in files) + "]"


def parquet(files: Iterable[str]) -> str:
    """Parquet files that Kalla wrote: a folder named `a=b` above them is not a column."""
    return f"read_parquet({listed(files)}, union_by_name=true, hive_partitioning=false)"


def scan(given: Input) -> str:
    if given.table:  # read into it already
        return quote(given.table)
    if given.relation is not None:
        return given.relation
    if given.format in ("parquet", "delta", "xlsx"):
        return parquet(given.files)
    if given.format == "json":
        return _lines(given, "VARCHAR")
    csv = given.csv
    options = {
        "header": str(csv.header).lower(),
        "delim": literal(csv.delimiter),
        "quote": literal(csv.quote),
        "escape": literal(csv.quote),
        "encoding": literal(csv.encoding),
        "nullstr": literal(csv.null),
        "allow_quoted_nulls": "false",
        "hive_partitioning": "false",
        "columns": _all_as("VARCHAR", given),
        "auto_detect": "false",
        "null_padding": "false",
        "strict_mode": "true",
        "parallel": str(not given.in_one_place).lower(),
    }
    said = ", ".join(f"{name}={value}" for name, value in options.items())
    return f"read_csv({listed(given.files)}, {said})"


def written_out(given: Input) -> str:
    """JSON lines as text in which no number has an exponent, as amounts have none.

    DuckDB writes one where a number is very small or large, whatever the file has, and only as JSON
    can it be distinguished from such a text. This takes longer, so it is done only where needed.
    """
    columns = []
    for name in given.types:
        text = f"CAST({quote(name)} AS VARCHAR)"
        value = (
            f"CASE WHEN starts_with({text}, '\"') THEN {quote(name)} ->> '$'"
            f" WHEN regexp_full_match({text}, '{_POWER}') THEN {_digits(text)} ELSE {text} END"
        )
        columns.append(f"{value} AS {quote(name)}")
    return f"(SELECT {', '.join(columns)} FROM {_lines(given, 'JSON')})"


def _lines(given: Input, type_: str) -> str:
    how = f"format='newline_delimited', hive_partitioning=false, columns={_all_as(type_, given)}"
    return f"read_json({listed(given.files)}, {how})"


def _all_as(type_: str, given: Input) -> str:
    return "{" + ", ".join(f"{literal(name)}: '{type_}'" for name in given.types) + "}"


def _digits(number: str) -> str:
    """A number that is written with a power of ten, without it. One digit stands before its point,
    and so many after it as the power never ends among."""
    sign = f"CASE WHEN starts_with({number}, '-') THEN '-' ELSE '' END"
    digits = f"replace(ltrim(split_part(lower({number}), 'e', 1), '-'), '.', '')"
    power = f"CAST(split_part(lower({number}), 'e', 2) AS INTEGER)"
    return (
        f"concat({sign}, CASE WHEN {power} < 0"
        f" THEN concat('0.', repeat('0', -1 - {power}), {digits})"
        f" ELSE concat({digits}, repeat('0', {power} + 1 - length({digits})), '.0') END)"
    )
