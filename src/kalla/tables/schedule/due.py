"""Which dynamic tables are due, and when the next one is."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kalla.tables.schedule.plan import (
    BASE_SECONDS,
    components,
    effective_lags,
    is_due,
    next_due,
    ordered,
    path_seconds,
    period_seconds,
    upstream,
)
from kalla.tables.store import Source, Table

_RETRY_SECONDS = 10.0  # of a requested table whose source could not be read


def next_due_at(tables: Mapping[str, Table], durations: Mapping[int, float]) -> float:
    """When the first table is due, without other events."""
    periods = _periods(tables, durations)
    return min(
        (
            next_due(
                table.changed_at.timestamp()
                if table.last_tick is None and table.definition["initialize"] == "ON_SCHEDULE"
                else table.last_tick,
                period,
            )
            for name, table in tables.items()
            if table.state == "active" and (period := periods[name]) is not None
        ),
        default=math.inf,
    )


def _periods(
    tables: Mapping[str, Table], durations: Mapping[int, float]
) -> dict[str, float | None]:
    """How often each table is refreshed; None: on demand only."""
    graph = graph_of(tables)
    lags = effective_lags(graph, {name: each.target_lag for name, each in tables.items()})
    own = {name: durations.get(each.table_id, 0.0) for name, each in tables.items()}
    path = path_seconds(graph, own)
    return {
        name: None if lag is None else period_seconds(lag, path[name]) or BASE_SECONDS
        for name, lag in lags.items()
    }


def due_tables(
    tables: Mapping[str, Table],
    sources: Mapping[str, Source],
    busy: set[int],
    durations: Mapping[int, float],
    now: float,
) -> list[list[str]]:
    """The tables to refresh now, with all that they read, upstream first: one list for each
    component. A table that is still refreshed, or reads one, is left for a later tick; the others
    of its component do not wait for it."""
    graph = graph_of(tables)
    periods = _periods(tables, durations)
    place = {name: number for number, name in enumerate(ordered(graph))}
    read = {name: frozenset(each.reads) & sources.keys() for name, each in tables.items()}
    found = []
    for component in components(graph, read):
        free = [
            name
            for name in component
            if _is_due(tables[name], periods[name], now)
            and not any(tables[each].table_id in busy for each in upstream(graph, [name]))
        ]
        if free:
            found.append(sorted(upstream(graph, free), key=place.__getitem__))
    return found


def _is_due(table: Table, period: float | None, now: float) -> bool:
    if table.state == "suspended":
        return False
    if table.requested:
        failed = table.state_reason and table.last_tick is not None
        return not failed or now >= (table.last_tick or 0.0) + _RETRY_SECONDS
    return (
        period is not None
        and is_due(now, table.last_tick, period)
        and not (table.last_tick is None and _waits_for_schedule(table, now, period))
    )


def graph_of(tables: Mapping[str, Table]) -> dict[str, frozenset[str]]:
    return {name: frozenset(each.reads) & tables.keys() for name, each in tables.items()}


def _waits_for_schedule(table: Table, now: float, period: float) -> bool:
    """INITIALIZE = ON_SCHEDULE: the first refresh is at the first tick after it was made."""
    if table.definition["initialize"] == "ON_CREATE":
        return False
    return not is_due(now, table.changed_at.timestamp(), period)
