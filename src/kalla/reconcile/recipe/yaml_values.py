"""Parses YAML, without its traps, and JSON into plain values.

Numbers stay exact. Separate from `parsing`: nothing here depends on recipes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    ScalarEvent,
)

from kalla.errors import InvalidInput
from kalla.reconcile.recipe.recipe_problems import Finding, Path

LARGEST_BYTES = 250_000  # a job carries a recipe: `limits.payload_bytes` is 262,144
DEEPEST = 32

_LONGEST_NUMBER = 100
_TEXT_TAG = "tag:yaml.org,2002:str"
_LIST_TAG = "tag:yaml.org,2002:seq"
_MAPPING_TAG = "tag:yaml.org,2002:map"
_OTHER_TAG = "tag:kalla,2026:plain"
_NUMBER = re.compile(
    r"[-+]?(?:(?:0|[1-9][0-9]*)(?P<part>\.[0-9]*)?|(?P<fraction>\.[0-9]+))"
    r"(?P<exponent>[eE][-+]?[0-9]{1,4})?"
)
_SPACED_NUMBER = re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(?:\.[0-9_]*)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}[-+:.0-9Zz]*")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None} | {
    word: value
    for value, words in ((True, ("true", "True", "TRUE")), (False, ("false", "False", "FALSE")))
    for word in words
}
# The C parser is fifty times as fast; wheels of PyYAML have it, builds from source may not.
_Loader: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


@dataclass(frozen=True)
class Parsed:
    """The values of a text, and the problems of its syntax."""

    value: object
    findings: tuple[Finding, ...] = ()


def parse(text: str, largest: int = LARGEST_BYTES) -> Parsed:
    """The values of one YAML or JSON document. Raises InvalidInput when there are none."""
    text = text.removeprefix("\ufeff")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > largest:
        raise _refused(
            f"is larger than {largest:,} bytes",
            "put the rows into a source, not into the recipe",
        )
    if broken := _HALF_CHARACTER.search(text):
        raise _refused(f"is not UTF-8 ({_place(text, broken.start())})", "save it as UTF-8")
    parsed = _json(text) if text.lstrip().startswith("{") else _yaml(text)
    return Parsed(parsed.value, (*parsed.findings, *_unreadable(parsed.value)))


def write(value: object) -> str:
    """YAML that `parse` reads back as the same value."""
    text: str = yaml.dump(
        value, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=100, indent=2
    )
    return text


def plain(text: str) -> object:
    """The value of an unquoted YAML scalar.

    YAML 1.2's JSON schema, numbers such as `.5`, `5.` and `+5`, and ISO dates. Numbers with leading
    zeros stay text: they are account numbers; so do `no`, `on`, `1:30` and `0x1F`.
    """
    if text in _WORDS:
        return _WORDS[text]
    found = number(text)
    if found is not None:
        return found
    try:
        if _DATE.fullmatch(text):
            return date.fromisoformat(text)
        if _MOMENT.fullmatch(text):
            return datetime.fromisoformat(text)
    except ValueError:
        return text  # 30 February is a text; where a date is needed, it is reported
    return text


def number(text: str) -> int | Decimal | None:
    """The number that a text represents, exactly as written."""
    found = _NUMBER.fullmatch(text) if len(text) <= _LONGEST_NUMBER else None
    if found is None:
        return None
    is_whole = not (found["part"] or found["fraction"] or found["exponent"])
    return int(text) if is_whole else Decimal(text)


def _json(text: str) -> Parsed:
    repeated: list[str] = []

    def as_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = dict(pairs)
        if len(names) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            repeated.extend(name for name in names if counts[name] > 1)
        return names

    try:
        value = json.loads(
            text,
            object_pairs_hook=as_object,
            parse_int=_json_number,
            parse_float=_json_number,
            parse_constant=_no_number,
        )
    except RecursionError:
        raise _too_deep(()) from None
    except ValueError as error:
        try:
            return _yaml(text)  # a YAML mapping may open with a brace as well
        except InvalidInput:
            if isinstance(error, json.JSONDecodeError) and re.match(r'\s*\{\s*"', text):
                raise _refused(
                    f"is not valid JSON: {error.msg} ({_place(text, _missing_at(error))})",
                    "a comma, a quote or a bracket may be missing before it",
                ) from None
            raise
    if not repeated:
        return Parsed(value)
    try:
        # Only the YAML parser knows lines. A tab can stand between JSON's tokens, never in a text.
        return _yaml(text.replace("\t", " "))
    except InvalidInput:
        return Parsed(value, tuple(map(_given_twice, repeated)))


def _missing_at(error: json.JSONDecodeError) -> int:
    """Where something is missing that the parser notices later, maybe lines below."""
    is_missing = error.msg.endswith("delimiter") or error.doc[error.pos : error.pos + 1] in "}],"
    return len(error.doc[: error.pos].rstrip()) if is_missing else error.pos


def _given_twice(name: str) -> Finding:
    return Finding((name,), "is given twice", name, "keep one of them")


def _json_number(text: str) -> object:
    found = number(text)
    return text if found is None else found


def _no_number(text: str) -> object:
    raise ValueError(text)


@dataclass
class _Open:
    """A mapping or list that is still open."""

    path: Path
    value: dict[str, object] | list[object]
    key: str | None = None
    lines: dict[str, int] = field(default_factory=dict)

    @property
    def next_path(self) -> Path:
        if isinstance(self.value, list):
            return (*self.path, len(self.value))
        return self.path if self.key is None else (*self.path, self.key)

    def add(self, value: object) -> None:
        if isinstance(self.value, list):
            self.value.append(value)
        elif self.key is not None:
            self.value[self.key] = value
            self.key = None


def _yaml(text: str) -> Parsed:
    """Built from events: no recursion, no aliases to expand, and every key with its line."""
    findings: list[Finding] = []
    root = _Open((), [])
    opened = [root]
    try:
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, DocumentStartEvent) and root.value:
                raise _refused(
                    f"holds a second document from line {_line(event)} on",
                    "put each recipe into a file of its own",
                )
            _take(event, opened, findings)
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(text, error) from None
    except yaml.reader.ReaderError as error:
        code = error.character if isinstance(error.character, int) else ord(error.character[:1])
        raise _refused(
            f"holds a character that YAML does not allow (U+{code:04X})", "delete it"
        ) from None
    value = root.value[0] if isinstance(root.value, list) and root.value else None
    return Parsed(value, tuple(findings))


def _take(event: Event, opened: list[_Open], findings: list[Finding]) -> None:
    here = opened[-1]
    if isinstance(event, CollectionEndEvent):
        opened.pop()
        opened[-1].add(here.value)
    elif isinstance(event, ScalarEvent | AliasEvent | CollectionStartEvent):
        line = _line(event)
        if isinstance(here.value, dict) and here.key is None:
            _take_key(event, here, line, findings)
            return
        path = here.next_path[1:]  # the root stands in a list of its own
        if isinstance(event, AliasEvent):
            findings.append(
                Finding(path, f"is an alias (line {line}), which recipes do not have",
                        f"*{event.anchor}", "write the value out")
            )  # fmt: skip
            here.add(None)
            return
        if event.tag not in (None, "!", _TEXT_TAG):
            findings.append(
                Finding(path, f"has a tag (line {line}), which recipes do not have", event.tag,
                        "leave the tag out")
            )  # fmt: skip
        if isinstance(event, ScalarEvent):
            if event.implicit[0] and _SPACED_NUMBER.fullmatch(event.value):
                number_alone = event.value.replace("_", "")
                findings.append(
                    Finding(path, f"is a number to some and a text to others (line {line})",
                            event.value, f'write {number_alone}, or "{event.value}" for a text')
                )  # fmt: skip
            here.add(plain(event.value) if event.implicit[0] else event.value)
        elif len(opened) > DEEPEST:
            raise _too_deep(path)
        else:
            opened.append(_Open(here.next_path, {} if isinstance(event, MappingStartEvent) else []))


def _take_key(event: Event, here: _Open, line: int, findings: list[Finding]) -> None:
    if not isinstance(event, ScalarEvent):
        raise _refused(f"has a name that is not text, in line {line}", "names are plain words")
    here.key = event.value
    if (first := here.lines.setdefault(event.value, line)) != line or event.value in here.value:
        findings.append(
            Finding(here.next_path[1:], f"is given twice, in line {first} and in line {line}",
                    event.value, "keep one of them")
        )  # fmt: skip


def _line(event: Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def _unreadable(value: object) -> Iterator[Finding]:
    """Half surrogate pairs, from JSON's escapes; raises when the document is too deep."""
    waiting: list[tuple[Path, object]] = [((), value)]
    while waiting:
        path, item = waiting.pop()
        if len(path) > DEEPEST:
            raise _too_deep(path)
        if isinstance(item, dict):
            for key in item:
                if _HALF_CHARACTER.search(key):
                    raise _refused("has a name that is not Unicode text", "names are plain words")
            waiting.extend(((*path, key), below) for key, below in item.items())
        elif isinstance(item, list):
            waiting.extend(((*path, index), below) for index, below in enumerate(item))
        elif isinstance(item, str) and _HALF_CHARACTER.search(item):
            whole = _HALF_CHARACTER.sub("\ufffd", item)
            yield Finding(path, "is not Unicode text: it holds half of a character", whole,
                          "write the whole character")  # fmt: skip


def _too_deep(path: Path) -> InvalidInput:
    return InvalidInput(
        Finding(path[:4], f"is nested more than {DEEPEST} levels deep",
                suggestion="a recipe needs no more than ten").problem()
    )  # fmt: skip


def _refused(message: str, suggestion: str = "") -> InvalidInput:
    """Without the text of the line: it may contain a password."""
    return InvalidInput(Finding((), f"the document {message}", suggestion=suggestion).problem())


def _not_yaml(text: str, error: yaml.MarkedYAMLError) -> InvalidInput:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return _refused(f"is not valid YAML: {error.problem}")
    place = f"line {mark.line + 1}, column {mark.column + 1}"
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line[: mark.column + 1]:
        return _refused(
            f"is not valid YAML: a tab where spaces belong ({place})", "indent with spaces"
        )
    return _refused(
        f"is not valid YAML: {error.problem} ({place})",
        "see the indentation, quotes and brackets there and in the line before",
    )


def _place(text: str, offset: int) -> str:
    before = text[:offset]
    return f"line {before.count(chr(10)) + 1}, column {offset - before.rfind(chr(10))}"


class _Writer(yaml.SafeDumper):
    """Decides by our own `plain` which texts need quotes."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        if kind is not yaml.ScalarNode:
            return _LIST_TAG if kind is yaml.SequenceNode else _MAPPING_TAG
        is_text = isinstance(plain(value), str) and not _SPACED_NUMBER.fullmatch(value)
        return _OTHER_TAG if implicit[0] and not is_text else _TEXT_TAG

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _written_text(writer: _Writer, text: str) -> yaml.ScalarNode:
    if text.isprintable():
        return writer.represent_scalar(_TEXT_TAG, text)
    # Escaped, because some signs end a line in YAML alone; but SQL keeps its lines.
    has_lines_alone = text.replace("\n", "").isprintable()
    return writer.represent_scalar(_TEXT_TAG, text, style="|" if has_lines_alone else '"')


def _written(writer: _Writer, value: object) -> yaml.ScalarNode:
    return writer.represent_scalar(_OTHER_TAG, _as_plain(value))


def _as_plain(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value.isoformat() if isinstance(value, date) else str(value)


for _kind in (type(None), bool, int, Decimal, date, datetime):
    _Writer.add_representer(_kind, _written)
_Writer.add_representer(str, _written_text)
