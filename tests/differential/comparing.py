"""Whether two answers are identical: labels, times, presence, NaN and infinity, and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kalla.query.engine import Answer
from kalla.query.labels.label_sets import NONE, Labels, labels_of, shown

Points = Mapping[int, float]
Rows = Mapping[Labels, Points]
Differs = Callable[[Labels, int, float, float], bool]

TOLERANCE = 1e-12


@dataclass(frozen=True)
class Outcome:
    """Rows of an answer, or the kind of refusal."""

    type: str
    rows: Rows
    refusal: str = ""


def same(one: float, two: float) -> bool:
    if math.isnan(one) or math.isnan(two):
        return math.isnan(one) and math.isnan(two)
    if math.isinf(one) or math.isinf(two):
        return one == two
    return abs(one - two) <= TOLERANCE * max(abs(one), abs(two))


def difference(ours: Outcome, theirs: Outcome, unlike: Differs | None = None) -> str:
    """The first thing in which they differ; `unlike` decides of points whose values do."""
    if ours.refusal or theirs.refusal:
        if bool(ours.refusal) == bool(theirs.refusal) and ours.type == theirs.type:
            return ""
        return f"ours: {ours.refusal or 'an answer'}; theirs: {theirs.refusal or 'an answer'}"
    if ours.type != theirs.type:
        return f"ours is a {ours.type}, theirs a {theirs.type}"
    for labels in sorted({*ours.rows, *theirs.rows}):
        mine, other = ours.rows.get(labels, {}), theirs.rows.get(labels, {})
        for time in sorted({*mine, *other}):
            if time not in mine or time not in other:
                owner = "theirs" if time in other else "ours"
                value = mine.get(time, other.get(time))
                return f"{shown(labels)} at {time} is only in {owner}: {value!r}"
            if same(mine[time], other[time]):
                continue
            if unlike is None or unlike(labels, time, mine[time], other[time]):
                return f"{shown(labels)} at {time}: ours {mine[time]!r}, theirs {other[time]!r}"
    return ""


def of_answer(answer: Answer, time: int) -> Outcome:
    if answer.type == "scalar":
        return Outcome("scalar", {NONE: {time: answer.scalar}})
    return Outcome(
        answer.type,
        {
            one.labels: dict(zip(one.times.tolist(), one.values.tolist(), strict=True))
            for one in answer.series
        },
    )


def of_json(document: Mapping[str, Any]) -> Outcome:
    """Of what Prometheus' API sent."""
    if document["status"] == "error":
        return Outcome(document["errorType"], {}, document["error"])
    kind, result = document["data"]["resultType"], document["data"]["result"]
    if kind == "scalar":
        return Outcome(kind, {NONE: dict([_point(result)])})
    rows = {
        labels_of(one["metric"]): dict(map(_point, one.get("values") or [one["value"]]))
        for one in result
    }
    return Outcome(kind, rows)


def _point(pair: tuple[float, str]) -> tuple[int, float]:
    return round(pair[0] * 1000), float(pair[1])
