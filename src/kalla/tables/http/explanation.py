"""Explains a table for people: its plan, its strategies, the versions of its SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kalla.tables.definitions import ApplyPlan
from kalla.tables.http.api_models import ShownStep, ShownVersion, StrategyNote
from kalla.tables.incremental.delta import delta_shape
from kalla.tables.incremental.structure import NotIncremental, structure
from kalla.tables.schedule.plan import effective_lags, path_seconds, period_seconds
from kalla.tables.store import Table
from kalla.text_diff import changed_lines

_COMPARED = 20


def shown_steps(
    plan: ApplyPlan, tables: Mapping[str, Table], durations: Mapping[int, float]
) -> list[ShownStep]:
    """The plan, with a warning at every lag that cannot be kept."""
    warnings = _unattainable(plan, tables, durations)
    return [
        ShownStep(
            kind=step.kind,
            name=step.name,
            action=step.action,
            reason=step.reason,
            diff=list(step.diff),
            warning=warnings.get(step.name, "") if step.kind == "table" else "",
        )
        for step in plan.steps
    ]


def _unattainable(
    plan: ApplyPlan, tables: Mapping[str, Table], durations: Mapping[int, float]
) -> dict[str, str]:
    reads = {name: set(each.reads) for name, each in tables.items() if name not in plan.dropped}
    lags = {name: each.target_lag for name, each in tables.items() if name in reads}
    for each in plan.tables:
        reads[each.definition.name] = set(each.reads)
        lags[each.definition.name] = each.definition.lag_seconds
    graph = {name: frozenset(read & reads.keys()) for name, read in reads.items()}
    took = {name: durations.get(tables[name].table_id, 0.0) for name in graph if name in tables}
    path = path_seconds(graph, took)
    found = {}
    for name, lag in effective_lags(graph, lags).items():
        if lag is not None and period_seconds(lag, path[name]) is None:
            found[name] = (
                f"UNATTAINABLE: from a tick to its rows {path[name]:.1f} s pass, and TARGET_LAG is"
                f" {lag:g} s; raise TARGET_LAG"
            )
    return found


def strategy_notes(
    query: str, columns: Mapping[str, Sequence[str]]
) -> tuple[list[StrategyNote], list[int]]:
    """The strategies that the query allows, and the positions of its keys; only Spark knows the
    types.
    """
    try:
        found = structure(query, columns)
    except NotIncremental as reason:
        no = str(reason)
        notes = [
            StrategyNote(strategy=name, possible=False, reason=no)
            for name in ("DELTA", "AFFECTED_KEYS")
        ]
        return [*notes, StrategyNote(strategy="FULL", possible=True, reason=no)], []
    notes = []
    try:
        delta_shape(found)
        notes.append(
            StrategyNote(
                strategy="DELTA",
                possible=True,
                reason="adds signed changes, unless a column is a float",
            )
        )
    except NotIncremental as reason:
        notes.append(StrategyNote(strategy="DELTA", possible=False, reason=str(reason)))
    places = [key.place for key in found.node.result_keys if key.place is not None]
    reason_of_keys = (
        "recomputes the keys that changes affect" if places else "the result lacks its key"
    )
    notes.append(
        StrategyNote(strategy="AFFECTED_KEYS", possible=bool(places), reason=reason_of_keys)
    )
    always = "the first refresh, gaps in the changes, and where it is predicted to be cheaper"
    return [*notes, StrategyNote(strategy="FULL", possible=True, reason=always)], places


def shown_versions(rows: Sequence[Mapping[str, Any]]) -> list[ShownVersion]:
    """The newest first, each of the newest with its difference to the one before."""
    found = []
    for place, row in enumerate(rows):
        older = (
            rows[place + 1]["definition"] if place + 1 < len(rows) and place < _COMPARED else None
        )
        found.append(
            ShownVersion(
                version=row["version"],
                applied_at=row["applied_at"],
                applied_by=row["applied_by"],
                diff=[] if older is None else _difference(older, row["definition"]),
            )
        )
    return found


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    def lines(definition: Mapping[str, Any]) -> tuple[str, ...]:
        options = [
            f"{key} = {value}" for key, value in sorted(definition.items()) if key != "query"
        ]
        return (*options, *str(definition["query"]).splitlines())

    return list(changed_lines(lines(old), lines(new), context=1)[2:])
