"""`match_sql`: the recipe's own SQL, checked by the sandbox and run by Spark over both sources.

Its result is pairs of primary keys, written as Parquet; `connected_components` turns them into
matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from kalla.errors import InvalidInput, Permanent, Problem
from kalla.reconcile.plan.pieces import Piece
from kalla.reconcile.plan.plan import Input, Plan, SidePlan
from kalla.reconcile.recipe.match_sql_checks import VIEWS, key_places
from kalla.reconcile.recipe.model import SIDES, Recipe, Side
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.sources import direct_reads
from kalla.reconcile.sources.scanning.scan_sql import reader
from kalla.reconcile.sql.column_values import held, literal, quote
from kalla.spark.connectors.stored_parquet import StoredParquet
from kalla.spark.placing import place
from kalla.spark.sandbox import searches
from kalla.spark.session import require_reading
from kalla.storage import Storage, is_s3, join

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

# Types that Spark reads from Parquet as DuckDB does; the others are written in ones that it can.
_SHARED = ("VARCHAR", "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE",
           "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "BLOB")  # fmt: skip
_WIDER = {"UTINYINT": "SMALLINT", "USMALLINT": "INTEGER", "UINTEGER": "BIGINT",
          "UBIGINT": "DECIMAL(20, 0)", "HUGEINT": "DECIMAL(38, 0)", "UHUGEINT": "DECIMAL(38, 0)",
          "TIMESTAMP_NS": "TIMESTAMP", "TIMESTAMP_MS": "TIMESTAMP", "TIMESTAMP_S": "TIMESTAMP",
          "TIMESTAMPTZ_NS": "TIMESTAMP WITH TIME ZONE"}  # fmt: skip
_AS_TEXT = ("UUID", "JSON", "TIME", "TIME_NS", "TIME WITH TIME ZONE", "INTERVAL", "BIT")
_READ_AS = {**_WIDER, **dict.fromkeys(_AS_TEXT, "VARCHAR")}
# By itself or in a list or record; the name of a part is followed by its type.
_LACKING = re.compile(rf'(?<![\w"])({"|".join(_READ_AS)})(?=[,)\[]|$)')

# Classes of SQLSTATE of errors in the SQL or the data: these are permanent.
_LASTING = ("0A", "21", "22", "42", "54")
_PATTERN = re.compile(r"PatternSyntaxException: .{1,200}")
_CONDITION = re.compile(r"\[[A-Z0-9_.]+\].{0,2000}?SQLSTATE: (\w{5})", re.DOTALL)

_MOST_PAIRS = 50_000_000  # of one task
_TOO_MANY = "KALLA_TOO_MANY_PAIRS"


def find_pairs(
    session: SparkSession,
    recipe: Recipe,
    plan: Plan,
    work: str,
    resources: Resources,
) -> list[str]:
    """Run the SQL; its pairs are in the files whose URLs are returned."""
    from pyspark.errors import AnalysisException, PySparkException

    require_reading(session)
    copied = _copied(session, plan, work, resources)
    try:
        with _views(session, plan, copied, resources.storage) as names:
            sources = ", ".join(
                f"`{VIEWS[side]}` AS (SELECT * FROM `{names[side]}`)" for side in SIDES
            )
            statement = searches.bounded(plan.statement or "")
            frame = session.sql(f"WITH {sources} SELECT * FROM ({statement})")
            pairs = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
            chosen = key_places(recipe, frame.columns)
            keys = pairs.selectExpr(*(f"c{at} AS {name}" for name, at in chosen.items()))
            return _written(keys.where(_few_enough()), work, resources.storage)
    except AnalysisException as error:
        raise InvalidInput(Problem("match_sql", _first_line(error))) from None
    except PySparkException as error:
        if _TOO_MANY in str(error):
            raise Permanent(
                f"match_sql makes more than {_MOST_PAIRS:,} pairs in one task of Spark: many rows"
                " of both sides share the join key; add a more selective condition"
            ) from None
        if refusal := searches.refusal(str(error)):
            raise Permanent(refusal) from None
        if lasting := _lasting(error):
            raise Permanent(f"match_sql failed: {lasting}") from None
        raise


def _written(pairs: Any, work: str, storage: Storage) -> list[str]:
    """Each task writes its own pairs; of a task that ran twice only one file is listed."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(pairs.schema)

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        given = iter(batches)
        first = next(given, None)
        if first is None:
            return
        url = join(work, f"pairs-{uuid4().hex}.parquet")
        with storage.writing(url) as path, pq.ParquetWriter(path, first.schema) as file:
            for batch in chain([first], given):
                file.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"url": [url]})

    written = [row["url"] for row in pairs.mapInArrow(write, "url string").collect()]
    if not written:
        written = [join(work, "pairs-none.parquet")]
        with storage.writing(written[0]) as path:
            pq.write_table(schema.empty_table(), path)
    return written


@contextmanager
def _views(
    session: SparkSession, plan: Plan, copied: Mapping[Side, Sequence[str]], storage: Storage
) -> Iterator[Mapping[Side, str]]:
    """A view of each source under a name of this run's own: a session may have several runs."""
    names: dict[Side, str] = {side: f"kalla_{side}_{uuid4().hex}" for side in SIDES}
    try:
        for side in SIDES:
            frame = _frame(session, plan.sides[side], copied[side], storage)
            frame.createOrReplaceTempView(names[side])
        yield names
    finally:
        for name in names.values():
            session.catalog.dropTempView(name)


def _frame(
    session: SparkSession, side: SidePlan, copied: Sequence[str], storage: Storage
) -> DataFrame:
    from kalla.spark import datasource  # here: it imports all of pyspark

    given = side.input
    frame: Any  # two classes of one name, of which only the session knows which it makes
    if given.connector is not None and not copied:
        frame = datasource.read(session, given.connector, given.slices)
    elif copied and is_s3(copied[0]):
        stored = StoredParquet(storage, tuple(copied))
        frame = datasource.read(session, stored, stored.split(len(copied)))
    else:
        frame = session.read.parquet(*(copied or given.files))
    return cast("DataFrame", frame)


def _copied(
    session: SparkSession, plan: Plan, work: str, resources: Resources
) -> Mapping[Side, Sequence[str]]:
    """The sides that Spark cannot read in place, written as Parquet by the matching's rules.

    So both see the same values: of a CSV, of a JSON, of a filter, of a type that Spark lacks, of
    an amount in a text or a float, of files that do not agree on a column's type.
    """
    pieces = [
        Piece(side, part)
        for side in SIDES
        if not _spark_reads(plan.sides[side])
        for part in _parts(plan.sides[side].input)
    ]

    def kernel(task: tuple[int, Piece]) -> str:
        number, piece = task
        # Of a task that runs twice, each attempt has a file of its own.
        url = join(work, f"{piece.side}-{number}-{uuid4().hex[:12]}.parquet")
        return copy(plan, piece, url, resources)

    written = place(session, kernel, list(enumerate(pieces)))
    copied: dict[Side, list[str]] = {side: [] for side in SIDES}
    for piece, path in zip(pieces, written, strict=True):
        copied[piece.side].append(path)
    return copied


def _parts(given: Input) -> list[Input]:
    """A table in as many parts as may be read at once; files in one."""
    if given.connector is None:
        return [given]
    hands = max(1, min(given.at_once, len(given.slices)))
    return [
        replace(given, slices=given.slices[number::hands], at_once=1) for number in range(hands)
    ]


def _spark_reads(side: SidePlan) -> bool:
    given = side.input
    if side.amount is not None and side.amount.reads is not None:  # a float or a text
        return False
    if given.connector is not None:
        return all(_is_shared(_parted(kind)[0]) for kind in given.types.values())
    return (
        given.format == "parquet"
        and given.relation is None
        and not given.unread
        and all(map(_is_plain, given.files))
        and side.filters is None
        and all(map(_is_shared, given.types.values()))
        and _agree([pq.read_schema(file) for file in given.files])
    )


def _is_shared(kind: str) -> bool:
    return kind in _SHARED or kind.startswith("DECIMAL")


def _parted(kind: str) -> tuple[str, str]:
    """The type of what a list holds, if it is one, and the brackets after it."""
    element = kind.rstrip("[]")
    return element, kind[len(element) :]


def _agree(schemas: Sequence[pa.Schema]) -> bool:
    """Whether all have the same columns, of the same types: Spark uses the schema of one file for
    all. It knows no halves of a float, which DuckDB calls floats.
    """
    first = schemas[0]
    return pa.float16() not in first.types and all(each.equals(first) for each in schemas[1:])


def _is_plain(file: str) -> bool:
    """Whether it is on disk, and its name means itself to Spark, which knows patterns and leaves
    out what begins with a dot or an underscore."""
    name = Path(file).name
    return (
        urlsplit(file).scheme == ""
        and not set(file) & set("*?[]{}\\")
        and not name.startswith((".", "_"))
    )


def copy(plan: Plan, piece: Piece, url: str, resources: Resources) -> str:
    """A kernel: every row and column of a piece that its side's filters admit, as one Parquet."""
    side, part = piece.side, replace(plan.sides[piece.side], input=piece.input)
    columns = []
    for name, kind in part.input.types.items():
        sql, (element, brackets) = held(name), _parted(kind)
        read_as = _LACKING.sub(lambda found: _READ_AS[found[0]], kind)
        if part.amount is not None and part.amount.column == name:
            sql = part.amount.sql
        elif element.startswith("ENUM"):
            sql = f"CAST({sql} AS VARCHAR{brackets})"
        elif read_as != kind:
            sql = f"CAST({sql} AS {read_as})"
        columns.append(f"{sql} AS {quote(name)}")
    where = f" WHERE {part.filters}" if part.filters else ""
    session = MatchSession(plan, resources)
    try:
        if part.input.connector is not None:
            direct_reads.fetch(session.connection, part.input, resources.threads)
        with resources.storage.writing(url) as path:
            session.run(
                f"COPY (SELECT {', '.join(columns)} FROM {reader(part.input)}{where})"
                f" TO {literal(str(path))} (FORMAT parquet, COMPRESSION zstd)"
            )
    except duckdb.Error as error:
        message = " ".join(line.strip() for line in str(error).splitlines()[:3])
        raise Permanent(f"the {side} source cannot be read: {message}") from None
    finally:
        session.close()
    return url


def _few_enough() -> str:
    """Over a row of the result: true, or an error where a task has made too many.

    A hot key would fill the disk otherwise; a limit would send all rows through one task.
    """
    place = "(monotonically_increasing_id() & 8589934591L)"  # in its partition: the lower 33 bits
    return f"{place} < {_MOST_PAIRS} OR raise_error('{_TOO_MANY}') IS NULL"


def _first_line(error: Exception) -> str:
    """The first line of Spark's error, without its plan and stack."""
    text = str(error).strip()
    return text.splitlines()[0][:500] if text else type(error).__name__


def _lasting(error: PySparkException) -> str | None:
    """Spark's message, if the error is in the SQL or the data and so permanent."""
    from pyspark.errors import IllegalArgumentException

    state = error.getSqlState() or ""
    condition = _CONDITION.search(str(error))
    if not state.startswith(_LASTING) and not isinstance(error, IllegalArgumentException):
        # Of a task, within what is said of the job.
        if found := _PATTERN.search(str(error)):
            return found[0]
        if condition is None or not condition[1].startswith(_LASTING):
            return None
    return " ".join(condition[0].split())[:500] if condition else _first_line(error)
