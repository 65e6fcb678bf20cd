"""Decides the classes of some keys from the edges between them: which pairs of classes match, and
which classes are ambiguous.

Only a few edges are in memory at once; only components with a choice are solved one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kalla.reconcile.arrays.arrow_numbers import numbers
from kalla.reconcile.matching import assignment
from kalla.reconcile.matching.assignment import Component
from kalla.reconcile.recipe.model import SIDES
from kalla.reconcile.session.match_session import MatchSession

Nodes = npt.NDArray[np.int64]

_EDGES_AT_ONCE = 1_000_000
_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class _Classes:
    """The classes of both sides as nodes from zero: first those of the left, then of the right."""

    rows: Nodes
    split: int
    lowest: int  # of the left classes' numbers
    above: int  # what a right class's number is above that of its node

    def pairs(self, lefts: Nodes, rights: Nodes, reason: str) -> pa.Table:
        return pa.table(
            {
                "l": pa.array(lefts + self.lowest),
                "r": pa.array(rights + self.above),
                "reason": pa.repeat(pa.scalar(reason, pa.string()), len(lefts)),
            }
        )

    def ambiguous(self, nodes: Nodes, reason: str) -> pa.Table:
        found = self.pairs(nodes, nodes, reason)
        is_left = pa.array(nodes < self.split)
        lefts = pc.if_else(is_left, found.column("l"), pa.scalar(None, pa.int64()))
        rights = pc.if_else(is_left, pa.scalar(None, pa.int64()), found.column("r"))
        return found.set_column(0, "l", lefts).set_column(1, "r", rights)


def decide(session: MatchSession, kids: str, distances: Sequence[str], *, fifo: bool) -> None:
    """`decisions` (l, r, reason), of the classes of these keys (a condition), between which there
    are `edges` (l, r): pairs that match, and classes (the other null) that are in doubt.

    The distances are of a class `l` and a class `r`.
    """
    classes = _read_classes(session, kids)
    labels = _connect(session, classes)
    degrees = session.columns("SELECT l, count(*) FROM edges GROUP BY l")
    of_lefts = labels[degrees[0] - classes.lowest]
    edges = np.bincount(of_lefts, degrees[1], len(labels)).astype(np.int64)[labels]
    few = session.plan.bounds.component_edges
    lefts, rights = _alone(labels, edges == 1, classes.split)
    pairs, tied = _solve(session, classes, labels, (edges > 1) & (edges <= few), distances)
    lefts, rights = np.concatenate([lefts, pairs[:, 0]]), np.concatenate([rights, pairs[:, 1]])
    even = classes.rows[lefts] == classes.rows[rights]
    decided = [classes.pairs(lefts[even], rights[even], "matched")]
    # With classes of unequal size the remaining rows are undetermined, unless rows have an order.
    lefts, rights = lefts[~even], rights[~even]
    if fifo:
        decided.append(classes.pairs(lefts, rights, "fifo"))
    else:
        decided.append(classes.ambiguous(np.concatenate([lefts, rights]), "unequal"))
    decided.append(classes.ambiguous(tied, "tie"))
    decided.append(classes.ambiguous(np.flatnonzero(edges > few), "too_large"))
    session.table("decisions", pa.concat_tables(decided))


def _read_classes(session: MatchSession, kids: str) -> _Classes:
    """Classes of consecutive keys are consecutive too."""
    sides = [
        session.columns(f"SELECT class, n FROM {side}_class WHERE {kids} ORDER BY class")
        for side in SIDES
    ]
    lowest = [int(found[0]) if len(found) else 0 for found, _ in sides]
    rows = np.concatenate([rows for _, rows in sides])
    split = len(sides[0][0])
    return _Classes(rows, split, lowest[0], lowest[1] - split)


def _connect(session: MatchSession, classes: _Classes) -> npt.NDArray[np.int32]:
    """For each node the number of its component."""
    # Imported only for contested keys: the import takes longer than most matches.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    labels = np.arange(len(classes.rows), dtype=np.int32)
    shape = (len(labels), len(labels))
    for batch in session.batches("SELECT l, r FROM edges", _EDGES_AT_ONCE):
        lefts, rights = (numbers(column) for column in batch.columns)
        ends = labels[lefts - classes.lowest], labels[rights - classes.above]
        graph = coo_array((np.ones(len(lefts), np.int8), ends), shape=shape)
        labels = connected_components(graph, directed=False)[1][labels]
    return labels


def _alone(
    labels: npt.NDArray[np.int32], chosen: npt.NDArray[np.bool_], split: int
) -> tuple[Nodes, Nodes]:
    """Pairs of nodes from components with a single edge."""
    lefts, rights = np.flatnonzero(chosen[:split]), np.flatnonzero(chosen[split:]) + split
    return lefts[np.argsort(labels[lefts])], rights[np.argsort(labels[rights])]


def _solve(
    session: MatchSession,
    classes: _Classes,
    labels: npt.NDArray[np.int32],
    chosen: npt.NDArray[np.bool_],
    distances: Sequence[str],
) -> tuple[Nodes, Nodes]:
    """Pairs of nodes, and nodes that are tied, of the components of these nodes."""
    pairs: list[tuple[int, int]] = []
    tied: list[int] = []
    lefts = np.flatnonzero(chosen[: classes.split])
    for edges in _by_component(session, lefts + classes.lowest, labels[lefts], distances):
        numbered = [
            (left - classes.lowest, right - classes.above, tuple(map(int, distance)))
            for left, right, *distance in edges
        ]
        rows = {node: int(classes.rows[node]) for edge in numbered for node in edge[:2]}
        solution = assignment.solve(Component(rows, numbered))
        pairs += solution.pairs
        tied += [node for node, decision in solution.decisions.items() if decision == "ambiguous"]
    return np.array(pairs, np.int64).reshape(-1, 2), np.array(tied, np.int64)


def _by_component(
    session: MatchSession, lefts: Nodes, components: npt.NDArray[np.int32], distances: Sequence[str]
) -> Iterator[list[tuple[Any, ...]]]:
    """The edges of these left classes, with their distances, component by component."""
    if not len(lefts):
        return
    session.table("wanted", pa.table({"class": lefts, "component": components}))
    chosen = ", ".join(["w.component", "e.l", "e.r", *distances])
    found = session.connection.execute(
        f"SELECT {chosen} FROM edges e JOIN wanted w ON w.class = e.l"
        " JOIN left_class l ON l.class = e.l JOIN right_class r ON r.class = e.r"
        " ORDER BY w.component, e.l, e.r"
    )
    rows = (row for some in iter(lambda: found.fetchmany(_ROWS_AT_ONCE), []) for row in some)
    for _, members in groupby(rows, key=itemgetter(0)):
        yield [row[1:] for row in members]
