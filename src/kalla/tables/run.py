"""Carries out one refresh: reads the pins on Spark, computes, commits under the fence."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from kalla.tables.commit import Change, Committed, FencedTable, Frontier, difference, of_keys
from kalla.tables.plan import cheaper
from kalla.tables.shape import NotIncremental, Shape, Versions, placed_text, shape
from kalla.tables.snapshots import Changes, Gap, Pin, changes, frame

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
    strategy: Literal["AUTO", "AFFECTED_KEYS", "FULL"]
    strict: bool
    deduplication: bool
    cardinality_threshold: float
    forced: bool = False  # FULL by hand
    costs: dict[str, float] = {}  # seconds of earlier refreshes, by strategy
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


class StrictRefused(Exception):
    """STRICT, and only FULL would do."""


def refresh(
    spark: SparkSession, asked: RefreshPayload, sequence: int, refresh_id: str
) -> Refreshed | Committed:
    """Refresh a table for its tick. A table that is there already is adopted as it is."""
    began = time.monotonic()
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
    with _scratch(asked.location) as scratch, Views(spark) as views:
        work = _Refresh(spark, asked, views, scratch)
        strategy, reason, affected = work.choose(frontier)
        predicted = asked.costs.get(strategy)
        if affected is not None:
            change, rows = work.by_keys(fenced.rows(), affected)
            committed = fenced.commit(change, target)
            return Refreshed(
                strategy, reason, time.monotonic() - began, predicted,
                change.deleted, change.inserts.num_rows, rows, committed,
            )  # fmt: skip
        result = work.full()
        replaceable = (
            frontier is None
            or frontier.definition != asked.definition
            or (frontier.table_id != asked.table_id)
        )
        old = None if replaceable or not asked.deduplication else fenced.rows()
        if old is not None and old.schema.names == result.schema.names:
            change = difference(old, result.cast(old.schema))
            if change.deleted + change.inserts.num_rows <= (old.num_rows + result.num_rows) // 2:
                committed = fenced.commit(change, target)
                return Refreshed(
                    strategy, reason, time.monotonic() - began, predicted,
                    change.deleted, change.inserts.num_rows, result.num_rows, committed,
                )  # fmt: skip
        committed = fenced.replace(result, target)
        return Refreshed(
            strategy, reason, time.monotonic() - began, predicted,
            0 if old is None else old.num_rows, result.num_rows, result.num_rows, committed,
        )  # fmt: skip


def recomputed(spark: SparkSession, query: str, inputs: Mapping[str, Pin]) -> pa.Table:
    """The rows of a query at the given versions: for refreshes by FULL and for audits."""
    with Views(spark) as views:
        names = {name: views.add(frame(spark, pin)) for name, pin in inputs.items()}
        return _arrow(spark.sql(placed_text(query, names)))


class _Affected(NamedTuple):
    shape: Shape
    keys: pa.Table


class _Refresh:
    def __init__(
        self, spark: SparkSession, asked: RefreshPayload, views: Views, scratch: Path
    ) -> None:
        self._spark = spark
        self._asked = asked
        self._views = views
        self._scratch = scratch
        self._pins = {name: Pin.from_json(pin) for name, pin in asked.inputs.items()}
        self._frames = {name: frame(spark, pin) for name, pin in self._pins.items()}
        self._new = {name: views.add(each) for name, each in self._frames.items()}

    def choose(self, frontier: Frontier | None) -> tuple[str, str, _Affected | None]:
        """The strategy, why, and for AFFECTED_KEYS the keys."""
        try:
            affected = self._affected(frontier)
        except (NotIncremental, Gap) as reason:
            if self._asked.strict and not self._asked.forced and frontier is not None:
                raise StrictRefused(f"STRICT, and only FULL would do: {reason}") from None
            return "FULL", str(reason), None
        return "AFFECTED_KEYS", f"{affected.keys.num_rows:,} keys are affected", affected

    def full(self) -> pa.Table:
        return _arrow(self._spark.sql(placed_text(self._asked.query, self._new)))

    def by_keys(self, old: pa.Table, affected: _Affected) -> tuple[Change, int]:
        """Recompute the affected keys; the change, and the rows that the table then has."""
        shape, keys = affected
        names = [old.column_names[place] for place in shape.places]
        mine = of_keys(old, keys.rename_columns(names)) if keys.num_rows else old.slice(0, 0)
        if keys.num_rows:
            view = self._views.add(self._spark.createDataFrame(keys))
            fresh = _arrow(self._spark.sql(shape.recompute(self._new, view)))
            fresh = fresh.rename_columns(old.column_names).cast(old.schema)
        else:
            fresh = mine
        if self._asked.deduplication:
            change = difference(mine, fresh)
        else:
            values = difference(mine, mine.slice(0, 0))
            change = Change(values.deletes, fresh, mine.num_rows)
        return change, old.num_rows - mine.num_rows + fresh.num_rows

    def _affected(self, frontier: Frontier | None) -> _Affected:
        asked = self._asked
        if asked.forced:
            raise NotIncremental("asked for by hand")
        if frontier is None:
            raise NotIncremental("the first refresh")
        if frontier.table_id != asked.table_id or frontier.definition != asked.definition:
            raise NotIncremental("the definition changed")
        if asked.strategy == "FULL":
            raise NotIncremental("REFRESH_STRATEGY = FULL")
        if frontier.inputs.keys() != self._pins.keys():
            raise NotIncremental("the inputs changed")
        found_shape = self._judged()
        old = {name: Pin.from_json(pin) for name, pin in frontier.inputs.items()}
        found = {
            name: changes(self._spark, old[name], pin, self._scratch)
            for name, pin in self._pins.items()
        }
        if asked.strategy == "AUTO" and (reason := cheaper(asked.costs)):
            raise NotIncremental(reason)
        versions = {name: self._versions(name, old[name], each) for name, each in found.items()}
        sql = found_shape.affected_keys(versions)
        if not sql:
            none = {f"k{n}": pa.array([], pa.null()) for n in range(len(found_shape.keys))}
            return _Affected(found_shape, pa.table(none))
        keys = _arrow(self._spark.sql(sql).limit(_MOST_KEYS + 1))
        if keys.num_rows > _MOST_KEYS:
            raise NotIncremental(f"more than {_MOST_KEYS:,} keys are affected")
        limit = asked.cardinality_threshold * (asked.rows or 0)
        if asked.strategy == "AUTO" and asked.rows and keys.num_rows > max(limit, 1):
            raise NotIncremental(
                f"{keys.num_rows:,} keys are affected, more than CARDINALITY_THRESHOLD"
                f" = {asked.cardinality_threshold:g} of {asked.rows:,} rows"
            )
        return _Affected(found_shape, keys)

    def _judged(self) -> Shape:
        """The shape of the query, if Spark finds that it means the same."""
        columns = {name: each.columns for name, each in self._frames.items()}
        found = shape(self._asked.query, columns)
        ours = self._spark.sql(placed_text(found.sql, self._new))
        if not ours.sameSemantics(self._spark.sql(placed_text(self._asked.query, self._new))):
            raise NotIncremental(
                "Spark reads the query otherwise than its structure was understood"
            )
        return found

    def _versions(self, name: str, old: Pin, changed: Changes) -> Versions:
        same = changed.removed is None and changed.added is None
        # Only what changed is compared with the others' old versions; unread views cost nothing.
        before = self._new[name] if same else self._views.add(frame(self._spark, old))
        return Versions(
            before,
            self._new[name],
            None if changed.removed is None else self._views.add(changed.removed),
            None if changed.added is None else self._views.add(changed.added),
        )


class Views:
    """Temporary views under names of this refresh's own: a session has several refreshes."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._names: list[str] = []

    def __enter__(self) -> Views:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            self._spark.catalog.dropTempView(name)

    def add(self, rows: DataFrame) -> str:
        name = f"kalla_{uuid4().hex}"
        rows.createOrReplaceTempView(name)
        self._names.append(name)
        return name


def _is_there(frontier: Frontier, asked: RefreshPayload) -> bool:
    """Whether an earlier claim of this refresh, or a later refresh, has committed already."""
    if frontier.table_id != asked.table_id:
        return False
    same = frontier.tick == asked.tick and frontier.definition == asked.definition
    return same or frontier.tick > asked.tick


@contextmanager
def _scratch(location: str) -> Iterator[Path]:
    """A folder beside the table, for what Spark reads and nobody keeps."""
    table = Path(location)
    folder = table.parent / "_changes" / f"{table.name}-{uuid4().hex}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _arrow(rows: DataFrame) -> pa.Table:
    return pa.table(rows.toArrow())
