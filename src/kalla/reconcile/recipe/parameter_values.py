"""Fills a recipe's parameters: `${name}` in any text, their types, and what is allowed in SQL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal

from kalla.reconcile.recipe.recipe_problems import MOST_PROBLEMS, Finding, Path, did_you_mean, shown
from kalla.reconcile.recipe.yaml_values import LARGEST_BYTES, number, plain

# A dollar sign is doubled where `${` itself is meant.
_USE = re.compile(r"\$\$(?=\{)|\$\{(?P<name>[^{}]*)\}|\$\{")
_COMMENT = re.compile(r"--|/\*|\*/")
_BEYOND_A_VALUE = re.compile(rf"['\"`;\\\x00-\x1f]|{_COMMENT.pattern}")
_TOLD = {"number": "a number", "date": "a date", "text": "text"}
_REMEDIES = {"number": "such as 0.01", "date": "such as 2026-01-31", "text": "put it in quotes"}
_MOST_SUGGESTED = 20


@dataclass
class Filled:
    """A document with its parameters filled in, and the problems found."""

    document: dict[str, object]
    findings: list[Finding] = field(default_factory=list)
    unfilled: set[Path] = field(default_factory=set)
    grown: int = 0  # by at most this many bytes


def fill(document: Mapping[str, object], given: Mapping[str, str]) -> Filled:
    """Put the given values, or else the defaults, where the document uses them."""
    declared = document.get("parameters")
    filling = _Filling(declared if isinstance(declared, dict) else {}, given)
    filling.declare()
    return Filled(
        {
            # What describes the parameters is not filled by them.
            key: item if key == "parameters" else filling.replaced(item, (key,))
            for key, item in document.items()
        },
        filling.findings,
        filling.unfilled,
        filling.grown,
    )


def escaped(text: str) -> str:
    """The text that is filled as `text` itself."""
    return text.replace("${", "$${")


class _Filling:
    def __init__(self, declared: Mapping[str, object], given: Mapping[str, str]) -> None:
        self.declared, self.given = declared, given
        self.values: dict[str, object] = {}
        self.faulty: set[str] = set()
        self.findings: list[Finding] = []
        self.unfilled: set[Path] = set()
        self.grown = 0

    def declare(self) -> None:
        for name in sorted(self.given.keys() - self.declared.keys()):
            self._find(("parameters", name), "has a value but is not declared",
                       self.given[name], self._near(name)
                       or f"declare it: parameters: {{{shown(name)}: {{type: text}}}}")  # fmt: skip
        for name, parameter in self.declared.items():
            fields = parameter if isinstance(parameter, dict) else {"type": None}
            kind = fields.get("type", "text")
            if not isinstance(kind, str) or kind not in _TOLD:
                self.faulty.add(name)  # reported as a problem of the declaration
                continue
            default = fields.get("default")
            if default is not None:
                self._hold(name, kind, default, ("parameters", name, "default"))
            if name in self.given:
                self._hold(name, kind, self.given[name], ("parameters", name))

    def _hold(self, name: str, kind: str, value: object, path: Path) -> None:
        found = _typed(kind, value)
        if found is None:
            self.faulty.add(name)
            self._find(path, f"must be {_TOLD[kind]}", value, _REMEDIES[kind])
        else:
            self.values[name] = found

    def replaced(self, item: object, path: Path) -> object:
        if isinstance(item, dict):
            return {key: self.replaced(below, (*path, key)) for key, below in item.items()}
        if isinstance(item, list):
            return [self.replaced(below, (*path, index)) for index, below in enumerate(item)]
        if not isinstance(item, str) or "${" not in item:
            return item
        whole = _USE.fullmatch(item)
        if whole and whole["name"] in self.values and path != ("match_sql",):
            value = self.values[whole["name"]]
            return value if self._fits(_said(value), path) else item
        reported: set[str | None] = set()
        return _USE.sub(lambda use: self._text(use, item, path, reported), item)

    def _text(self, use: re.Match[str], item: str, path: Path, reported: set[str | None]) -> str:
        name = use["name"]
        if use[0] == "$$":
            return "$"
        if name in reported:
            return use[0]
        if name in self.values:
            text = _said(self.values[name])
            if not self._fits(text, path):
                return use[0]
            if path != ("match_sql",):
                return text
            if isinstance(self.values[name], int | Decimal) and _makes_comment(use, text):
                text = f"({text})"
            if not _BEYOND_A_VALUE.search(text) and not _makes_comment(use, text):
                return text
            message = f"`${{{name}}}` would put quotes or comments into the SQL"
            suggestion = f"give {name} a value without quotes, semicolons and comment signs"
            value: object = text
        elif name is None:
            message, value = "has a `${` without its `}`", item
            suggestion = "write `$${` where the text itself is meant"
        elif name in self.declared:
            message, value = f"needs the parameter `{name}`, which has no value", item
            suggestion = f"pass --set {name}=VALUE, or give it a default"
        else:
            message, value = f"uses the parameter `{shown(name)}`, which is not declared", item
            suggestion = self._near(name) or f"declare {shown(name)}"
        self.unfilled.add(path)
        reported.add(name)
        if name not in self.faulty:
            self._find(path, message, value, suggestion)
        return use[0]

    def _fits(self, text: str, path: Path) -> bool:
        """A long value that is used often could make a recipe larger than memory."""
        if self.grown <= LARGEST_BYTES:
            self.grown += len(text.encode("utf-8", "surrogatepass"))
            if self.grown <= LARGEST_BYTES:
                return True
            self._find(path, f"grows by its parameters to more than {LARGEST_BYTES:,} bytes", None,
                       "use long values once, or keep them in a source")  # fmt: skip
        self.unfilled.add(path)
        return False

    def _find(self, path: Path, message: str, value: object, suggestion: str) -> None:
        if len(self.findings) <= MOST_PROBLEMS:  # one more shows that there are more
            self.findings.append(Finding(path, message, value, suggestion))

    def _near(self, name: str) -> str:
        """Only for the first few: comparing many names with many names takes long."""
        return did_you_mean(name, self.declared) if len(self.findings) < _MOST_SUGGESTED else ""


def _makes_comment(use: re.Match[str], text: str) -> bool:
    """Whether a text forms a comment marker together with its neighbours; next to another
    parameter, with any value of it.
    """
    before, after = use.string[: use.start()][-1:], use.string[use.end() :][:1]
    firsts, lasts = "-/*" if before == "}" else [before], "-/*" if after == "$" else [after]
    return any(_COMMENT.search(first + text + last) for first in firsts for last in lasts)


def _typed(kind: str, value: object) -> object | None:
    if kind == "text":
        return value if isinstance(value, str) else None
    if isinstance(value, str):
        value = number(value.strip()) if kind == "number" else plain(value.strip())
    if kind == "number":
        return value if isinstance(value, int | Decimal) and not isinstance(value, bool) else None
    return value if isinstance(value, date) and not isinstance(value, datetime) else None


def _said(value: object) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value.isoformat() if isinstance(value, date) else str(value)
