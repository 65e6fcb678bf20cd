"""Matchers on label values; regular expressions are RE2's, as Go's are, and cannot run away."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from kalla.query.problems import ExecutionFailed
from kalla.query.syntax import LabelMatcher, MatchOperator

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
        """The values an `=` or a plain `=~ a|b` admits; None where only testing tells."""
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
    strings = pa.array([readable(value) for value in values], pa.string())
    return list(pc.match_substring_regex(strings, anchored(pattern)).to_pylist())


def replaced(pattern: str, template: str, values: Sequence[str]) -> list[str]:
    """Each value that matches, replaced by the template (`$1`, `${name}`); call it for those."""
    strings = pa.array([readable(value) for value in values], pa.string())
    out = pc.replace_substring_regex(
        strings,
        pattern=anchored(pattern),
        replacement=_rewrite(pattern, template),
        max_replacements=1,
    )
    return list(out.to_pylist())


@lru_cache(maxsize=1024)
def regex_problem(pattern: str) -> str:
    """Why this is no regular expression, or nothing."""
    try:
        pc.match_substring_regex(pa.array([""]), anchored(pattern))
    except pa.ArrowInvalid as problem:
        reason = str(problem).removeprefix("Invalid regular expression: ").split(": ")[0]
        reason = reason.replace("missing )", "missing closing )")
        return f"{reason}: `{anchored(pattern)}`"
    except UnicodeEncodeError:
        return "invalid UTF-8"
    return ""


def readable(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="replace")


_MOST_GROUPS = 9  # of RE2's rewriting
_REFERENCE = re.compile(r"\$(?:\$|([A-Za-z0-9_]+)|\{([A-Za-z0-9_]+)\})")


def _rewrite(pattern: str, template: str) -> str:
    """Go's template as RE2's rewrite: references by number, what does not exist is empty."""
    names, groups = _groups(pattern)
    out, at = [], 0
    for reference in _REFERENCE.finditer(template):
        out.append(template[at : reference.start()].replace("\\", "\\\\"))
        at = reference.end()
        name = reference.group(1) or reference.group(2)
        if name is None:
            out.append("$")
        elif name.isdigit() and int(name) <= groups:
            if int(name) > _MOST_GROUPS:
                raise ExecutionFailed(
                    f"label_replace() can refer to the first {_MOST_GROUPS} groups of its regular "
                    f"expression, not to ${name}"
                )
            out.append(f"\\{int(name)}")
        elif name in names:
            out.append(f"\\{names[name]}")
    out.append(template[at:].replace("\\", "\\\\"))
    return "".join(out)


def _groups(pattern: str) -> tuple[dict[str, int], int]:
    """The capturing groups of a pattern: numbers of the named ones, and how many there are."""
    names: dict[str, int] = {}
    count, at, in_class = 0, 0, False
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            at += 2
            continue
        if character == "[" and not in_class:
            in_class = True
            at += 2 if pattern[at + 1 : at + 2] == "]" else 1
        elif character == "]" and in_class:
            in_class = False
        elif character == "(" and not in_class:
            named = re.compile(r"\(\?P?<([A-Za-z0-9_]+)>").match(pattern, at)
            if named:
                count += 1
                names[named.group(1)] = count
            elif pattern[at + 1 : at + 2] != "?":
                count += 1
        at += 1
    return names, count
