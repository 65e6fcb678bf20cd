"""What a proposal was made of, and what it is not sure of, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from kalla.reconcile.propose.key_agreement import UNIQUE, AmountPair, KeyEvaluation
from kalla.reconcile.propose.observed_differences import SignMark, WindowFound
from kalla.reconcile.propose.rule_drafts import FoundPair, is_unsigned
from kalla.reconcile.propose.side_tables import SideTable
from kalla.reconcile.recipe.model import SIDES


def evidence(
    key: KeyEvaluation,
    pairs: Sequence[FoundPair],
    window: WindowFound | None,
    currency: tuple[str, str] | None,
    names: tuple[str, str],
    share: int,
) -> list[str]:
    left = ", ".join(part.left.column for part in key.parts)
    right = ", ".join(part.right.column for part in key.parts)
    overlap = (
        f"{key.left_share:.1%} of the rows of {names[0]} have their {left} in {right} of"
        f" {names[1]}, and {key.right_share:.1%} the other way round"
    )
    found = [overlap]
    for each in pairs:
        pair, allowed = each.columns, each.allowed
        opposite = " with the opposite sign" if pair.is_opposite else ""
        found.append(
            f"{pair.left} and {pair.right} are equal{opposite} in {pair.equal:,} of {pair.groups:,}"
            f" groups of the same reference; the tolerance covers {allowed.covered:,} of"
            f" {allowed.pairs:,} that are at most 10 % apart"
        )
    if window:
        found.append(
            f"{window.right} lies from {_days(window.earliest)} to {_days(window.latest)}"
            f" {window.left} in {window.pairs:,} pairs"
        )
    if currency:
        found.append(f"{currency[0]} and {currency[1]} hold currencies")
    if share > 1:
        found.append(f"computed from every {share}th value of the reference, on both sides")
    return found


def _days(number: int) -> str:
    return f"{abs(number)} days {'before' if number < 0 else 'after'}"


def doubts(
    tables: tuple[SideTable, SideTable],
    names: tuple[str, str],
    key: KeyEvaluation,
    pairs: Sequence[FoundPair],
    mark: SignMark | None,
    window: WindowFound | None,
) -> list[str]:
    found = [
        f"{name}: {'xlsx' if table.format == 'xlsx' else 'csv'}.{each.option}: {each.reason}"
        for name, table in zip(names, tables, strict=True)
        for each in table.decisions
        if not each.is_sure
    ]
    found += [
        f"{name}: only the first {table.rows:,} of about {table.total:,} rows were read"
        for name, table in zip(names, tables, strict=True)
        if table.total
    ]
    if key.uniqueness < UNIQUE:
        found.append("the reference is not unique on either side: some rows may be ambiguous")
    if not pairs:
        found.append("no amounts agree under this reference: rows match by the reference alone")
    for pair in pairs:
        if pair.allowed.covered < pair.allowed.pairs:
            largest = format(pair.allowed.largest or 0, "f").rstrip("0").rstrip(".")
            found.append(
                f"{pair.allowed.pairs - pair.allowed.covered:,} amounts differ by more than the"
                f" tolerance, up to {largest}"
            )
    if len(pairs) > 1:
        found.append(_about_two_pairs(names, key.amounts, mark))
    if window is None and not any(part.left.is_date for part in key.parts):
        found.append("no date columns are close enough: no date window is proposed")
    return found


def _about_two_pairs(
    names: tuple[str, str], pairs: Sequence[AmountPair], mark: SignMark | None
) -> str:
    if mark:
        side = names[SIDES.index(mark.side)]
        return (
            f"{mark.first.column} of {side} says the sign of its amounts: the sums of the result"
            " leave it out"
        )
    if is_unsigned(pairs):
        return (
            f"{pairs[0].left} and {pairs[0].right} have opposite signs in some rows, and no column"
            " says in which"
        )
    place = 0 if pairs[0].left != pairs[1].left else 1
    columns = [(pair.left, pair.right)[place] for pair in pairs]
    return (
        f"{names[place]} has its amounts in {' and '.join(columns)}: the sums of the result are"
        f" those of {columns[0]}"
    )
