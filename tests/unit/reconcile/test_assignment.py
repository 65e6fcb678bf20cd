"""The best assignment, against every optimal one; and that a component of thousands is no work."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalla.reconcile.matching.assignment import Component, Distance, Solution, solve
from kalla.reconcile.matching.graph_cycles import on_cycles
from tests.reference.assignment import optimal_flows

RIGHTS = 100  # from which on a node is a right one


@st.composite
def components(draw: st.DrawFn) -> Component:
    """Few classes of few rows, with many ties among their distances."""
    width = draw(st.integers(0, 2))
    nodes = st.integers(0, 3)
    distance = st.tuples(*[st.integers(0, draw(st.sampled_from([0, 2, 50])))] * width)
    edges = draw(st.dictionaries(st.tuples(nodes, nodes), distance, min_size=1, max_size=9))
    found = [(left, RIGHTS + right, apart) for (left, right), apart in edges.items()]
    rows = st.integers(1, draw(st.sampled_from([1, 3])))
    return Component({node: draw(rows) for edge in found for node in edge[:2]}, found)


@given(components())
def test_what_is_certain_is_what_every_best_assignment_has(component: Component) -> None:
    flows = optimal_flows(
        {
            (left, right - RIGHTS): tuple(map(Fraction, apart))
            for left, right, apart in component.edges
        },
        [component.rows.get(left, 0) for left in range(4)],
        [component.rows.get(RIGHTS + right, 0) for right in range(4)],
    )
    used = {
        (left, RIGHTS + right): {flow.get((left, right), 0) for flow in flows}
        for flow in flows
        for left, right in flow
    }
    solution = solve(component)
    for node in component.rows:
        mine = [edge for edge in used if node in edge]
        others = [edge for edge in used if set(edge) & {each for pair in mine for each in pair}]
        if not mine:
            assert solution.decisions[node] == "unmatched"
        elif others == mine and len(mine) == 1 and len(used[mine[0]]) == 1:
            assert solution.decisions[node] == "matched"
            assert mine[0] in solution.pairs
        else:
            assert solution.decisions[node] == "ambiguous"


@given(st.lists(st.sets(st.integers(0, 6)), min_size=7, max_size=7))
def test_a_node_is_on_a_cycle_if_a_way_of_three_or_more_leads_back(ends: list[set[int]]) -> None:
    ends = [others - {node} for node, others in enumerate(ends)]

    def leads_back(way: list[int]) -> bool:
        after = ends[way[-1]]
        if len(way) > 2 and way[0] in after:
            return True
        return any(leads_back([*way, end]) for end in after - set(way))

    found = on_cycles([sorted(others) for others in ends])
    assert found == {node for node in range(7) if leads_back([node])}


def chain(distances: list[int]) -> tuple[Solution, list[int]]:
    """Left and right classes by turns, each a candidate of the one before: and these in order."""
    nodes = [place // 2 + place % 2 * 10_000 for place in range(len(distances) + 1)]
    edges: list[tuple[int, int, Distance]] = [
        (min(both), max(both), (distance,))
        for both, distance in zip(pairwise(nodes), distances, strict=True)
    ]
    return solve(Component(dict.fromkeys(nodes, 1), edges)), nodes


@pytest.mark.parametrize(("step", "left_over"), [(1, -1), (-1, 0)])
def test_a_chain_of_thousands_in_which_every_distance_is_another_is_solved(
    step: int, left_over: int
) -> None:
    solution, nodes = chain([10_000 + step * place for place in range(5_000)])
    assert solution.decisions[nodes[left_over]] == "unmatched"
    assert len(solution.pairs) == 2_500


def test_a_chain_of_thousands_in_which_any_may_be_left_over_is_ambiguous() -> None:
    solution, _ = chain([7] * 5_000)
    assert set(solution.decisions.values()) == {"ambiguous"}
