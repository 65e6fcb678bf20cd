"""Matchers on label values; regular expressions are RE2's, like Go's, and match in linear time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc

from kalla.query.promql.query_errors import ExecutionFailed
from kalla.query.promql.syntax_tree import LabelMatcher, MatchOperator

_PLAIN = re.compile(r"[A-Za-z0-9_\- /:=,;@%&#~!\"'<>]*")


@dataclass(frozen=True)
class Matcher:
    """One condition on one label; a label that is not there counts as an empty one."""

    name: str
    operator: MatchOperator
    value: str

    @classmethod
    def of(cls, written: LabelMatcher) -> Matcher:
        return cls(written.name, written.operator, written.value)

    @property
    def alternatives(self) -> tuple[str, ...] | None:
        """The values that an `=` or a plain `=~ a|b` accepts; None if each value must be tested."""
        if self.operator == "=":
            return (self.value,)
        if self.operator == "=~":
            parts = tuple(self.value.split("|"))
            if all(_PLAIN.fullmatch(part) for part in parts):
                return parts
        return None

    def matches(self, value: str) -> bool:
        return self.admits([value])[0]

    def admits(self, values: Sequence[str]) -> list[bool]:
        """One answer a value; many at once, because each may be a regular expression."""
        match self.operator:
            case "=":
                return [value == self.value for value in values]
            case "!=":
                return [value != self.value for value in values]
        if (plain := self.alternatives) is not None:
            return [value in plain for value in values]
        found = matched(self.value, values)
        return found if self.operator == "=~" else [not answer for answer in found]


def anchored(pattern: str) -> str:
    return f"^(?s:{pattern})$"


def matched(pattern: str, values: Sequence[str]) -> list[bool]:
    found = pc.match_substring_regex(_strings(values), anchored(_closed(pattern)))
    return list(found.to_pylist())


def replaced(pattern: str, template: str, values: Sequence[str]) -> list[str | None]:
    """What the template (`$1`, `${name}`) becomes for each value; None for one without a match."""
    numbered, numbers, count = _numbered(anchored(pattern))
    refused = ExecutionFailed(f"invalid regular expression in label_replace(): {pattern}")
    try:
        found = pc.extract_regex(_strings(values), f"(?P<g0>{numbered})")
    except pa.ArrowInvalid:
        raise refused from None
    if [field.name for field in found.type] != [f"g{number}" for number in range(count + 1)]:
        raise refused
    columns = {str(number): found.field(number).to_pylist() for number in range(count + 1)}
    for name, own in numbers.items():
        several = zip(*(columns[str(number)] for number in own), strict=True)
        # A name of digits is a number, even where a group has it.
        if not _NUMBER.fullmatch(name):
            columns[name] = [next(filter(None, each), "") for each in several]
    nothing = [""] * len(values)
    parts = [
        columns.get(part.name, nothing) if isinstance(part, _Reference) else part
        for part in _parts(template)
    ]
    return [
        "".join(part if isinstance(part, str) else part[place] for part in parts) if hit else None
        for place, hit in enumerate(found.is_valid().to_pylist())
    ]


@lru_cache(maxsize=1024)
def regex_problem(pattern: str) -> str:
    """Why this is not a valid regular expression, or None."""
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
        matched(pattern, [""])
    except pa.ArrowInvalid as problem:
        message = str(problem).removeprefix("Invalid regular expression: ")
        reason, _, where = message.partition(": ")
        if reason.startswith("pattern too large"):
            reason, where = "expression too large", pattern
        return f"{_IN_GO.get(reason, reason)}: `{where}`"
    except UnicodeEncodeError as problem:
        return f"invalid UTF-8: `{readable(pattern[problem.start :])}`"
    for token in _TOKEN.finditer(pattern):
        if token[0] == r"\C":
            return r"invalid escape sequence: `\C`"
        if token["name"] and not token["name"].isascii():
            return f"invalid named capture: `{token[0]}`"
    return ""


def readable(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="replace")


def _strings(values: Sequence[str]) -> pa.StringArray:
    return pa.array([readable(value) for value in values], pa.string())


# RE2's words for what Go says otherwise.
_IN_GO = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    "trailing \\": "trailing backslash at end of expression",
}

# A pattern piece by piece: a bracket in a quote or a class opens nothing.
_CHARACTER = r"(?>\\x\{[^}]*\}|\\x..|\\[0-7]{1,3}|\\.|[^\]\\])"
_TOKEN = re.compile(
    rf"""
    \\Q .*? (?P<end>\\E|\Z)
    | \\.
    | \[\^? (?:\](?:-{_CHARACTER})?)?+
        (?> \[:\^?\w+:\] | \\[pP](?:\{{[^}}]*\}}|.) | \\[dDsSwW]
          | {_CHARACTER}(?:-{_CHARACTER})?+ )*+
      \]
    | (?P<group> \((?!\?) | \(\?P?<(?P<name>[^>]*)> )
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def _closed(pattern: str) -> str:
    """With the end of a quote that has none, so that something may follow."""
    tail = ""
    for token in _TOKEN.finditer(pattern):
        tail = r"\E" if token["end"] == "" else ""
    return pattern + tail


def _numbered(pattern: str) -> tuple[str, dict[str, list[int]], int]:
    """The pattern with its groups named g1, g2, ...; their numbers by name; how many there are."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    count = 0

    def renamed(token: re.Match[str]) -> str:
        nonlocal count
        if token["group"] is None:
            return token[0]
        count += 1
        if token["name"]:
            numbers[token["name"]].append(count)
        return f"(?P<g{count}>"

    return _TOKEN.sub(renamed, pattern), numbers, count


@dataclass(frozen=True)
class _Reference:
    name: str


_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_DOLLAR = re.compile(r"\$(\$?)")


def _parts(template: str) -> Iterator[str | _Reference]:
    """Go's reading of a template: `$$` is a dollar, and so is one that begins no reference."""
    text, *others = _DOLLAR.split(template)
    yield text
    for second, text in zip(others[::2], others[1::2], strict=True):
        if second:
            yield "$" + text
            continue
        brace = text.startswith("{")
        name = "".join(takewhile(_may_name, text[brace:]))
        after = text[brace + len(name) :]
        if not name or (brace and not after.startswith("}")):
            yield "$" + text
        else:
            yield _Reference(name)
            yield after[brace:]


def _may_name(character: str) -> bool:
    return character == "_" or character.isalpha() or character.isdecimal()
