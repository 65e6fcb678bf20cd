"""The layout of drawings: the graph of tables, and the lag of one over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kalla.tables.http.api_models import ShownTable

_BOX = (190, 46)
_GAP = (70, 18)
_EDGE = 10
_CHART = (720, 150)
_LABELS = 46  # pixels for the labels of the axis


@dataclass(frozen=True)
class Box:
    name: str
    kind: str  # source, or the state of a table: late, in-time, suspended, waiting
    note: str
    x: int
    y: int
    width: int = _BOX[0]
    height: int = _BOX[1]


@dataclass(frozen=True)
class GraphDrawing:
    width: int
    height: int
    boxes: tuple[Box, ...]
    edges: tuple[str, ...]  # paths


@dataclass(frozen=True)
class ChartDrawing:
    width: int
    height: int
    line: str
    target_y: float | None
    dots: tuple[tuple[float, float, str], ...]  # x, y, text
    top: float  # seconds at the upper edge
    first: datetime
    last: datetime


def graph_drawing(tables: Sequence[ShownTable]) -> GraphDrawing | None:
    """Sources on the left; each table right of all that it reads."""
    if not tables:
        return None
    by_name = {each.name: each for each in tables}
    reads: dict[str, Set[str]] = {each.name: set(each.reads) for each in tables}
    depth: dict[str, int] = {}

    def depth_of(name: str) -> int:
        if name not in depth:
            above = [depth_of(each) for each in sorted(reads.get(name, ()))]
            depth[name] = 1 + max(above) if above else 0
        return depth[name]

    for name in sorted(reads):
        depth_of(name)
    columns: dict[int, list[str]] = {}
    for name in sorted(depth):
        columns.setdefault(depth[name], []).append(name)
    boxes = {
        name: Box(
            name,
            _kind(by_name.get(name)),
            _note(by_name.get(name)),
            _EDGE + column * (_BOX[0] + _GAP[0]),
            _EDGE + place * (_BOX[1] + _GAP[1]),
        )
        for column, names in columns.items()
        for place, name in enumerate(names)
    }
    edges = [
        _edge(boxes[read], boxes[name]) for name in sorted(reads) for read in sorted(reads[name])
    ]
    return GraphDrawing(
        2 * _EDGE + (max(columns) + 1) * (_BOX[0] + _GAP[0]) - _GAP[0],
        2 * _EDGE + max(map(len, columns.values())) * (_BOX[1] + _GAP[1]) - _GAP[1],
        tuple(boxes[name] for name in sorted(boxes)),
        tuple(edges),
    )


def chart_drawing(
    refreshes: Sequence[Mapping[str, Any]], target: float | None
) -> ChartDrawing | None:
    """The lag just before each refresh: the oldest state that readers read."""
    known = [each for each in reversed(refreshes) if each["lag_seconds"] is not None]
    if len(known) < 2:
        return None
    first, last = known[0]["finished_at"], known[-1]["finished_at"]
    span = max((last - first).total_seconds(), 1.0)
    top = max(*(each["lag_seconds"] for each in known), target or 0.0, 1.0) * 1.1
    width, height = _CHART
    points = [
        (
            round(
                _LABELS
                + (each["finished_at"] - first).total_seconds() / span * (width - _LABELS - 8),
                1,
            ),
            round(height - 8 - each["lag_seconds"] / top * (height - 16), 1),
            f"{each['lag_seconds']:.1f} s, {each['strategy'] or each['status']}",
        )
        for each in known
    ]
    return ChartDrawing(
        width,
        height,
        " ".join(f"{x},{y}" for x, y, _ in points),
        None if target is None else round(height - 8 - target / top * (height - 16), 1),
        tuple(points),
        top,
        first,
        last,
    )


def _kind(table: ShownTable | None) -> str:
    if table is None:
        return "source"
    if table.state == "suspended":
        return "suspended"
    if table.late:
        return "late"
    return "in-time" if table.data_time else "waiting"


def _note(table: ShownTable | None) -> str:
    if table is None:
        return "source"
    lag = "no rows yet" if table.lag_seconds is None else f"{table.lag_seconds:.0f} s old"
    target = table.effective_lag_seconds
    return f"{lag}, {'on demand' if target is None else f'target {target:g} s'}"


def _edge(one: Box, other: Box) -> str:
    x1, y1 = one.x + one.width, one.y + one.height // 2
    x2, y2 = other.x, other.y + other.height // 2
    middle = (x1 + x2) // 2
    return f"M{x1} {y1} C{middle} {y1} {middle} {y2} {x2} {y2}"
