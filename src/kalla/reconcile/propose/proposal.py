"""A recipe for two sources, proposed from their values: keys, amounts, dates, parts, and a trial.

Deterministic: the same files give the same recipe, byte for byte.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.propose import (
    key_candidates,
    observed_differences,
    recipe_text,
    side_tables,
    trial_match,
)
from kalla.reconcile.propose.column_roles import ColumnFacts, column_facts
from kalla.reconcile.propose.key_agreement import AmountPair, KeyEvaluation, KeyPart, Sample
from kalla.reconcile.propose.key_candidates import Form, KeyCandidate
from kalla.reconcile.propose.observed_differences import SignMark, ToleranceFound, WindowFound
from kalla.reconcile.propose.recipe_text import Draft, DraftCondition, DraftRule, DraftSource
from kalla.reconcile.propose.row_keys import row_key
from kalla.reconcile.propose.side_tables import SideTable
from kalla.reconcile.propose.trial_match import Trial, try_recipe
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import SIDES, Filter, Regex, Source
from kalla.reconcile.sources.formats.csv_sniffing import Decided
from kalla.reconcile.sources.source_planning import Resolve, from_environment
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import LOCAL, Storage

_TRIED_KEYS = 6
_FEW_ROWS = 500_000  # above this, only candidates near the best are evaluated
_MOST_PARTS = 3
_UNIQUE = 0.95
_BETTER = 1.02
_NAMES_AGREE = 0.6
_FEW_NAMES = 20  # columns of fewer values are countries and the like
_SAME_NAME = 10  # rows of one name, on average
_LEAST_SCORE = 0.05

ProgressCallback = Callable[[str], None]


@dataclass(frozen=True)
class FoundPair:
    """Columns of amounts that agree, and how closely."""

    columns: AmountPair
    allowed: ToleranceFound


@dataclass(frozen=True)
class Proposal:
    """A recipe with the reasons for it. `text` is YAML with comments, for a person to edit."""

    text: str
    evidence: tuple[str, ...]
    unsure: tuple[str, ...]
    decisions: dict[str, tuple[Decided, ...]]  # of each side: how its file is written
    trial: Trial
    seconds: float


def propose(
    left: Source,
    right: Source,
    *,
    names: tuple[str, str] = ("left", "right"),
    title: str | None = None,
    uris: tuple[str, str] | None = None,
    storage: Storage = LOCAL,
    resolve: Resolve = from_environment,
    bounds: Bounds = side_tables.PROFILED,
    progress: ProgressCallback = lambda _: None,
) -> Proposal:
    """Propose a recipe for two sources; `title` is its name, made of their names unless given, and
    `uris` replace the sources' own uris in it.
    """
    began = time.monotonic()
    with side_tables.opened(storage, bounds) as connection:
        progress("reading both sources")
        own = side_tables.load(connection, "left_rows", left, storage=storage, resolve=resolve)
        other = side_tables.load(connection, "right_rows", right, storage=storage, resolve=resolve)
        tables = (own, other)
        for table, name in zip(tables, names, strict=True):
            if not table.rows:
                raise InvalidInput(Problem(name, "has no rows to compare"))
        progress("looking for columns that hold the same values")
        facts = (column_facts(connection, own), column_facts(connection, other))
        draft = _draft(connection, tables, facts, names, title or " and ".join(names), uris)
        progress("trying the recipe")
        draft, trial = _tried(connection, draft, tables, bounds)
    text = recipe_text.write(draft, trial)
    parsing.read(text)  # the proposal must be a valid recipe
    decisions = {
        name: table.decisions for name, table in zip(("left", "right"), tables, strict=True)
    }
    return Proposal(
        text, draft.evidence, draft.unsure, decisions, trial, round(time.monotonic() - began, 2)
    )


def as_facts(found: Proposal) -> dict[str, Any]:
    """A proposal as JSON."""
    return {
        "text": found.text,
        "evidence": list(found.evidence),
        "unsure": list(found.unsure),
        "decisions": {
            side: [dataclasses.asdict(each) for each in decided]
            for side, decided in found.decisions.items()
        },
        "trial": trial_match.as_facts(found.trial),
        "seconds": found.seconds,
    }


def _draft(
    connection: duckdb.DuckDBPyConnection,
    tables: tuple[SideTable, SideTable],
    facts: tuple[list[ColumnFacts], list[ColumnFacts]],
    names: tuple[str, str],
    title: str,
    uris: tuple[str, str] | None,
) -> Draft:
    sample = Sample(connection, tables, facts)
    found = key_candidates.candidates(connection, tables, facts)
    key = _best_key(sample, found)
    if key is None:
        raise InvalidInput(
            Problem(
                "sources",
                "have no columns whose values occur on both sides, in any usual notation: say in a"
                " recipe which columns belong together",
            )
        )
    pairs = [FoundPair(pair, observed_differences.tolerance(sample, pair)) for pair in key.amounts]
    mark = (
        observed_differences.sign_mark(sample, key.amounts) if _is_unsigned(key.amounts) else None
    )
    window = observed_differences.window(sample, key.amounts)
    if window and any(part.left.is_date for part in key.parts):
        window = None
    currency = _currency(facts)
    evidence = _evidence(key, pairs, window, currency, names, sample.share)
    rules = _rules(sample, key, pairs, mark, window, found)
    unsure = _unsure(tables, names, key, pairs, mark, window)
    if any(rule.is_comment for rule in rules):
        unsure.append("a rule for rows without a reference is a comment: read it before you use it")
    sources = []
    for place, table in enumerate(tables):
        columns, is_unique, note = row_key(
            connection, table, facts[place], [(part.left, part.right)[place] for part in key.parts]
        )
        if not is_unique:
            unsure.append(f"{names[place]}: {note}")
        sources.append(
            DraftSource(
                table.source,
                uris[place] if uris else table.source.uri,
                columns,
                note,
                ((key.amounts[0].left, key.amounts[0].right)[place] if key.amounts else None),
                (currency[place] if currency else None),
                (next(iter(sample.dates[place]), None) if window is None else None),
                table.decisions,
            )
        )
    return Draft(title, (sources[0], sources[1]), tuple(rules), tuple(evidence), tuple(unsure))


def _best_key(sample: Sample, found: Sequence[KeyCandidate]) -> KeyEvaluation | None:
    """The candidate whose groups agree in amounts, with further parts where one does not tell rows
    apart."""
    tried: list[tuple[float, int, KeyEvaluation]] = []
    likely = [each for each in found if each.score >= 0.5 * found[0].score] if found else []
    if max(table.rows for table in sample.tables) <= _FEW_ROWS:
        likely = list(found)
    # The likeliest last: its groups are there when it is chosen.
    for place, each in reversed(list(enumerate(likely[:_TRIED_KEYS]))):
        evaluated = sample.evaluate([KeyPart(each.left, each.right)])
        tried.append((round(-evaluated.score, 3), place, evaluated))
    if not tried:
        return None
    best = min(tried, key=lambda each: each[:2])[2]
    while best.uniqueness < _UNIQUE and len(best.parts) < _MOST_PARTS:
        further = _with_another_part(sample, best, found)
        if further is None:
            break
        best = further
    if best.score < _LEAST_SCORE:
        return None
    return sample.evaluate(best.parts)  # the following steps use its groups


def _with_another_part(
    sample: Sample, best: KeyEvaluation, found: Sequence[KeyCandidate]
) -> KeyEvaluation | None:
    used = {part.left.column for part in best.parts}, {part.right.column for part in best.parts}
    parts = [
        KeyPart(each.left, each.right)
        for each in found
        if each.left.column not in used[0] and each.right.column not in used[1]
        and min(each.left_share, each.right_share) > 0.3
    ][:_TRIED_KEYS]  # fmt: skip
    parts += [
        KeyPart(Form(left, "day", (), 1, True), Form(right, "day", (), 1, True))
        for left in sample.dates[0]
        for right in sample.dates[1]
        if left not in used[0] and right not in used[1]
    ][:_TRIED_KEYS]
    tried = [sample.evaluate([*best.parts, part]) for part in parts]
    better = [each for each in tried if each.score > best.score * _BETTER]
    return max(better, key=lambda each: round(each.score, 3)) if better else None


def _is_unsigned(pairs: Sequence[AmountPair]) -> bool:
    """Whether the same columns agree with the same sign in some rows, and with the other in the
    rest."""
    return len({(pair.left, pair.right) for pair in pairs}) < len(pairs)


def _rules(
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
    is_unsigned = _is_unsigned(key.amounts)
    for place, each in enumerate(pairs):
        conditions = (*by_key, DraftCondition.tolerance(each.columns, each.allowed), *in_time)
        which = ("", ", other sign" if is_unsigned else ", other column")[place]
        note = ""
        if place and is_unsigned and not mark:
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
        "same name and amount",
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


def _currency(
    facts: tuple[list[ColumnFacts], list[ColumnFacts]],
) -> tuple[str, str] | None:
    """The first column of each side that holds currencies, if both have one."""
    own = [[each.name for each in side if each.role == "currency"] for side in facts]
    return (own[0][0], own[1][0]) if own[0] and own[1] else None


def _evidence(
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


def _unsure(
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
    if key.uniqueness < _UNIQUE:
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
    if _is_unsigned(pairs):
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


def _tried(
    connection: duckdb.DuckDBPyConnection,
    draft: Draft,
    tables: tuple[SideTable, SideTable],
    bounds: Bounds,
) -> tuple[Draft, Trial]:
    """The draft without rules that match nothing, and what the others match. Of a sample they stay:
    it has too few pairs of rows without a reference, and of rare groups.
    """
    recipe = parsing.read(recipe_text.write(draft))
    trial = try_recipe(connection, recipe, tables, bounds)
    taken = {each.name for each in trial.rules if each.matches}
    kept = tuple(
        rule
        for rule in draft.rules
        if trial.is_sample or rule.is_comment or rule.name in taken or rule is draft.rules[0]
    )
    return recipe_text.with_rules(draft, kept), trial
