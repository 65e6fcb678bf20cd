"""Rows of 1:1 rules that have several partners, or a key of very many rows: solved exactly.

They are first put into classes of interchangeable ones, so that a hot key with many equal rows is a
single edge. Work on a key is bounded; what is too large is ambiguous and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from kalla.reconcile.matching import assignment
from kalla.reconcile.matching.assignment import Component
from kalla.reconcile.matching.doubts import SHOWN_CANDIDATES
from kalla.reconcile.matching.phrases import (
    conjunction,
    key_columns,
    too_coarse,
    unscaled,
    value_columns,
)
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.model import SIDES, Side
from kalla.reconcile.plan import RulePlan

# A key whose classes make more pairs than this is searched by its range, not pair by pair.
_HOT_PAIRS = 1_000_000
_HOT_RANGE = 10_000_000  # pairs within its range
_HOT_EDGES = 200_000


def solve(bench: Workbench, rule: RulePlan, said: str) -> pa.Table:
    """The pairs among the rows set aside, with what is `said` of a pair; the others are doubted."""
    _number_keys(bench, rule)
    for side in SIDES:
        _make_classes(bench, rule, side, f"{side}_crowd")
    too_large = _find_edges(bench, rule)
    _decide(bench, rule)
    pairs = _pair_classes(bench, rule, said)
    _doubt_classes(bench, rule)
    _doubt_hot_keys(bench, rule, too_large)
    for name in (
        "left_class",
        "right_class",
        "left_member",
        "right_member",
        "edges",
        "solved",
        "crowded",
    ):
        bench.run(f"DROP TABLE {name}")
    return pairs


def _number_keys(bench: Workbench, rule: RulePlan) -> None:
    """`crowded`: a number for each key of the rows set aside. Without a key, all have the same."""
    if keys := ", ".join(key_columns(rule)):
        both = " UNION ".join(f"SELECT {keys} FROM {side}_crowd" for side in SIDES)
        numbered = f"SELECT *, row_number() OVER () AS kid FROM ({both})"
    else:
        numbered = "SELECT 0::BIGINT AS kid"
    bench.run(f"CREATE OR REPLACE TEMP TABLE crowded AS {numbered}")


def _make_classes(bench: Workbench, rule: RulePlan, side: Side, rows: str) -> None:
    """`{side}_class` (class, kid, values, n) and `{side}_member` (rid, class)."""
    compared = value_columns(rule)
    keyed = f"SELECT t.*, c.kid FROM {rows} t JOIN crowded c ON " + conjunction(
        [f"t.{name} = c.{name}" for name in key_columns(rule)]
    )
    bench.run(
        f"CREATE TEMP TABLE {side}_class AS SELECT row_number() OVER () - 1 AS class, * FROM"
        f" (SELECT kid, {', '.join(compared)}, count(*) AS n FROM ({keyed}) GROUP BY ALL)"
    )
    bench.run(
        f"CREATE TEMP TABLE {side}_member AS SELECT t.rid, c.class"
        f" FROM {rows} t JOIN {side}_class c"
        f" ON {conjunction([f't.{name} = c.{name}' for name in compared])}"
    )


def _find_edges(bench: Workbench, rule: RulePlan) -> list[int]:
    """`edges` (l, r, d0…) between classes; returns the keys that have too many to be looked at."""
    counted = [f"(SELECT kid, count(*) AS n FROM {side}_class GROUP BY kid)" for side in SIDES]
    sized = f"SELECT kid, l.n * r.n AS pairs FROM {counted[0]} l JOIN {counted[1]} r USING (kid)"
    hot = [kid for (kid,) in bench.rows(f"SELECT kid FROM ({sized}) WHERE pairs > {_HOT_PAIRS}")]
    checks = [rule.checks[place] for place in rule.pair_checks]
    holds = [*too_coarse(rule), *(check.holds for check in checks)]
    distances = [
        f"{unscaled(check.distance, check.scale)} AS d{place}" for place, check in enumerate(checks)
    ]
    chosen = ", ".join(["l.class AS l", "r.class AS r", *distances])
    cool = f" AND l.kid NOT IN ({', '.join(map(str, hot))})" if hot else ""
    bench.run(
        f"CREATE TEMP TABLE edges AS SELECT {chosen} FROM left_class l"
        f" JOIN right_class r ON l.kid = r.kid{cool} AND {conjunction(holds)}"
    )
    bands = [band for check in checks if (band := check.band or check.reach)]
    too_large = []
    for kid in hot:
        if not any(_is_within(bench, kid, band) for band in bands):
            too_large.append(kid)
            continue
        bench.run(
            f"CREATE OR REPLACE TEMP TABLE hot AS SELECT {chosen} FROM within w"
            " JOIN left_class l ON l.class = w.l JOIN right_class r ON r.class = w.r"
            f" WHERE {conjunction(holds)} LIMIT {_HOT_EDGES + 1}"
        )
        (found,) = bench.row("SELECT count(*) FROM hot")
        if found > _HOT_EDGES:
            too_large.append(kid)
        else:
            bench.run("INSERT INTO edges SELECT * FROM hot")
    return too_large


def _is_within(bench: Workbench, kid: int, band: str) -> bool:
    """`within` (l, r): pairs of a hot key's classes by one range alone; whether these are all.

    A range that nearly all rows share would be as dear as holding every row against every other.
    """
    sides = [f"(SELECT * FROM {side}_class WHERE kid = {kid})" for side in SIDES]
    bench.run(
        "CREATE OR REPLACE TEMP TABLE within AS SELECT l.class AS l, r.class AS r"
        f" FROM {sides[0]} l JOIN {sides[1]} r ON {band} LIMIT {_HOT_RANGE + 1}"
    )
    (found,) = bench.row("SELECT count(*) FROM within")
    return bool(found <= _HOT_RANGE)


def _decide(bench: Workbench, rule: RulePlan) -> None:
    """`solved` (l, r, reason): class pairs that match, and classes (the other null) that do not."""
    edges = bench.arrays("SELECT l, r FROM edges ORDER BY l, r")
    lefts, rights = edges["l"].astype(np.int64), edges["r"].astype(np.int64)
    counts = {
        side: bench.arrays(f"SELECT n FROM {side}_class ORDER BY class")["n"].astype(np.int64)
        for side in SIDES
    }
    split = len(counts["left"])
    nodes = split + len(counts["right"])
    # Here, where a crowded key needs it: it takes longer to import than most matches take.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(lefts)), (lefts, rights + split)), shape=(nodes, nodes))
    labels = connected_components(graph, directed=False)[1] if nodes else np.empty(0, np.int64)
    component = labels[lefts]
    sizes = np.bincount(component, minlength=int(labels.max()) + 1 if nodes else 0)

    solved: list[tuple[int | None, int | None, str]] = []
    alone = sizes[component] == 1
    uneven = counts["left"][lefts] != counts["right"][rights]
    for chosen, reason in ((alone & ~uneven, "matched"), (alone & uneven, "unequal")):
        solved += [
            (int(left), int(right), reason)
            for left, right in zip(lefts[chosen], rights[chosen], strict=True)
        ]
    large = sizes[component] > bench.plan.bounds.component_edges
    solved += [(int(left), None, "too_large") for left in np.unique(lefts[large])]
    solved += [(None, int(right), "too_large") for right in np.unique(rights[large])]
    for members in _by_component(bench, component, ~alone & ~large):
        solved += _verdicts(members, counts, split)
    bench.table("solved", _solved_table(_first_in_first_out(solved, rule)))


def _by_component(bench: Workbench, component: Any, wanted: Any) -> Iterator[list[tuple[int, ...]]]:
    """The wanted edges, component by component. Only these leave DuckDB."""
    places = np.flatnonzero(wanted)
    if not len(places):
        return
    bench.table("wanted", pa.table({"place": places, "component": component[places]}))
    rows = bench.rows(
        "SELECT w.component, e.* EXCLUDE (place) FROM wanted w JOIN"
        " (SELECT *, row_number() OVER (ORDER BY l, r) - 1 AS place FROM edges) e USING (place)"
        " ORDER BY w.component, e.l, e.r"
    )
    for _, members in groupby(rows, key=itemgetter(0)):
        yield [row[1:] for row in members]


def _verdicts(
    edges: list[tuple[int, ...]], counts: dict[Side, Any], split: int
) -> list[tuple[int | None, int | None, str]]:
    numbered = [(edge[0], edge[1] + split, tuple(map(int, edge[2:]))) for edge in edges]
    rows = {left: int(counts["left"][left]) for left, _, _ in numbered}
    rows |= {right: int(counts["right"][right - split]) for _, right, _ in numbered}
    solution = assignment.solve(Component(rows, numbered))
    found: list[tuple[int | None, int | None, str]] = [
        (left, right - split, "matched" if rows[left] == rows[right] else "unequal")
        for left, right in solution.pairs
    ]
    for node, verdict in solution.verdicts.items():
        if verdict == "ambiguous":
            found.append((node, None, "tie") if node < split else (None, node - split, "tie"))
    return found


def _first_in_first_out(
    solved: list[tuple[int | None, int | None, str]], rule: RulePlan
) -> list[tuple[int | None, int | None, str]]:
    """Classes of unequal size: in order if the rule says so, else nobody knows who is left over."""
    found: list[tuple[int | None, int | None, str]] = []
    for left, right, reason in solved:
        if reason != "unequal":
            found.append((left, right, reason))
        elif rule.fifo:
            found.append((left, right, "fifo"))
        else:
            found += [(left, None, reason), (None, right, reason)]
    return found


def _solved_table(solved: list[tuple[int | None, int | None, str]]) -> pa.Table:
    lefts, rights, reasons = zip(*solved, strict=True) if solved else ((), (), ())
    return pa.table(
        {
            "l": pa.array(lefts, pa.int64()),
            "r": pa.array(rights, pa.int64()),
            "reason": pa.array(reasons, pa.string()),
        }
    )


def _pair_classes(bench: Workbench, rule: RulePlan, said: str) -> pa.Table:
    """The rows of matched classes, one to one in the order of their keys (or dates)."""
    for side, column in zip(SIDES, ("l", "r"), strict=True):
        _, join = bench.keyed(side, "t", "t.rid")
        order = ["CASE WHEN s.reason = 'fifo' THEN t.ord END NULLS LAST"] if rule.fifo else []
        order += bench.key_order(side, "t")
        bench.run(
            f"CREATE OR REPLACE TEMP TABLE {side}_ranked AS SELECT t.rid, m.class,"
            f" row_number() OVER (PARTITION BY m.class ORDER BY {', '.join(order)}) AS place"
            f" FROM {side}_member m JOIN solved s ON s.{column} = m.class AND s.l + s.r >= 0"
            f" JOIN {side}_crowd t ON t.rid = m.rid {join}"
        )
    return bench.arrow(
        f"SELECT a.rid AS lrid, b.rid AS rrid, {said},"
        " c.n > 1 AND s.reason = 'matched' AS interchangeable, s.reason = 'fifo' AS fifo"
        " FROM solved s JOIN left_ranked a ON a.class = s.l"
        " JOIN right_ranked b ON b.class = s.r AND b.place = a.place"
        " JOIN left_class c ON c.class = s.l"
        " JOIN left_crowd l ON l.rid = a.rid JOIN right_crowd r ON r.rid = b.rid"
    )


def _doubt_classes(bench: Workbench, rule: RulePlan) -> None:
    """The rows of ambiguous classes, each with the first of its candidates."""
    for side, other in (SIDES, SIDES[::-1]):
        mine, theirs = ("l", "r") if side == "left" else ("r", "l")
        doubtful = f"SELECT {mine} AS class, reason FROM solved WHERE {theirs} IS NULL"
        near = f"SELECT DISTINCT {theirs} FROM edges SEMI JOIN ({doubtful}) d ON {mine} = d.class"
        bench.keys_table(
            other, f"SELECT rid FROM {other}_member WHERE class IN ({near})", f"{other}_keys"
        )
        bench.run(
            "CREATE OR REPLACE TEMP TABLE candidates AS"
            f" SELECT {mine} AS class, sum(n) AS n,"
            f" list_sort(flatten(list(first_keys)))[:{SHOWN_CANDIDATES}] AS keys"
            " FROM edges JOIN ("
            f" SELECT class, min(key, {SHOWN_CANDIDATES}) AS first_keys, count(*) AS n"
            f" FROM {other}_member JOIN {other}_keys USING (rid) GROUP BY class) o"
            f" ON o.class = {theirs} GROUP BY ALL"
        )
        bench.doubt(
            side,
            f"SELECT m.rid, {rule.number}, d.reason, c.keys, c.n FROM {side}_member m"
            f" JOIN ({doubtful}) d USING (class) JOIN candidates c USING (class)",
        )


def _doubt_hot_keys(bench: Workbench, rule: RulePlan, kids: list[int]) -> None:
    """Keys nobody looked into: all their rows, with the first of the whole other side."""
    if not kids:
        return
    listed = ", ".join(map(str, kids))
    for side, other in (SIDES, SIDES[::-1]):
        hot = (
            f"SELECT rid, kid FROM {other}_member JOIN {other}_class USING (class)"
            f" WHERE kid IN ({listed})"
        )
        bench.keys_table(other, f"SELECT rid FROM ({hot})", f"{other}_keys")
        bench.doubt(
            side,
            f"SELECT m.rid, {rule.number}, 'too_large', o.keys, o.n FROM {side}_member m"
            f" JOIN {side}_class c USING (class) JOIN ("
            f" SELECT kid, list_sort(min(key, {SHOWN_CANDIDATES})) AS keys, count(*) AS n"
            f" FROM ({hot}) JOIN {other}_keys USING (rid) GROUP BY kid) o USING (kid)",
        )
