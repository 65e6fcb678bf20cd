"""Answers as Prometheus writes them: values and times in Go's notation, a million points at a time.

Columns become text by Arrow, not point by point; long answers are written piece by piece.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kalla.query.labels import Labels
from kalla.query.matchers import readable
from kalla.query.notation import plain

if TYPE_CHECKING:
    from kalla.query.engine import Answer, Series
    from kalla.query.frames import Floats, Whole

TRUNCATED = "results truncated due to limit"
# Points of a piece: some megabytes of text.
_PIECE = 1 << 16
_MOST_ANNOTATIONS = 10
# Below this, a whole number's shortest digits are all its digits.
_WHOLE = 2.0**53


def success(data: Any, warnings: Sequence[str] = ()) -> bytes:
    """A whole answer whose data is small."""
    document = {"status": "success", "data": data}
    if warnings:
        document["warnings"] = list(warnings)
    return encoded(compact(document))


def pieces(
    answer: Answer, time_ms: int, limit: int, beside: Mapping[str, Any] | None = None
) -> Iterator[bytes]:
    """The answer to a query in pieces; `beside` stands next to the result (stats, explain)."""
    series = answer.series if limit <= 0 else answer.series[:limit]
    yield f'{{"status":"success","data":{{"resultType":"{answer.type}","result":'.encode()
    if answer.type == "scalar":
        # Prometheus writes a scalar by other code than a sample: never with an exponent.
        yield f'[{stamp(time_ms)},"{plain(answer.scalar)}"]'.encode()
    elif answer.type == "string":
        yield encoded(f"[{stamp(time_ms)},{compact(answer.string)}]")
    else:
        yield b"["
        yield from (_vector(series) if answer.type == "vector" else _matrix(series))
        yield b"]"
    tail = "".join(f",{compact(name)}:{compact(value)}" for name, value in (beside or {}).items())
    warnings = [*answer.warnings, *([TRUNCATED] if len(series) < len(answer.series) else [])]
    tail += "}" + _annotations("warnings", "warning", warnings)
    tail += _annotations("infos", "info", answer.infos) + "}"
    yield encoded(tail)


def label_sets(known: Sequence[Labels], warnings: Sequence[str] = ()) -> Iterator[bytes]:
    """The answer of /series, in pieces."""
    yield b'{"status":"success","data":['
    quoted = Quoted()
    for first in range(0, len(known), _PIECE):
        part = ",".join(map(quoted.labels, known[first : first + _PIECE]))
        yield encoded(("," if first else "") + part)
    yield encoded("]" + _annotations("warnings", "warning", warnings) + "}")


class Quoted(dict[str, str]):
    """Label sets as JSON; each name is quoted once, since series share theirs."""

    def __missing__(self, name: str) -> str:
        text = self[name] = f"{encode_basestring(name)}:"
        return text

    def labels(self, labels: Labels) -> str:
        pairs = [f"{self[name]}{encode_basestring(value)}" for name, value in labels]
        return "{" + ",".join(pairs) + "}"


def numbers(values: Floats) -> pa.StringArray:
    """Each value as Go writes it: shortest digits, an exponent below 1e-6 and from 1e21 on."""
    text = pc.cast(pa.array(values), pa.string())
    size = np.abs(values)
    # Arrow goes over to exponents at 1e10, leaves out their leading zero, and says `nan`.
    other = ~(size < 1e10) | ((size < 1e-6) & (size > 0))
    if not other.any():
        return text
    whole = other & (size < _WHOLE) & (size >= 1) & (np.floor(size) == size)
    if whole.any():
        digits = pc.cast(pa.array(values[whole].astype(np.int64)), pa.string())
        text = pc.replace_with_mask(text, pa.array(whole), digits)
        other &= ~whole
    if other.any():
        replaced = pa.array([number(value) for value in values[other].tolist()], pa.string())
        text = pc.replace_with_mask(text, pa.array(other), replaced)
    return text


def number(value: float) -> str:
    text = repr(value)
    if "e" in text:
        return plain(value) if 1e-6 <= abs(value) < 1e21 else text
    return text.removesuffix(".0") if text[-1].isdigit() else plain(value)


def stamps(times: Whole) -> pa.StringArray:
    """Milliseconds as seconds, with three decimals where there are any."""
    size = np.abs(times)
    seconds = pc.cast(pa.array(size // 1000), pa.string())
    fractions = size % 1000
    if fractions.any():
        parts = _decimals().take(pa.array(fractions))
        seconds = pc.binary_join_element_wise(seconds, parts, "")
    if (times < 0).any():
        signs = pa.array(["", "-"]).take(pa.array((times < 0).astype(np.int8)))
        seconds = pc.binary_join_element_wise(signs, seconds, "")
    return seconds


@cache
def _decimals() -> pa.StringArray:
    """Of every millisecond; made on first use, because Arrow then looks for pandas."""
    return pa.array(["", *(f".{number:03d}" for number in range(1, 1000))])


def stamp(time_ms: int) -> str:
    seconds, fraction = divmod(abs(time_ms), 1000)
    return f"{'-' if time_ms < 0 else ''}{seconds}" + (f".{fraction:03d}" if fraction else "")


def compact(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def encoded(text: str) -> bytes:
    """UTF-8; bytes of a label that are none are shown as Go shows them."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return readable(text).encode()


def _annotations(name: str, kind: str, found: Sequence[str]) -> str:
    if not found:
        return ""
    shown = list(found[:_MOST_ANNOTATIONS])
    if len(found) > len(shown):
        shown.append(f"{len(found) - len(shown)} more {kind} annotations omitted")
    return f',"{name}":{compact(shown)}'


def _vector(series: Sequence[Series]) -> Iterator[bytes]:
    quoted = Quoted()
    for first in range(0, len(series), _PIECE):
        part = series[first : first + _PIECE]
        values = numbers(np.array([one.values[0] for one in part])).to_pylist()
        times = stamps(np.array([one.times[0] for one in part])).to_pylist()
        text = ",".join(
            [
                f'{{"metric":{quoted.labels(one.labels)},"value":[{time},"{value}"]}}'
                for one, time, value in zip(part, times, values, strict=True)
            ]
        )
        yield encoded(("," if first else "") + text)


def _matrix(series: Sequence[Series]) -> Iterator[bytes]:
    quoted = Quoted()
    before = b""
    for part in _parts(series):
        text, offsets = _points(part)
        written: list[bytes | memoryview] = []
        low = 0
        for one in part:
            high = low + len(one.times)
            head = encoded(f'{{"metric":{quoted.labels(one.labels)},"values":[')
            written += (before, head, text[offsets[low] + 1 : offsets[high]], b"]}")
            before, low = b",", high
        yield b"".join(written)


def _points(series: Sequence[Series]) -> tuple[memoryview, list[int]]:
    """`,[time,"value"]` for every point of these series, one after the other, and where each is."""
    shared = series[0].times
    if all(one.times is shared for one in series):
        heads = _heads(shared)
        heads = heads.take(pa.array(np.tile(np.arange(len(shared)), len(series))))
    else:
        heads = _heads(np.concatenate([one.times for one in series]))
    values = numbers(np.concatenate([one.values for one in series]))
    joined = pc.binary_join_element_wise(heads, values, '"]', "")
    _, offsets, text = joined.buffers()
    return memoryview(text), np.frombuffer(offsets, np.int32).tolist()


def _heads(times: Whole) -> pa.StringArray:
    return pc.binary_join_element_wise(",[", stamps(times), ',"', "")


def _parts(series: Iterable[Series]) -> Iterator[list[Series]]:
    """Series in order, as many at a time as make a piece; one is never cut."""
    part: list[Series] = []
    points = 0
    for one in series:
        part.append(one)
        points += len(one.times)
        if points >= _PIECE:
            yield part
            part, points = [], 0
    if part:
        yield part
