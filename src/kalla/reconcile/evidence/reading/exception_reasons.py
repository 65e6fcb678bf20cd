"""Why a row is an exception, as a sentence: from what evidence says of it and its rule."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from kalla.web.text_format import money_text, shortened

LABEL = re.compile(r"(\w+)\((.*), (.*)\)", re.DOTALL)  # of a condition in evidence

_SHOWN_KEYS = 3
_REASONS = {
    "no_candidate": "nothing close to it was found on the other side",
    "no_pair": "in no pair of the SQL's result",
    "not_attempted": "no rule's filters admit it",
    "taken": "fits {candidate}, which another row took",
    "sum_failed": "fits {candidate}, but {failure}",
    "condition_failed": "closest is {candidate} ({status}): {failure}",
}
_SENTENCES = {
    "eq": "{columns} differ: {values}",
    "currency": "the currencies differ: {values}",
    "sum": "the sums of their groups differ by {difference}: {values}",
    "tolerance": "{columns} differ by {difference}: {values}",
    "date_window": "{columns} are {difference} apart: {values}",
    "fuzzy": "{columns} are not similar enough: {values}",
}


class RuleConditions(BaseModel):
    """What is read of a rule in metadata.json."""

    model_config = ConfigDict(frozen=True)

    name: str = ""
    conditions: list[dict[str, Any]] = []


def conditions_of(rules: Sequence[RuleConditions], rule: str | None) -> list[dict[str, Any]]:
    return next((each.conditions for each in rules if each.name == rule), [])


def why_ambiguous(rule: str, reason: str, candidates: Sequence[str], count: int) -> str:
    return (
        f"ambiguous under {rule!r} ({reason.replace('_', ' ')}): it may belong to"
        f" {some(candidates, count)}"
    )


def why_unmatched(row: Mapping[str, Any], rules: Sequence[RuleConditions]) -> str:
    """Of a row of `unmatched_*`, whose values are texts. Some keys and values are very long: the
    evidence has them in full.
    """
    label = row["failing_condition"] or ""
    failure = _failure(label, row["left_value"], row["right_value"], row["difference"])
    if allowed := _allowed(label, conditions_of(rules, row["rule"])):
        failure += f"; the rule allows {allowed}"
    return _REASONS[row["rejection_reason"]].format(
        candidate=shortened(row["closest_candidate"] or ""),
        status=row["candidate_status"],
        failure=failure,
    )


def some(keys: Sequence[str], count: int) -> str:
    """The first of these keys, and how many there are besides."""
    listed = list(map(shortened, keys[:_SHOWN_KEYS]))
    more = count - len(listed)
    return ", ".join(listed) + (f" and {more:,} more" if more > 0 else "")


def _failure(label: str, left: str | None, right: str | None, difference: str | None) -> str:
    found = LABEL.fullmatch(label)
    op, *columns = found.groups() if found else ("", label, label)
    if op == "sum" and left is None and right is None:  # older evidence has no sums
        return "the sums of their groups differ"
    sentence = _SENTENCES.get(op, "{label} fails: {values}")
    if difference is None and "{difference}" in sentence:  # a value is missing
        sentence = "{columns} cannot be compared: {values}"
    is_money = op in ("tolerance", "sum")
    unsigned = (difference or "").removeprefix("-")
    return sentence.format(
        label=label,
        columns=_named(*map(shortened, columns)),
        difference=_days(unsigned) if op == "date_window" else _money(unsigned),
        values=" and ".join(_values(left, right, is_money=is_money)),
    )


def _named(left: str, right: str) -> str:
    return f"the two values of {left}" if left == right else f"{left} and {right}"


def _values(left: str | None, right: str | None, *, is_money: bool) -> tuple[str, str]:
    one, other = (
        _money(each) if is_money and each else shortened(each or "nothing")
        for each in (left, right)
    )
    # White space at an end is invisible.
    alike = left and right and left != right and left.split() == right.split()
    return (repr(one), repr(other)) if alike else (one, other)


def _money(text: str) -> str:
    return shortened(money_text(text))


def _days(days: str) -> str:
    return f"{days} {'day' if days == '1' else 'days'}" if days.isdigit() else days


def _allowed(label: str, conditions: Sequence[Mapping[str, Any]]) -> str:
    """What the failing condition would have admitted; empty where its sentence says enough."""
    for each in conditions:
        if f"{each.get('op')}({each.get('left')}, {each.get('right')})" == label:
            limits = [
                words.format(
                    _days(str(each[name])) if name in _DAYS else shortened(str(each[name]))
                )
                for name, words in _LIMITS.items()
                if each.get(name) is not None
            ]
            is_exact = limits in (["up to 0"], ["0 days"])
            return "no difference" if is_exact else " and ".join(limits)
    return ""


_LIMITS = {
    "absolute": "up to {}",
    "percent": "up to {} %",
    "below": "up to {} less",
    "above": "up to {} more",
    "below_percent": "up to {} % less",
    "above_percent": "up to {} % more",
    "days": "{}",
    "before": "{} before",
    "after": "{} after",
    "threshold": "a similarity of at least {}",
}
_DAYS = ("days", "before", "after")
