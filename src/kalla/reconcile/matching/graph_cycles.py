"""Finds the nodes of a directed graph on a cycle of at least three nodes, in one pass each over its
strongly connected parts and over their bridges.

Two nodes with edges both ways are not a cycle. Of a strongly connected part, seen without
directions, every node with an edge that is not a bridge is on a cycle: its block is strongly
connected too, and if all its paths went through one neighbour each, the block would not be
connected without it.
"""

from __future__ import annotations

from collections.abc import Sequence


def on_cycles(ends: Sequence[Sequence[int]]) -> set[int]:
    """Of nodes numbered from zero, each with the nodes that edges lead to from it."""
    part = _strong_parts(ends)
    near: list[set[int]] = [set() for _ in ends]
    for start, others in enumerate(ends):
        for end in others:
            if part[start] == part[end]:
                near[start].add(end)
                near[end].add(start)
    return _on_non_bridges(near)


def _strong_parts(ends: Sequence[Sequence[int]]) -> list[int]:
    """Tarjan's: for each node the number of its strongly connected part."""
    part = [-1] * len(ends)
    seen = [-1] * len(ends)
    low = [0] * len(ends)
    clock = parts = 0
    waiting: list[int] = []
    for root in range(len(ends)):
        if seen[root] >= 0:
            continue
        path = [(root, iter(ends[root]))]
        seen[root] = low[root] = clock
        clock += 1
        waiting.append(root)
        while path:
            node, others = path[-1]
            for end in others:
                if seen[end] < 0:
                    seen[end] = low[end] = clock
                    clock += 1
                    waiting.append(end)
                    path.append((end, iter(ends[end])))
                    break
                if part[end] < 0 and seen[end] < low[node]:
                    low[node] = seen[end]
            else:
                path.pop()
                if path and low[node] < low[path[-1][0]]:
                    low[path[-1][0]] = low[node]
                if low[node] == seen[node]:
                    while part[node] < 0:
                        part[waiting.pop()] = parts
                    parts += 1
    return part


def _on_non_bridges(near: Sequence[set[int]]) -> set[int]:
    """The nodes of an undirected graph that have an edge which is not a bridge."""
    found: set[int] = set()
    seen = [-1] * len(near)
    low = [0] * len(near)
    clock = 0
    for root in range(len(near)):
        if seen[root] >= 0:
            continue
        path = [(root, -1, iter(near[root]))]
        seen[root] = low[root] = clock
        clock += 1
        while path:
            node, before, others = path[-1]
            for end in others:
                if seen[end] < 0:
                    seen[end] = low[end] = clock
                    clock += 1
                    path.append((end, node, iter(near[end])))
                    break
                if end != before:
                    found.update((node, end))
                    low[node] = min(low[node], seen[end])
            else:
                path.pop()
                if before >= 0:
                    low[before] = min(low[before], low[node])
                    if low[node] <= seen[before]:
                        found.update((node, before))
    return found
