"""The rules of a proposed recipe: one for each pair of amounts, and for groups of several rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kalla.reconcile.propose import observed_differences
from kalla.reconcile.propose.key_agreement import AmountPair, KeyEvaluation, Sample
from kalla.reconcile.propose.key_candidates import Form, KeyCandidate
from kalla.reconcile.propose.observed_differences import SignMark, ToleranceFound, WindowFound
from kalla.reconcile.propose.recipe_text import DraftCondition, DraftRule
from kalla.reconcile.recipe.model import SIDES, Filter, Regex

NAME_RULE = "same name and amount"

_NAMES_AGREE = 0.6
_FEW_NAMES = 20  # columns of fewer values are countries and the like
_SAME_NAME = 10  # rows of one name, on average


@dataclass(frozen=True)
class FoundPair:
    """Columns of amounts that agree, and how closely."""

    columns: AmountPair
    allowed: ToleranceFound


def is_unsigned(pairs: Sequence[AmountPair]) -> bool:
    """Whether the same columns agree with the same sign in some rows, and with the other in the
    rest."""
    return len({(pair.left, pair.right) for pair in pairs}) < len(pairs)


def draft_rules(
    sample: Sample,
    key: KeyEvaluation,
    pairs: Sequence[FoundPair],
    mark: SignMark | None,
    window: WindowFound | None,
    found: Sequence[KeyCandidate],
) -> list[DraftRule]:
    by_key = [DraftCondition.equal(part.left, part.right) for part in key.parts]
    in_time = [DraftCondition.window(window)] if window else []
    if not pairs:
        return [DraftRule("same reference", "1:1", (*by_key, *in_time))]
    rules: list[DraftRule] = []
    has_other_sign = is_unsigned(key.amounts)
    for place, each in enumerate(pairs):
        conditions = (*by_key, DraftCondition.tolerance(each.columns, each.allowed), *in_time)
        which = ("", ", other sign" if has_other_sign else ", other column")[place]
        note = ""
        if place and has_other_sign and not mark:
            note = "No column says which rows have the other sign: read these before you use it"
        filters = {mark.side: (mark.first, mark.second)[place]} if mark else {}
        is_comment = bool(note)
        rules.append(
            DraftRule(
                f"same reference and amount{which}", "1:1", conditions, note, is_comment, filters
            )
        )
        split, joined = observed_differences.parts(sample, each.columns, each.allowed)
        for number, cardinality, name in (
            (split, "1:N", "one against several"), (joined, "N:1", "several against one")
        ):  # fmt: skip
            if number.are_there and not is_comment:
                note = (
                    f"{number.fitting:,} of {number.groups:,} groups of one row against several"
                    " have the same sum"
                )
                rules.append(
                    DraftRule(f"{name}{which}", cardinality, conditions, note, filters=filters)
                )
    if window and (fallback := _by_name(sample, key, found)):
        rules.append(_without_reference(fallback, key, pairs[0].columns, window))
    return rules


def _without_reference(
    fallback: NamePair, key: KeyEvaluation, pair: AmountPair, window: WindowFound
) -> DraftRule:
    """A rule for rows without a reference, as a comment: it can match a payment with an invoice
    that it does not pay."""
    first = key.parts[0]
    return DraftRule(
        NAME_RULE,
        "1:1",
        (
            DraftCondition.equal(fallback.left, fallback.right),
            DraftCondition.tolerance(pair, ToleranceFound({"absolute": "0"}, 0, 0, None)),
            DraftCondition.window(window),
        ),
        "For rows without a reference, if such rows of one name, amount and time belong together;"
        f" the names agree in {fallback.share:.1%} of the rows with one",
        is_comment=True,
        filters={
            side: Filter(column=form.column, op="is_null")
            for side, form in zip(SIDES, (first.left, first.right), strict=True)
            if not any(isinstance(each, Regex) for each in form.derivations)
        },
    )


@dataclass(frozen=True)
class NamePair:
    """Columns such as the customer's name, and how often they agree where the key does."""

    left: Form
    right: Form
    share: float


def _by_name(sample: Sample, key: KeyEvaluation, found: Sequence[KeyCandidate]) -> NamePair | None:
    """The other columns of many values that agree where the key does; a country does not tell rows
    apart."""
    used = {part.left.column for part in key.parts}, {part.right.column for part in key.parts}
    many = [
        {each.name for each in side if each.distinct >= max(_FEW_NAMES, each.given / _SAME_NAME)}
        for side in sample.facts
    ]
    fitting = [
        (-round(each.uniqueness, 3), -share, place, NamePair(each.left, each.right, share))
        for place, each in enumerate(found)
        if each.left.column in many[0] - used[0] and each.right.column in many[1] - used[1]
        and each.left.name in ("as it is", "in capitals")
        and (share := observed_differences.agreeing(
            sample, "left", "right", (each.left.column, each.right.column))) >= _NAMES_AGREE
    ]  # fmt: skip
    return min(fitting, key=lambda each: each[:3])[3] if fitting else None
