"""Rows whose primary key is not unique, or has a null: each gets an ordinal, none disappears."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from kalla.reconcile import loops
from kalla.reconcile.matching import values
from kalla.reconcile.matching.fates import numbers
from kalla.reconcile.matching.hand import PLACES, Held
from kalla.reconcile.matching.values import held
from kalla.reconcile.model import Side
from kalla.reconcile.plan import SidePlan

if TYPE_CHECKING:
    from kalla.reconcile.matching.workbench import Workbench


def number(bench: Workbench, plan: SidePlan, source: str) -> int:
    """Give rows whose key is not unique, or has a null, their ordinals."""
    side = plan.side
    parts = ", ".join(f"p{place}" for place in range(len(plan.primary_key)))
    null = " OR ".join(f"p{place} IS NULL" for place in range(len(plan.primary_key)))
    # One number is its own text; several parts may collide once they are joined.
    apart = len(plan.primary_key) == 1 and plan.primary_key[0].kind == "number"
    key = parts if apart else bench.plain_key(side, "")
    bench.ordinals[side] = False
    alone = parts if len(plan.primary_key) == 1 else key
    if _is_unique_in_hand(bench, side, alone):
        return 0
    rows = bench.all_rows(side)
    (nulls,) = bench.row(f"SELECT count(*) FROM {rows} WHERE {null}")
    if not nulls and _is_unique(bench, rows, alone):
        return 0
    doubled = f"SELECT {key} AS k FROM {rows} GROUP BY k HAVING count(*) > 1"
    bench.run(
        f"CREATE TEMP TABLE doubled AS SELECT rid FROM {rows} WHERE {null} OR {key} IN ({doubled})"
    )
    (count,) = bench.row("SELECT count(*) FROM doubled")
    bench.ordinals[side] = bool(count)
    if count:
        _order_doubled(bench, plan, source)
    bench.run("DROP TABLE doubled")
    return int(count)


def _is_unique_in_hand(bench: Workbench, side: Side, name: str) -> bool:
    """Whether certainly no two rows have the same key, none of which is null, by a column in hand;
    what is not in hand, or spread wide, is for others to look into."""
    hand = bench.hand(side)
    column = hand.columns.get(name) if hand else None
    if column is None or column.nulls is not None:
        return False
    low, high = int(column.held.min()), int(column.held.max())
    if high - low >= PLACES * len(column):
        return False
    return _differ([column.held], low, high)


def _is_unique(bench: Workbench, rows: str, sql: str) -> bool:
    """Whether certainly no two rows have the same value: sorted hashes are quicker than groups.

    A collision of hashes is taken for a repetition, which the asker then looks into.
    """
    low, high, count = bench.row(f"SELECT min({sql}), max({sql}), count(*) FROM {rows}")
    whole = type(low) is int and -(2**63) <= low <= high < 2**63
    if whole and high - low < PLACES * count:
        batches = bench.batches(f"SELECT CAST({sql} AS BIGINT) FROM {rows}")
        return _differ((numbers(batch.column(0)) for batch in batches), low, high)
    hashes = np.sort(bench.column(f"SELECT hash({sql}) FROM {rows}"))
    return bool((hashes[1:] != hashes[:-1]).all())


def _differ(parts: Iterable[Held], low: int, high: int) -> bool:
    """Whether numbers between these two are all different."""
    seen = loops.marks(high - low + 1)
    return all(loops.mark(part, len(part), low, seen) == len(part) for part in parts)


def _order_doubled(bench: Workbench, plan: SidePlan, source: str) -> None:
    """By all columns, of which we hold only some: so the doubled rows are read once more.

    Rows alike in all that we hold are the same row to the matching: any of them may take any of
    their ordinals.
    """
    side = plan.side
    keys = [f"{value.sql} AS p{place}" for place, value in enumerate(plan.primary_key)]
    kept = [f"p{place}" for place in range(len(keys))] + [held(name) for name in plan.columns]
    every = [f"{_in_order(*each)} NULLS FIRST" for each in sorted(plan.input.types.items())]
    text = bench.plain_key(side, "")
    bench.run(
        f"""
        CREATE TEMP TABLE in_order AS
        WITH again AS (
            SELECT *, {", ".join(keys)} FROM {source}),
        numbered AS (
            SELECT {", ".join(kept)},
                   row_number() OVER (
                       PARTITION BY {text} ORDER BY {", ".join(every)}) AS ordinal
            FROM again
            WHERE {text} IN (SELECT {bench.plain_key(side, "t")}
                             FROM {bench.all_rows(side)} t JOIN doubled USING (rid)))
        SELECT *, row_number() OVER (PARTITION BY {", ".join(kept)} ORDER BY ordinal) AS twin
        FROM numbered
        """
    )
    same = " AND ".join(f"a.{name} IS NOT DISTINCT FROM b.{name}" for name in kept)
    twins = (
        f"SELECT t.*, row_number() OVER (PARTITION BY {', '.join(kept)}) AS twin"
        f" FROM {bench.all_rows(side)} t JOIN doubled USING (rid)"
    )
    bench.run(
        f"INSERT INTO {side}_ordinals SELECT a.rid, b.ordinal"
        f" FROM ({twins}) a JOIN in_order b ON a.twin = b.twin AND {same}"
    )
    bench.run("DROP TABLE in_order")


def _in_order(name: str, kind: str) -> str:
    """What rows are in order by, of a column: its values, or their text."""
    return held(name) if values.has_order(kind) else f"CAST({held(name)} AS VARCHAR)"
