"""The best assignment between classes of rows, exactly, and which parts of it are certain.

Pure: a component of the candidate graph in, a verdict for each class out. Most pairs first, then
the least total distance; what every optimal assignment has in common is certain.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Distance = tuple[int, ...]
Verdict = Literal["matched", "unmatched", "ambiguous"]

_SOURCE, _SINK = -1, -2


@dataclass(frozen=True)
class Component:
    """Classes of interchangeable rows on both sides, and the candidates between them.

    Left and right classes share no number; `rows` says how many rows each has.
    """

    rows: Mapping[int, int]
    edges: Sequence[tuple[int, int, Distance]]


@dataclass(frozen=True)
class Solution:
    verdicts: Mapping[int, Verdict]
    pairs: tuple[tuple[int, int], ...]  # matched classes: each is the only partner of the other


def solve(component: Component) -> Solution:
    flow = _Flow(component)
    flow.fill()
    fixed = flow.fixed()
    partners: dict[int, list[int]] = {node: [] for node in component.rows}
    for left, right, _ in component.edges:
        if flow.carried.get((left, right), 0):
            partners[left].append(right)
            partners[right].append(left)
    verdicts: dict[int, Verdict] = {}
    for node in component.rows:
        others = partners[node]
        if node in fixed and not others:
            verdicts[node] = "unmatched"
        elif (
            node in fixed
            and len(others) == 1
            and others[0] in fixed
            and len(partners[others[0]]) == 1
        ):
            verdicts[node] = "matched"
        else:
            verdicts[node] = "ambiguous"
    lefts = {edge[0] for edge in component.edges}
    pairs = [(left, partners[left][0]) for left in lefts if verdicts[left] == "matched"]
    return Solution(verdicts, tuple(sorted(pairs)))


class _Flow:
    """Successive shortest paths from a source over both sides to a sink, in whole numbers."""

    def __init__(self, component: Component) -> None:
        self.rows = component.rows
        self.lefts = list(dict.fromkeys(edge[0] for edge in component.edges))
        self.rights = list(dict.fromkeys(edge[1] for edge in component.edges))
        self.costs = _single_costs(component)
        self.neighbours: dict[int, list[int]] = {node: [] for node in component.rows}
        for left, right, _ in component.edges:
            self.neighbours[left].append(right)
            self.neighbours[right].append(left)
        self.carried: dict[tuple[int, int], int] = {}
        self.used = dict.fromkeys(component.rows, 0)
        self.potential = dict.fromkeys(component.rows, 0) | {_SOURCE: 0, _SINK: 0}

    def fill(self) -> None:
        while self._approach():
            self._augment()

    def fixed(self) -> set[int]:
        """The classes whose part is the same in every optimal assignment.

        Another optimum differs from this one by cycles of no cost in the residual graph. A class is
        free to move if it lies on such a cycle; there and back over one edge is none.
        """
        self._settle_potentials()
        level = {
            node: [end for end, cost in self._residual(node) if self._reduced(node, end, cost) == 0]
            for node in (*self.rows, _SOURCE, _SINK)
        }
        return {node for node in self.rows if not _on_cycle(node, level)}

    def _residual(self, node: int) -> Iterator[tuple[int, int]]:
        """Where flow can still go from a node, or be taken back to, and what that costs."""
        if node == _SOURCE:
            for left in self.lefts:
                if self.used[left] < self.rows[left]:
                    yield left, 0
        elif node == _SINK:
            for right in self.rights:
                if self.used[right]:
                    yield right, 0
        elif self._is_left(node):
            for right in self.neighbours[node]:
                yield right, self.costs[node, right]
            if self.used[node]:
                yield _SOURCE, 0
        else:
            for left in self.neighbours[node]:
                if self.carried.get((left, node), 0):
                    yield left, -self.costs[left, node]
            if self.used[node] < self.rows[node]:
                yield _SINK, 0

    def _is_left(self, node: int) -> bool:
        neighbours = self.neighbours[node]
        return bool(neighbours) and (node, neighbours[0]) in self.costs

    def _reduced(self, start: int, end: int, cost: int) -> int:
        return cost + self.potential[start] - self.potential[end]

    def _approach(self) -> bool:
        """Dijkstra over reduced costs: afterwards the cheapest ways to the sink cost nothing."""
        reached = {_SOURCE: 0}
        done: set[int] = set()
        heap = [(0, _SOURCE)]
        while heap:
            far, node = heapq.heappop(heap)
            if node in done:
                continue
            done.add(node)
            if node == _SINK:  # what is left in the heap is no nearer
                break
            for end, cost in self._residual(node):
                further = far + self._reduced(node, end, cost)
                if end not in done and further < reached.get(end, further + 1):
                    reached[end] = further
                    heapq.heappush(heap, (further, end))
        if _SINK not in reached:
            return False
        # All others would rise by as much as the sink; that changes no difference between them.
        furthest = reached[_SINK]
        for node in done:
            self.potential[node] -= furthest - reached[node]
        return True

    def _augment(self) -> None:
        """As much as ways that cost nothing carry: many at once, for a search is dear."""
        closed: set[int] = set()
        for left in self.lefts:
            while self.used[left] < self.rows[left] and not self._reduced(_SOURCE, left, 0):
                path = self._free_way(left, closed)
                if not path:
                    break
                self._push(path)
                closed.difference_update(path)

    def _free_way(self, left: int, closed: set[int]) -> list[int]:
        """From a left class to a right one that has room, by way of nodes that are not closed.

        Closes what leads nowhere.
        """
        path = [left]
        ways = [self._residual(left)]
        closed.add(left)
        while path:
            node = path[-1]
            for end, cost in ways[-1]:
                if end in closed or end == _SOURCE or self._reduced(node, end, cost):
                    continue
                if end == _SINK:
                    return path
                closed.add(end)
                path.append(end)
                ways.append(self._residual(end))
                break
            else:
                path.pop()
                ways.pop()
        return []

    def _push(self, path: Sequence[int]) -> None:
        first, last = path[0], path[-1]
        room = min(self.rows[first] - self.used[first], self.rows[last] - self.used[last])
        steps = list(pairwise(path))
        for start, end in steps:
            if not self._is_left(start):
                room = min(room, self.carried[end, start])
        self.used[first] += room
        self.used[last] += room
        for start, end in steps:
            if self._is_left(start):
                self.carried[start, end] = self.carried.get((start, end), 0) + room
            else:
                self.carried[end, start] -= room

    def _settle_potentials(self) -> None:
        """Make every reduced cost at least zero, also for nodes that no search reached last."""
        queue = deque(self.potential)
        waiting = set(queue)
        while queue:
            node = queue.popleft()
            waiting.discard(node)
            for end, cost in self._residual(node):
                if self._reduced(node, end, cost) < 0:
                    self.potential[end] = self.potential[node] + cost
                    if end not in waiting:
                        waiting.add(end)
                        queue.append(end)


def _single_costs(component: Component) -> dict[tuple[int, int], int]:
    """Each distance as one whole number whose sums compare as the tuples' sums do."""
    most = sum(component.rows.values())
    width = len(component.edges[0][2]) if component.edges else 0
    bases = [most * max(edge[2][place] for edge in component.edges) + 1 for place in range(width)]
    costs = {}
    for left, right, distance in component.edges:
        cost = 0
        for place in range(width):
            cost = cost * bases[place] + distance[place]
        costs[left, right] = cost
    return costs


def _on_cycle(node: int, level: Mapping[int, Sequence[int]]) -> bool:
    """Whether a cycle of at least three nodes leads through this one."""
    for first in level[node]:
        seen = {first}
        queue = deque(end for end in level[first] if end != node)
        seen.update(queue)
        while queue:
            for end in level[queue.popleft()]:
                if end == node:
                    return True
                if end not in seen:
                    seen.add(end)
                    queue.append(end)
    return False
