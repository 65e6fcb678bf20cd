"""Numbers rows whose primary key is not unique or has a null: each gets an ordinal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from kalla.reconcile.arrays import compiled_loops
from kalla.reconcile.arrays.arrow_numbers import numbers
from kalla.reconcile.arrays.column_arrays import PLACES, Held
from kalla.reconcile.plan.plan import SidePlan
from kalla.reconcile.recipe.model import Side
from kalla.reconcile.sql import column_values
from kalla.reconcile.sql.column_values import held

if TYPE_CHECKING:
    from kalla.reconcile.session.match_session import MatchSession


def number(session: MatchSession, plan: SidePlan, source: str) -> int:
    """Give rows whose key is not unique, or has a null, their ordinals."""
    side = plan.side
    parts = ", ".join(f"p{place}" for place in range(len(plan.primary_key)))
    null = " OR ".join(f"p{place} IS NULL" for place in range(len(plan.primary_key)))
    # One number is its own text; several parts may collide once they are joined.
    apart = len(plan.primary_key) == 1 and plan.primary_key[0].kind == "number"
    key = parts if apart else session.plain_key(side, "")
    session.ordinals[side] = False
    alone = parts if len(plan.primary_key) == 1 else key
    if _is_unique_by_array(session, side, alone):
        return 0
    rows = session.all_rows(side)
    (nulls,) = session.row(f"SELECT count(*) FROM {rows} WHERE {null}")
    if not nulls and _is_unique(session, rows, alone):
        return 0
    doubled = f"SELECT {key} AS k FROM {rows} GROUP BY k HAVING count(*) > 1"
    session.run(
        f"CREATE TEMP TABLE doubled AS SELECT row_id FROM {rows}"
        f" WHERE {null} OR {key} IN ({doubled})"
    )
    (count,) = session.row("SELECT count(*) FROM doubled")
    session.ordinals[side] = bool(count)
    if count:
        _order_doubled(session, plan, source)
    session.run("DROP TABLE doubled")
    return int(count)


def _is_unique_by_array(session: MatchSession, side: Side, name: str) -> bool:
    """Whether certainly no two rows have the same key, none of which is null, by a column in hand;
    what is not in hand, or spread wide, is for others to look into."""
    arrays = session.column_arrays(side)
    column = arrays.columns.get(name) if arrays else None
    if column is None or column.nulls is not None:
        return False
    low, high = int(column.held.min()), int(column.held.max())
    if high - low >= PLACES * len(column):
        return False
    return _differ([column.held], low, high)


def _is_unique(session: MatchSession, rows: str, sql: str) -> bool:
    """Whether certainly no two rows have the same value: sorted hashes are quicker than groups.

    A collision of hashes counts as a duplicate, which the caller then checks.
    """
    low, high, count = session.row(f"SELECT min({sql}), max({sql}), count(*) FROM {rows}")
    whole = type(low) is int and -(2**63) <= low <= high < 2**63
    if whole and high - low < PLACES * count:
        batches = session.batches(f"SELECT CAST({sql} AS BIGINT) FROM {rows}")
        return _differ((numbers(batch.column(0)) for batch in batches), low, high)
    hashes = np.sort(session.column(f"SELECT hash({sql}) FROM {rows}"))
    return bool((hashes[1:] != hashes[:-1]).all())


def _differ(parts: Iterable[Held], low: int, high: int) -> bool:
    """Whether numbers between these two are all different."""
    seen = compiled_loops.marks(high - low + 1)
    return all(compiled_loops.mark(part, len(part), low, seen) == len(part) for part in parts)


def _order_doubled(session: MatchSession, plan: SidePlan, source: str) -> None:
    """By all columns, of which we hold only some: so the doubled rows are read once more.

    Rows alike in all that we hold are the same row to the matching: any of them may take any of
    their ordinals.
    """
    side = plan.side
    keys = [f"{value.sql} AS p{place}" for place, value in enumerate(plan.primary_key)]
    kept = [f"p{place}" for place in range(len(keys))] + [held(name) for name in plan.columns]
    every = [f"{_in_order(*each)} NULLS FIRST" for each in sorted(plan.input.types.items())]
    text = session.plain_key(side, "")
    session.run(
        f"""
        CREATE TEMP TABLE in_order AS
        WITH again AS (
            SELECT *, {", ".join(keys)} FROM {source}),
        numbered AS (
            SELECT {", ".join(kept)},
                   row_number() OVER (
                       PARTITION BY {text} ORDER BY {", ".join(every)}) AS ordinal
            FROM again
            WHERE {text} IN (SELECT {session.plain_key(side, "t")}
                             FROM {session.all_rows(side)} t JOIN doubled USING (row_id)))
        SELECT *, row_number() OVER (PARTITION BY {", ".join(kept)} ORDER BY ordinal) AS twin
        FROM numbered
        """
    )
    same = " AND ".join(f"a.{name} IS NOT DISTINCT FROM b.{name}" for name in kept)
    twins = (
        f"SELECT t.*, row_number() OVER (PARTITION BY {', '.join(kept)}) AS twin"
        f" FROM {session.all_rows(side)} t JOIN doubled USING (row_id)"
    )
    session.run(
        f"INSERT INTO {side}_ordinals SELECT a.row_id, b.ordinal"
        f" FROM ({twins}) a JOIN in_order b ON a.twin = b.twin AND {same}"
    )
    session.run("DROP TABLE in_order")


def _in_order(name: str, kind: str) -> str:
    """The sort expression of a column: its values, or their text."""
    return held(name) if column_values.has_order(kind) else f"CAST({held(name)} AS VARCHAR)"
