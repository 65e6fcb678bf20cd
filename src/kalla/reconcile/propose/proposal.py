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
    proposal_reasons,
    recipe_text,
    side_tables,
    trial_match,
)
from kalla.reconcile.propose.column_roles import ColumnFacts, column_facts
from kalla.reconcile.propose.key_agreement import UNIQUE, KeyEvaluation, KeyPart, Sample
from kalla.reconcile.propose.key_candidates import Form, KeyCandidate
from kalla.reconcile.propose.recipe_text import Draft, DraftSource
from kalla.reconcile.propose.row_keys import row_key
from kalla.reconcile.propose.rule_drafts import NAME_RULE, FoundPair, draft_rules, is_unsigned
from kalla.reconcile.propose.side_tables import SideTable
from kalla.reconcile.propose.trial_match import Trial, try_recipe
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import Source
from kalla.reconcile.sources.formats.csv_sniffing import Decided
from kalla.reconcile.sources.source_planning import Resolve, from_environment
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import LOCAL, Storage

_TRIED_KEYS = 6
_FEW_ROWS = 500_000  # above this, only candidates near the best are evaluated
_MOST_PARTS = 3
_BETTER = 1.02
_LEAST_SCORE = 0.05

ProgressCallback = Callable[[str], None]


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
    mark = observed_differences.sign_mark(sample, key.amounts) if is_unsigned(key.amounts) else None
    window = observed_differences.window(sample, key.amounts)
    if window and any(part.left.is_date for part in key.parts):
        window = None
    currency = _currency(facts)
    evidence = proposal_reasons.evidence(key, pairs, window, currency, names, sample.share)
    rules = draft_rules(sample, key, pairs, mark, window, found)
    unsure = proposal_reasons.doubts(tables, names, key, pairs, mark, window)
    if any(rule.name == NAME_RULE for rule in rules):
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
    while best.uniqueness < UNIQUE and len(best.parts) < _MOST_PARTS:
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


def _currency(
    facts: tuple[list[ColumnFacts], list[ColumnFacts]],
) -> tuple[str, str] | None:
    """The first column of each side that holds currencies, if both have one."""
    own = [[each.name for each in side if each.role == "currency"] for side in facts]
    return (own[0][0], own[1][0]) if own[0] and own[1] else None


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
