"""Who runs in bench/reconcile.py: Kalla in its ways, and its peers at their best, each kept warm.

A peer that needs no server has a process of its own, so that its memory is nobody else's.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from urllib.parse import urlsplit

import duckdb
import psycopg

from bench import reconcile_data, reconcile_demo
from bench.reconcile_data import DAYS, SLACK, Pair
from kalla.errors import InvalidInput
from kalla.reconcile.recipe.model import Recipe
from kalla.reconcile.sources.source_planning import Limits

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

THREADS = 2
MEMORY = "2GB"
_IDLE_SECONDS = 55


@dataclass(frozen=True)
class Seen:
    """One repetition: seconds, those of its parts, CPU seconds and MiB where they are known."""

    seconds: float
    parts: dict[str, float] = field(default_factory=dict)
    cpu: float | None = None
    peak: int | None = None


class Skipped(Exception):
    """A contender cannot run here; it says why."""


class Contender(ABC):
    name: str
    most_rows = 100_000_000
    process: int | None = None  # of its own, that nobody else uses

    @abstractmethod
    def run(self, pair: Pair, folder: Path) -> Seen:
        """The whole job, from sources to files in the folder."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what it opened itself."""


class OnSpark(Contender):
    """Uses a session that others use too."""

    def close(self) -> None:
        """Nothing of its own."""


class Apart(Contender):
    """Runs a function in a process of its own."""

    def __init__(self, name: str, work: Callable[[Pair, Path, str], Seen], key: str) -> None:
        self.name = name
        self._work, self._key = work, key
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))

    def run(self, pair: Pair, folder: Path) -> Seen:
        self.process = self._pool.submit(os.getpid).result()
        return self._pool.submit(_measured, self._work, pair, folder, self._key).result()

    def close(self) -> None:
        self._pool.shutdown()


def _measured(work: Callable[[Pair, Path, str], Seen], pair: Pair, folder: Path, key: str) -> Seen:
    before, began = time.process_time(), time.monotonic()
    seen = work(pair, folder, key)
    seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Seen(seconds, seen.parts, time.process_time() - before, peak)


def with_duckdb(pair: Pair, folder: Path, key: str) -> Seen:
    """The match and both unmatched sets by hand: one full join, three files."""
    config: dict[str, Any] = {
        "threads": THREADS,
        "memory_limit": MEMORY,
        "preserve_insertion_order": False,
        "temp_directory": str(folder / "temp"),
    }
    with duckdb.connect(config=config) as database:
        database.execute("SET enable_progress_bar = false")
        if key == "demo":
            database.execute(reconcile_demo.rules_by_hand(pair, folder))
            return Seen(0.0)
        names = {"number": ("id", "invoice"), "text": ("reference", "reference")}[key]
        database.execute(
            "CREATE TEMP TABLE joined AS SELECT l.id AS left_id, r.id AS right_id,"
            " l.amount AS left_amount, r.amount AS right_amount, l.due_on, r.paid_on"
            f" FROM '{pair.left}' l FULL JOIN '{pair.right}' r ON l.{names[0]} = r.{names[1]}"
            f" AND abs(r.amount - l.amount) <= {SLACK} AND abs(r.paid_on - l.due_on) <= {DAYS}"
        )
        for name, which in (
            ("matched", "left_id IS NOT NULL AND right_id IS NOT NULL"),
            ("unmatched_left", "right_id IS NULL"),
            ("unmatched_right", "left_id IS NULL"),
        ):
            database.execute(
                f"COPY (SELECT * FROM joined WHERE {which}) TO '{folder / name}.parquet'"
                " (FORMAT parquet)"
            )
    return Seen(0.0)


def with_kernel(pair: Pair, folder: Path, key: str) -> Seen:
    """Kalla's own match without Spark, which names the seconds of its stages."""
    from kalla.reconcile import kernel
    from kalla.reconcile.plan import plan
    from kalla.reconcile.recipe.model import SIDES
    from kalla.reconcile.session.duckdb_engine import Resources
    from kalla.reconcile.sources import source_planning

    recipe = recipe_of(pair, key)
    inputs = {side: source_planning.inspect_files(recipe.sources[side], side) for side in SIDES}
    resources = Resources(MEMORY, THREADS, folder / "temp")
    made = plan.make(recipe, inputs)
    facts = kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")
    return Seen(0.0, facts.seconds)


def with_profile(pair: Pair, folder: Path, key: str) -> Seen:
    """The same, with the seconds of each statement."""
    from kalla.reconcile.session.match_session import MatchSession

    statements: dict[str, float] = {}

    def timed(method: Callable[[MatchSession, str], Any]) -> Callable[[MatchSession, str], Any]:
        def run(bench: MatchSession, sql: str) -> Any:
            began = time.monotonic()
            try:
                return method(bench, sql)
            finally:
                text = " ".join(sql.split())[:300]
                statements[text] = statements.get(text, 0.0) + time.monotonic() - began

        return run

    with ExitStack() as stack:
        for name in ("run", "rows", "columns"):
            method = timed(getattr(MatchSession, name))
            stack.enter_context(patch.object(MatchSession, name, method))
        stages = with_kernel(pair, folder, key).parts
    return Seen(0.0, {f"stage {name}": taken for name, taken in stages.items()} | statements)


def with_polars(pair: Pair, folder: Path, key: str) -> Seen:
    """datacompy on Polars, given the columns it needs alone."""
    import polars
    from datacompy import PolarsCompare

    names = {"number": ("id", "invoice"), "text": ("reference", "reference")}[key]
    sides = [
        polars.read_parquet(path, columns=[name, "amount"]).select(
            polars.col(name).alias("key"), polars.col("amount").cast(polars.Float64)
        )
        for path, name in zip((pair.left, pair.right), names, strict=True)
    ]
    # A cent as a float is a little more than the difference of two amounts a cent apart.
    compared = PolarsCompare(sides[0], sides[1], join_columns="key", abs_tol=float(SLACK) + 1e-6)
    compared.intersect_rows.write_parquet(folder / "matched.parquet")
    compared.df1_unq_rows.write_parquet(folder / "unmatched_left.parquet")
    compared.df2_unq_rows.write_parquet(folder / "unmatched_right.parquet")
    return Seen(0.0)


def recipe_of(pair: Pair, key: str) -> Recipe:
    left, right = {"uri": str(pair.left)}, {"uri": str(pair.right)}
    if key == "demo":
        return Recipe.model_validate(reconcile_demo.recipe(left, right))
    return Recipe.model_validate(reconcile_data.recipe(left, right, key))


class Kalla(OnSpark):
    """The whole job through a Spark that is there already."""

    def __init__(self, session: SparkSession, key: str, buckets: int | None = None) -> None:
        self._session, self._key, self._buckets = session, key, buckets
        self.name = f"kalla in {buckets} buckets" if buckets else "kalla from Parquet"
        self._ended = -math.inf

    def recipe(self, pair: Pair) -> Recipe:
        return recipe_of(pair, self._key)

    def run(self, pair: Pair, folder: Path) -> Seen:
        # Spark ends Python workers that are idle for a minute, as they are while peers on Spark
        # run. Those peers' own processes stay: so that all are warm, new workers run once before.
        if time.monotonic() - self._ended > _IDLE_SECONDS:
            self._carry_out(pair, folder / "before")
            shutil.rmtree(folder / "before")
            os.sync()
        try:
            return self._carry_out(pair, folder)
        finally:
            self._ended = time.monotonic()

    def _carry_out(self, pair: Pair, folder: Path) -> Seen:
        from kalla.reconcile.runs.execute import execute_recipe

        recipe = self.recipe(pair)
        limits = Limits(memory=MEMORY, threads=THREADS, buckets=self._buckets)
        began = time.monotonic()
        try:
            done = execute_recipe(self._session, recipe, folder, limits, lambda *_: None)
        except InvalidInput as error:
            raise Skipped(str(error)) from error
        return Seen(time.monotonic() - began, done.facts.seconds)


class KallaFromPostgres(Kalla):
    """Both sides are tables."""

    def __init__(self, session: SparkSession, key: str, url: str, read: str) -> None:
        super().__init__(session, key)
        self.name = self.name_of(read)
        self._url, self._read = url, read

    @staticmethod
    def name_of(read: str) -> str:
        return f"kalla {read} from Postgres"

    def recipe(self, pair: Pair) -> Recipe:
        parts = urlsplit(self._url)
        source: dict[str, Any] = {
            "uri": f"postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}",
            "read": self._read,
        }
        if parts.password:
            os.environ["KALLA_SECRET_BENCH"] = parts.password
            source["password"] = "secret://bench"  # noqa: S105 -- a name, not a password
        invoices, payments = (f"public.{name}_{pair.rows}" for name in ("invoices", "payments"))
        return Recipe.model_validate(
            reconcile_data.recipe(
                source | {"table": invoices}, source | {"table": payments}, self._key
            )
        )


def fill_postgres(url: str, pair: Pair) -> None:
    """Both sides as tables with primary keys, as DuckDB writes them out."""
    columns = {
        "invoices": "id bigint PRIMARY KEY, reference text, amount numeric(18, 2), due_on date,"
        " customer text",
        "payments": "id bigint PRIMARY KEY, invoice bigint, reference text, amount numeric(18, 2),"
        " paid_on date, memo text",
    }
    with psycopg.connect(url, autocommit=True) as connection:
        for path, name in ((pair.left, "invoices"), (pair.right, "payments")):
            table = f"{name}_{pair.rows}"
            connection.execute(f"CREATE TABLE {table} ({columns[name]})".encode())
            text = path.with_suffix(".csv")
            with duckdb.connect() as database:
                database.execute(f"COPY (FROM '{path}') TO '{text}' (HEADER false)")
            with (
                text.open("rb") as file,
                connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT csv)".encode()) as copy,
            ):
                while block := file.read(1 << 20):
                    copy.write(block)
            text.unlink()
            connection.execute(f"VACUUM (ANALYZE) {table}".encode())


class SparkSql(OnSpark):
    """Spark's own shuffled hash join: one full outer join, three files."""

    name = "Spark SQL"

    def __init__(self, session: SparkSession, key: str, process: int | None) -> None:
        self._session, self.process = session, process
        self._names = {"number": ("id", "invoice"), "text": ("reference", "reference")}[key]

    def run(self, pair: Pair, folder: Path) -> Seen:
        left, right = self._names
        began = time.monotonic()
        for side, path in (("l", pair.left), ("r", pair.right)):
            self._session.read.parquet(str(path)).createOrReplaceTempView(f"peer_{side}")
        joined = self._session.sql(
            "SELECT /*+ SHUFFLE_HASH(l) */ l.id AS left_id, r.id AS right_id,"
            " l.amount AS left_amount, r.amount AS right_amount, l.due_on, r.paid_on,"
            " CASE WHEN r.id IS NULL THEN 'unmatched_left' WHEN l.id IS NULL THEN"
            " 'unmatched_right' ELSE 'matched' END AS part"
            " FROM peer_l l FULL JOIN peer_r r"
            f" ON l.{left} = r.{right} AND abs(r.amount - l.amount) <= {SLACK}"
            f" AND abs(datediff(r.paid_on, l.due_on)) <= {DAYS}"
        )
        joined.write.partitionBy("part").parquet(str(folder / "joined"))
        return Seen(time.monotonic() - began)


class DatacompySpark(OnSpark):
    """datacompy on the same Spark; it takes minutes from a million rows on."""

    name = "datacompy on Spark"

    def __init__(
        self, session: SparkSession, key: str, process: int | None, most_rows: int
    ) -> None:
        self._session, self.process = session, process
        self.most_rows = most_rows
        self._names = {"number": ("id", "invoice"), "text": ("reference", "reference")}[key]

    def run(self, pair: Pair, folder: Path) -> Seen:
        from datacompy import SparkSQLCompare

        began = time.monotonic()
        sides = [
            self._session.read.parquet(str(path)).selectExpr(f"{name} AS key", "amount")
            for path, name in zip((pair.left, pair.right), self._names, strict=True)
        ]
        session: Any = self._session
        compared = SparkSQLCompare(
            session, sides[0], sides[1], join_columns="key", abs_tol=float(SLACK) + 1e-6
        )
        compared.intersect_rows.write.parquet(str(folder / "matched"))
        compared.df1_unq_rows.write.parquet(str(folder / "unmatched_left"))
        compared.df2_unq_rows.write.parquet(str(folder / "unmatched_right"))
        return Seen(time.monotonic() - began)


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
