"""Decisions about dynamic tables as pure functions: order, components, due times, strategy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from graphlib import CycleError, TopologicalSorter

from kalla.errors import InvalidInput, Problem

BASE_SECONDS = 1.0  # the shortest period; others are a power of two of it
STEP_SECONDS = 1.0  # until the scheduler sees that a table can be refreshed
PHASE = 0.0  # one phase for all, so that ticks of different periods align
_SHARE_FOR_WAIT = 0.1  # of the lag, reserved for the wait in the queue

Graph = Mapping[str, Set[str]]
"""The dynamic tables that each dynamic table reads."""


def ordered(graph: Graph) -> list[str]:
    """Upstream first; a cycle is refused by name."""
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        cycle = list(reversed(error.args[1]))
        raise InvalidInput(
            Problem(
                cycle[0],
                f"tables read each other in a cycle: {' reads '.join(cycle)}",
                suggestion="take one of them out of the cycle",
            )
        ) from None


def upstream(graph: Graph, names: Iterable[str]) -> set[str]:
    """The tables with all their inputs, directly or not."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph.get(name, ())
    return found


def downstream(graph: Graph, name: str) -> set[str]:
    """The tables that read this one, directly or not."""
    return {other for other in graph if other != name and name in upstream(graph, [other])}


def components(graph: Graph, sources: Graph) -> list[frozenset[str]]:
    """Tables that share a source or read each other: they are pinned together."""
    parent = {name: name for name in graph}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    first_reader: dict[str, str] = {}
    for name in graph:
        for other in graph[name]:
            parent[root(name)] = root(other)
        for source in sources.get(name, ()):
            parent[root(name)] = root(first_reader.setdefault(source, name))
    found: dict[str, set[str]] = {}
    for name in graph:
        found.setdefault(root(name), set()).add(name)
    return sorted((frozenset(each) for each in found.values()), key=min)


def effective_lags(graph: Graph, lags: Mapping[str, float | None]) -> dict[str, float | None]:
    """DOWNSTREAM is the least lag of its readers; without readers it is refreshed on demand."""
    found: dict[str, float | None] = {}
    of_readers: dict[str, list[float]] = {name: [] for name in graph}
    for name in reversed(ordered(graph)):
        own = lags[name]
        lag = own if own is not None else min(of_readers[name], default=None)
        found[name] = lag
        for read in graph[name]:
            if lag is not None:
                of_readers[read].append(lag)
    return found


def path_seconds(graph: Graph, durations: Mapping[str, float]) -> dict[str, float]:
    """From a tick to the end of each table's refresh: its own one after its slowest upstream."""
    found: dict[str, float] = {}
    for name in ordered(graph):
        above = max((found[other] for other in graph[name]), default=0.0)
        found[name] = above + STEP_SECONDS + durations.get(name, 0.0)
    return found


def period_seconds(lag: float, duration: float) -> float | None:
    """The largest power-of-two multiple of the base that keeps the lag; None: unattainable.

    A result is as old as the time since its tick: at worst one period, the wait, the refresh.
    """
    room = lag * (1 - _SHARE_FOR_WAIT) - duration
    if room < BASE_SECONDS:
        return None
    period = BASE_SECONDS
    while period * 2 <= room:
        period *= 2
    return period


def next_due(last: float | None, period: float) -> float:
    """When `is_due` becomes true."""
    return 0.0 if last is None else ((last - PHASE) // period + 1) * period + PHASE


def is_due(now: float, last: float | None, period: float) -> bool:
    """Whether a multiple of the period is between the last tick and now; missed ones are one."""
    return last is None or (now - PHASE) // period > (last - PHASE) // period
