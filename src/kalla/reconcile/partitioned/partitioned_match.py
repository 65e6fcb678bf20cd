"""The match in several buckets: rows are spread by a rule's key, each bucket is matched by itself.

Rules of one key are one stage. Rows that a stage leaves are shuffled again by the next stage's key.
The evidence has the same digests as that of one bucket; only the number of files differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import duckdb

from kalla.reconcile import kernel
from kalla.reconcile.arrays.arrow_numbers import as_column
from kalla.reconcile.evidence.writing.datasets import Evidence, Written
from kalla.reconcile.kernel import Clock, Facts, SideFacts, Tally
from kalla.reconcile.matching import sum_mismatches
from kalla.reconcile.partitioned import candidate_prefilter, shuffle, state_handoff
from kalla.reconcile.partitioned.partition_results import (
    PartitionResult,
    loaded_of,
    rules_of,
    states_of,
)
from kalla.reconcile.partitioned.shuffle import (
    Key,
    KeyTask,
    Ordinals,
    Spread,
    kept,
    key_of_source,
    stored,
)
from kalla.reconcile.plan.pieces import Piece
from kalla.reconcile.plan.plan import Plan, RulePlan, SidePlan
from kalla.reconcile.recipe.model import SIDES, Side, opposite
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.sql import duckdb_errors
from kalla.reconcile.sql.column_values import literal, quote
from kalla.reconcile.unmatched import nearest_candidates
from kalla.storage import join

Task = TypeVar("Task")
Found = TypeVar("Found")

# Each task looks at all of the other side, so that few rows are not worth a second one.
_ASKING = 200_000

# So many rows of a side have their keys looked at sooner here than by tasks.
_FEW_KEYS = 10_000_000


class Place(Protocol):
    """Runs a kernel for every task and returns their results."""

    def __call__(
        self, kernel: Callable[[Task], Found], tasks: Sequence[Task], /
    ) -> Sequence[Found]: ...


@dataclass(frozen=True)
class Stage:
    """Rules that run bucket by bucket, because they share a key."""

    key: Key
    rules: tuple[RulePlan, ...]
    buckets: int


@dataclass(frozen=True)
class Bucket:
    """One bucket of a stage: where its rows are."""

    number: int
    places: Mapping[Side, tuple[str, ...]]


@dataclass(frozen=True)
class UnmatchedBatch:
    """Unmatched rows of a side that need an explanation."""

    side: Side
    number: int
    of: int


@dataclass(frozen=True)
class Places:
    """URLs that all tasks see: of the evidence, and of what is removed after the match."""

    evidence: str
    work: str


def match(
    plan: Plan, buckets: int, places: Places, resources: Resources, matched_at: str, place: Place
) -> Facts:
    """Match both sides and write the evidence, by tasks that `place` runs."""
    return _Match(plan, buckets, places, resources, matched_at).run(place)


def stages(rules: Sequence[RulePlan], buckets: int) -> list[Stage]:
    """Consecutive rules that one shuffle serves; without a key, in one bucket."""
    found: list[Stage] = []
    for rule in rules:
        key = Key.of(rule)
        if found and found[-1].key.serves(key):
            found[-1] = replace(found[-1], rules=(*found[-1].rules, rule))
        else:
            found.append(Stage(key, (rule,), buckets if key.pairs else 1))
    return found


def tasks_expected(rules: Sequence[RulePlan], buckets: int) -> int:
    """How many tasks a match has: each side is read by as many as there are buckets, then each
    stage is matched and each side explained. Tasks for keys with many rows are decided later."""
    return 2 * buckets + sum(stage.buckets for stage in stages(rules, buckets)) + 2


class _Match:
    """What the tasks of one match share. It travels with them."""

    def __init__(
        self, plan: Plan, buckets: int, places: Places, resources: Resources, matched_at: str
    ) -> None:
        self.plan = plan
        self.stages = stages(plan.rules, buckets)
        self.buckets = buckets
        self.places = places
        self.resources = resources
        self.matched_at = matched_at
        # Whether a row without a fellow of its key is held against the nearest of all.
        self.compares_values = any(
            check.bound or check.band for rule in plan.rules for check in rule.checks
        )

    def run(self, place: Place) -> Facts:
        clock = Clock()
        first = self.stages[0]

        def spread(piece: Piece) -> Spread:
            return shuffle.spread(
                self.plan, piece, first.key, first.buckets, self._work("spread"), self.resources
            )

        pieces = shuffle.pieces(self.plan, self.buckets, self.resources.storage)
        read = place(_error_text(spread), pieces)
        loaded = {side: loaded_of([each for each in read if each.side == side]) for side in SIDES}
        clock.lap("spread")
        ordinals = self._ordinals(place, read)
        for side, found in ordinals.items():
            loaded[side] = replace(loaded[side], doubled_keys=found.rows)
        clock.lap("keys")
        results: list[PartitionResult] = []
        waiting = _by_side((each.side, each.place) for each in read)
        for number, stage in enumerate(self.stages):
            tasks = [Bucket(each, waiting) for each in range(stage.buckets)]

            def carry_out(task: Bucket, number: int = number) -> PartitionResult:
                return self.carry_out(number, task, ordinals if number == 0 else {})

            came = place(_error_text(carry_out), tasks)
            results += came
            waiting = _by_side(pair for each in came for pair in (each.left_over or {}).items())
        clock.lap("match")
        spread_out = _by_side((each.side, each.place) for each in read)
        results += self._explain_rest(place, results, spread_out, ordinals)
        clock.lap("closest")
        facts = Facts(
            {
                side: SideFacts(loaded[side], states_of(results, side, loaded[side]))
                for side in SIDES
            },
            rules_of(results, self.plan.rules),
            _counted_files(results),
            clock.laps,
        )
        clock.lap("evidence")
        return facts

    def _work(self, name: str) -> str:
        return join(self.places.work, name)

    def _ordinals(self, place: Place, read: Sequence[Spread]) -> dict[Side, Ordinals]:
        places = _by_side((each.side, each.place) for each in read)
        work = self._work("keys")

        def find(task: KeyTask) -> dict[Side, str]:
            return shuffle.find_doubled(task, work, self.resources.storage)

        rows = max(sum(each.loaded.rows for each in read if each.side == side) for side in SIDES)
        if rows <= _FEW_KEYS:
            found: Sequence[dict[Side, str]] = [find(KeyTask(0, 1, places))]
        else:
            tasks = [KeyTask(number, self.buckets, places) for number in range(self.buckets)]
            found = place(_error_text(find), tasks)
        doubled = {side: [each[side] for each in found if side in each] for side in SIDES}
        nulls = {each.side for each in read if each.null_keys}
        sides = [side for side in SIDES if doubled[side] or side in nulls]

        def number(side: Side) -> Ordinals:
            return shuffle.number(self.plan, side, doubled[side], work, self.resources)

        return dict(zip(sides, place(_error_text(number), sides), strict=True))

    # Kernels

    def carry_out(
        self, number: int, task: Bucket, ordinals: Mapping[Side, Ordinals]
    ) -> PartitionResult:
        """One bucket of one stage."""
        stage, is_last = self.stages[number], number + 1 == len(self.stages)
        sides = {
            side: stored(self.plan, side, task.places[side], fresh=number == 0) for side in SIDES
        }
        session = MatchSession(replace(self.plan, sides=sides), self.resources)
        try:
            for side in SIDES:
                shuffle.lay_out(session, sides[side].input, task.number)
                state_handoff.restore(session, side, kept(self.plan, side), ordinals.get(side))
            evidence = self._evidence(session)
            carried = kernel.execute_rules(session, stage.rules)
            rules = kernel.write_matched(session, evidence, carried)
            suggested = self._write_suggested(session)
            if not is_last:
                states = {side: _settled_counts(session, side) for side in SIDES}
                left_over = {
                    side: self._hand_on(session, side, self.stages[number + 1]) for side in SIDES
                }
                return PartitionResult(
                    rules, tuple(evidence.written), states, None, left_over, None, suggested
                )
            evidence.ambiguous()
            lonely = {}
            for side in SIDES:
                kernel.find_unmatched(session, side)
                lonely[side] = self._explain(session, evidence, side)
            return PartitionResult(
                rules,
                tuple(evidence.written),
                {side: kernel.states_of(session, side) for side in SIDES},
                {side: kernel.ambiguous_counts(session, side) for side in SIDES},
                None,
                {side: self._set_aside(session, side) for side in SIDES},
                suggested,
                lonely,
            )
        finally:
            session.close()

    def _explain(self, session: MatchSession, evidence: Evidence, side: Side) -> int:
        """Writes the unmatched rows that this bucket can explain; returns how many are left."""
        if len(self.stages) == 1:
            nearest_candidates.search(session, side, by_value=False)
            session.run(f"CREATE TEMP TABLE {side}_everyone AS SELECT * FROM {side}_unmatched")
            if self.compares_values:
                session.run(
                    f"DELETE FROM {side}_unmatched"
                    f" WHERE row_id NOT IN (SELECT row_id FROM {side}_found)"
                )
            evidence.unmatched(side)
            session.run(f"INSERT INTO {side}_explained SELECT row_id FROM {side}_unmatched")
            session.run(f"DELETE FROM {side}_unmatched")
            session.run(f"INSERT INTO {side}_unmatched SELECT * FROM {side}_everyone")
        (left,) = session.row(
            f"SELECT count(*) FROM {side}_unmatched"
            f" WHERE row_id NOT IN (SELECT row_id FROM {side}_explained)"
        )
        return int(left)

    def _explain_rest(
        self,
        place: Place,
        results: Sequence[PartitionResult],
        spread_out: Mapping[Side, tuple[str, ...]],
        ordinals: Mapping[Side, Ordinals],
    ) -> Sequence[PartitionResult]:
        """Explains the rows that need all of the other side, some in each task."""
        open_rows = _by_side(pair for each in results for pair in (each.open_rows or {}).items())
        suggested = _by_side(pair for each in results for pair in (each.suggested or {}).items())
        tasks = []
        for side in SIDES:
            asking = sum(each.lonely[side] for each in results if each.lonely)
            of = min(self.buckets, -(-asking // _ASKING))
            tasks += [UnmatchedBatch(side, number, of) for number in range(of)]

        def explain(task: UnmatchedBatch) -> PartitionResult:
            other = opposite(task.side)
            everyone = stored(self.plan, other, spread_out[other], fresh=True)
            open_sides = {side: stored(self.plan, side, open_rows[side]) for side in SIDES}
            return self.explain(task, open_sides, everyone, ordinals.get(other), suggested[other])

        return place(_error_text(explain), tasks)

    def explain(
        self,
        task: UnmatchedBatch,
        open_sides: Mapping[Side, SidePlan],
        everyone: SidePlan,
        ordinals: Ordinals | None,
        suggested: Sequence[str],
    ) -> PartitionResult:
        """Some open rows of one side against those of the other that may be closest to them."""
        side, other, by_key = task.side, everyone.side, len(self.stages) > 1
        asking = [f"{quote(f'kalla:{name}')} IS NULL" for name in ("rule", "explained")]
        asking.append(f"hash({key_of_source(open_sides[side])}) % {task.of} = {task.number}")
        own = open_sides[side]
        own = replace(own, input=candidate_prefilter.only(own.input, " AND ".join(asking)))
        session = MatchSession(
            replace(self.plan, sides={side: own, other: everyone}), self.resources
        )
        try:
            for each in (*open_sides.values(), everyone):
                shuffle.lay_out(session, each.input)
            state_handoff.restore(session, side, kept(self.plan, side), None)
            near = candidate_prefilter.around(session, side, everyone, by_key=by_key)
            session.plan = replace(
                session.plan,
                sides={
                    side: own,
                    other: replace(everyone, input=candidate_prefilter.only(everyone.input, near)),
                },
            )
            state_handoff.restore(session, other, kept(self.plan, other), ordinals)
            kernel.find_unmatched(session, side)
            nearest_candidates.search(session, side, by_key=by_key)
            state_handoff.recall(session, side, open_sides[other], suggested)
            evidence = self._evidence(session)
            evidence.unmatched(side)
            return PartitionResult(written=tuple(evidence.written))
        finally:
            session.close()

    def _hand_on(self, session: MatchSession, side: Side, to: Stage) -> str:
        """Write the rows that are left, with what is known of them, for the next stage."""
        own = shuffle.own_place(self._work("stages"))
        bucket = to.key.bucket(side, session.plain_key(side, ""), to.buckets)
        self._write_open(session, side, own, bucket, to.buckets)
        return own

    def _set_aside(self, session: MatchSession, side: Side) -> str:
        """Write the rows that are open at the end, for the search among all."""
        own = shuffle.own_place(self._work("stages"))
        self._write_open(session, side, own, shuffle.ALL, 1)
        return own

    def _write_suggested(self, session: MatchSession) -> dict[Side, str]:
        """The keys of suggested rows, of which most buckets have none: all others are matched."""
        found: dict[Side, str] = {}
        for side in SIDES:
            row_ids = session.row_status[side].row_ids("suggested")
            if len(row_ids):
                session.table("suggested", as_column(row_ids))
                session.keys_table(side, "SELECT row_id FROM suggested", "suggested_keys")
                found[side] = f"{shuffle.own_place(self._work('stages'))}.parquet"
                with session.storage.writing(found[side]) as path:
                    session.run(f"COPY suggested_keys TO {literal(str(path))} (FORMAT parquet)")
        return found

    def _write_open(
        self, session: MatchSession, side: Side, place: str, bucket: str, count: int
    ) -> None:
        state = {
            "kalla:ordinal": state_handoff.ordinal(session, side),
            "kalla:rule": "a.rule",
            "kalla:reason": "a.reason",
            "kalla:candidates": "a.candidates",
            "kalla:candidate_count": "a.candidate_count",
            "kalla:sum_mismatches": sum_mismatches.handed_on(session, side),
            "kalla:explained": f"row_id IN (SELECT row_id FROM {side}_explained) OR NULL",
        }
        rows = f"{session.open_rows(side)} t LEFT JOIN {side}_ambiguous a USING (row_id)"
        shuffle.write(session, side, state, bucket, count, place, rows)

    def _evidence(self, session: MatchSession) -> Evidence:
        return Evidence(session, self.places.evidence, self.matched_at, task=uuid4().hex[:12])


def _counted_files(results: Sequence[PartitionResult]) -> tuple[Written, ...]:
    """The files of the evidence: of empty ones no more than are needed."""
    found = [written for each in results for written in each.written]
    kept_files: list[Written] = []
    for dataset in dict.fromkeys(each.dataset for each in found):
        files = [each for each in found if each.dataset == dataset]
        kept_files += [each for each in files if each.rows] or files[:1]
    return tuple(kept_files)


def _settled_counts(session: MatchSession, side: Side) -> dict[str, Tally]:
    """The rows that have left: all that a stage knows of before the last."""
    session.run(f"CREATE TEMP TABLE {side}_unmatched (row_id BIGINT)")
    return kernel.states_of(session, side) | {"ambiguous": Tally()}


def _error_text(run: Callable[[Task], Found]) -> Callable[[Task], Found]:
    """DuckDB's error would be the same again: one sentence, and no retries."""

    def reported(task: Task) -> Found:
        try:
            return run(task)
        except duckdb.Error as error:
            raise duckdb_errors.of_matching(error) from error

    return reported


def _by_side(found: Any) -> dict[Side, tuple[str, ...]]:
    places: dict[Side, list[str]] = {side: [] for side in SIDES}
    for side, place in found:
        places[side].append(place)
    return {side: tuple(each) for side, each in places.items()}
