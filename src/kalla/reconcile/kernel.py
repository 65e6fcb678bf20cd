"""The match of one bucket: files of both sides in, evidence files out, facts back.

A plain function: no Spark, no Postgres, no settings.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa

from kalla.reconcile import complaints
from kalla.reconcile.evidence import leftovers_in_hand
from kalla.reconcile.evidence.leftovers_in_hand import Leftovers
from kalla.reconcile.evidence.writing import Evidence, Written
from kalla.reconcile.headway import Headway, Told, stages, unheard
from kalla.reconcile.matching import (
    closest,
    closest_in_hand,
    components,
    currencies,
    groups,
    loading,
    pairs,
    suggestions,
    telling,
)
from kalla.reconcile.matching.components import PairFacts
from kalla.reconcile.matching.engine import Resources
from kalla.reconcile.matching.fates import OPEN, SETTLED
from kalla.reconcile.matching.loading import Loaded
from kalla.reconcile.matching.suggestions import Suggestion
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.model import SIDES, Side
from kalla.reconcile.plan import Plan, RulePlan
from kalla.reconcile.sources import direct

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
    folder: Path,
    resources: Resources,
    matched_at: str,
    found_pairs: str | None = None,
    told: Told = unheard,
) -> Facts:
    """Match both sides by the plan's rules, or by pairs that are found already (a pattern of their
    files), and write the evidence into the folder."""
    bench = Workbench(plan, resources)
    inputs = [plan.sides[side].input for side in SIDES]
    tables = [each for each in inputs if each.connector is not None]
    headway = Headway(told, stages(inputs))
    slices = sum(len(each.slices) for each in tables)
    try:
        for each in tables:
            fetched = partial(headway.made, "fetch", 1 / max(1, slices))
            direct.fetch(bench.connection, each, resources.threads, fetched)
        return _match(bench, Evidence(bench, folder, matched_at), found_pairs, headway)
    except duckdb.Error as error:  # the same again: it would fail in the same way
        raise complaints.of_matching(error) from error
    finally:
        bench.close()


def _match(
    bench: Workbench, evidence: Evidence, found_pairs: str | None, headway: Headway
) -> Facts:
    clock = Clock()
    loaded = _load(bench, headway)
    for side in SIDES:
        direct.drop(bench.connection, bench.plan.sides[side].input)
    clock.lap("load")
    if found_pairs is None:
        tables = carry_out(bench, bench.plan.rules, headway)
    else:
        began = time.monotonic()
        (rule,) = bench.plan.rules
        table, statement = components.match(bench, rule, found_pairs)
        tables = [Carried(rule, table, time.monotonic() - began)]
        headway.made("match", 1)
    clock.lap("match")
    bench.by_side(find_unmatched)
    facts, written, counted = _write(bench, evidence, tables, headway)
    states = {
        side: SideFacts(loaded[side], counted[side] | {"filtered": filtered(loaded[side])})
        for side in SIDES
    }
    facts = with_doubts(facts, {side: doubts(bench, side) for side in SIDES})
    clock.lap("evidence")
    return Facts(
        states,
        facts,
        written,
        clock.laps,
        None if found_pairs is None else statement,
    )


def _load(bench: Workbench, headway: Headway) -> dict[Side, Loaded]:
    def load(own: Workbench, side: Side) -> Loaded:
        loaded = loading.load(own, side)
        headway.made("load", 1 / len(SIDES))
        return loaded

    return bench.by_side(load)


def _write(
    bench: Workbench, evidence: Evidence, carried: Sequence[Carried], headway: Headway
) -> tuple[tuple[RuleFacts, ...], tuple[Written, ...], dict[Side, dict[str, Tally]]]:
    """All evidence: what matched, and what is left of each side, at the same time, for most of the
    work is too small to use more than one core. Also how many rows are in each state."""

    def matched() -> None:
        _write_matched(evidence, carried)
        evidence.ambiguous()
        headway.made("evidence", 0.4)

    def unmatched(own: Workbench, side: Side) -> tuple[list[Written], dict[str, Tally]]:
        states = states_of(own, side)
        explained = evidence.beside(own)
        told = _find_closest(own, side)
        headway.made("evidence", 0.2)
        explained.unmatched(side, told)
        headway.made("evidence", 0.1)
        return explained.written, states

    with ExitStack() as stack:
        benches = {side: bench.beside() for side in SIDES}
        for own in benches.values():
            stack.callback(own.close)
        pool = stack.enter_context(ThreadPoolExecutor(min(bench.threads, 1 + len(SIDES))))
        # Matches come last: they are the work that can be divided among all who are free by then.
        asked = {side: pool.submit(unmatched, own, side) for side, own in benches.items()}
        pairs_written = pool.submit(matched)
        found = {side: each.result() for side, each in asked.items()}
        pairs_written.result()
    rest = [each for written, _ in found.values() for each in written]
    states = {side: counted for side, (_, counted) in found.items()}
    return _rules_facts(bench, carried), (*evidence.written, *rest), states


def _find_closest(bench: Workbench, side: Side) -> list[Leftovers] | None:
    """Find the closest row of every unmatched one. Where all that is to be said of them is in hand,
    it is told; else it is in tables, for whoever writes the evidence."""
    seen = closest_in_hand.search(bench, side)
    if seen is None:
        closest.search_by_sql(bench, side)
        return None
    told = leftovers_in_hand.tell(bench, side, seen)
    if told is None:
        telling.tell_seen(bench, side, seen)
    return told


@dataclass(frozen=True)
class Carried:
    """A rule that was carried out: its pairs, or the name of the table of its groups."""

    rule: RulePlan
    found: pa.Table | str
    seconds: float


def carry_out(
    bench: Workbench, rules: Sequence[RulePlan], headway: Headway | None = None
) -> list[Carried]:
    """The rules in turn, each on what the ones before it left."""
    found = []
    for rule in rules:
        began = time.monotonic()
        room = pairs if rule.cardinality == "1:1" else groups
        found.append(Carried(rule, room.match(bench, rule), time.monotonic() - began))
        if headway is not None:
            headway.made("match", 1 / len(rules))
    return found


def find_unmatched(bench: Workbench, side: Side) -> None:
    bench.run(
        f"CREATE TABLE {side}_unmatched AS SELECT rid FROM {bench.left_over(side)}"
        f" WHERE rid NOT IN (SELECT rid FROM {side}_ambiguous)"
    )


def write_matched(
    bench: Workbench, evidence: Evidence, carried: Sequence[Carried]
) -> tuple[RuleFacts, ...]:
    """The evidence of what rules matched, and their facts; who is in doubt is known at the end."""
    _write_matched(evidence, carried)
    return _rules_facts(bench, carried)


def _write_matched(evidence: Evidence, carried: Sequence[Carried]) -> None:
    for each in carried:
        if isinstance(each.found, str):
            evidence.groups(each.rule, each.found)
        else:
            evidence.pairs(each.rule, each.found)


def _rules_facts(bench: Workbench, carried: Sequence[Carried]) -> tuple[RuleFacts, ...]:
    settled = {side: _settled(bench, side) for side in SIDES}
    return tuple(_rule_facts(bench, each, settled) for each in carried)


def _rule_facts(
    bench: Workbench, carried: Carried, settled: Mapping[Side, Mapping[tuple[str, int], Tally]]
) -> RuleFacts:
    rule, found = carried.rule, carried.found
    if isinstance(found, str):
        (matches,) = bench.row(f"SELECT count(DISTINCT gid) FROM {found}")
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
        round(carried.seconds, 3),
        suggestions.largest_of(bench, rule, found) if isinstance(found, str) else (),
    )


def doubts(bench: Workbench, side: Side) -> dict[int, int]:
    """How many rows are ambiguous in the end, by the number of the rule that found them so."""
    return dict(
        bench.rows(
            f"SELECT rule, count(*) FROM {side}_ambiguous"
            f" WHERE rid IN (SELECT rid FROM {bench.left_over(side)}) GROUP BY rule"
        )
    )


def with_doubts(
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


def states_of(bench: Workbench, side: Side) -> dict[str, Tally]:
    """Each row's state, counted anew from the rows themselves: what conservation is checked on."""
    found = {}
    for state in OPEN:
        rows = f"{bench.left_over(side)} WHERE rid IN (SELECT rid FROM {side}_{state})"
        count, amount = bench.row(f"SELECT count(*), {_amount(bench, side)} FROM {rows}")
        found[state] = Tally(count, amount, currencies.of_rows(bench, side, rows))
    settled = _settled(bench, side)
    for state in SETTLED:
        found[state] = added([tally for (status, _), tally in settled.items() if status == state])
    return {state: found.get(state, Tally()) for state in STATES}


def _settled(bench: Workbench, side: Side) -> dict[tuple[str, int], Tally]:
    """By status and rule."""
    sums = currencies.of_settled(bench, side)
    return {
        place: Tally(rows, amount, sums.get(place, {}))
        for place, (rows, amount) in bench.tallies(side).items()
        if place[0] in SETTLED
    }


def added(tallies: Sequence[Tally]) -> Tally:
    return Tally(
        sum(each.rows for each in tallies),
        total([each.amount for each in tallies]),
        currencies.together(each.currencies for each in tallies),
    )


def filtered(loaded: Loaded) -> Tally:
    return Tally(loaded.filtered, loaded.filtered_amount, loaded.filtered_currencies)


def _amount(bench: Workbench, side: Side) -> str:
    amount = bench.plan.sides[side].amount
    return f"sum({amount.sql})" if amount else "NULL"


def total(amounts: Sequence[Decimal | None]) -> Decimal | None:
    """Exact: the everyday decimal context would round at 28 digits. Of nothing, nothing."""
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
