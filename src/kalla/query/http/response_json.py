"""Answers as Prometheus writes them: values and times in Go's notation, many points at a time.

Points are written by kernels, not one by one; long answers piece by piece.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kalla.query.evaluate.result_series import ResultRows, Series
from kalla.query.labels.interned import SLACK, Interned
from kalla.query.labels.label_sets import Labels
from kalla.query.promql.matchers import readable
from kalla.query.promql.number_format import plain

if TYPE_CHECKING:
    from kalla.query.array_types import Floats, Mask, Whole
    from kalla.query.engine import Answer

Piece = bytes | memoryview
Bytes = NDArray[np.uint8]

TRUNCATED = "results truncated due to limit"
# Points of a piece: some megabytes of text. The labels of a row are as long as some points.
_PIECE = 1 << 16
_LABELS = 4
_MOST_ANNOTATIONS = 10
# The JSON around a row's labels and points.
_AROUND = len('{"metric":,"values":[]},')


def success(data: Any, warnings: Sequence[str] = ()) -> bytes:
    """A whole answer whose data is small."""
    document = {"status": "success", "data": data}
    if warnings:
        document["warnings"] = list(warnings)
    return encoded(compact(document))


def pieces(
    answer: Answer, time_ms: int, limit: int, extra_fields: Mapping[str, Any] | None = None
) -> Iterator[Piece]:
    """The answer to a query in pieces; `extra_fields` come after the result (stats, explain)."""
    series = answer.series if limit <= 0 else answer.series[:limit]
    yield f'{{"status":"success","data":{{"resultType":"{answer.type}","result":'.encode()
    if answer.type == "scalar":
        # Prometheus writes a scalar by other code than a sample: never with an exponent.
        yield f'[{stamp(time_ms)},"{plain(answer.scalar)}"]'.encode()
    elif answer.type == "string":
        yield encoded(f"[{stamp(time_ms)},{compact(answer.string)}]")
    else:
        yield b"["
        yield from _rows(series, single=answer.type == "vector")
        yield b"]"
    tail = "".join(
        f",{compact(name)}:{compact(value)}" for name, value in (extra_fields or {}).items()
    )
    warnings = [*answer.warnings, *([TRUNCATED] if len(series) < len(answer.series) else [])]
    tail += "}" + _annotations("warnings", "warning", warnings)
    tail += _annotations("infos", "info", answer.infos) + "}"
    yield encoded(tail)


def encoded_answer(answer: Answer) -> bytes:
    """A whole answer of one moment at once."""
    return b"".join(pieces(answer, 0, 0))


def label_sets(sets: Sequence[Labels], warnings: Sequence[str] = ()) -> Iterator[Piece]:
    """The answer of /series, in pieces."""
    yield b'{"status":"success","data":['
    quoted = LabelJson()
    for first in range(0, len(sets), _PIECE):
        part = ",".join(map(quoted.labels, sets[first : first + _PIECE]))
        yield encoded(("," if first else "") + part)
    yield encoded("]" + _annotations("warnings", "warning", warnings) + "}")


class LabelJson(dict[str, str]):
    """Label sets as JSON; each name is quoted once, since series share theirs."""

    def __missing__(self, name: str) -> str:
        text = self[name] = f"{encode_basestring(name)}:"
        return text

    def labels(self, labels: Labels) -> str:
        pairs = [f"{self[name]}{encode_basestring(value)}" for name, value in labels]
        return "{" + ",".join(pairs) + "}"


def numbers(values: Floats) -> pa.StringArray:
    """Each value as Go writes it: shortest digits, an exponent below 1e-6 and from 1e21 on."""
    from kalla.query.kernels import float_format  # brings the compiler of kernels

    ends = np.zeros(len(values) + 1, np.int64)
    out = np.empty(len(values) * float_format.LONGEST + SLACK, np.uint8)
    float_format.write_numbers(np.ascontiguousarray(values).view(np.int64), ends[1:], out)
    text = pa.py_buffer(out[: ends[-1]].tobytes())
    offsets = pa.py_buffer(ends.astype(np.int32))
    return pa.StringArray.from_buffers(len(values), offsets, text)


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


def _rows(series: Sequence[Series], *, single: bool) -> Iterator[Piece]:
    """Every series as an object with its labels and its points, or its only point."""
    more = False
    for rows in _of_lines(series) if isinstance(series, ResultRows) else _of_series(series):
        yield _written(rows, single, more)
        more = True


@dataclass(frozen=True)
class _Rows:
    """Points of some series, one after the other, as bits of their floats.

    A row has `counts` points from its first on, some of them not `present`; the time of its first
    is the head of its place. Its labels are the text from its low to its high.
    """

    bits: Whole
    present: Mask
    firsts: Whole
    counts: Whole
    places: Whole
    heads: Bytes
    marks: Whole
    texts: Bytes
    lows: Whole
    highs: Whole


def _of_lines(lines: ResultRows) -> Iterator[_Rows]:
    frame, count = lines.frame, len(lines.times)
    heads, marks = _heads(lines.times)
    texts, lows, highs = _texts(frame.labels)
    height = max(1, _PIECE // (count + _LABELS))
    for first in range(0, len(lines), height):
        part = slice(first, first + height)
        values, present = frame.values[part], frame.present[part]
        rows = np.arange(len(values), dtype=np.int64)
        yield _Rows(
            np.ascontiguousarray(values).ravel().view(np.int64),
            np.ascontiguousarray(present).ravel(),
            rows * count,
            np.full(len(rows), count, np.int64),
            np.zeros(len(rows), np.int64),
            heads,
            marks,
            texts,
            lows[part],
            highs[part],
        )


def _of_series(series: Sequence[Series]) -> Iterator[_Rows]:
    for part in _parts(series):
        counts = np.array([len(one.times) for one in part], np.int64)
        firsts = np.cumsum(counts) - counts
        values = np.concatenate([one.values for one in part])
        heads, marks = _heads(np.concatenate([one.times for one in part]))
        texts, lows, highs = _texts([one.labels for one in part])
        bits, present = values.view(np.int64), np.ones(len(values), bool)
        yield _Rows(
            bits, present, firsts, counts, firsts, heads, marks, texts, lows, highs
        )  # fmt: skip


def _written(rows: _Rows, single: bool, more: bool) -> Piece:
    from kalla.query.kernels import float_format  # brings the compiler of kernels

    longest = int(np.diff(rows.marks).max(initial=0)) + float_format.LONGEST + len('"],')
    text = int((rows.highs - rows.lows).sum())
    room = text + len(rows.firsts) * _AROUND + len(rows.bits) * longest
    out = np.empty(room + SLACK, np.uint8)
    size = float_format.write_rows(
        rows.bits, rows.present, rows.firsts, rows.counts, rows.places, rows.heads, rows.marks,
        rows.texts, rows.lows, rows.highs, single, more, out,
    )  # fmt: skip
    return out[:size].data


def _texts(sets: Sequence[Labels]) -> tuple[Bytes, Whole, Whole]:
    """Label sets as JSON, and from where to where each is."""
    if isinstance(sets, Interned):
        return sets.texts()
    quoted = LabelJson()
    texts = [encoded(quoted.labels(labels)) for labels in sets]
    sizes = np.array([len(text) for text in texts], np.int64)
    highs = np.cumsum(sizes)
    return np.frombuffer(b"".join((*texts, bytes(SLACK))), np.uint8), highs - sizes, highs


def _heads(times: Whole) -> tuple[Bytes, Whole]:
    """`[time,"` for each, one after the other, and where each begins."""
    joined = pc.binary_join_element_wise("[", stamps(times), ',"', "")
    marks = np.frombuffer(joined.buffers()[1], np.int32)[: len(times) + 1].astype(np.int64)
    text = bytes(memoryview(joined.buffers()[2])[: marks[-1]]) + bytes(SLACK)
    return np.frombuffer(text, np.uint8), marks


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
