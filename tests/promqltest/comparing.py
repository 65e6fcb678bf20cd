"""Whether an answer is the expected one, and if not, in what it differs."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np

from kalla.query.engine import Answer
from kalla.query.evaluate.frames import Steps
from kalla.query.evaluate.sample_source import STALE_BITS
from kalla.query.labels.label_sets import Labels, shown
from tests.promqltest.descriptions import Description
from tests.promqltest.script import Eval, Expected, Said

_EPSILON = 1e-6
_SMALLEST = 2.2250738585072014e-308
_LARGEST = 1.7976931348623157e308

Rows = list[tuple[Labels, dict[int, float]]]


def same(one: float, two: float) -> bool:
    if _stale(one) or _stale(two):
        return _stale(one) and _stale(two)
    if math.isnan(one) or math.isnan(two):
        return math.isnan(one) and math.isnan(two)
    if one == two:
        return True
    if math.isinf(one) or math.isinf(two):
        return False
    difference, total = abs(one - two), abs(one) + abs(two)
    if one == 0 or two == 0 or total < _SMALLEST:
        return difference < _EPSILON * _SMALLEST
    return difference / min(total, _LARGEST) < _EPSILON


def _stale(value: float) -> bool:
    return struct.pack("<d", value) == STALE_BITS.to_bytes(8, "little")


def answer_problem(command: Eval, answer: Answer) -> tuple[str, str] | None:
    """What was expected and what came, in short; None when they agree."""
    expected = command.expected
    if expected.string is not None:
        got = answer.string if answer.type == "string" else answer.type
        return None if got == expected.string else (expected.string, got)
    if expected.scalar is not None:
        if answer.type == "scalar" and same(answer.scalar, expected.scalar):
            return None
        return str(expected.scalar), brief(answer)
    if answer.type in ("scalar", "string"):
        return "a vector", brief(answer)
    steps = expected.matrix or command.steps
    return rows_problem(_wanted(expected.series, steps), rows_of(answer), expected.ordered)


def rows_of(answer: Answer) -> Rows:
    return [
        (one.labels, dict(zip(one.times.tolist(), one.values.tolist(), strict=True)))
        for one in answer.series
    ]


def same_answers(one: Answer, two: Answer) -> bool:
    """To the last bit, but for which NaN it is: nobody sees that."""
    told = (one.warnings, one.infos) == (two.warnings, two.infos)
    return told and _bits(one) == _bits(two)


def _bits(answer: Answer) -> list[tuple[Labels, bytes, bytes]]:
    return [
        (
            one.labels,
            one.times.tobytes(),
            np.where(one.values == one.values, one.values, np.nan).tobytes(),
        )
        for one in answer.series
    ]


def rows_problem(wanted: Rows, got: Rows, ordered: bool) -> tuple[str, str] | None:
    found = dict(got)
    if len(found) < len(got):
        return "each label set once", _shown(got)
    if ordered and [labels for labels, _ in wanted] != [labels for labels, _ in got]:
        return "in order: " + _shown(wanted), _shown(got)
    if {labels for labels, _ in wanted} != set(found):
        return _shown(wanted), _shown(got)
    for labels, points in wanted:
        theirs = found[labels]
        if points.keys() != theirs.keys() or not all(
            same(value, theirs[at]) for at, value in points.items()
        ):
            return _shown([(labels, points)]), _shown([(labels, theirs)])
    return None


def _wanted(series: Sequence[Description], steps: Steps) -> Rows:
    rows: Rows = []
    for one in series:
        points = {
            steps.start + index * steps.step: point
            for index, point in enumerate(one.points)
            if isinstance(point, float)
        }
        rows.append((one.labels, points))
    return rows


def annotations_problem(expected: Expected, answer: Answer) -> tuple[str, str] | None:
    for kind, wanted, forbidden, got in (
        ("warning", expected.warn, expected.no_warn, answer.warnings),
        ("info", expected.info, expected.no_info, answer.infos),
    ):
        if forbidden and got:
            return f"no {kind}", "; ".join(got)
        if wanted and not _said(wanted, got):
            return f"{kind}: {[one.message or one.pattern for one in wanted]}", "; ".join(got)
    return None


def _said(wanted: Sequence[Said], got: Sequence[str]) -> bool:
    each_heard = all(any(one.fits(text) for text in got) for one in wanted)
    return each_heard and all(any(one.fits(text) for one in wanted) for text in got)


def brief(answer: Answer) -> str:
    if answer.type == "scalar":
        return f"scalar {answer.scalar}"
    if answer.type == "string":
        return f"string {answer.string!r}"
    return _shown(rows_of(answer))


def _shown(rows: Rows) -> str:
    parts = [
        f"{shown(labels)} {' '.join(f'{value!r}@{at}' for at, value in points.items())}"
        for labels, points in rows
    ]
    return "[" + ", ".join(parts) + "]"
