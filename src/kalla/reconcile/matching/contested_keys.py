"""Rows of 1:1 rules that have several partners, or a key of very many rows: solved exactly.

They are first put into classes of interchangeable ones, so that a hot key with many equal rows is a
single edge. Keys are processed in small batches, so that the edges fit in memory; a key that is too
large becomes ambiguous with that reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kalla.reconcile.matching import component_decisions
from kalla.reconcile.matching.ambiguity import SHOWN_CANDIDATES
from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.rule_sql import (
    conjunction,
    key_columns,
    normalized_key_checks,
    unscaled,
    value_columns,
)

# A key whose classes have more pairs than this is searched by range, not pair by pair.
_HOT_PAIRS = 1_000_000
_HOT_RANGE = 10_000_000  # pairs within its range, or so many for each of its classes
_RANGE_A_CLASS = 4
_PAIRS_AT_ONCE = 5_000_000  # of keys that are not hot


@dataclass(frozen=True)
class _Keys:
    """Consecutive keys, or a single hot one."""

    first: int
    last: int
    is_hot: bool

    @property
    def chosen(self) -> str:
        return f"kid BETWEEN {self.first} AND {self.last}"


def solve(session: MatchSession, rule: RulePlan, values: str) -> pa.Table:
    """The pairs among the contested rows, with these values of each; the others are ambiguous."""
    _number_keys(session, rule)
    for side in SIDES:
        _make_classes(session, rule, side, f"{side}_contested")
    session.run("CREATE OR REPLACE TEMP TABLE solved (l BIGINT, r BIGINT, reason VARCHAR)")
    checks = [rule.checks[place] for place in rule.pair_checks]
    distances = [unscaled(check.distance, check.scale) for check in checks]
    too_large = []
    for keys in _some_keys(session):
        if _find_edges(session, rule, keys):
            component_decisions.decide(session, keys.chosen, distances, fifo=rule.fifo)
            session.run("INSERT INTO solved FROM decisions WHERE l + r >= 0")
            _mark_ambiguous_classes(session, rule)
        else:
            too_large.append(keys.first)
    pairs = _pair_classes(session, rule, values)
    _mark_ambiguous_hot_keys(session, rule, too_large)
    for name in (
        "left_class",
        "right_class",
        "left_member",
        "right_member",
        "solved",
        "contested_keys",
    ):
        session.run(f"DROP TABLE {name}")
    return pairs


def _number_keys(session: MatchSession, rule: RulePlan) -> None:
    """`contested_keys`: a number for each key of these rows. Without a key, all have the same."""
    if keys := ", ".join(key_columns(rule)):
        both = " UNION ".join(f"SELECT {keys} FROM {side}_contested" for side in SIDES)
        numbered = f"SELECT *, row_number() OVER () AS kid FROM ({both})"
    else:
        numbered = "SELECT 0::BIGINT AS kid"
    session.run(f"CREATE OR REPLACE TEMP TABLE contested_keys AS {numbered}")


def _make_classes(session: MatchSession, rule: RulePlan, side: Side, rows: str) -> None:
    """Make `{side}_class` (class, kid, values, n; by key) and `{side}_member` (row_id, class)."""
    compared = value_columns(rule)
    keyed = f"SELECT t.*, c.kid FROM {rows} t JOIN contested_keys c ON " + conjunction(
        [f"t.{name} = c.{name}" for name in key_columns(rule)]
    )
    session.run(
        f"CREATE TEMP TABLE {side}_class AS SELECT row_number() OVER (ORDER BY kid) - 1 AS class, *"
        f" FROM (SELECT kid, {', '.join(compared)}, count(*) AS n FROM ({keyed}) GROUP BY ALL)"
    )
    session.run(
        f"CREATE TEMP TABLE {side}_member AS SELECT t.row_id, c.class"
        f" FROM {rows} t JOIN {side}_class c"
        f" ON {conjunction([f't.{name} = c.{name}' for name in compared])}"
    )


def _some_keys(session: MatchSession) -> Iterator[_Keys]:
    """All that both sides have, few enough at once."""
    counted = [f"(SELECT kid, count(*) AS n FROM {side}_class GROUP BY kid)" for side in SIDES]
    kids, pairs = session.columns(
        f"SELECT kid, l.n * r.n FROM {counted[0]} l JOIN {counted[1]} r USING (kid) ORDER BY kid"
    )
    hot = pairs > _HOT_PAIRS
    batch = np.cumsum(np.where(hot, 0, pairs)) // _PAIRS_AT_ONCE
    cuts = np.flatnonzero((np.diff(batch) > 0) | hot[1:] | hot[:-1]) + 1
    for some, is_hot in zip(np.split(kids, cuts), np.split(hot, cuts), strict=True):
        if len(some):
            yield _Keys(int(some[0]), int(some[-1]), bool(is_hot[0]))


def _find_edges(session: MatchSession, rule: RulePlan, keys: _Keys) -> bool:
    """`edges` (l, r) between the classes of these keys; false if too many are to be looked at."""
    checks = [rule.checks[place] for place in rule.pair_checks]
    holds = conjunction([*normalized_key_checks(rule), *(check.holds for check in checks)])
    chosen = [f"(SELECT * FROM {side}_class WHERE {keys.chosen})" for side in SIDES]
    found = f"{chosen[0]} l JOIN {chosen[1]} r ON l.kid = r.kid AND {holds}"
    if keys.is_hot:
        bands = [band for check in checks if (band := check.band or check.reach)]
        if not any(_is_within(session, chosen, band) for band in bands):
            return False
        found = (
            f"within w JOIN {chosen[0]} l ON l.class = w.l JOIN {chosen[1]} r ON r.class = w.r"
            f" WHERE {holds}"
        )
    session.run(
        f"CREATE OR REPLACE TEMP TABLE edges AS SELECT l.class AS l, r.class AS r FROM {found}"
    )
    return True


def _is_within(session: MatchSession, chosen: list[str], band: str) -> bool:
    """`within` (l, r): pairs of a hot key's classes by one range alone; whether these are all.

    A range that nearly all rows share would cost as much as comparing every pair.
    """
    (classes,) = session.row(f"SELECT count(*) FROM (FROM {' UNION ALL FROM '.join(chosen)})")
    most = max(_HOT_RANGE, _RANGE_A_CLASS * classes)
    session.run(
        "CREATE OR REPLACE TEMP TABLE within AS SELECT l.class AS l, r.class AS r"
        f" FROM {chosen[0]} l JOIN {chosen[1]} r ON {band} LIMIT {most + 1}"
    )
    (found,) = session.row("SELECT count(*) FROM within")
    return bool(found <= most)


def _pair_classes(session: MatchSession, rule: RulePlan, values: str) -> pa.Table:
    """The rows of matched classes, one to one in the order of their keys (or dates)."""
    for side, column in zip(SIDES, ("l", "r"), strict=True):
        _, join = session.keyed(side, "t", "t.row_id")
        order = ["CASE WHEN s.reason = 'fifo' THEN t.ord END NULLS LAST"] if rule.fifo else []
        order += session.key_order(side, "t")
        session.run(
            f"CREATE OR REPLACE TEMP TABLE {side}_ranked AS SELECT t.row_id, m.class,"
            f" row_number() OVER (PARTITION BY m.class ORDER BY {', '.join(order)}) AS place"
            f" FROM {side}_member m JOIN solved s ON s.{column} = m.class"
            f" JOIN {side}_contested t ON t.row_id = m.row_id {join}"
        )
    return session.arrow(
        f"SELECT a.row_id AS left_row_id, b.row_id AS right_row_id, {values},"
        " c.n > 1 AND s.reason = 'matched' AS interchangeable, s.reason = 'fifo' AS fifo"
        " FROM solved s JOIN left_ranked a ON a.class = s.l"
        " JOIN right_ranked b ON b.class = s.r AND b.place = a.place"
        " JOIN left_class c ON c.class = s.l"
        " JOIN left_contested l ON l.row_id = a.row_id"
        " JOIN right_contested r ON r.row_id = b.row_id"
    )


def _mark_ambiguous_classes(session: MatchSession, rule: RulePlan) -> None:
    """The rows of ambiguous classes, each with the first of its candidates."""
    for side, other in (SIDES, SIDES[::-1]):
        mine, theirs = ("l", "r") if side == "left" else ("r", "l")
        ambiguous = f"SELECT {mine} AS class, reason FROM decisions WHERE {theirs} IS NULL"
        if not session.rows(f"{ambiguous} LIMIT 1"):
            continue
        near = f"SELECT {mine} AS class, {theirs} AS other FROM edges SEMI JOIN ({ambiguous}) d ON"
        near += f" {mine} = d.class"
        session.keys_table(
            other,
            f"SELECT row_id FROM {other}_member WHERE class IN (SELECT other FROM ({near}))",
            "other_keys",
        )
        session.run(
            "CREATE OR REPLACE TEMP TABLE firsts AS SELECT class AS other, count(*) AS n,"
            f" min(key, {SHOWN_CANDIDATES}) AS keys, row_number() OVER (ORDER BY min(key)) AS place"
            f" FROM {other}_member JOIN other_keys USING (row_id) GROUP BY class"
        )
        # The first keys of all are in the classes that come first by their own first ones. Edges
        # are many: only the places of so few classes are kept while one goes through them.
        firsts = (
            f"SELECT class, sum(n) AS n, unnest(min(place, {SHOWN_CANDIDATES})) AS place"
            f" FROM ({near}) JOIN firsts USING (other) GROUP BY class"
        )
        candidates = (
            f"SELECT c.class, c.n, list_sort(flatten(list(f.keys)))[:{SHOWN_CANDIDATES}] AS keys"
            f" FROM ({firsts}) c JOIN firsts f USING (place) GROUP BY ALL"
        )
        session.mark_ambiguous(
            side,
            f"SELECT m.row_id, {rule.number}, d.reason, c.keys, c.n FROM {side}_member m"
            f" JOIN ({ambiguous}) d USING (class) JOIN ({candidates}) c USING (class)",
        )


def _mark_ambiguous_hot_keys(session: MatchSession, rule: RulePlan, kids: list[int]) -> None:
    """Hot keys that were not searched: all their rows, with the first rows of the other side."""
    if not kids:
        return
    listed = ", ".join(map(str, kids))
    for side, other in (SIDES, SIDES[::-1]):
        hot = (
            f"SELECT row_id, kid FROM {other}_member JOIN {other}_class USING (class)"
            f" WHERE kid IN ({listed})"
        )
        session.keys_table(other, f"SELECT row_id FROM ({hot})", f"{other}_keys")
        session.mark_ambiguous(
            side,
            f"SELECT m.row_id, {rule.number}, 'too_large', o.keys, o.n FROM {side}_member m"
            f" JOIN {side}_class c USING (class) JOIN ("
            f" SELECT kid, list_sort(min(key, {SHOWN_CANDIDATES})) AS keys, count(*) AS n"
            f" FROM ({hot}) JOIN {other}_keys USING (row_id) GROUP BY kid) o USING (kid)",
        )
