"""A line of a script that describes a series: its labels, and its points one after another."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kalla.query.evaluate.sample_source import STALE
from kalla.query.labels.label_sets import Labels, labels_of
from kalla.query.promql.durations import milliseconds
from kalla.query.promql.lexer import unquoted

_STRING = r'"(?:[^"\\]|\\.)*"' + r"|'(?:[^'\\]|\\.)*'|`[^`]*`"
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_PAIR = re.compile(rf"\s*([A-Za-z_][A-Za-z0-9_]*|{_STRING})\s*(?:=\s*({_STRING}))?\s*(,|(?=\}}))")
_NUMBER = r"(?:[0-9][0-9_]*\.?[0-9_]*(?:[eE][+-]?[0-9]+)?|\.[0-9_]+(?:[eE][+-]?[0-9]+)?)"
_SPECIAL = r"(?i:inf|nan)"
_POINT = re.compile(rf"([+-]?(?:{_NUMBER}|{_SPECIAL}))")
_REPEATED = re.compile(rf"([+-]?{_NUMBER})([+-]{_NUMBER})?x([0-9]+)")
_ITEM = re.compile(r"\{\{.*?\}\}(?:[+-]\{\{.*?\}\})?(?:x[0-9]+)?|\S+")
_HISTOGRAM = re.compile(r"\{\{.*?\}\}([+-]\{\{.*?\}\})?(?:x([0-9]+))?")
_SPAN = re.compile(
    r"([+-]?)((?:[0-9]+(?:ms|[smhdwy]))+|0)([+-](?:[0-9]+(?:ms|[smhdwy]))+)?(?:x([0-9]+))?"
)

HISTOGRAM = "histogram"
Point = float | str | None


class BadScript(Exception):
    """A script that does not follow the format."""


@dataclass(frozen=True)
class Description:
    """`points[i]` is a value, None for a gap, or HISTOGRAM."""

    labels: Labels
    points: tuple[Point, ...]
    start_times: bool = False


def described(line: str) -> Description:
    labels, rest = series_of(line)
    if rest.startswith("@st"):
        points = tuple(point for item in rest[3:].split() for point in _spans(item))
        return Description(labels, points, start_times=True)
    return Description(
        labels, tuple(point for item in _ITEM.findall(rest) for point in _points(item))
    )


def series_of(line: str) -> tuple[Labels, str]:
    """The label set at the start of a line, and what follows it."""
    pairs: dict[str, str] = {}
    name = _NAME.match(line)
    at = 0
    if name:
        pairs["__name__"] = name.group()
        at = name.end()
    if line[at : at + 1] == "{" and line[at : at + 2] != "{{":
        at += 1
        while not (closing := re.compile(r"\s*\}").match(line, at)):
            pair = _PAIR.match(line, at)
            if pair is None:
                raise BadScript(f"not a label set: {line}")
            key, value = pair.group(1), pair.group(2)
            key = unquoted(key) if key[0] in "\"'`" else key
            if value is None:
                pairs["__name__"] = key
            else:
                pairs[key] = unquoted(value)
            at = pair.end()
        at = closing.end()
    elif not name:
        raise BadScript(f"no series: {line}")
    return labels_of(pairs), line[at:].strip()


def _points(item: str) -> list[Point]:
    if item == "_":
        return [None]
    if item.startswith("_x"):
        return [None] * int(item[2:])
    if item == "stale":
        return [float(STALE)]
    if found := _HISTOGRAM.fullmatch(item):
        return [HISTOGRAM] * (int(found.group(2)) + 1 if found.group(2) else 1)
    if found := _POINT.fullmatch(item):
        return [_number(found.group(1))]
    if found := _REPEATED.fullmatch(item):
        value, change = _number(found.group(1)), _number(found.group(2) or "0")
        out: list[Point] = []
        for _ in range(int(found.group(3)) + 1):
            out.append(value)
            value += change
        return out
    raise BadScript(f"not a value: {item}")


def _spans(item: str) -> list[Point]:
    """Milliseconds from a sample to its start time."""
    if item == "_":
        return [None]
    if item.startswith("_x"):
        return [None] * int(item[2:])
    found = _SPAN.fullmatch(item)
    if found is None:
        raise BadScript(f"not a duration: {item}")
    sign, first, change, times = found.groups()
    value = float(milliseconds(first)) * (-1 if sign == "-" else 1)
    step = 0.0
    if change:
        step = float(milliseconds(change[1:])) * (-1 if change[0] == "-" else 1)
    return [value + step * index for index in range(int(times) + 1 if times else 1)]


def _number(text: str) -> float:
    return float(text.replace("_", ""))
