"""The match of one bucket: files of both sides in, evidence files out, facts back.

A plain function: no Spark, no Postgres, no settings.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import duckdb

from kalla.errors import Permanent
from kalla.reconcile import closest, groups, pairs
from kalla.reconcile.evidence import Evidence, Written
from kalla.reconcile.model import SIDES, Side
from kalla.reconcile.plan import Plan
from kalla.reconcile.workbench import Loaded, Resources, Workbench

STATES = ("matched", "suggested", "ambiguous", "unmatched", "filtered")


@dataclass(frozen=True)
class Tally:
    """Rows of a side in one state, and the sum of their amounts."""

    rows: int = 0
    amount: Decimal | None = None


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


def match(plan: Plan, folder: Path, resources: Resources, matched_at: str) -> Facts:
    """Match both sides by the plan's rules and write the evidence into the folder."""
    bench = Workbench(plan, resources)
    try:
        return _match(bench, Evidence(bench, folder, matched_at))
    except duckdb.Error as error:  # the same again: it would fail in the same way
        said = " ".join(line.strip() for line in str(error).splitlines()[:3])
        raise Permanent(f"the match failed: {said}") from error
    finally:
        bench.close()


def _match(bench: Workbench, evidence: Evidence) -> Facts:
    clock = _Clock()
    loaded = {side: bench.load(side) for side in SIDES}
    clock.lap("load")
    rules = []
    for rule in bench.plan.rules:
        began = time.monotonic()
        room = pairs if rule.cardinality == "1:1" else groups
        table = room.match(bench, rule)
        rules.append((rule, table, time.monotonic() - began))
    clock.lap("match")
    for side in SIDES:
        bench.run(
            f"CREATE TEMP TABLE {side}_unmatched AS SELECT rid FROM {side}_rows"
            f" WHERE rid NOT IN (SELECT rid FROM {side}_gone)"
            f" AND rid NOT IN (SELECT rid FROM {side}_ambiguous)"
        )
    for side in SIDES:
        closest.search(bench, side)
    clock.lap("closest")
    facts = []
    for rule, table, seconds in rules:
        if rule.cardinality == "1:1":
            evidence.pairs(rule, table)
        else:
            evidence.groups(rule, table)
        facts.append(_rule_facts(bench, rule.number, table, seconds))
    evidence.ambiguous()
    for side in SIDES:
        evidence.unmatched(side)
    clock.lap("evidence")
    states = {side: SideFacts(loaded[side], _states(bench, side, loaded[side])) for side in SIDES}
    clock.lap("conservation")
    return Facts(states, tuple(facts), tuple(evidence.written), clock.laps)


def _rule_facts(bench: Workbench, number: int, table: str, seconds: float) -> RuleFacts:
    rule = bench.plan.rules[number]
    one_to_one = rule.cardinality == "1:1"
    count = "count(*)" if one_to_one else "count(DISTINCT gid)"
    (matches,) = bench.row(f"SELECT {count} FROM {table}")
    tallies = {}
    for side, rid in zip(SIDES, ("lrid", "rrid"), strict=True):
        rids = f"SELECT {rid} FROM {table}" if one_to_one else (
            f"SELECT rid FROM {table} WHERE side = '{side}'"
        )  # fmt: skip
        tallies[side] = Tally(
            *bench.row(
                f"SELECT count(*), {_amount(bench, side)} FROM {side}_rows WHERE rid IN ({rids})"
            )
        )
    doubts = {
        side: bench.row(
            f"SELECT count(*) FROM {side}_ambiguous WHERE rule = {number}"
            f" AND rid NOT IN (SELECT rid FROM {side}_gone)"
        )[0]
        for side in SIDES
    }
    return RuleFacts(
        rule.name,
        rule.cardinality,
        matches,
        tallies["left"],
        tallies["right"],
        doubts["left"],
        doubts["right"],
        round(seconds, 3),
    )


def _states(bench: Workbench, side: Side, loaded: Loaded) -> dict[str, Tally]:
    """Each row's state, counted anew from the rows themselves: what conservation is checked on."""
    rows = bench.rows(
        f"SELECT state, count(*), {_amount(bench, side)} FROM {side}_rows JOIN ("
        f" SELECT rid, status AS state FROM {side}_gone"
        f" UNION ALL SELECT rid, 'ambiguous' FROM {side}_ambiguous"
        f" WHERE rid NOT IN (SELECT rid FROM {side}_gone)"
        f" UNION ALL SELECT rid, 'unmatched' FROM {side}_unmatched) USING (rid) GROUP BY state"
    )
    found = {state: Tally(count, amount) for state, count, amount in rows}
    found["filtered"] = Tally(loaded.filtered, loaded.filtered_amount)
    return {state: found.get(state, Tally()) for state in STATES}


def _amount(bench: Workbench, side: Side) -> str:
    amount = bench.plan.sides[side].amount
    return f"sum({amount.sql})" if amount else "NULL"


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self._last = round(now - self._last, 3), now
