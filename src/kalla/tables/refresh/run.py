"""Executes one refresh: reads the pins on Spark, computes, commits under the fence."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from kalla.tables.delta.commit import Committed, FencedTable, Frontier, committed_frontier
from kalla.tables.delta.workspace import Workspace
from kalla.tables.refresh.compute import Computation
from kalla.tables.refresh.payload import Refreshed, RefreshPayload
from kalla.tables.sources.snapshots import Gap, Pin, PinGone, changed_rows

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


def refresh(
    spark: SparkSession, asked: RefreshPayload, sequence: int, refresh_id: str
) -> Refreshed | Committed:
    """Refresh a table for its tick. An existing table is adopted unchanged."""
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
    try:
        with Workspace(fenced.folder) as workspace:
            result = Computation(spark, asked, fenced, frontier, workspace).result()
        if result.overwrite is not None:
            committed = fenced.overwrite(
                result.overwrite.paths, result.overwrite.schema_json, target
            )
        else:
            committed = fenced.commit(result.change, target)
    except Exception:
        fenced.require_held()
        raise
    finally:
        shutil.rmtree(fenced.folder, ignore_errors=True)
    choice = result.choice
    return Refreshed(
        choice.strategy, choice.reason, time.monotonic() - began, choice.predicted_seconds,
        result.deleted, result.inserted, result.rows, committed, result.changed_rows,
        result.affected_keys,
    )  # fmt: skip


def _without_change(asked: RefreshPayload) -> Committed | None:
    """The result without a change, if its inputs have new versions with the same rows."""
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
