"""The problems of a recipe: the place in the user's document, the value, and what to write.

Separate from `parsing`, so that `validation` can import it without a cycle.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import islice

from rapidfuzz import fuzz, process

from kalla.errors import Problem
from kalla.redaction import scrub_value

Path = tuple[str | int, ...]

MOST_PROBLEMS = 200  # of a recipe: nobody reads on

_LONGEST_WORD = 100
_LONGEST_VALUE = 200
_MOST_WORDS = 50


@dataclass(frozen=True)
class RecipeProblem(Problem):
    """One thing wrong with a recipe. `field` is the path in the document as the user wrote it."""

    @classmethod
    def of(cls, problem: Problem) -> RecipeProblem:
        """A problem found elsewhere, such as by inspecting sources."""
        return cls(problem.field, problem.message, problem.value, problem.suggestion)

    def facts(self) -> dict[str, object]:
        """The same for programs: `value` is a JSON value, shortened if long."""
        return {
            "path": self.field,
            "message": self.message,
            "value": _said(self.value),
            "suggestion": self.suggestion,
        }


@dataclass(frozen=True)
class Finding:
    """A problem whose place is not formatted yet: an older document has it somewhere else."""

    path: Path
    message: str
    value: object = None
    suggestion: str = ""

    def problem(self, path: Path | None = None) -> RecipeProblem:
        place = self.path if path is None else path
        name = next((str(part) for part in reversed(place) if isinstance(part, str)), "")
        return RecipeProblem(
            spelled(place), self.message, scrub_value(self.value, name), self.suggestion
        )


def spelled(path: Path) -> str:
    """`rules[2].conditions[0].threshold`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def nearest(word: object, known: Collection[str]) -> str | None:
    """The known name that was probably meant."""
    if not isinstance(word, str) or len(word) > _LONGEST_WORD:
        return None
    by_lower_case = {each.lower(): each for each in known}
    # Not difflib: for a thousand columns it takes a second per name.
    found = process.extractOne(
        word.lower(), list(by_lower_case), scorer=fuzz.ratio, score_cutoff=60
    )
    return by_lower_case[found[0]] if found else None


def did_you_mean(word: object, known: Collection[str]) -> str:
    """The nearest known name, or all known names when none is near."""
    if found := nearest(word, known):
        return f"did you mean {found}?"
    names = [shown(each) for each in islice(known, _MOST_WORDS)]
    more = f" and {len(known) - _MOST_WORDS:,} more" if len(known) > _MOST_WORDS else ""
    return f"known: {', '.join(names)}{more}" if names else ""


def shown(value: object) -> str:
    """A value safe for a sentence or a terminal line: no line breaks or control characters."""
    said = _said(value)
    text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    line = "".join(each if each.isprintable() else _escape(each) for each in text)
    return line if len(line) <= _LONGEST_VALUE else line[:_LONGEST_VALUE] + "…"


def leaves(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Every scalar value of a document, with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


def _escape(character: str) -> str:
    return " " if character.isspace() else repr(character)[1:-1]


def _said(value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Decimal | date):
        return str(value)
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_VALUE else value[:_LONGEST_VALUE] + "…"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return value if len(text) <= _LONGEST_VALUE and _is_plain(value) else text[:_LONGEST_VALUE]


def _is_plain(value: object) -> bool:
    return all(item is None or isinstance(item, str | bool | int) for _, item in leaves(value))
