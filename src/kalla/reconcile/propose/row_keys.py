"""Finds the columns that identify the rows of a table: the `primary_key` of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import duckdb

from kalla.reconcile.propose.column_roles import LEAST_OF_ESTIMATE, ColumnFacts
from kalla.reconcile.propose.key_candidates import Form
from kalla.reconcile.propose.side_tables import SideTable

_COMBINED = 6  # columns of which combinations are tried
_COUNTED = 4  # of those of a large table
_LONGEST = 60


def row_key(
    connection: duckdb.DuckDBPyConnection,
    table: SideTable,
    facts: Sequence[ColumnFacts],
    reference: Sequence[Form],
) -> tuple[tuple[str, ...], bool, str]:
    """The columns, whether they are unique, and why these."""
    preferred = [form.column for form in reference if not form.derivations or table.rows < 2]
    named = [each for each in facts if each.name in preferred]
    others = [each for each in facts if each.role in ("code", "integer") and each not in named]
    texts = [each for each in facts if each.role == "text" and each.length <= _LONGEST]
    for each in [*named, *others, *texts]:
        if _is_unique(connection, table, each):
            return (each.name,), True, f"unique and never empty in all {table.rows:,} rows"
    pool = [each for each in facts if each.role in ("code", "integer", "text", "date", "amount")]
    weight = {"code": 0, "integer": 0, "text": 1, "date": 1, "amount": 2}
    pool = sorted(pool, key=lambda each: (-each.distinct, weight[each.role]))[:_COMBINED]
    in_order = [each for each in facts if each in pool]
    best: tuple[int, tuple[str, ...]] = (0, ())
    groups = [group for width in (2, 3) for group in combinations(in_order, width)]
    groups.sort(key=lambda group: (len(group), sum(weight[each.role] for each in group)))
    if table.is_estimated:
        groups = _likely(connection, table, groups)
    for group in groups:
        names = tuple(each.name for each in group)
        found = connection.execute(
            f"SELECT count(DISTINCT ({_values(table, group)})) FROM {table.name}"
        ).fetchone()
        count = int(found[0]) if found else 0
        if count == table.rows:
            return names, True, f"together unique in all {table.rows:,} rows"
        if count > best[0]:
            best = count, names
    names = best[1] or (facts[0].name,)
    return (
        names,
        False,
        (
            f"no columns identify all rows: {', '.join(names)} has {max(best[0], 1):,} values in"
            f" {table.rows:,} rows, and equal ones are numbered"
        ),
    )


def _is_unique(connection: duckdb.DuckDBPyConnection, table: SideTable, facts: ColumnFacts) -> bool:
    if not (facts.is_estimated and facts.may_be_unique):
        return facts.may_be_unique
    text = table.text(facts.name)
    found = connection.execute(f"SELECT count(DISTINCT {text}) FROM {table.name}").fetchone()
    return found == (table.rows,)


def _likely(
    connection: duckdb.DuckDBPyConnection,
    table: SideTable,
    groups: Sequence[tuple[ColumnFacts, ...]],
) -> list[tuple[ColumnFacts, ...]]:
    """The few groups that may be unique by an estimate, in the same order; else the best one: to
    count each of a large table would take minutes."""
    if not groups:
        return []
    asked = [f"approx_count_distinct(hash({_values(table, group)}))" for group in groups]
    found = connection.execute(f"SELECT {', '.join(asked)} FROM {table.name}").fetchone() or ()
    counts = dict(zip(groups, found, strict=True))
    likely = [group for group in groups if counts[group] >= LEAST_OF_ESTIMATE * table.rows]
    return likely[:_COUNTED] or [max(groups, key=lambda group: counts[group])]


def _values(table: SideTable, group: Sequence[ColumnFacts]) -> str:
    return ", ".join(f"coalesce({table.text(each.name)}, '')" for each in group)
