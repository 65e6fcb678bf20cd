"""The rows of a refresh, by one of the strategies: Spark writes its results to files, and the
worker derives the changed files of the table.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kalla.spark.sandbox import searches
from kalla.tables.delta.commit import FencedTable, Frontier
from kalla.tables.delta.data_files import written
from kalla.tables.delta.log_commit import NO_CHANGE, FileChange
from kalla.tables.delta.row_changes import Change, TableFiles, difference, replaced, rewritten
from kalla.tables.delta.workspace import FILE, Relation, Workspace, quoted, same
from kalla.tables.incremental import changes as sql_changes
from kalla.tables.incremental.changes import Versions, placed
from kalla.tables.incremental.cost import Choice, Size, choose, predict
from kalla.tables.incremental.cost import Strategy as Computed
from kalla.tables.incremental.delta_merge import merge
from kalla.tables.incremental.structure import NotIncremental, Select, Union
from kalla.tables.refresh.judge import Known, judged
from kalla.tables.refresh.payload import RefreshPayload, StrictRefused
from kalla.tables.refresh.views import Views
from kalla.tables.sources.snapshots import (
    Gap,
    Pin,
    PinGone,
    changed_rows,
    changes,
    frame,
    row_count,
)

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession


@dataclass(frozen=True)
class Overwrite:
    """Files with all rows of the table, with their schema."""

    paths: list[str]
    schema_json: str


@dataclass(frozen=True)
class Result:
    """What to commit."""

    choice: Choice
    deleted: int
    inserted: int
    rows: int  # of the table afterwards
    changed_rows: int | None
    affected_keys: int | None = None
    change: FileChange = NO_CHANGE
    overwrite: Overwrite | None = None


class Computation:
    def __init__(
        self,
        spark: SparkSession,
        asked: RefreshPayload,
        fenced: FencedTable,
        frontier: Frontier | None,
        workspace: Workspace,
    ) -> None:
        self._spark = spark
        self._asked = asked
        self._query = searches.bounded(asked.query)
        self._folder = fenced.folder
        self._frontier = frontier
        self._workspace = workspace
        self._views = Views(spark)
        self._pins = {name: Pin.from_json(pin) for name, pin in asked.inputs.items()}
        self._new = {name: self._views.add(frame(spark, pin)) for name, pin in self._pins.items()}
        self._table = fenced.files()
        self._size: Size | None = None

    def result(self) -> Result:
        """Computes by the strategy of the definition, or the one predicted to be cheapest."""
        from pyspark.errors import PySparkException

        known: Known | None = None
        try:
            known = judged(self._query, self._pins, self._new, self._views)
            choice = self._choice(known)
            if choice.strategy == "DELTA":
                return self._by_delta(known, choice)
            if choice.strategy == "AFFECTED_KEYS":
                return self._by_keys(known, choice)
        except (NotIncremental, Gap) as reason:
            choice = self._fallback(reason)
        except PySparkException as error:
            choice = self._fallback(_refusal(error))
        try:
            return self._full(known, choice)
        except PySparkException as error:
            if self._counted(known) is None:
                raise
            without_counts = f"{choice.reason}; without the counts for DELTA: {_refusal(error)}"
            return self._full(None, replace(choice, reason=without_counts))

    def _fallback(self, reason: Exception) -> Choice:
        asked = self._asked
        if asked.strict and not asked.forced and self._is_known:
            raise StrictRefused(f"STRICT is set, and only FULL is possible: {reason}") from None
        size = self._size or Size(0, 0, asked.rows or 0)
        return Choice("FULL", predict("FULL", size, asked.samples), str(reason))

    @property
    def _is_known(self) -> bool:
        """Whether the table has rows of this definition."""
        frontier, asked = self._frontier, self._asked
        return frontier is not None and (frontier.table_id, frontier.definition) == (
            asked.table_id,
            asked.definition,
        )

    def _choice(self, known: Known) -> Choice:
        """Raises NotIncremental or Gap with the reason for FULL."""
        asked, frontier = self._asked, self._frontier
        if asked.forced:
            raise NotIncremental("asked for by hand")
        if frontier is None:
            raise NotIncremental("the first refresh")
        if not self._is_known:
            raise NotIncremental("the definition changed")
        if asked.strategy == "FULL":
            return self._named("FULL", "REFRESH_STRATEGY = FULL")
        if frontier.inputs.keys() != self._pins.keys():
            raise NotIncremental("the inputs changed")
        old = {name: Pin.from_json(pin) for name, pin in frontier.inputs.items()}
        counts = {name: changed_rows(old[name], pin) for name, pin in self._pins.items()}
        self._size = Size(
            sum(count or 0 for count in counts.values()),
            sum(row_count(pin) for pin in self._pins.values()),
            asked.rows or 0,
        )
        changed = {name for name, count in counts.items() if count is not None}
        possible, why_not = self._possible(known, changed)
        if asked.strategy != "AUTO":
            if asked.strategy not in possible:
                raise NotIncremental(why_not[asked.strategy])
            return self._named(asked.strategy, f"REFRESH_STRATEGY = {asked.strategy}")
        if not possible:
            raise NotIncremental(why_not["AFFECTED_KEYS"])
        choice = choose(possible, self._size, asked.samples, asked.cardinality_threshold)
        if asked.strict and choice.strategy == "FULL":
            return self._named(possible[0], "STRICT")
        return choice

    def _named(self, strategy: Computed, reason: str) -> Choice:
        size = self._size or Size(0, 0, 0)
        return Choice(strategy, predict(strategy, size, self._asked.samples), reason)

    def _possible(self, known: Known, changed: set[str]) -> tuple[list[Computed], dict[str, str]]:
        """The possible incremental strategies for these changes, and why others are not."""
        found: list[Computed] = []
        why_not: dict[str, str] = {}
        if self._table is None or self._table.schema is None:
            raise NotIncremental("the table has no files")
        try:
            if known.delta is None:
                raise NotIncremental(known.no_delta)
            if not set(known.delta.hidden_columns()) <= set(self._table.hidden):
                raise NotIncremental("the table does not keep the counts that DELTA adds to")
            if not sql_changes.joins_changed_rows(known.delta.node, _marks(self._new, changed)):
                raise NotIncremental(
                    "the right side of an outer join or a subquery's table changed"
                )
            found.append("DELTA")
        except NotIncremental as reason:
            why_not["DELTA"] = str(reason)
        if known.found.node.result_keys:
            found.append("AFFECTED_KEYS")
        else:
            why_not["AFFECTED_KEYS"] = "the result lacks the key by which its rows are recomputed"
        return found, why_not

    def _by_delta(self, known: Known, choice: Choice) -> Result:
        shape = known.delta
        if shape is None:
            raise NotIncremental(known.no_delta)
        sql = shape.changes(self._versions())
        table, rows = self._stored()
        if sql is None:
            return self._without_change(choice, table)
        delta = self._computed(self._views.sql(sql), "delta_rows")
        merged = merge(self._workspace, shape, rows, delta, _schema(table))
        fresh = merged.new
        if self._workspace.count(merged.recompute):
            places = [each.place for each in shape.node.result_keys if each.place is not None]
            names = [table.columns[place] for place in places]
            keys = self._keys_file(merged.recompute, names)
            fresh = self._together(fresh, self._recomputed(known, keys, merged.old))
        affected = self._workspace.count(delta)
        compare = difference if merged.may_repeat else replaced
        return self._changed(choice, table, merged.old, fresh, affected, compare)

    def _by_keys(self, known: Known, choice: Choice) -> Result:
        """Recompute the affected keys; those without rows are removed."""
        node = known.found.node
        sql = sql_changes.affected_keys(node, self._versions())
        table, rows = self._stored()
        if sql is None:
            return self._without_change(choice, table)
        paths = self._written(self._views.sql(sql), "keys")
        keys = self._workspace.files("affected_keys", paths, pq.read_schema(paths[0]).names)
        count = self._workspace.count(keys)
        self._require_few(count)
        choice = replace(choice, reason=f"{count:,} keys are affected; {choice.reason}")
        if count == 0:
            return self._without_change(choice, table)
        names = [table.columns[key.place] for key in node.result_keys if key.place is not None]
        met = " AND ".join(
            f"o.{quoted(name)} IS NOT DISTINCT FROM k.k{n}" for n, name in enumerate(names)
        )
        old = self._workspace.table(
            "old_rows", f"SELECT o.* FROM {rows.name} o SEMI JOIN {keys.name} k ON {met}"
        )
        return self._changed(choice, table, old, self._recomputed(known, paths, old), count)

    def _require_few(self, keys: int) -> None:
        asked = self._asked
        limit = max(1.0, asked.cardinality_threshold * (asked.rows or 0))
        if asked.strategy == "AUTO" and not asked.strict and asked.rows and keys > limit:
            raise NotIncremental(
                f"{keys:,} keys are affected, more than CARDINALITY_THRESHOLD"
                f" = {asked.cardinality_threshold:g} of {asked.rows:,} rows"
            )

    def _recomputed(self, known: Known, key_paths: list[str], old: Relation) -> Relation:
        """The recomputed rows of these keys, each with the old rows of its key."""
        view = self._views.add(self._spark.read.parquet(*key_paths))
        node: Select | Union = known.found.node
        if known.delta is not None and isinstance(node, Select) and self._keeps(known):
            node = replace(node, sql=known.delta.extended(node.sql))
        bounds = _bounds(self._workspace, key_paths)
        sql = sql_changes.recompute(node, self._new, view, bounds)
        fresh = self._computed(self._views.sql(sql), "recomputed_rows", old.columns)
        places = [key.place for key in node.result_keys if key.place is not None]
        names = [old.columns[place] for place in places]
        keys = ", ".join(quoted(name) for name in names)
        columns = ", ".join(f"f.{quoted(name)}" for name in old.columns)
        return self._workspace.table(
            "placed_rows",
            f"""
            SELECT {columns}, h.{FILE} FROM {fresh.name} f
            LEFT JOIN (SELECT {keys}, min({FILE}) AS {FILE} FROM {old.name} GROUP BY {keys}) h
            ON {same(names, "f", "h")}
            """,
        )

    def _keeps(self, known: Known) -> bool:
        kept = () if self._table is None else self._table.hidden
        return known.delta is not None and set(known.delta.hidden_columns()) <= set(kept)

    def _counted(self, known: Known | None) -> tuple[str, int] | None:
        """The query with the counts that a later DELTA adds to, and where its own columns end."""
        if known is None or known.delta is None or self._asked.strategy not in ("AUTO", "DELTA"):
            return None
        hidden = known.delta.hidden_columns()
        return (known.delta.extended(known.found.sql), -len(hidden)) if hidden else None

    def _full(self, known: Known | None, choice: Choice) -> Result:
        asked, table = self._asked, self._table
        query = self._query
        visible: int | None = None
        if (counted := self._counted(known)) is not None:
            query, visible = counted
        computed = self._views.sql(placed(query, self._new))
        schema_json = _delta_schema(computed, visible)
        paths = self._written(computed, "rows" if visible is None else "counted_rows")
        names = pq.read_schema(paths[0]).names
        fresh = self._workspace.files("fresh_rows", paths, names)
        count = self._workspace.count(fresh)
        comparable = (
            self._is_known
            and asked.deduplication
            and table is not None
            and table.schema is not None
            and table.schema.names == names
            and table.types_are(schema_json)
        )
        gone = 0 if table is None else table.rows
        if comparable and table is not None:
            _, rows = self._stored()
            change = difference(self._workspace, rows, fresh)
            if change.deleted + change.inserted <= (gone + count) // 2:
                files = rewritten(self._workspace, table, change)
                return Result(
                    choice, change.deleted, change.inserted, count, self._changed_rows, None, files
                )
        return Result(
            choice, gone, count, count, self._changed_rows, overwrite=Overwrite(paths, schema_json)
        )

    def _changed(
        self,
        choice: Choice,
        table: TableFiles,
        old: Relation,
        fresh: Relation,
        keys: int,
        compare: Callable[[Workspace, Relation, Relation], Change] = difference,
    ) -> Result:
        compare = compare if self._asked.deduplication else replaced
        change = compare(self._workspace, old, fresh)
        files = rewritten(self._workspace, table, change)
        rows = table.rows - change.deleted + change.inserted
        return Result(
            choice, change.deleted, change.inserted, rows, self._changed_rows, keys, files
        )

    def _without_change(self, choice: Choice, table: TableFiles) -> Result:
        return Result(choice, 0, 0, table.rows, self._changed_rows, 0)

    @property
    def _changed_rows(self) -> int | None:
        return self._size.changed_rows if self._size else None

    def _stored(self) -> tuple[TableFiles, Relation]:
        """The rows of the table, with their positions."""
        table = self._table
        if table is None or table.schema is None:
            raise NotIncremental("the table has no files")
        rows = self._workspace.placed_files("table_rows", table.paths, table.schema.names)
        return table, rows

    def _computed(
        self, rows: DataFrame, name: str, columns: tuple[str, ...] | None = None
    ) -> Relation:
        paths = self._written(rows, name)
        names = pq.read_schema(paths[0]).names
        return self._workspace.files(name, paths, names, columns)

    def _written(self, rows: DataFrame, name: str) -> list[str]:
        """Written by Spark, so that no worker must hold them in memory."""
        folder = self._folder / name
        rows.write.parquet(folder.as_uri())
        return sorted(str(path) for path in folder.glob("*.parquet"))

    def _keys_file(self, keys: Relation, names: list[str]) -> list[str]:
        chosen = ", ".join(f"{quoted(name)} AS k{n}" for n, name in enumerate(names))
        rows = self._workspace.read(f"SELECT {chosen} FROM {keys.name}")
        files = written(self._folder / "keys", rows.schema, rows.to_batches())
        return [each.path for each in files]

    def _together(self, one: Relation, other: Relation) -> Relation:
        chosen = ", ".join([*(quoted(name) for name in other.columns), FILE])
        return self._workspace.table(
            "all_rows",
            f"SELECT {chosen} FROM {one.name} UNION ALL SELECT {chosen} FROM {other.name}",
        )

    def _versions(self) -> dict[str, Versions]:
        frontier = self._frontier
        if frontier is None:
            raise NotIncremental("the first refresh")
        return {
            name: self._version(name, Pin.from_json(frontier.inputs[name]), pin)
            for name, pin in self._pins.items()
        }

    def _version(self, name: str, old: Pin, new: Pin) -> Versions:
        found = changes(self._spark, old, new)
        if found.removed is None and found.added is None:
            return Versions(self._new[name], self._new[name], None, None)
        try:
            before = frame(self._spark, old)
        except PinGone as gone:
            raise Gap(f"the old version of {name} does not exist any more: {gone}") from None
        return Versions(
            self._views.add(before),
            self._new[name],
            None if found.removed is None else self._views.add(found.removed),
            None if found.added is None else self._views.add(found.added),
        )


def _refusal(error: PySparkException) -> NotIncremental:
    """Spark's refusal of SQL that Kalla wrote, as over maps, which it does not compare, or with a
    sum that the query itself does not have; raises any other error."""
    from pyspark.errors import AnalysisException

    if not isinstance(error, AnalysisException) and not (error.getSqlState() or "").startswith(
        "22"
    ):
        raise error
    first = (str(error).strip().splitlines() or [""])[0]
    return NotIncremental(f"Spark refuses its SQL: {first[:200]}")


def _marks(views: dict[str, str], changed: set[str]) -> dict[str, Versions]:
    """Which inputs changed, for checks of the structure alone."""
    return {
        name: Versions(view, view, None, view if name in changed else None)
        for name, view in views.items()
    }


def _delta_schema(rows: DataFrame, visible: int | None) -> str:
    """The schema of the first columns in Delta's (Spark's) form."""
    fields = json.loads(rows.schema.json())["fields"][:visible]
    for field in fields:
        field["nullable"] = True
        field["metadata"] = {}
    return json.dumps({"type": "struct", "fields": fields})


def _schema(table: TableFiles) -> pa.Schema:
    if table.schema is None:
        raise NotIncremental("the table has no files")
    return table.schema


def _bounds(workspace: Workspace, key_paths: list[str]) -> dict[int, tuple[str, str]]:
    """Of each key that is never NULL and of a type with plain literals."""
    names = pq.read_schema(key_paths[0]).names
    keys = workspace.files("bounded_keys", key_paths, names)
    values = ", ".join(
        f"min({quoted(name)}), max({quoted(name)}), count(*) - count({quoted(name)})"
        for name in names
    )
    (row,) = workspace.rows(f"SELECT {values} FROM {keys.name}")
    found = {}
    for number in range(len(names)):
        low, high, nulls = row[3 * number : 3 * number + 3]
        if nulls == 0 and (literals := (_literal(low), _literal(high))) and all(literals):
            found[number] = (str(literals[0]), str(literals[1]))
    return found


def _literal(value: object) -> str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return f"CAST({value} AS BIGINT)"  # another type might narrow a column that is compared
    if isinstance(value, Decimal) and value.is_finite():
        return f"CAST('{value}' AS DECIMAL(38, {max(0, -int(value.as_tuple().exponent))}))"
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return f"DATE '{value.isoformat()}'"
    return None
