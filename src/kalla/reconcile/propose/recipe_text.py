"""A drafted recipe as YAML that a person reads and edits: the reason for each part is a comment."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kalla.reconcile.propose.key_agreement import AmountPair
from kalla.reconcile.propose.key_candidates import Form
from kalla.reconcile.propose.observed_differences import ToleranceFound, WindowFound
from kalla.reconcile.propose.trial_match import Trial
from kalla.reconcile.recipe.model import Csv, Derivation, Filter, Regex, Side, Source, Workbook
from kalla.reconcile.sources.formats.csv_sniffing import Decided

_WIDTH = 110


@dataclass(frozen=True)
class DraftCondition:
    fields: Mapping[str, Any]

    @classmethod
    def equal(cls, left: Form, right: Form) -> DraftCondition:
        fields: dict[str, Any] = {"left": left.column, "op": "eq", "right": right.column}
        if left.derivations == right.derivations:
            return cls(fields | _derived("derive", left.derivations))
        return cls(
            fields
            | _derived("derive_left", left.derivations)
            | _derived("derive_right", right.derivations)
        )

    @classmethod
    def tolerance(cls, pair: AmountPair, found: ToleranceFound) -> DraftCondition:
        fields = {"left": pair.left, "op": "tolerance", "right": pair.right, **found.options}
        return cls(fields | ({"negate": "right"} if pair.is_opposite else {}))

    @classmethod
    def window(cls, found: WindowFound) -> DraftCondition:
        return cls(
            {
                "left": found.left,
                "op": "date_window",
                "right": found.right,
                "before": found.before,
                "after": found.after,
            }
        )


@dataclass(frozen=True)
class DraftRule:
    name: str
    cardinality: str
    conditions: tuple[DraftCondition, ...]
    note: str = ""
    is_comment: bool = False  # a person decides whether to take it
    filters: Mapping[Side, Filter] = field(default_factory=dict)


@dataclass(frozen=True)
class DraftSource:
    source: Source
    uri: str
    key: tuple[str, ...]
    key_note: str
    amount: str | None
    currency: str | None
    date: str | None  # where no date window names one
    decisions: tuple[Decided, ...]


@dataclass(frozen=True)
class Draft:
    name: str
    sources: tuple[DraftSource, DraftSource]
    rules: tuple[DraftRule, ...]
    evidence: tuple[str, ...]
    unsure: tuple[str, ...]


def with_rules(draft: Draft, rules: tuple[DraftRule, ...]) -> Draft:
    return replace(draft, rules=rules)


def write(draft: Draft, trial: Trial | None = None) -> str:
    """The text of the recipe; with the results of a trial, if there is one."""
    return "\n".join(_lines(draft, trial)) + "\n"


def _lines(draft: Draft, trial: Trial | None) -> Iterator[str]:
    if trial:
        rows = "a sample" if trial.is_sample else "all rows"
        yield from _comment(
            f"Proposed by Kalla. Tried on {rows}: {trial.match_rate:.1%} matched,"
            f" {trial.left_matched:,} of {trial.left_rows:,} rows on the left and"
            f" {trial.right_matched:,} of {trial.right_rows:,} on the right."
        )
    for each in draft.evidence:
        yield from _comment(f"- {each}.")
    if draft.unsure:
        yield "# Not sure:"
        for each in draft.unsure:
            yield from _comment(f"- {each}.")
    yield f"name: {_scalar(draft.name)}"
    yield "sources:"
    for side, source in zip(("left", "right"), draft.sources, strict=True):
        yield f"  {side}:"
        yield from _source(source)
    yield "rules:"
    taken = {each.name: each for each in trial.rules} if trial else {}
    for rule in draft.rules:
        yield from _comment(rule.note, "  ")
        if rule.is_comment:
            yield from (f"  # {line[2:]}" for line in _rule(rule))
            continue
        if found := taken.get(rule.name):
            yield from _comment(
                f"{found.matches:,} matches in the trial: {found.left:,} rows on the left,"
                f" {found.right:,} on the right"
                if found.matches
                else "no match in the trial: its sample has too few rows to try this rule",
                "  ",
            )
        yield from _rule(rule)


def _rule(rule: DraftRule) -> Iterator[str]:
    yield f"  - name: {_scalar(rule.name)}"
    if rule.cardinality != "1:1":
        yield f'    cardinality: "{rule.cardinality}"'
    for side, each in rule.filters.items():
        yield f"    {side}_filters: [{_flow(each.model_dump(exclude_none=True))}]"
    yield "    conditions:"
    for condition in rule.conditions:
        yield f"      - {_flow(condition.fields)}"


def _source(draft: DraftSource) -> Iterator[str]:
    source = draft.source
    yield f"    uri: {_scalar(draft.uri)}"
    yield f"    primary_key: {_flow(list(draft.key))}{_aside(draft.key_note)}"
    if draft.amount:
        yield f"    amount: {_scalar(draft.amount)}"
    if draft.currency:
        yield f"    currency: {_scalar(draft.currency)}"
    if draft.date:
        yield f"    date: {_scalar(draft.date)}"
    if not draft.uri.startswith("source://"):
        for name in ("format", "table", "password"):
            if value := getattr(source, name):
                yield f"    {name}: {_scalar(value)}"
        if source.xlsx != Workbook():
            yield f"    xlsx: {_flow(source.xlsx.model_dump(exclude_defaults=True))}"
    options = source.csv.model_dump(exclude_defaults=True)
    if options and source.csv != Csv():
        reasons = {each.option: each for each in draft.decisions}
        yield "    csv:"
        for name, value in options.items():
            reason = _aside(reasons[name].reason) if name in reasons else ""
            yield f"      {name}: {_scalar(value)}{reason}"


def _derived(name: str, derivations: Sequence[Derivation]) -> dict[str, Any]:
    found = [{"regex": each.regex} if isinstance(each, Regex) else each for each in derivations]
    return {name: found} if found else {}


def _comment(text: str, indent: str = "") -> Iterator[str]:
    for number, line in enumerate(textwrap.wrap(_printable(text), _WIDTH, break_long_words=False)):
        yield f"{indent}# {'  ' if number and text.startswith('- ') else ''}{line}"


def _aside(text: str) -> str:
    return f"  # {_printable(text)}"


def _printable(text: str) -> str:
    """On one line, without signs that a comment cannot hold: names of columns may have any."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_flow(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    """A value that YAML reads as it is: plain where that is safe, else in quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    text = str(value)
    if text.isascii() and text.replace("_", "").isalpha() and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)


_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
