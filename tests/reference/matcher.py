"""The reference: rules in order, one pair at a time, every optimal answer written out.

Slow and obvious on purpose. `groups` has 1:N, N:1 and M:N; `closest` explains what is left over.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

from kalla.reconcile.recipe.model import Recipe, Rule, Side
from tests.reference.assignment import Edge, optimal_flows
from tests.reference.evidence import (
    CANDIDATES_LISTED,
    Ambiguous,
    Fate,
    Matched,
    Result,
    Table,
)
from tests.reference.findings import Doubt, Finding, Match
from tests.reference.groups import SumsLeft, differences, match_groups, sums_left
from tests.reference.nearest import closest
from tests.reference.row_values import Lens
from tests.reference.rows import Row, in_key_order, rows_of
from tests.reference.values import Seen, order

Class = list[Row]  # rows of one side alike in all that a rule compares


def reconcile(recipe: Recipe, left: Table, right: Table) -> Result:
    """Evidence for every row of both sides."""
    lens = Lens(recipe, left, right)
    rows = rows_of("left", recipe.sources.left, left) + rows_of(
        "right", recipe.sources.right, right
    )
    matched: list[Matched] = []
    doubts: dict[Row, Ambiguous] = {}
    fates: dict[Row, Fate] = {}
    sums: SumsLeft = {}
    for rule in recipe.rules_in_order:
        present = [row for row in rows if row not in fates and lens.admits(rule, row)]
        for finding in apply(lens, rule, of("left", present), of("right", present)):
            match finding:
                case Match():
                    matched.extend(evidence(lens, rule, finding))
                    for row in finding.rows:
                        fates[row] = "matched" if finding.status == "confirmed" else "suggested"
                case Doubt():
                    doubts.setdefault(finding.row, doubted(rule, finding))
        rest = [row for row in present if row not in fates]
        sums |= sums_left(lens, rule, of("left", rest), of("right", rest))
    ambiguous = [each for row, each in doubts.items() if row not in fates]
    for row in rows:
        fates.setdefault(row, "ambiguous" if row in doubts else "unmatched")
    unmatched = [closest(lens, row, rows, fates, sums) for row in rows if fates[row] == "unmatched"]
    return Result.of(*matched, *ambiguous, *unmatched)


def apply(lens: Lens, rule: Rule, left: list[Row], right: list[Row]) -> list[Finding]:
    if rule.cardinality == "1:1":
        return match_pairs(lens, rule, left, right)
    return match_groups(lens, rule, left, right)


def of(side: Side, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.side == side]


def doubted(rule: Rule, doubt: Doubt) -> Ambiguous:
    keys = sorted(row.key for row in doubt.candidates)
    return Ambiguous(
        record_key=doubt.row.key,
        side=doubt.row.side,
        rule=rule.name,
        candidates=tuple(keys[:CANDIDATES_LISTED]),
        candidate_count=len(keys),
        reason=doubt.reason,
    )


def evidence(lens: Lens, rule: Rule, match: Match) -> list[Matched]:
    """A row for each pair of a match; of M:N a row for each of its keys."""
    group = frozenset((row.side, row.key) for row in match.rows)
    pairs: list[tuple[Row | None, Row | None]]
    if match.cardinality == "M:N":
        pairs = [(row, None) for row in match.left] + [(None, row) for row in match.right]
    else:
        pairs = [(left, right) for left in match.left for right in match.right]
    return [
        Matched(
            left_key=left.key if left else None,
            right_key=right.key if right else None,
            group=group,
            rule=rule.name,
            status=match.status,
            cardinality=match.cardinality,
            differences=differences(lens, rule, match.left, match.right),
            interchangeable=match.interchangeable,
            fifo=match.fifo,
        )
        for left, right in pairs
    ]


def match_pairs(lens: Lens, rule: Rule, left: list[Row], right: list[Row]) -> list[Finding]:
    """1:1: per component of the graph of candidates, what every optimal assignment agrees on."""
    lefts, rights = classes(lens, rule, left), classes(lens, rule, right)
    edges = {
        (a, b): distance(lens, rule, lefts[a][0], rights[b][0])
        for a in range(len(lefts))
        for b in range(len(rights))
        if is_candidate(lens, rule, lefts[a][0], rights[b][0])
    }
    found: list[Finding] = []
    for component in components(list(edges)):
        if len(component) > lens.recipe.bounds.component_edges:
            for edge in component:
                found += doubt_both("too_large", edge, component, lefts, rights)
        else:
            sizes = [len(each) for each in lefts], [len(each) for each in rights]
            flows = optimal_flows({edge: edges[edge] for edge in component}, *sizes)
            found += settle(lens, rule, component, flows, lefts, rights)
    return found


def classes(lens: Lens, rule: Rule, rows: list[Row]) -> list[Class]:
    alike: dict[tuple[Seen, ...], Class] = {}
    for row in rows:
        compared = (*rule.conditions, *lens.currency(rule))
        alike.setdefault(tuple(lens.value(each, row) for each in compared), []).append(row)
    return list(alike.values())


def is_candidate(lens: Lens, rule: Rule, left: Row, right: Row) -> bool:
    return all(lens.holds(each, left, right) for each in (*rule.conditions, *lens.currency(rule)))


def distance(lens: Lens, rule: Rule, left: Row, right: Row) -> tuple[Fraction, ...]:
    """One entry per check; a candidate's values are never null."""
    gaps = [lens.gap(each, left, right) for each in rule.checks]
    return tuple(abs(Fraction(each)) for each in gaps if each is not None)


def components(edges: list[Edge]) -> list[list[Edge]]:
    """Edges that share a class, directly or through others."""
    rest, found = list(edges), []
    while rest:
        component = [rest.pop(0)]
        while near := [e for e in rest if any(e[0] == c[0] or e[1] == c[1] for c in component)]:
            component += near
            rest = [each for each in rest if each not in near]
        found.append(component)
    return found


def settle(
    lens: Lens,
    rule: Rule,
    component: list[Edge],
    flows: list[dict[Edge, int]],
    lefts: list[Class],
    rights: list[Class],
) -> list[Finding]:
    """What is common to all optimal flows is confirmed; a class used in none is left over."""
    used = [edge for edge in component if any(flow.get(edge) for flow in flows)]
    found: list[Finding] = []
    for edge in used:
        left, right = lefts[edge[0]], rights[edge[1]]
        amounts = {flow.get(edge, 0) for flow in flows}
        alone = all(other == edge or not shares(other, edge) for other in used)
        if len(amounts) > 1 or not alone:
            found += doubt_both("tie", edge, component, lefts, rights)
        elif len(left) == len(right):
            found += [
                Match((a,), (b,), "confirmed", interchangeable=len(left) > 1)
                for a, b in zip(in_key_order(left), in_key_order(right), strict=True)
            ]
        elif rule.ties == "first_in_first_out":
            found += [
                Match((a,), (b,), "confirmed", fifo=True)
                for a, b in zip(
                    first_in(lens, left, rule.left_order),
                    first_in(lens, right, rule.right_order),
                    strict=False,
                )
            ]
        else:
            found += doubt_both("unequal", edge, component, lefts, rights)
    return found


def shares(one: Edge, other: Edge) -> bool:
    return one[0] == other[0] or one[1] == other[1]


def doubt_both(
    reason: Literal["tie", "unequal", "too_large"],
    edge: Edge,
    component: list[Edge],
    lefts: list[Class],
    rights: list[Class],
) -> Sequence[Finding]:
    """Every row of both classes, with the rows of all classes it has an edge to."""
    of_left = [row for a, b in component if a == edge[0] for row in rights[b]]
    of_right = [row for a, b in component if b == edge[1] for row in lefts[a]]
    return [Doubt(row, tuple(of_left), reason) for row in lefts[edge[0]]] + [
        Doubt(row, tuple(of_right), reason) for row in rights[edge[1]]
    ]


def first_in(lens: Lens, rows: Class, column: str | None) -> Sequence[Row]:
    """By the named column, null last, then by key."""
    if column is None:
        return in_key_order(rows)
    dated = [row for row in in_key_order(rows) if row.values[column] is not None]
    undated = [row for row in in_key_order(rows) if row.values[column] is None]

    def place(row: Row) -> tuple[int, Any]:
        return order(row.values[column], lens.writing[row.side])

    return sorted(dated, key=place) + undated
