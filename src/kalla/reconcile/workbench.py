"""The DuckDB that a match runs in: both sides loaded once, and what became of each row so far.

Tables: `{side}_rows` (rid, p0… the primary key, the columns the plan needs), `{side}_gone` (rows
that are settled), `{side}_ambiguous`, `{side}_ordinals` (keys that are not unique). A rid is a
number for joins; nothing that leaves the kernel depends on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from duckdb.func import PythonUDFType
from rapidfuzz import process
from rapidfuzz.distance import DamerauLevenshtein, Jaro, JaroWinkler, Levenshtein

from kalla.errors import Permanent
from kalla.reconcile import values
from kalla.reconcile.conditions import FUZZY
from kalla.reconcile.model import SIDES, Side
from kalla.reconcile.plan import Input, Plan, RulePlan, SidePlan
from kalla.reconcile.values import Value, held, literal, quote

_SIMILARITY = {
    "jaro_winkler": JaroWinkler,
    "jaro": Jaro,
    "levenshtein": Levenshtein,
    "damerau_levenshtein": DamerauLevenshtein,
}


@dataclass(frozen=True)
class Resources:
    """What one match may use."""

    memory: str
    threads: int
    temp: Path


@dataclass(frozen=True)
class Loaded:
    """What was read of one side."""

    rows: int
    filtered: int
    amount: Decimal | None
    filtered_amount: Decimal | None
    doubled_keys: int  # rows whose key is not unique, or null
    unreadable: tuple[tuple[str, str, int, tuple[str, ...]], ...]  # column, kind, rows, examples


class Workbench:
    def __init__(self, plan: Plan, resources: Resources) -> None:
        self.plan = plan
        self.ordinals: dict[Side, bool] = {}
        self._gone: dict[Side, bool] = dict.fromkeys(SIDES, False)
        self.connection = duckdb.connect(
            config={
                "memory_limit": resources.memory,
                "threads": resources.threads,
                "temp_directory": str(resources.temp),
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }
        )
        self.run("SET TimeZone = 'UTC'")
        self.connection.create_function(
            FUZZY,
            _similarity,
            ["VARCHAR", "VARCHAR", "VARCHAR"],
            "INTEGER",
            type=PythonUDFType.ARROW,
        )

    def close(self) -> None:
        self.connection.close()

    def run(self, sql: str) -> None:
        self.connection.execute(sql)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()

    def row(self, sql: str) -> tuple[Any, ...]:
        (row,) = self.rows(sql)
        return row

    def arrays(self, sql: str) -> dict[str, Any]:
        return self.connection.execute(sql).fetchnumpy()

    def table(self, name: str, columns: pa.Table) -> None:
        """A table of our own making, as a table there."""
        self.connection.register("given", columns)
        self.run(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM given")
        self.connection.unregister("given")

    # Reading

    def load(self, side: Side) -> Loaded:
        plan = self.plan.sides[side]
        keys = [f"{value.sql} AS p{place}" for place, value in enumerate(plan.primary_key)]
        columns = [held(name) for name in plan.columns]
        where = f"WHERE {plan.filters}" if plan.filters else ""
        try:
            self.run(
                f"CREATE TABLE {side}_rows AS SELECT row_number() OVER () AS rid,"
                f" {', '.join(keys + columns)} FROM {reader(plan.input)} {where}"
            )
        except (duckdb.ConversionException, duckdb.InvalidInputException) as error:
            said = " ".join(line.strip() for line in str(error).splitlines()[:3])
            files = ", ".join(plan.input.files[:3])
            raise Permanent(f"the {side} source ({files}) cannot be read: {said}") from None
        for name, extra in (
            ("gone", "status VARCHAR"),
            (
                "ambiguous",
                "rule INTEGER, reason VARCHAR, candidates VARCHAR[], candidate_count BIGINT",
            ),
            ("ordinals", "ordinal BIGINT"),
        ):
            self.run(f"CREATE TABLE {side}_{name} (rid BIGINT, {extra})")
        amount = f"sum({plan.amount.sql})" if plan.amount else "NULL"
        filtered, filtered_amount = 0, None
        if plan.filters:
            filtered, filtered_amount = self.row(
                f"SELECT count(*), {amount} FROM {reader(plan.input)} WHERE NOT ({plan.filters})"
            )
        rows, total = self.row(f"SELECT count(*), {amount} FROM {side}_rows")
        return Loaded(
            rows, filtered, total, filtered_amount, self._number(plan), self._unreadable(plan)
        )

    def _number(self, plan: SidePlan) -> int:
        """Give rows whose key is not unique, or has a null, their ordinals."""
        side = plan.side
        parts = ", ".join(f"p{place}" for place in range(len(plan.primary_key)))
        null = " OR ".join(f"p{place} IS NULL" for place in range(len(plan.primary_key)))
        # One number is its own text; several parts may collide once they are joined.
        apart = len(plan.primary_key) == 1 and plan.primary_key[0].kind == "number"
        key = parts if apart else self.plain_key(side, "")
        doubled = f"SELECT {key} AS k FROM {side}_rows GROUP BY k HAVING count(*) > 1"
        self.run(
            f"CREATE TEMP TABLE doubled AS SELECT rid FROM {side}_rows"
            f" WHERE {null} OR {key} IN ({doubled})"
        )
        (count,) = self.row("SELECT count(*) FROM doubled")
        self.ordinals[side] = bool(count)
        if count:
            self._order_doubled(plan)
        self.run("DROP TABLE doubled")
        return int(count)

    def _order_doubled(self, plan: SidePlan) -> None:
        """By all columns, of which we hold only some: so the doubled rows are read once more.

        Rows alike in all that we hold are the same row to the matching: any of them may take any of
        their ordinals.
        """
        side = plan.side
        keys = [f"{value.sql} AS p{place}" for place, value in enumerate(plan.primary_key)]
        kept = [f"p{place}" for place in range(len(keys))] + [held(name) for name in plan.columns]
        where = f"WHERE {plan.filters}" if plan.filters else ""
        every = [f"CAST({held(name)} AS VARCHAR) NULLS FIRST" for name in sorted(plan.input.types)]
        text = self.plain_key(side, "")
        self.run(
            f"""
            CREATE TEMP TABLE in_order AS
            WITH again AS (
                SELECT *, {", ".join(keys)} FROM {reader(plan.input)} {where}),
            numbered AS (
                SELECT {", ".join(kept)},
                       row_number() OVER (
                           PARTITION BY {text} ORDER BY {", ".join(every)}) AS ordinal
                FROM again
                WHERE {text} IN (SELECT {self.plain_key(side, "t")}
                                 FROM {side}_rows t JOIN doubled USING (rid)))
            SELECT *, row_number() OVER (PARTITION BY {", ".join(kept)} ORDER BY ordinal) AS twin
            FROM numbered
            """
        )
        same = " AND ".join(f"a.{name} IS NOT DISTINCT FROM b.{name}" for name in kept)
        twins = (
            f"SELECT t.*, row_number() OVER (PARTITION BY {', '.join(kept)}) AS twin"
            f" FROM {side}_rows t JOIN doubled USING (rid)"
        )
        self.run(
            f"INSERT INTO {side}_ordinals SELECT a.rid, b.ordinal"
            f" FROM ({twins}) a JOIN in_order b ON a.twin = b.twin AND {same}"
        )
        self.run("DROP TABLE in_order")

    def _unreadable(self, plan: SidePlan) -> tuple[tuple[str, str, int, tuple[str, ...]], ...]:
        found = []
        for name, kind, text, sql in plan.unreadable:
            bad = f"FROM {plan.side}_rows WHERE {text} IS NOT NULL AND {sql} IS NULL"
            (count,) = self.row(f"SELECT count(*) {bad}")
            if count:
                shown = f"CAST({text} AS VARCHAR)"
                examples = self.rows(f"SELECT DISTINCT {shown} {bad} ORDER BY 1 LIMIT 3")
                found.append((name, kind, count, tuple(example for (example,) in examples)))
        return tuple(found)

    # Keys

    def plain_key(self, side: Side, alias: str) -> str:
        """The record key without its ordinal, from p0… of a row or a struct of that name."""
        parts = [
            _key_part(value, f"{alias}.p{place}" if alias else f"p{place}")
            for place, value in enumerate(self.plan.sides[side].primary_key)
        ]
        return parts[0] if len(parts) == 1 else f"concat_ws('|', {', '.join(parts)})"

    def keyed(self, side: Side, alias: str, rid: str) -> tuple[str, str]:
        """The record key, and the join it needs (over rows that have `rid`)."""
        plain = self.plain_key(side, alias)
        if not self.ordinals[side]:
            return plain, ""
        name = f"{side}_o"
        key = f"({plain} || coalesce('#' || {name}.ordinal, ''))"
        return key, f"LEFT JOIN {side}_ordinals {name} ON {name}.rid = {rid}"

    def keys_table(self, side: Side, which: str, name: str) -> None:
        """A table of rid and record key, for the rows that `which` (a query of rids) names."""
        key, join = self.keyed(side, "t", "t.rid")
        self.run(
            f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT t.rid, {key} AS key"
            f" FROM {side}_rows t {join} WHERE t.rid IN ({which})"
        )

    # Rules

    def admit(
        self, rule: RulePlan, side: Side, *, settled: bool = False, whole: bool = True
    ) -> str:
        """The rows a rule looks at, as v0…, cur, ord, amount: those left, that its filters admit.

        With `settled`, rows that are gone too; without `whole`, rows that lack some value too.
        """
        place = SIDES.index(side)
        name = f"{side}_rule" if not settled else f"{side}_all"
        found = [check.left if place == 0 else check.right for check in rule.checks]
        columns = [f"{value.sql} AS v{number}" for number, value in enumerate(found)]
        columns += [f"p{number}" for number in range(len(self.plan.sides[side].primary_key))]
        # A pair of rows needs every value; in a group, a row that lacks one only fails its check.
        places = range(len(found)) if rule.cardinality == "1:1" else rule.key
        needed = [f"v{number}" for number in places]
        if rule.currency:
            columns.append(f"{rule.currency[place].sql} AS cur")
            needed.append("cur")
        if rule.fifo:
            order = rule.order[place]
            columns.append(f"{order.sql if order else 'NULL'} AS ord")
        if rule.sums:
            columns.append(f"{rule.sums[place].sql} AS amount")
            needed.append("amount")
        admits = rule.filters[place]
        where = [admits] if admits else []
        if self._gone[side] and not settled:
            where.append(f"rid NOT IN (SELECT rid FROM {side}_gone)")
        inner = f"SELECT rid, {', '.join(columns)} FROM {side}_rows"
        if where:
            inner += f" WHERE {' AND '.join(where)}"
        outer = conjunction(f"{each} IS NOT NULL" for each in needed) if whole else "true"
        bare = all(value.sql.startswith('"=') for value in found) and not where
        self.run(f"DROP {self._kind(name)} IF EXISTS {name}")
        kind = "VIEW" if bare else "TABLE"
        self.run(f"CREATE TEMP {kind} {name} AS SELECT * FROM ({inner}) WHERE {outer}")
        return name

    def settle(self, side: Side, rids: str, status: str) -> None:
        """These rows (a query of rids) leave; later rules do not see them."""
        self.run(f"INSERT INTO {side}_gone SELECT rid, {literal(status)} FROM ({rids}) AS s(rid)")
        self._gone[side] = True

    def doubt(self, side: Side, rows: str) -> None:
        """Rows (rid, rule, reason, candidates, candidate_count) are ambiguous, unless they were."""
        self.run(
            f"INSERT INTO {side}_ambiguous SELECT * FROM ({rows}) d"
            f" WHERE d.rid NOT IN (SELECT rid FROM {side}_ambiguous)"
        )

    def _kind(self, name: str) -> str:
        found = self.rows(f"SELECT 1 FROM duckdb_views() WHERE view_name = {literal(name)}")
        return "VIEW" if found else "TABLE"


def reader(given: Input) -> str:
    """The FROM of an input: every file, by the types that were seen, under the names we hold."""
    columns = ", ".join(f"{quote(name)} AS {held(name)}" for name in given.types)
    return f"(SELECT {columns} FROM {scan(given)})"


def listed(files: Iterable[str]) -> str:
    """Files as DuckDB takes them: each by its name, not as a pattern."""
    return "[" + ", ".join(literal(re.sub(r"([*?\[])", r"[\1]", file)) for file in files) + "]"


def scan(given: Input) -> str:
    files = listed(given.files)
    if given.format == "parquet":
        return f"read_parquet({files}, union_by_name=true, hive_partitioning=false)"
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


def same_key(rule: RulePlan, left: str = "l", right: str = "r") -> list[str]:
    """The equalities of a rule's key between two of its views."""
    found = [f"{left}.v{place} = {right}.v{place}" for place in rule.key]
    return found + ([f"{left}.cur = {right}.cur"] if rule.currency else [])


def key_columns(rule: RulePlan) -> list[str]:
    return [f"v{place}" for place in rule.key] + (["cur"] if rule.currency else [])


def value_columns(rule: RulePlan) -> list[str]:
    """All that a rule compares: rows alike in these are interchangeable."""
    found = [f"v{place}" for place in range(len(rule.checks))]
    return found + (["cur"] if rule.currency else [])


def unscaled(sql: str, scale: int) -> str:
    """A decimal as a whole number of its last place."""
    if scale == 0:
        return f"CAST({sql} AS HUGEINT)"
    exact = f"CAST(CAST({sql} AS {values.amount_type(scale)}) AS VARCHAR)"
    return f"CAST(replace({exact}, '.', '') AS HUGEINT)"


def conjunction(parts: Iterable[str]) -> str:
    return " AND ".join(parts) or "true"


def _key_part(value: Value, sql: str) -> str:
    text = values.shown(value, sql)
    if value.kind == "text":
        text = f"replace({text}, '#', '##')"
    return f"coalesce({text}, '∅')"


def _similarity(metric: pa.Array, left: pa.Array, right: pa.Array) -> pa.Array:
    """Ten-thousandths, by characters; a whole batch at a time."""
    if not len(metric):
        return pa.array([], pa.int32())
    scorer = _SIMILARITY[metric[0].as_py()].normalized_similarity
    found = process.cpdist(
        left.to_pylist(), right.to_pylist(), scorer=scorer, dtype=np.float64, workers=1
    )
    return pa.array([round(float(each) * 10_000) for each in found], pa.int32())
