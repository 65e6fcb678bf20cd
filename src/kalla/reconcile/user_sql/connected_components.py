"""Turns pairs of keys from a user's SQL into matches: one per connected component.

Keys are mapped to rows; a key of several rows does not identify one of them, so its component is
ambiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.matching.ambiguity import SHOWN_CANDIDATES
from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.sources.scanning.scan_sql import parquet
from kalla.reconcile.sql import column_values
from kalla.reconcile.sql.column_values import Columns, literal

DOUBLED = "doubled_key"


@dataclass(frozen=True)
class PairFacts:
    """The counts of the pairs."""

    pairs: int  # distinct
    repeats: int
    unpaired: int  # in which a side has no key, as an outer join gives them


def match(session: MatchSession, rule: RulePlan, pairs: Sequence[str]) -> tuple[str, PairFacts]:
    """The groups of the pairs in the files (l0…, r0…), and their counts."""
    facts = _read(session, pairs)
    for side in SIDES:
        _find_rows(session, side)
    _connect(session)
    groups = f"groups_{rule.number}"
    _write_groups(session, groups)
    _doubt(session, rule)
    for side in SIDES:
        session.settle(side, f"SELECT row_id FROM {groups} WHERE side = '{side}'", "matched")
    # A pair from SQL has no differences: its comparison is unknown.
    session.run(f"CREATE TEMP TABLE {groups}_pairs (gid BIGINT)")
    return groups, facts


def _columns(session: MatchSession, side: Side) -> list[str]:
    letter = "l" if side == "left" else "r"
    return [f"{letter}{place}" for place in range(len(session.plan.sides[side].primary_key))]


def _read(session: MatchSession, pairs: Sequence[str]) -> PairFacts:
    """`links` (lnode, rnode) between distinct keys, which are in `{side}_nodes`."""
    session.run(
        "CREATE TEMP TABLE given_pairs AS"
        f" SELECT *, count(*) AS n FROM {parquet(pairs)} GROUP BY ALL"
    )
    absent = " OR ".join(
        "(" + " AND ".join(f"{name} IS NULL" for name in _columns(session, side)) + ")"
        for side in SIDES
    )
    total, distinct, unpaired = session.row(
        f"SELECT coalesce(sum(n), 0), count(*) FILTER (NOT ({absent})),"
        f" coalesce(sum(n) FILTER ({absent}), 0) FROM given_pairs"
    )
    joins = []
    for side in SIDES:
        names = _columns(session, side)
        session.run(
            f"CREATE TEMP TABLE {side}_nodes AS SELECT row_number() OVER () - 1 AS node, * FROM"
            f" (SELECT DISTINCT {', '.join(names)} FROM given_pairs WHERE NOT ({absent}))"
        )
        same = " AND ".join(f"{side}_nodes.{name} IS NOT DISTINCT FROM g.{name}" for name in names)
        joins.append(f"JOIN {side}_nodes ON {same}")
    session.run(
        "CREATE TEMP TABLE links AS"
        " SELECT left_nodes.node AS lnode, right_nodes.node AS rnode"
        f" FROM given_pairs g {' '.join(joins)}"
    )
    session.run("DROP TABLE given_pairs")
    return PairFacts(int(distinct), int(total) - int(unpaired) - int(distinct), int(unpaired))


def _find_rows(session: MatchSession, side: Side) -> None:
    """`{side}_members` (row_id, node): the rows of each key. A key without a row is an error."""
    names = _columns(session, side)
    types = {
        str(name): str(kind)
        for name, kind, *_ in session.rows(f"DESCRIBE SELECT {', '.join(names)} FROM {side}_nodes")
    }
    same = []
    for place, (name, own) in enumerate(
        zip(names, session.plan.sides[side].primary_key, strict=True)
    ):
        given = column_values.value(Columns(types, time_zone=session.plan.time_zone), name)
        sql = given.sql.replace(column_values.held(name), f"n.{name}")
        pair = (f"t.p{place}", sql)
        if given.kind != own.kind:  # a number that the SQL made text of, or a text a number
            pair = column_values.shown(own, pair[0]), column_values.shown(given, sql)
        same.append(f"{pair[0]} IS NOT DISTINCT FROM {pair[1]}")
    session.run(
        f"CREATE TEMP TABLE {side}_members AS SELECT t.row_id, n.node"
        f" FROM {session.all_rows(side)} t"
        f" JOIN {side}_nodes n ON {' AND '.join(same)}"
    )
    unknown = f"FROM {side}_nodes WHERE node NOT IN (SELECT node FROM {side}_members)"
    (count,) = session.row(f"SELECT count(*) {unknown}")
    if count:
        text = f"concat_ws('|', {', '.join(f'CAST({name} AS VARCHAR)' for name in names)})"
        (example,) = session.row(f"SELECT min({text}) {unknown}")
        raise InvalidInput(
            Problem(
                "match_sql",
                f"its result has {count:,} {side} keys that no row of the source has, {example!r}"
                " for one: select the primary key as it is",
            )
        )


def _connect(session: MatchSession) -> None:
    """`component` (side, node, gid), and `components` (gid, cardinality, doubtful)."""
    alone = " AND ".join(f"count(*) OVER (PARTITION BY {letter}node) = 1" for letter in ("l", "r"))
    session.run(
        f"CREATE TEMP TABLE placed AS SELECT *, {alone} AS alone, row_number() OVER () - 1 AS gid"
        " FROM links"
    )
    connected = session.arrays("SELECT lnode, rnode FROM placed WHERE NOT alone")
    (first_free,) = session.row("SELECT count(*) FROM placed")
    lefts, left_at = np.unique(connected["lnode"].astype(np.int64), return_inverse=True)
    rights, right_at = np.unique(connected["rnode"].astype(np.int64), return_inverse=True)
    size = len(lefts) + len(rights)
    # Imported only here: the import takes longer than most matches.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(left_at)), (left_at, right_at + len(lefts))), shape=(size, size))
    labels = connected_components(graph, directed=False)[1] if size else np.empty(0, np.int64)
    session.table(
        "crowded_nodes",
        pa.table(
            {
                "side": pa.array(["left"] * len(lefts) + ["right"] * len(rights), pa.string()),
                "node": pa.array(np.concatenate([lefts, rights]), pa.int64()),
                "gid": pa.array(labels.astype(np.int64) + int(first_free), pa.int64()),
            }
        ),
    )
    session.run(
        "CREATE TEMP TABLE component AS SELECT * FROM crowded_nodes"
        " UNION ALL SELECT 'left', lnode, gid FROM placed WHERE alone"
        " UNION ALL SELECT 'right', rnode, gid FROM placed WHERE alone"
    )
    members = " UNION ALL ".join(
        f"SELECT '{side}' AS side, node, count(*) AS n FROM {side}_members GROUP BY node"
        for side in SIDES
    )
    session.run(
        "CREATE TEMP TABLE components AS SELECT gid,"
        " CASE WHEN lefts = 1 AND rights = 1 THEN '1:1' WHEN lefts = 1 THEN '1:N'"
        " WHEN rights = 1 THEN 'N:1' ELSE 'M:N' END AS cardinality, doubtful FROM"
        " (SELECT gid, count(*) FILTER (side = 'left') AS lefts,"
        " count(*) FILTER (side = 'right') AS rights, max(n) > 1 AS doubtful"
        f" FROM component JOIN ({members}) USING (side, node) GROUP BY gid)"
    )


def _write_groups(session: MatchSession, groups: str) -> None:
    rows = " UNION ALL ".join(
        f"SELECT c.gid, '{side}' AS side, m.row_id, 'confirmed' AS status, k.cardinality"
        f" FROM {side}_members m JOIN component c ON c.side = '{side}' AND c.node = m.node"
        " JOIN components k ON k.gid = c.gid WHERE NOT k.doubtful"
        for side in SIDES
    )
    session.run(f"CREATE TEMP TABLE {groups} AS {rows}")


def _doubt(session: MatchSession, rule: RulePlan) -> None:
    for side, other in (SIDES, SIDES[::-1]):
        mine, theirs = ("lnode", "rnode") if side == "left" else ("rnode", "lnode")
        doubtful = (
            f"SELECT node FROM component JOIN components USING (gid) WHERE side = '{side}'"
            " AND doubtful"
        )
        near = f"SELECT {theirs} FROM links WHERE {mine} IN ({doubtful})"
        session.keys_table(
            other, f"SELECT row_id FROM {other}_members WHERE node IN ({near})", "other_keys"
        )
        session.run(
            "CREATE OR REPLACE TEMP TABLE candidates AS"
            f" SELECT {mine} AS node, sum(n)::BIGINT AS n,"
            f" list_sort(flatten(list(first_keys)))[:{SHOWN_CANDIDATES}] AS keys"
            f" FROM links JOIN (SELECT node, min(key, {SHOWN_CANDIDATES}) AS first_keys,"
            f" count(*) AS n FROM {other}_members JOIN other_keys USING (row_id) GROUP BY node) o"
            f" ON o.node = {theirs} WHERE {mine} IN ({doubtful}) GROUP BY ALL"
        )
        session.mark_ambiguous(
            side,
            f"SELECT m.row_id, {rule.number}, {literal(DOUBLED)}, c.keys, c.n"
            f" FROM {side}_members m JOIN candidates c USING (node)",
        )
