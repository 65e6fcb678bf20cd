"""The reason why a table is late, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping

from kalla.tables.schedule.due import graph_of
from kalla.tables.schedule.plan import period_seconds, upstream
from kalla.tables.store import Table


def lateness(
    table: Table, lag: float | None, duration: float, tables: Mapping[str, Table]
) -> tuple[bool, str]:
    """Whether the rows are too old, and why they are not refreshed."""
    late = lag is not None and (table.lag_seconds is None or table.lag_seconds > lag)
    if table.state == "suspended":
        return late, f"suspended: {table.state_reason}"
    for name in sorted(upstream(graph_of(tables), [table.name]) - {table.name}):
        if tables[name].state == "suspended":
            return late, f"waits for {name}: suspended"
    if table.state_reason:
        return late, table.state_reason
    if table.last_error:
        return late, f"the last refresh failed: {table.last_error}"
    if lag is not None and period_seconds(lag, duration) is None:
        return late, (
            f"UNATTAINABLE: a refresh with all it reads takes {duration:.1f} s, and TARGET_LAG is"
            f" {lag:g} s; raise TARGET_LAG or simplify the query"
        )
    if table.data_time is None:
        return late, "the first refresh has not ended yet"
    if late:
        return late, "a refresh is waiting or running: see the queue `refresh`"
    return late, ""
