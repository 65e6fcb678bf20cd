"""The match of one bucket: files of both sides in, evidence files out, facts back.

A plain function: no Spark, no Postgres, no settings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa

from kalla.reconcile.evidence.writing import largest_suggestions
from kalla.reconcile.evidence.writing.datasets import Evidence, Written
from kalla.reconcile.evidence.writing.largest_suggestions import Suggestion
from kalla.reconcile.matching import many_to_many, one_to_one
from kalla.reconcile.plan.plan import Plan, RulePlan
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.session import currency_sums, side_loading
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.session.match_progress import (
    MatchProgress,
    ProgressCallback,
    no_progress,
    stages,
)
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.row_status import OPEN, SETTLED
from kalla.reconcile.session.side_loading import Loaded
from kalla.reconcile.sources import direct_reads
from kalla.reconcile.sql import duckdb_errors
from kalla.reconcile.unmatched import nearest_candidates
from kalla.reconcile.user_sql import connected_components
from kalla.reconcile.user_sql.connected_components import PairFacts
from kalla.threads import spread

STATES = ("matched", "suggested", "ambiguous", "unmatched", "filtered")


@dataclass(frozen=True)
class Tally:
    """Rows of a side in one state, and the sum of their amounts."""

    rows: int = 0
    amount: Decimal | None = None
    currencies: Mapping[str, Decimal] = field(default_factory=dict)  # where the side names one


@dataclass(frozen=True)
class RuleFacts:
    name: str
    cardinality: str
    matches: int
    left: Tally
    right: Tally
    ambiguous_left: int
    ambiguous_right: int
    seconds: float
    suggested: tuple[Suggestion, ...] = ()  # the largest


@dataclass(frozen=True)
class SideFacts:
    loaded: Loaded
    states: dict[str, Tally]


@dataclass(frozen=True)
class Facts:
    """What a match did, in numbers."""

    sides: dict[Side, SideFacts]
    rules: tuple[RuleFacts, ...]
    written: tuple[Written, ...]
    seconds: dict[str, float]  # by stage
    statement: PairFacts | None = None  # of match_sql


def match(
    plan: Plan,
    evidence: str | Path,
    resources: Resources,
    matched_at: str,
    found_pairs: Sequence[str] | None = None,
    progress_callback: ProgressCallback = no_progress,
    *,
    task: str = "",
) -> Facts:
    """Match both sides by the plan's rules, or by the pairs in the given files, and write the
    evidence below that URL, in files named by the task.
    """
    session = MatchSession(plan, resources)
    inputs = [plan.sides[side].input for side in SIDES]
    tables = [each for each in inputs if each.connector is not None]
    progress = MatchProgress(progress_callback, stages(inputs))
    slices = sum(len(each.slices) for each in tables)
    try:
        for each in tables:
            fetched = partial(progress.made, "fetch", 1 / max(1, slices))
            direct_reads.fetch(session.connection, each, resources.threads, fetched)
        written = Evidence(session, str(evidence), matched_at, task=task)
        return _match(session, written, found_pairs, progress)
    except duckdb.Error as error:  # the same again: it would fail in the same way
        raise duckdb_errors.of_matching(error) from error
    finally:
        session.close()


def _match(
    session: MatchSession,
    evidence: Evidence,
    found_pairs: Sequence[str] | None,
    progress: MatchProgress,
) -> Facts:
    clock = Clock()
    loaded = _load(session, progress)
    for side in SIDES:
        direct_reads.drop(session.connection, session.plan.sides[side].input)
    clock.lap("load")
    if found_pairs is None:
        tables = execute_rules(session, session.plan.rules, progress)
    else:
        began = time.monotonic()
        (rule,) = session.plan.rules
        table, statement = connected_components.match(session, rule, found_pairs)
        tables = [ExecutedRule(rule, table, time.monotonic() - began)]
        progress.made("match", 1)
    clock.lap("match")
    session.by_side(find_unmatched)
    facts, written, counted = _write(session, evidence, tables, progress)
    states = {
        side: SideFacts(loaded[side], counted[side] | {"filtered": filtered(loaded[side])})
        for side in SIDES
    }
    facts = with_ambiguous(facts, {side: ambiguous_counts(session, side) for side in SIDES})
    clock.lap("evidence")
    return Facts(
        states,
        facts,
        written,
        clock.laps,
        None if found_pairs is None else statement,
    )


def _load(session: MatchSession, progress: MatchProgress) -> dict[Side, Loaded]:
    def load(own: MatchSession, side: Side) -> Loaded:
        loaded = side_loading.load(own, side)
        progress.made("load", 1 / len(SIDES))
        return loaded

    return session.by_side(load)


def _write(
    session: MatchSession,
    evidence: Evidence,
    executed: Sequence[ExecutedRule],
    progress: MatchProgress,
) -> tuple[tuple[RuleFacts, ...], tuple[Written, ...], dict[Side, dict[str, Tally]]]:
    """All evidence: what matched, and what is left of each side, at the same time, for most of the
    work is too small to use more than one core. Also how many rows are in each state."""

    def matched() -> _WrittenPart:
        _write_matched(evidence, executed)
        evidence.ambiguous()
        progress.made("evidence", 0.4)
        return evidence.written, {}

    def unmatched(own: MatchSession, side: Side) -> _WrittenPart:
        states = states_of(own, side)
        explained = evidence.fork(own)
        nearest_candidates.search(own, side)
        progress.made("evidence", 0.2)
        explained.unmatched(side)
        progress.made("evidence", 0.1)
        return explained.written, {side: states}

    with ExitStack() as stack:
        sessions = {side: session.fork() for side in SIDES}
        for own in sessions.values():
            stack.callback(own.close)
        # Matches come last: this work can be divided among all free threads.
        parts: list[Callable[[], _WrittenPart]] = [
            *(partial(unmatched, own, side) for side, own in sessions.items()),
            matched,
        ]
        found = list(spread(lambda part: part(), parts, min(session.threads, len(parts))))
    written = tuple(each for files, _ in reversed(found) for each in files)
    states = {side: counted for _, states in found for side, counted in states.items()}
    return _rules_facts(session, executed), written, states


_WrittenPart = tuple[Sequence[Written], Mapping[Side, dict[str, Tally]]]


@dataclass(frozen=True)
class ExecutedRule:
    """An executed rule: its pairs, or the name of the table of its groups."""

    rule: RulePlan
    found: pa.Table | str
    seconds: float


def execute_rules(
    session: MatchSession, rules: Sequence[RulePlan], progress: MatchProgress | None = None
) -> list[ExecutedRule]:
    """Executes the rules in order, each on the rows that earlier rules left."""
    found = []
    for rule in rules:
        began = time.monotonic()
        room = one_to_one if rule.cardinality == "1:1" else many_to_many
        found.append(ExecutedRule(rule, room.match(session, rule), time.monotonic() - began))
        if progress is not None:
            progress.made("match", 1 / len(rules))
    return found


def find_unmatched(session: MatchSession, side: Side) -> None:
    session.run(
        f"CREATE TABLE {side}_unmatched AS SELECT row_id FROM {session.open_rows(side)}"
        f" WHERE row_id NOT IN (SELECT row_id FROM {side}_ambiguous)"
    )


def write_matched(
    session: MatchSession, evidence: Evidence, executed: Sequence[ExecutedRule]
) -> tuple[RuleFacts, ...]:
    """Writes the evidence of matched rows, and the rules' facts; ambiguous rows are known at the
    end.
    """
    _write_matched(evidence, executed)
    return _rules_facts(session, executed)


def _write_matched(evidence: Evidence, executed: Sequence[ExecutedRule]) -> None:
    for each in executed:
        if isinstance(each.found, str):
            evidence.groups(each.rule, each.found)
        else:
            evidence.pairs(each.rule, each.found)


def _rules_facts(session: MatchSession, executed: Sequence[ExecutedRule]) -> tuple[RuleFacts, ...]:
    settled = {side: _settled(session, side) for side in SIDES}
    return tuple(_rule_facts(session, each, settled) for each in executed)


def _rule_facts(
    session: MatchSession,
    executed: ExecutedRule,
    settled: Mapping[Side, Mapping[tuple[str, int], Tally]],
) -> RuleFacts:
    rule, found = executed.rule, executed.found
    if isinstance(found, str):
        (matches,) = session.row(f"SELECT count(DISTINCT gid) FROM {found}")
    else:
        matches = len(found)
    tallies = {
        side: added([tally for (_, number), tally in each.items() if number == rule.number])
        for side, each in settled.items()
    }
    return RuleFacts(
        rule.name,
        rule.cardinality,
        matches,
        tallies["left"],
        tallies["right"],
        0,
        0,
        round(executed.seconds, 3),
        largest_suggestions.largest_of(session, rule, found) if isinstance(found, str) else (),
    )


def ambiguous_counts(session: MatchSession, side: Side) -> dict[int, int]:
    """The number of ambiguous rows by the number of the rule that marked them."""
    return dict(
        session.rows(
            f"SELECT rule, count(*) FROM {side}_ambiguous"
            f" WHERE row_id IN (SELECT row_id FROM {session.open_rows(side)}) GROUP BY rule"
        )
    )


def with_ambiguous(
    facts: Sequence[RuleFacts], found: Mapping[Side, Mapping[int, int]]
) -> tuple[RuleFacts, ...]:
    return tuple(
        replace(
            each,
            ambiguous_left=found["left"].get(number, 0),
            ambiguous_right=found["right"].get(number, 0),
        )
        for number, each in enumerate(facts)
    )


def states_of(session: MatchSession, side: Side) -> dict[str, Tally]:
    """The rows of each state, counted again from the rows, for the conservation check."""
    found = {}
    for state in OPEN:
        rows = f"{session.open_rows(side)} WHERE row_id IN (SELECT row_id FROM {side}_{state})"
        count, amount = session.row(f"SELECT count(*), {_amount(session, side)} FROM {rows}")
        found[state] = Tally(count, amount, currency_sums.of_rows(session, side, rows))
    settled = _settled(session, side)
    for state in SETTLED:
        found[state] = added([tally for (status, _), tally in settled.items() if status == state])
    return {state: found.get(state, Tally()) for state in STATES}


def _settled(session: MatchSession, side: Side) -> dict[tuple[str, int], Tally]:
    """By status and rule."""
    sums = currency_sums.of_settled(session, side)
    return {
        place: Tally(rows, amount, sums.get(place, {}))
        for place, (rows, amount) in session.tallies(side).items()
        if place[0] in SETTLED
    }


def added(tallies: Sequence[Tally]) -> Tally:
    return Tally(
        sum(each.rows for each in tallies),
        total([each.amount for each in tallies]),
        currency_sums.together(each.currencies for each in tallies),
    )


def filtered(loaded: Loaded) -> Tally:
    return Tally(loaded.filtered, loaded.filtered_amount, loaded.filtered_currencies)


def _amount(session: MatchSession, side: Side) -> str:
    amount = session.plan.sides[side].amount
    return f"sum({amount.sql})" if amount else "NULL"


def total(amounts: Sequence[Decimal | None]) -> Decimal | None:
    """Exact: the default decimal context would round at 28 digits. None for no rows."""
    given = [each for each in amounts if each is not None]
    with localcontext(prec=100):
        return sum(given, Decimal(0)) if given else None


class Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self._last = round(now - self._last, 3), now
