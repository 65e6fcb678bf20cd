"""An input as DuckDB reads it: the SQL that names its files, their types and their notation."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kalla.reconcile.matching.values import held, literal, quote
from kalla.reconcile.plan import Input


def reader(given: Input) -> str:
    """The FROM of an input: every file, by the types that were seen, under the names we hold.

    Of some files alone, a column may have another type than of all.
    """
    columns = ", ".join(
        f"CAST({quote(name)} AS {kind}) AS {held(name)}" for name, kind in given.types.items()
    )
    return f"(SELECT {columns} FROM {scan(given)})"


def listed(files: Iterable[str]) -> str:
    """Files as DuckDB takes them: each by its name, not as a pattern."""
    return "[" + ", ".join(literal(re.sub(r"([*?\[])", r"[\1]", file)) for file in files) + "]"


def parquet(files: Iterable[str]) -> str:
    """Parquet files of ours: a folder named `a=b` above them is no column."""
    return f"read_parquet({listed(files)}, union_by_name=true, hive_partitioning=false)"


def scan(given: Input) -> str:
    if given.table:  # read into it already
        return quote(given.table)
    if given.relation is not None:
        return given.relation
    if given.format in ("parquet", "delta"):
        return parquet(given.files)
    files = listed(given.files)
    types = "{" + ", ".join(f"{literal(name)}: 'VARCHAR'" for name in given.types) + "}"
    if given.format == "json":
        lines = "format='newline_delimited', hive_partitioning=false"
        return f"read_json({files}, {lines}, columns={types})"
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
        "columns": types,
        "auto_detect": "false",
        "null_padding": "false",
        "strict_mode": "true",
    }
    said = ", ".join(f"{name}={value}" for name, value in options.items())
    return f"read_csv({files}, {said})"
