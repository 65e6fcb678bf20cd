"""Which rows of a group rule share a key, where one may be equal to several that differ.

A date in text is equal to every point in time of its day. Rows that are transitively equal form a
group; a row that equals no other is in none.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pyarrow as pa

from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.recipe.model import SIDES
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.rule_sql import conjunction, key_columns


def group(session: MatchSession, rule: RulePlan) -> None:
    """`{side}_grouped`: the rule's input rows, with the columns that identify their group."""
    if not rule.normalized_key:
        for side in SIDES:
            session.run(f"CREATE OR REPLACE TEMP VIEW {side}_grouped AS SELECT * FROM {side}_rule")
        return
    names = list(
        dict.fromkeys([*key_columns(rule), *(f"v{place}" for place in rule.normalized_key)])
    )
    for side in SIDES:
        session.run(
            f"CREATE OR REPLACE TEMP TABLE {side}_keys AS"
            " SELECT row_number() OVER () - 1 AS node, * FROM"
            f" (SELECT DISTINCT {', '.join(names)} FROM {side}_rule)"
        )
    _connect(session, rule)
    same = conjunction([f"t.{name} = k.{name}" for name in names])
    for side in SIDES:
        session.run(
            f"CREATE OR REPLACE TEMP VIEW {side}_grouped AS"
            f" SELECT t.*, n.group_number FROM {side}_rule t"
            f" JOIN {side}_keys k ON {same} JOIN {side}_groups n ON n.node = k.node"
        )


def _connect(session: MatchSession, rule: RulePlan) -> None:
    """`{side}_groups` (node, group_number): a number for each set of keys that are connected."""
    lefts, rights = session.columns(_equal_keys(rule))
    (count,) = session.row("SELECT count(*) FROM left_keys")
    (others,) = session.row("SELECT count(*) FROM right_keys")
    size = count + others
    # Imported only for such keys: the import takes longer than most matches.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(lefts), np.bool_), (lefts, rights + count)), (size, size))
    group_numbers = (
        connected_components(links, directed=False)[1] if size else np.empty(0, np.int32)
    )
    for side, nodes, first in zip(SIDES, (lefts, rights), (0, count), strict=True):
        found = np.unique(nodes)
        session.table(
            f"{side}_groups",
            pa.table({"node": found, "group_number": group_numbers[found + first]}),
        )


def _equal_keys(rule: RulePlan) -> str:
    """Pairs of keys that are equal, each by its moment or by its day: comparing all values of a day
    in pairs would take too long.
    """
    plain = [f"l.{name} = r.{name}" for name in key_columns(rule) if not name.startswith("k")]
    ways = product(*((_instant(place), _day(place)) for place in rule.normalized_key))
    return " UNION ALL ".join(
        "SELECT l.node, r.node FROM left_keys l JOIN right_keys r ON " + conjunction([*plain, *way])
        for way in ways
    )


def _instant(place: int) -> str:
    return f"l.v{place} = r.v{place} AND l.v{place} & 1 = 0"


def _day(place: int) -> str:
    return f"l.k{place} = r.k{place} AND (l.v{place} | r.v{place}) & 1 = 1"
