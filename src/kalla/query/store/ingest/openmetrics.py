"""OpenMetrics text as series of samples, read line by line, a part at a time.

Every sample must have its time: text without times describes the current state, not history.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from kalla.errors import InvalidInput, Problem
from kalla.query.array_types import Floats, Whole
from kalla.query.labels.label_sets import Labels
from kalla.query.promql.syntax_tree import METRIC_NAME
from kalla.query.store.catalogue import Metadata

# In the order of their numbers in remote write.
TYPES = (
    "unknown",
    "counter",
    "gauge",
    "histogram",
    "gaugehistogram",
    "summary",
    "info",
    "stateset",
)
_EOF = "# EOF"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_QUOTED_NAME = re.compile(rf"\{{\s*{_QUOTED}\s*(,|(?=\}}))")
_LABEL = re.compile(rf"\s*(?:{_QUOTED}|([a-zA-Z_][a-zA-Z0-9_]*))\s*=\s*{_QUOTED}\s*(,|(?=\}}))")
_ABOUT = re.compile(rf"# (TYPE|HELP|UNIT) (?:{_QUOTED}|(\S+)) ?(.*)")
_ESCAPE = re.compile(r'\\(["\\n])')
# Label sets that are cached by their text.
_MOST_KNOWN = 1_000_000
# A time beyond has no milliseconds of its own as a float.
_LATEST_SECONDS = 2.0**53 / 1000


@dataclass(frozen=True)
class Part:
    """Part of a file: series with their samples, metadata, and the position in the file."""

    series: list[tuple[Labels, Whole, Floats]]
    metadata: dict[str, Metadata] = field(default_factory=dict)
    position: int = 0


def require_end(file: BinaryIO) -> None:
    """Checks for # EOF before anything is read, so that a truncated file fails at once."""
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - 64))
    if not file.read().rstrip(b"\n").endswith(_EOF.encode()):
        raise _cut_off()
    file.seek(0)


def read(file: BinaryIO, most_samples: int) -> Iterator[Part]:
    """In parts of so many samples; InvalidInput names the line that is wrong."""
    return _Reader(file, most_samples).parts()


class _Reader:
    def __init__(self, file: BinaryIO, most_samples: int) -> None:
        self._file = file
        self._most = most_samples
        self._known: dict[str, Labels] = {}
        self._held: dict[Labels, tuple[list[int], list[float]]] = {}
        self._open: dict[str, tuple[list[int], list[float]]] = {}
        self._metadata: dict[str, Metadata] = {}
        self._line = 0

    def parts(self) -> Iterator[Part]:
        position = samples = 0
        ended = False
        for raw in self._file:
            self._line += 1
            position += len(raw)
            try:
                line = raw.decode().rstrip("\n")
            except UnicodeDecodeError:
                raise self._wrong("is not UTF-8") from None
            if ended and line:
                raise self._wrong(f"comes after {_EOF}, which must be the last")
            if line.startswith("#"):
                ended = line == _EOF
                if not ended:
                    self._note(line)
            elif line:
                self._sample(line)
                samples += 1
                if samples == self._most:
                    yield self._part(position)
                    samples = 0
        if not ended:
            raise _cut_off()
        yield self._part(position)

    def _part(self, position: int) -> Part:
        series = [
            (labels, np.array(times, np.int64), np.array(values, np.float64))
            for labels, (times, values) in self._held.items()
        ]
        part = Part(series, self._metadata, position)
        self._held, self._open, self._metadata = {}, {}, {}
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        return part

    def _sample(self, line: str) -> None:
        if " # " in line:
            line = self._without_exemplar(line)
        head, brace, tail = line.rpartition("} ")
        if not brace:
            head, _, tail = line.partition(" ")
        try:
            times, values = self._open[head]
        except KeyError:
            times, values = self._opened(head, head + brace.rstrip())
        number, _, moment = tail.strip(" ").partition(" ")
        if not moment:
            raise self._wrong("has no timestamp; samples without timestamps cannot be imported")
        try:
            seconds = self._number(moment)
            value = self._number(number)
        except ValueError:
            raise self._wrong(f"has no value and timestamp after its labels: {tail!r}") from None
        if not abs(seconds) < _LATEST_SECONDS:
            raise self._wrong(f"has an invalid timestamp: {moment}")
        times.append(round(seconds * 1000))
        values.append(value)

    def _number(self, text: str) -> float:
        # What Python takes as a number beyond what the format does.
        if "_" in text or not text.isascii():
            raise ValueError(text)
        return float(text)

    def _opened(self, head: str, text: str) -> tuple[list[int], list[float]]:
        """The columns of a series that is met for the first time in this part."""
        labels = self._known.get(head)
        if labels is None:
            labels = self._known[head] = self._labels(text)
        # Two spellings may be the same series.
        columns = self._open[head] = self._held.setdefault(labels, ([], []))
        return columns

    def _labels(self, text: str) -> Labels:
        found: dict[str, str] = {}
        named = _NAME.match(text)
        at = 0
        if named is not None:
            found[METRIC_NAME] = named[0]
            at = named.end()
            if at == len(text):
                return ((METRIC_NAME, named[0]),)
            if text[at] != "{":
                raise self._wrong(f"has an invalid metric name: {text!r}")
            at += 1
        elif quoted := _QUOTED_NAME.match(text):
            found[METRIC_NAME] = _unescaped(quoted[1])
            at = quoted.end()
        else:
            raise self._wrong(f"has no name: {text!r}")
        while text[at:].strip() != "}":
            label = _LABEL.match(text, at)
            if label is None:
                raise self._wrong(f"has invalid labels: {text!r}")
            name = label[2] if label[1] is None else _unescaped(label[1])
            if name in found or not name:
                raise self._wrong(f"has the label {name!r} twice or without a name")
            found[name] = _unescaped(label[3])
            at = label.end()
        if not found[METRIC_NAME]:
            raise self._wrong("has an empty name")
        return tuple(sorted((name, value) for name, value in found.items() if value))

    def _without_exemplar(self, line: str) -> str:
        """Exemplars are not stored; text that looks like one may be inside a label."""
        at, quoted = 0, False
        while at < len(line):
            if line[at] == "\\" and quoted:
                at += 1
            elif line[at] == '"':
                quoted = not quoted
            elif not quoted and line.startswith(" # ", at):
                return line[:at]
            at += 1
        return line

    def _note(self, line: str) -> None:
        about = _ABOUT.fullmatch(line)
        if about is None:
            return  # a comment
        kind, quoted, plain, text = about.groups()
        name = plain if quoted is None else _unescaped(quoted)
        noted = self._metadata.get(name, Metadata())
        if kind == "TYPE":
            if text not in TYPES and text != "untyped":
                raise self._wrong(f"has an unknown type: {text!r}")
            kept = text if text in TYPES else "unknown"
            self._metadata[name] = Metadata(kept, noted.help, noted.unit)
        elif kind == "HELP":
            self._metadata[name] = Metadata(noted.type, _unescaped(text), noted.unit)
        else:
            self._metadata[name] = Metadata(noted.type, noted.help, text)

    def _wrong(self, what: str) -> InvalidInput:
        return InvalidInput(Problem(f"line {self._line}", what))


def _cut_off() -> InvalidInput:
    return InvalidInput(
        Problem("", f"does not end with {_EOF}, as OpenMetrics must: a part may be missing")
    )


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
