"""`match_sql`: the recipe's own SQL, held by the sandbox and run by Spark over both sources.

Its result is pairs of primary keys, written as Parquet; what they make of the rows is `components`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

import duckdb

from kalla.errors import InvalidInput, Permanent, Problem
from kalla.reconcile.matching import values
from kalla.reconcile.matching.values import held, literal, quote
from kalla.reconcile.matching.workbench import Resources, Workbench
from kalla.reconcile.model import SIDES, Recipe, Side
from kalla.reconcile.plan import Plan, SidePlan
from kalla.reconcile.recipes.sql import VIEWS, key_places
from kalla.reconcile.sources.scans import reader
from kalla.spark import functions
from kalla.spark.placing import place
from kalla.spark.session import require_reading

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

# Types that Spark reads from Parquet as DuckDB does; the others are written in ones that it can.
_SHARED = ("VARCHAR", "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE",
           "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "BLOB")  # fmt: skip
_WIDER = {"UTINYINT": "SMALLINT", "USMALLINT": "INTEGER", "UINTEGER": "BIGINT",
          "UBIGINT": "DECIMAL(20, 0)", "HUGEINT": "DECIMAL(38, 0)", "UHUGEINT": "DECIMAL(38, 0)",
          "TIMESTAMP_NS": "TIMESTAMP", "TIMESTAMP_MS": "TIMESTAMP",
          "TIMESTAMP_S": "TIMESTAMP"}  # fmt: skip

_MOST_PAIRS = 50_000_000  # of one task
_TOO_MANY = "KALLA_TOO_MANY_PAIRS"


def find_pairs(
    session: SparkSession,
    recipe: Recipe,
    plan: Plan,
    folder: Path,
    resources: Resources,
) -> str:
    """Run the SQL; its pairs are in the files that the returned pattern names."""
    from pyspark.errors import AnalysisException, PySparkException

    require_reading(session)
    functions.install(session)
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    copied = _copied(session, plan, folder, resources)
    try:
        with _views(session, plan, copied) as names:
            sources = ", ".join(
                f"`{VIEWS[side]}` AS (SELECT * FROM `{names[side]}`)" for side in SIDES
            )
            frame = session.sql(f"WITH {sources} SELECT * FROM ({plan.statement})")
            pairs = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
            chosen = key_places(recipe, frame.columns)
            keys = pairs.selectExpr(*(f"c{at} AS {name}" for name, at in chosen.items()))
            keys.where(_few_enough()).write.parquet(str(folder / "pairs"), mode="overwrite")
    except AnalysisException as error:
        raise InvalidInput(Problem("match_sql", _said(error))) from None
    except PySparkException as error:
        if _TOO_MANY in str(error):
            raise Permanent(
                f"match_sql makes more than {_MOST_PAIRS:,} pairs in one task of Spark: many rows"
                " of both sides share what it joins by; add a condition that tells them apart"
            ) from None
        if said := _of_the_data(error):
            raise Permanent(f"match_sql failed: {said}") from None
        raise
    return str(folder / "pairs" / "*.parquet")


@contextmanager
def _views(
    session: SparkSession, plan: Plan, copied: Mapping[Side, str]
) -> Iterator[Mapping[Side, str]]:
    """A view of each source under a name of this run's own: a session may have several runs."""
    names: dict[Side, str] = {side: f"kalla_{side}_{uuid4().hex}" for side in SIDES}
    try:
        for side in SIDES:
            frame = _frame(session, plan.sides[side], copied.get(side))
            frame.createOrReplaceTempView(names[side])
        yield names
    finally:
        for name in names.values():
            session.catalog.dropTempView(name)


def _frame(session: SparkSession, side: SidePlan, copied: str | None) -> DataFrame:
    given = side.input
    if copied is not None:
        return session.read.parquet(copied)
    frame: Any  # two classes of one name, of which only the session knows which it makes
    if given.connector is not None:
        from kalla.spark import datasource  # here: it brings all of pyspark along

        frame = datasource.read(session, given.connector, given.slices)
    else:
        frame = session.read.option("mergeSchema", "true").parquet(*given.files)
    if side.amount is not None and side.amount.reads is not None:  # a float or a text
        quoted = "`" + side.amount.column.replace("`", "``") + "`"
        exact = f"try_cast(trim(cast({quoted} AS STRING)) AS {values.amount_type()}) AS {quoted}"
        others = ("`" + name.replace("`", "``") + "`" for name in given.types)
        frame = frame.selectExpr(*(exact if name == quoted else name for name in others))
    return cast("DataFrame", frame)


def _copied(
    session: SparkSession, plan: Plan, folder: Path, resources: Resources
) -> Mapping[Side, str]:
    """The sides that Spark does not read as they lie, written as Parquet by the matching's rules.

    So both see the same values: of a CSV, of a JSON, of a filter, of a type that Spark lacks.
    """
    sides = [side for side in SIDES if not _spark_reads(plan.sides[side])]

    def kernel(side: Side) -> str:
        return copy(plan, side, folder / f"{side}.parquet", resources)

    return dict(zip(sides, place(session, kernel, sides), strict=True))


def _spark_reads(side: SidePlan) -> bool:
    given = side.input
    if given.connector is not None:
        return True
    return (
        given.format == "parquet"
        and given.relation is None
        and all(map(_is_plain, given.files))
        and side.filters is None
        and all(kind in _SHARED or kind.startswith("DECIMAL") for kind in given.types.values())
    )


def _is_plain(file: str) -> bool:
    """Whether it is on disk, and its name means itself to Spark, which knows patterns and leaves
    out what begins with a dot or an underscore."""
    name = Path(file).name
    return (
        urlsplit(file).scheme == ""
        and not set(file) & set("*?[]{}\\")
        and not name.startswith((".", "_"))
    )


def copy(plan: Plan, side: Side, path: Path, resources: Resources) -> str:
    """A kernel: every row and column of a side that its filters admit, as one Parquet file."""
    part = plan.sides[side]
    columns = []
    for name, kind in part.input.types.items():
        sql = held(name)
        if part.amount is not None and part.amount.column == name:
            sql = part.amount.sql
        elif kind in _WIDER:
            sql = f"CAST({sql} AS {_WIDER[kind]})"
        elif kind in ("UUID", "JSON", "TIME", "TIME WITH TIME ZONE", "INTERVAL", "BIT") or (
            kind.startswith("ENUM")
        ):
            sql = f"CAST({sql} AS VARCHAR)"
        columns.append(f"{sql} AS {quote(name)}")
    where = f" WHERE {part.filters}" if part.filters else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{uuid4().hex}.part")
    bench = Workbench(plan, resources)
    try:
        bench.run(
            f"COPY (SELECT {', '.join(columns)} FROM {reader(part.input)}{where})"
            f" TO {literal(str(unfinished))} (FORMAT parquet, COMPRESSION zstd)"
        )
        unfinished.rename(path)
    except duckdb.Error as error:
        said = " ".join(line.strip() for line in str(error).splitlines()[:3])
        raise Permanent(f"the {side} source cannot be read: {said}") from None
    finally:
        bench.close()
        unfinished.unlink(missing_ok=True)
    return str(path)


def _few_enough() -> str:
    """Over a row of the result: true, or an error where a task has made too many.

    A hot key would fill the disk otherwise; a limit would send all rows through one task.
    """
    place = "(monotonically_increasing_id() & 8589934591L)"  # in its partition: the lower 33 bits
    return f"{place} < {_MOST_PAIRS} OR raise_error('{_TOO_MANY}') IS NULL"


def _said(error: Exception) -> str:
    """What Spark says first, without its plan and stack."""
    text = str(error).strip()
    return text.splitlines()[0][:500] if text else type(error).__name__


def _of_the_data(error: Exception) -> str | None:
    """What is wrong with values of the sources, if that is the error: it would come again."""
    text = str(error)
    for sign in (
        "CAST_INVALID_INPUT",
        "CAST_OVERFLOW",
        "ARITHMETIC_OVERFLOW",
        "DIVIDE_BY_ZERO",
        "NUMERIC_VALUE_OUT_OF_RANGE",
        "INVALID_ARRAY_INDEX",
        "CANNOT_PARSE_TIMESTAMP",
        "SCALAR_SUBQUERY_TOO_MANY_ROWS",
    ):
        at = text.find(f"[{sign}")
        if at >= 0:
            return text[at:].splitlines()[0][:500]
    return None
