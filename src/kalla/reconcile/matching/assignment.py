"""The best assignment between classes of rows, exactly, and which parts of it are certain.

Pure: a component of the candidate graph in, a verdict for each class out. Most pairs first, then
the least total distance; what every optimal assignment has in common is certain.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kalla.reconcile.matching.graph_cycles import on_cycles

Distance = tuple[int, ...]
Decision = Literal["matched", "unmatched", "ambiguous"]

_GOLDEN = 0x9E3779B1  # that part of 2^32 which the golden section is of one


@dataclass(frozen=True)
class Component:
    """Classes of interchangeable rows on both sides, and the candidates between them.

    Left and right classes share no number; `rows` says how many rows each has.
    """

    rows: Mapping[int, int]
    edges: Sequence[tuple[int, int, Distance]]


@dataclass(frozen=True)
class Solution:
    decisions: Mapping[int, Decision]
    pairs: tuple[tuple[int, int], ...]  # matched classes: each is the only partner of the other


def solve(component: Component) -> Solution:
    placing = _Placing(component)
    placing.place_all()
    moving = placing.moving()
    partners: dict[int, list[int]] = {node: [] for node in component.rows}
    for left, right in placing.pairs():
        partners[left].append(right)
        partners[right].append(left)
    decisions: dict[int, Decision] = {}
    for node, others in partners.items():
        if node in moving or len(others) > 1:
            decisions[node] = "ambiguous"
        elif not others:
            decisions[node] = "unmatched"
        elif others[0] in moving or len(partners[others[0]]) > 1:
            decisions[node] = "ambiguous"
        else:
            decisions[node] = "matched"
    lefts = {edge[0] for edge in component.edges}
    pairs = [(left, partners[left][0]) for left in lefts if decisions[left] == "matched"]
    return Solution(decisions, tuple(sorted(pairs)))


class _Placing:
    """Assigns the rows of each left class in turn: to right classes, or to none, which costs more
    than all distances together.

    Each takes the cheapest path, which may move earlier rows to other places.
    Prices make every step of a way cost nothing or more, and those of the assignment nothing: that
    of a left class is what a place for it costs, that of a right one what there is off.
    """

    def __init__(self, component: Component) -> None:
        left_of: dict[int, int] = {}
        right_of: dict[int, int] = {}
        for left, right, _ in component.edges:
            left_of.setdefault(left, len(left_of))
            right_of.setdefault(right, len(right_of))
        self.lefts, self.rights = list(left_of), list(right_of)
        costs, self.out = _single_costs(component)
        self.ways: list[list[tuple[int, int]]] = [[] for _ in self.lefts]
        for (left, right, _), cost in zip(component.edges, costs, strict=True):
            self.ways[left_of[left]].append((right_of[right], cost))
        self.waiting = [component.rows[left] for left in self.lefts]
        self.room = [component.rows[right] for right in self.rights]
        self.placed: list[dict[int, int]] = [{} for _ in self.rights]  # rows, by left class
        self.left_out = [0] * len(self.lefts)
        self.price = [0] * len(self.lefts)
        self.off = [0] * len(self.rights)

    def place_all(self) -> None:
        # In the order of a chain, each would push all before it; spread evenly, few have neighbours
        # until the last ones come. The result is the same.
        for left in sorted(range(len(self.lefts)), key=lambda left: left * _GOLDEN % 2**32):
            self.price[left] = min(
                self.out, min(cost + self.off[right] for right, cost in self.ways[left])
            )
            while self.waiting[left]:
                self._place(left)

    def pairs(self) -> list[tuple[int, int]]:
        return [
            (self.lefts[left], self.rights[right])
            for right, placed in enumerate(self.placed)
            for left in placed
        ]

    def moving(self) -> set[int]:
        """The classes whose assignment is not the same in every optimum.

        Another optimum differs from this one by cycles of no cost, on which rows take the places of
        others. An unassigned row replaces an assigned one through the source; capacity moves
        between right classes through the sink.
        """
        split = len(self.lefts)
        source = split + len(self.rights)
        sink = source + 1
        ends: list[list[int]] = [[] for _ in range(sink + 1)]
        inside = [False] * split
        for right, placed in enumerate(self.placed):
            ends[split + right] += placed
            for left in placed:
                inside[left] = True
            if self.room[right]:
                ends[split + right].append(sink)
            if placed and not self.off[right]:
                ends[sink].append(split + right)
        for left, ways in enumerate(self.ways):
            price = self.price[left]
            ends[left] = [split + right for right, cost in ways if cost + self.off[right] == price]
            if self.left_out[left]:
                ends[source].append(left)
            if inside[left] and price == self.out:
                ends[left].append(source)
        names = self.lefts + self.rights
        return {names[node] for node in on_cycles(ends) if node < source}

    def _place(self, start: int) -> None:
        """As many rows of a left class as its cheapest way carries, after a search by Dijkstra."""
        far = {start: 0}
        pushed_by: dict[int, int] = {}  # left classes, by which right one's place was wanted
        near: dict[int, int] = {}
        wanted_by: dict[int, int] = {}
        heap: list[tuple[int, int]] = []
        done: dict[int, int] = {}
        best, last, is_out = self.out - self.price[start], start, True
        reached = [start]
        distance = 0
        while True:
            for left in reached:
                base = distance - self.price[left]
                if base + self.out < best:
                    best, last, is_out = base + self.out, left, True
                for right, cost in self.ways[left]:
                    further = base + cost + self.off[right]
                    if further < best and further < near.get(right, best):
                        near[right] = further
                        wanted_by[right] = left
                        if self.room[right]:
                            best, last, is_out = further, right, False
                        else:
                            heapq.heappush(heap, (further, right))
            while heap and heap[0][1] in done:
                heapq.heappop(heap)
            if not heap or heap[0][0] >= best:
                break
            distance, right = heapq.heappop(heap)
            done[right] = distance
            reached = [left for left in self.placed[right] if left not in far]
            for left in reached:
                far[left] = distance
                pushed_by[left] = right
        for left, distance in far.items():
            self.price[left] += best - distance
        for right, distance in done.items():
            self.off[right] += best - distance
        self._push(start, last, is_out, pushed_by, wanted_by)

    def _push(
        self,
        start: int,
        last: int,
        is_out: bool,
        pushed_by: Mapping[int, int],
        wanted_by: Mapping[int, int],
    ) -> None:
        """Rows along the way that ends with a left class that goes out, or a right one."""
        steps: list[tuple[int, int, int]] = []  # a left class from one right one to another
        count = self.waiting[start]
        if is_out:
            left, right = last, -1
        else:
            left, right = wanted_by[last], last
            count = min(count, self.room[last])
        while left != start:
            place = pushed_by[left]
            count = min(count, self.placed[place][left])
            steps.append((left, place, right))
            left, right = wanted_by[place], place
        steps.append((start, -1, right))
        self.waiting[start] -= count
        if is_out:
            self.left_out[last] += count
        else:
            self.room[last] -= count
        for left, before, after in steps:
            if before >= 0:
                self.placed[before][left] -= count
                if not self.placed[before][left]:
                    del self.placed[before][left]
            if after >= 0:
                self.placed[after][left] = self.placed[after].get(left, 0) + count


def _single_costs(component: Component) -> tuple[list[int], int]:
    """Each distance as one whole number whose sums compare as the tuples' sums do, and one that is
    more than any such sum."""
    most = sum(component.rows.values())
    width = len(component.edges[0][2]) if component.edges else 0
    bases = [most * max(edge[2][place] for edge in component.edges) + 1 for place in range(width)]
    costs = []
    for _, _, distance in component.edges:
        cost = 0
        for place in range(width):
            cost = cost * bases[place] + distance[place]
        costs.append(cost)
    return costs, math.prod(bases)
