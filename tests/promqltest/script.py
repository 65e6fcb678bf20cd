"""The commands of a script file: clear, load, eval with what is expected of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kalla.query.evaluate.frames import Steps
from kalla.query.promql.durations import milliseconds
from kalla.query.promql.lexer import unquoted
from tests.promqltest.descriptions import BadScript, Description, described

_LOAD = re.compile(r"load(_with_nhcb)?\s+(\S+)")
_INSTANT = re.compile(r"eval(?:_(fail|warn|ordered|info))?\s+instant\s+(?:at\s+(.+?))?\s+(.+)")
_RANGE = re.compile(
    r"eval(?:_(fail|warn|info))?\s+range\s+from\s+(.+)\s+to\s+(.+)\s+step\s+(.+?)\s+(.+)"
)
_EXPECT = re.compile(r"expect\s+(ordered|fail|warn|no_warn|info|no_info)(?:\s+(regex|msg):(.*))?")
_VECTOR = re.compile(r"expect\s+range\s+vector\s+from\s+(.+)\s+to\s+(.+)\s+step\s+(.+)")

Severity = Literal["fail", "warn", "info"]


@dataclass(frozen=True)
class Clear:
    line: int


@dataclass(frozen=True)
class Load:
    line: int
    interval: int
    series: tuple[Description, ...]
    with_histograms: bool = False


@dataclass(frozen=True)
class Said:
    """A text that an error or annotation must have; nothing means any text."""

    message: str | None = None
    pattern: str | None = None

    def fits(self, text: str) -> bool:
        if self.message is not None:
            return text == self.message
        return self.pattern is None or re.search(self.pattern, text) is not None


@dataclass
class Expected:
    fail: Said | None = None
    warn: list[Said] = field(default_factory=list)
    info: list[Said] = field(default_factory=list)
    no_warn: bool = False
    no_info: bool = False
    ordered: bool = False
    string: str | None = None
    scalar: float | None = None
    matrix: Steps | None = None
    series: list[Description] = field(default_factory=list)
    native: bool = False


@dataclass(frozen=True)
class Eval:
    line: int
    query: str
    steps: Steps
    instant: bool
    expected: Expected


@dataclass(frozen=True)
class Broken:
    """A block that does not follow the format; the rest of the file is read all the same."""

    line: int
    head: str
    problem: str


Command = Clear | Load | Eval | Broken


def commands(path: Path) -> list[Command]:
    lines = [line.strip() for line in path.read_text().splitlines()]
    lines = ["" if line.startswith("#") else line for line in lines]
    found: list[Command] = []
    at = 0
    while at < len(lines):
        head, line = lines[at], at + 1
        at += 1
        if not head:
            continue
        if head == "clear":
            found.append(Clear(line))
            continue
        body: list[str] = []
        while at < len(lines) and lines[at]:
            body.append(lines[at])
            at += 1
        try:
            found.append(_load(head, line, body) or _eval(head, line, body))
        except (BadScript, ValueError) as problem:
            found.append(Broken(line, head, str(problem)))
    return found


def _load(head: str, line: int, body: list[str]) -> Load | None:
    match = _LOAD.fullmatch(head)
    if match is None:
        return None
    series = tuple(described(one) for one in body)
    return Load(line, milliseconds(match.group(2)), series, match.group(1) is not None)


def _eval(head: str, line: int, body: list[str]) -> Eval:
    expected = Expected()
    if match := _INSTANT.fullmatch(head):
        mode, at, query = match.groups()
        time = milliseconds(at) if at else 0
        steps, instant = Steps(time, time, 1), True
    elif match := _RANGE.fullmatch(head):
        mode, start, end, step, query = match.groups()
        steps = Steps(milliseconds(start), milliseconds(end), milliseconds(step))
        instant = False
    else:
        raise BadScript(f"line {line}: no command: {head}")
    _expect(expected, mode or "", None, None)
    expected.native = any("{{" in one for one in body)
    for one in body:
        if "{{" not in one and not _line(expected, one):
            break
    if expected.matrix is not None:
        steps = Steps(expected.matrix.end, expected.matrix.end, 1)
    return Eval(line, query, steps, instant, expected)


def _line(expected: Expected, line: str) -> bool:
    """Takes a line of the body; False when the body ends with it."""
    if line.startswith("expected_fail_message"):
        expected.fail = Said(message=line.removeprefix("expected_fail_message").strip())
    elif line.startswith("expected_fail_regexp"):
        expected.fail = Said(pattern=line.removeprefix("expected_fail_regexp").strip())
    elif match := _EXPECT.fullmatch(line):
        _expect(expected, *match.groups())
    elif match := _VECTOR.fullmatch(line):
        start, end, step = (milliseconds(text) for text in match.groups())
        expected.matrix = Steps(start, end, step)
    elif line.startswith("expect string"):
        expected.string = unquoted(line.removeprefix("expect string").strip())
    elif (number := _scalar(line)) is not None:
        expected.scalar = number
        return False
    else:
        expected.series.append(described(line))
    return True


def _expect(expected: Expected, what: str, kind: str | None, text: str | None) -> None:
    said = Said()
    if kind is not None and text is not None:
        said = Said(message=text.strip()) if kind == "msg" else Said(pattern=text.strip())
    match what:
        case "fail":
            expected.fail = said
        case "warn":
            expected.warn.append(said)
        case "info":
            expected.info.append(said)
        case "no_warn":
            expected.no_warn = True
        case "no_info":
            expected.no_info = True
        case "ordered":
            expected.ordered = True


def _scalar(text: str) -> float | None:
    digits = text.replace("_", "")
    try:
        if re.fullmatch(r"[+-]?0[0-7]+", digits):
            return float(int(digits, 8))
        return float(int(digits, 0))
    except ValueError:
        pass
    try:
        return float(digits)
    except ValueError:
        return None
