"""Every optimal way to pair classes of rows: most pairs, then the least total distance.

Tries each way to hand a left class's rows to right classes, and remembers only what it has seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache

Edge = tuple[int, int]  # a left class and a right class
Score = tuple[Fraction, ...]  # pairs missing, then the totals of the distance's entries
Flow = tuple[tuple[Edge, int], ...]


def optimal_flows(
    distances: Mapping[Edge, tuple[Fraction, ...]],
    left_sizes: Sequence[int],
    right_sizes: Sequence[int],
) -> list[dict[Edge, int]]:
    """How many rows go along each edge, in every optimal solution."""
    lefts = sorted({left for left, _ in distances})
    rights = sorted({right for _, right in distances})
    entries = len(next(iter(distances.values())))

    def score(flow: Flow) -> Score:
        pairs = sum(rows for _, rows in flow)
        totals = (
            sum((distances[edge][i] * rows for edge, rows in flow), Fraction(0))
            for i in range(entries)
        )
        return (Fraction(-pairs), *totals)

    def ways(left: int, room: tuple[int, ...]) -> Iterator[tuple[Flow, tuple[int, ...]]]:
        """Each way to spread the rows of a left class, with the room that is then left."""

        def spread(
            at: int, rows: int, flow: Flow, room: tuple[int, ...]
        ) -> Iterator[tuple[Flow, tuple[int, ...]]]:
            if at == len(rights):
                yield flow, room
                return
            most = min(rows, room[at]) if (left, rights[at]) in distances else 0
            for some in range(most + 1):
                more = (*flow, ((left, rights[at]), some)) if some else flow
                less = (*room[:at], room[at] - some, *room[at + 1 :])
                yield from spread(at + 1, rows - some, more, less)

        yield from spread(0, left_sizes[left], (), room)

    @cache
    def best(at: int, room: tuple[int, ...]) -> tuple[Score, tuple[Flow, ...]]:
        """The best score for the left classes from here on, and every flow that has it."""
        if at == len(lefts):
            return (Fraction(0),) * (entries + 1), ((),)
        tried: dict[Score, list[Flow]] = {}
        for flow, room_left in ways(lefts[at], room):
            score_left, flows_left = best(at + 1, room_left)
            total = tuple(a + b for a, b in zip(score(flow), score_left, strict=True))
            tried.setdefault(total, []).extend((*flow, *rest) for rest in flows_left)
        least = min(tried)
        return least, tuple(tried[least])

    _, flows = best(0, tuple(right_sizes[right] for right in rights))
    return [dict(flow) for flow in flows]
