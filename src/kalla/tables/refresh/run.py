"""Carries out one refresh: reads the pins on Spark, computes, commits under the fence."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from kalla.tables.delta.commit import (
    Change,
    Committed,
    FencedTable,
    Frontier,
    committed_frontier,
    difference,
    of_keys,
)
from kalla.tables.incremental import changes as sql_changes
from kalla.tables.incremental.changes import Versions, placed
from kalla.tables.incremental.cost import Choice, Sample, Size, choose, predict
from kalla.tables.incremental.cost import Strategy as Computed
from kalla.tables.incremental.delta import DeltaShape, delta_shape, refuse_floats
from kalla.tables.incremental.delta_merge import merge
from kalla.tables.incremental.structure import NotIncremental, Select, Structure, Union, structure
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
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

_MOST_KEYS = 200_000  # they travel from the worker to Spark; above that, FULL


class RefreshPayload(BaseModel):
    """One refresh: all that its worker needs, so that it asks no database."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    table_id: int
    tick: int
    location: str
    query: str  # as the sandbox wrote it
    definition: str
    inputs: dict[str, dict[str, Any]]  # the pin of every source and upstream table
    strategy: Literal["AUTO", "DELTA", "AFFECTED_KEYS", "FULL"]
    strict: bool
    deduplication: bool
    cardinality_threshold: float
    forced: bool = False  # FULL by hand
    samples: tuple[Sample, ...] = ()  # what earlier refreshes took, the newest first
    rows: int | None = None  # of the table, after its last refresh


@dataclass(frozen=True)
class Refreshed:
    """What a refresh did, as its history shows it."""

    strategy: str
    reason: str
    seconds: float
    predicted_seconds: float | None
    deleted: int
    inserted: int
    rows: int
    committed: Committed
    changed_rows: int | None = None  # of all inputs, about
    affected_keys: int | None = None


class StrictRefused(Exception):
    """STRICT, and only FULL would do."""


def refresh(
    spark: SparkSession, asked: RefreshPayload, sequence: int, refresh_id: str
) -> Refreshed | Committed:
    """Refresh a table for its tick. A table that is there already is adopted as it is."""
    began = time.monotonic()
    if (same := _without_change(asked)) is not None:
        return Refreshed(
            "NO_DATA", "no row of its inputs changed", time.monotonic() - began, None,
            0, 0, asked.rows or 0, same, 0,
        )  # fmt: skip
    fenced = FencedTable(asked.location, sequence)
    frontier = fenced.raise_barrier()
    if frontier is not None and _is_there(frontier, asked):
        return Committed(frontier.data_version, frontier)
    target = Frontier(
        table_id=asked.table_id,
        definition=asked.definition,
        tick=asked.tick,
        refresh=refresh_id,
        data_version=0 if frontier is None else frontier.data_version,
        inputs=asked.inputs,
    )
    with Views(spark) as views:
        work = _Refresh(spark, asked, views, fenced, frontier)
        result = work.computed()
        if result.replaces is not None:
            committed = fenced.replace(result.replaces, target)
        else:
            committed = fenced.commit(result.change, target)
    return Refreshed(
        result.choice.strategy, result.choice.reason, time.monotonic() - began,
        result.choice.predicted_seconds, result.change.deleted, result.change.inserts.num_rows,
        result.rows, committed, work.size.changed_rows if work.size else None,
        result.affected_keys,
    )  # fmt: skip


def recomputed(spark: SparkSession, query: str, inputs: Mapping[str, Pin]) -> pa.Table:
    """The rows of a query at the given versions."""
    with Views(spark) as views:
        names = {name: views.add(frame(spark, pin)) for name, pin in inputs.items()}
        return _arrow(spark.sql(placed(query, names)))


@dataclass(frozen=True)
class _Computed:
    """Rows to commit: a change of the table, or all of it."""

    choice: Choice
    change: Change
    rows: int  # of the table afterwards
    affected_keys: int | None = None
    replaces: pa.Table | None = None


@dataclass(frozen=True)
class _Known:
    """What is known of a query's structure."""

    found: Structure
    delta: DeltaShape | None
    no_delta: str  # why there is none


class _Refresh:
    def __init__(
        self,
        spark: SparkSession,
        asked: RefreshPayload,
        views: Views,
        fenced: FencedTable,
        frontier: Frontier | None,
    ) -> None:
        self._spark = spark
        self._asked = asked
        self._views = views
        self._fenced = fenced
        self._frontier = frontier
        self._pins = {name: Pin.from_json(pin) for name, pin in asked.inputs.items()}
        self._frames = {name: frame(spark, pin) for name, pin in self._pins.items()}
        self._new = {name: views.add(each) for name, each in self._frames.items()}
        self.size: Size | None = None

    def computed(self) -> _Computed:
        """By the strategy that the definition names or that is predicted to be cheapest."""
        known: _Known | None = None
        try:
            known = self._judged()
        except NotIncremental as reason:
            return self._full(None, self._fallback(reason))
        try:
            choice = self._choice(known)
            if choice.strategy == "DELTA":
                return self._by_delta(known, choice)
            if choice.strategy == "AFFECTED_KEYS":
                return self._by_keys(known, choice)
        except (NotIncremental, Gap) as reason:
            choice = self._fallback(reason)
        return self._full(known, choice)

    def _fallback(self, reason: Exception) -> Choice:
        asked = self._asked
        if asked.strict and not asked.forced and self._frontier is not None:
            raise StrictRefused(f"STRICT, and only FULL would do: {reason}") from None
        size = self.size or Size(0, 0, asked.rows or 0)
        return Choice("FULL", predict("FULL", size, asked.samples), str(reason))

    def _choice(self, known: _Known) -> Choice:
        """Raises NotIncremental or Gap with the reason for FULL."""
        asked, frontier = self._asked, self._frontier
        if asked.forced:
            raise NotIncremental("asked for by hand")
        if frontier is None:
            raise NotIncremental("the first refresh")
        if frontier.table_id != asked.table_id or frontier.definition != asked.definition:
            raise NotIncremental("the definition changed")
        if asked.strategy == "FULL":
            return self._named("FULL", "REFRESH_STRATEGY = FULL")
        if frontier.inputs.keys() != self._pins.keys():
            raise NotIncremental("the inputs changed")
        old = {name: Pin.from_json(pin) for name, pin in frontier.inputs.items()}
        counts = {name: changed_rows(old[name], pin) for name, pin in self._pins.items()}
        self.size = Size(
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
        choice = choose(possible, self.size, asked.samples, asked.cardinality_threshold)
        if asked.strict and choice.strategy == "FULL":
            return self._named(possible[0], "STRICT")
        return choice

    def _named(self, strategy: Computed, reason: str) -> Choice:
        size = self.size or Size(0, 0, 0)
        return Choice(strategy, predict(strategy, size, self._asked.samples), reason)

    def _possible(self, known: _Known, changed: set[str]) -> tuple[list[Computed], dict[str, str]]:
        """The incremental strategies for these changes, and why another one is none."""
        found: list[Computed] = []
        why_not: dict[str, str] = {}
        try:
            if known.delta is None:
                raise NotIncremental(known.no_delta)
            missing = set(known.delta.hidden_columns()) - set(self._fenced.column_names())
            if missing:
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

    def _by_delta(self, known: _Known, choice: Choice) -> _Computed:
        shape = known.delta
        if shape is None:
            raise NotIncremental(known.no_delta)
        sql = shape.changes(self._versions())
        table = self._fenced.rows()
        if sql is None:
            return _Computed(choice, difference(table, table), table.num_rows, 0)
        delta = _arrow(self._spark.sql(sql))
        merged = merge(shape, table, delta)
        fresh = merged.new
        if merged.recompute.num_rows:
            places = [each.place for each in shape.node.result_keys if each.place is not None]
            keys = merged.recompute.select([table.column_names[place] for place in places])
            keys = keys.rename_columns([f"k{n}" for n in range(len(places))])
            rows = self._recomputed(known, keys).rename_columns(table.column_names)
            fresh = pa.concat_tables([fresh, rows.cast(table.schema)])
        rows_after = table.num_rows - merged.old.num_rows + fresh.num_rows
        return _Computed(choice, self._change(merged.old, fresh), rows_after, delta.num_rows)

    def _by_keys(self, known: _Known, choice: Choice) -> _Computed:
        """Recompute the affected keys; those without rows are removed."""
        node = known.found.node
        sql = sql_changes.affected_keys(node, self._versions())
        old = self._fenced.rows()
        if sql is None:
            return _Computed(choice, difference(old, old), old.num_rows, 0)
        keys = _arrow(self._spark.sql(sql).limit(_MOST_KEYS + 1))
        self._require_few(keys.num_rows)
        choice = replace(choice, reason=f"{keys.num_rows:,} keys are affected; {choice.reason}")
        if keys.num_rows == 0:
            return _Computed(choice, difference(old, old), old.num_rows, 0)
        names = [old.column_names[key.place] for key in node.result_keys if key.place is not None]
        mine = of_keys(old, keys.rename_columns(names))
        fresh = self._recomputed(known, keys).rename_columns(old.column_names).cast(old.schema)
        rows = old.num_rows - mine.num_rows + fresh.num_rows
        return _Computed(choice, self._change(mine, fresh), rows, keys.num_rows)

    def _require_few(self, keys: int) -> None:
        asked = self._asked
        if keys > _MOST_KEYS:
            raise NotIncremental(f"more than {_MOST_KEYS:,} keys are affected")
        limit = max(1.0, asked.cardinality_threshold * (asked.rows or 0))
        if asked.strategy == "AUTO" and not asked.strict and asked.rows and keys > limit:
            raise NotIncremental(
                f"{keys:,} keys are affected, more than CARDINALITY_THRESHOLD"
                f" = {asked.cardinality_threshold:g} of {asked.rows:,} rows"
            )

    def _recomputed(self, known: _Known, keys: pa.Table) -> pa.Table:
        view = self._views.add(self._spark.createDataFrame(keys))
        node: Select | Union = known.found.node
        kept = known.delta is not None and set(known.delta.hidden_columns()) <= set(
            self._fenced.column_names()
        )
        if kept and known.delta is not None and isinstance(node, Select):
            node = replace(node, sql=known.delta.extended(node.sql))
        return _arrow(self._spark.sql(sql_changes.recompute(node, self._new, view)))

    def _change(self, old: pa.Table, fresh: pa.Table) -> Change:
        if self._asked.deduplication:
            return difference(old, fresh)
        values = difference(old, old.slice(0, 0))
        return Change(values.deletes, fresh, old.num_rows)

    def _full(self, known: _Known | None, choice: Choice) -> _Computed:
        asked, frontier = self._asked, self._frontier
        query = asked.query
        if known is not None and known.delta is not None and asked.strategy in ("AUTO", "DELTA"):
            query = known.delta.extended(known.found.sql)
        result = _arrow(self._spark.sql(placed(query, self._new)))
        same = (
            frontier is not None
            and frontier.definition == asked.definition
            and frontier.table_id == asked.table_id
            and asked.deduplication
        )
        old = self._fenced.rows() if same else None
        if old is not None and old.schema.names == result.schema.names:
            change = difference(old, result.cast(old.schema))
            if change.deleted + change.inserts.num_rows <= (old.num_rows + result.num_rows) // 2:
                return _Computed(choice, change, result.num_rows)
        gone = 0 if old is None else old.num_rows
        change = Change(result.slice(0, 0), result, gone)
        return _Computed(choice, change, result.num_rows, replaces=result)

    def _judged(self) -> _Known:
        """The structure of the query, if Spark finds that it means the same."""
        columns = {name: each.columns for name, each in self._frames.items()}
        found = structure(self._asked.query, columns)
        ours = self._spark.sql(placed(found.sql, self._new))
        if not ours.sameSemantics(self._spark.sql(placed(found.compared_sql, self._new))):
            raise NotIncremental(
                "Spark reads the query otherwise than its structure was understood"
            )
        try:
            shape = delta_shape(found)
            extended = self._spark.sql(placed(shape.extended(found.sql), self._new))
            refuse_floats(shape, dict(extended.dtypes))
        except NotIncremental as reason:
            return _Known(found, None, str(reason))
        return _Known(found, shape, "")

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
            raise Gap(f"the old version of {name} is gone: {gone}") from None
        return Versions(
            self._views.add(before),
            self._new[name],
            None if found.removed is None else self._views.add(found.removed),
            None if found.added is None else self._views.add(found.added),
        )


def _marks(views: Mapping[str, str], changed: set[str]) -> dict[str, Versions]:
    """Which inputs changed, for questions about the structure alone."""
    return {
        name: Versions(view, view, None, view if name in changed else None)
        for name, view in views.items()
    }


def _without_change(asked: RefreshPayload) -> Committed | None:
    """What the table stands for already, if its inputs have other versions and the same rows."""
    found = None if asked.forced else committed_frontier(asked.location)
    if found is None:
        return None
    frontier = found.frontier
    same = (frontier.table_id, frontier.definition) == (asked.table_id, asked.definition)
    if not same or frontier.inputs.keys() != asked.inputs.keys() or frontier.tick >= asked.tick:
        return None
    try:
        if any(
            changed_rows(Pin.from_json(frontier.inputs[name]), Pin.from_json(pin)) is not None
            for name, pin in asked.inputs.items()
        ):
            return None
    except (Gap, PinGone):
        return None
    return Committed(found.version, replace(frontier, tick=asked.tick, inputs=asked.inputs))


def _is_there(frontier: Frontier, asked: RefreshPayload) -> bool:
    """Whether an earlier claim of this refresh, or a later refresh, has committed already."""
    if frontier.table_id != asked.table_id:
        return False
    same = frontier.tick == asked.tick and frontier.definition == asked.definition
    return same or frontier.tick > asked.tick


def _arrow(rows: DataFrame) -> pa.Table:
    return pa.table(rows.toArrow())
