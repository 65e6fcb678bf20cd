"""Executes a recipe: stages tables, matches, checks conservation, writes metadata.

Kernels run as Spark tasks; nothing here reads state from Postgres.
"""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kalla.errors import Permanent
from kalla.reconcile import kernel
from kalla.reconcile.evidence.writing import leftovers
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.evidence.writing.digests import combined
from kalla.reconcile.evidence.writing.leftovers import METADATA, work_place
from kalla.reconcile.kernel import Facts, SideFacts, Tally, total
from kalla.reconcile.partitioned import partitioned_match
from kalla.reconcile.partitioned.partitioned_match import Found, Places, Task
from kalla.reconcile.plan import plan, shown_columns
from kalla.reconcile.plan.plan import Input, Plan
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import SIDES, Recipe, Side
from kalla.reconcile.recipe.source_names import source_names
from kalla.reconcile.session import match_progress
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.session.side_loading import Loaded
from kalla.reconcile.sources import direct_reads, native_files, source_planning
from kalla.reconcile.sources.formats import converted_files, parquet_schemas
from kalla.reconcile.sources.scanning import checksums
from kalla.reconcile.sources.scanning.checksums import Marks
from kalla.reconcile.sources.source_planning import Chunk, Limits, Resolve
from kalla.reconcile.user_sql import match_sql
from kalla.spark.connectors.postgres_connector import PostgresConnector
from kalla.spark.connectors.postgres_snapshot import Mark
from kalla.spark.placing import place
from kalla.spark.staging import Staged, stage_to
from kalla.storage import LOCAL, Storage, is_s3, join
from kalla.threads import spread

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

EVIDENCE_FORMAT = 3  # docs/evidence-format.md describes each
_PLACES = 2**33  # that Spark has for the rows of a partition, when it numbers them

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, how many of its parts are done, and how many there are."""


@dataclass(frozen=True)
class Run:
    """The result of a run."""

    evidence: str  # its URL
    plan: Plan
    facts: Facts
    seconds: float


def execute_recipe(
    session: SparkSession,
    recipe: Recipe,
    evidence: str | Path,
    limits: Limits,
    progress: Progress,
    resolve: Resolve | None = None,
) -> Run:
    """One run from sources to evidence; raises if any row is unaccounted for."""
    began = datetime.now(UTC)
    place = limits.storage.plain(str(evidence))
    with work_place(place, limits.storage) as staging, ExitStack() as held:
        inputs = dict(read(session, recipe, staging, limits, progress, resolve))
        for side in SIDES:
            source = recipe.sources[side]
            if source_planning.is_staged(source) and source.read == "direct":
                opened = source_planning.connector(source, side, recipe.time_zone, resolve=resolve)
                connector = held.enter_context(opened)
                inputs[side] = held.enter_context(
                    direct_reads.open_input(connector, recipe, side, limits)
                )
        return match(session, recipe, inputs, evidence, limits, progress, began)


def match(
    session: SparkSession,
    recipe: Recipe,
    inputs: Mapping[Side, Input],
    evidence: str | Path,
    limits: Limits,
    progress: Progress,
    began: datetime,
) -> Run:
    """From inputs to evidence. Tasks write its files in their final place; metadata.json, which
    names the valid ones, comes last.
    """
    storage = limits.storage
    url = storage.plain(str(evidence))
    with leftovers.swept_if_it_fails(url, storage), work_place(url, storage) as work:
        inputs = {
            side: converted_files.within_reach(given, join(work, "converted", side), storage)
            for side, given in inputs.items()
        }
        made = plan.make(recipe, inputs)
        with checksums.taken(inputs) as marks:
            places = Places(url, work)
            facts = _match(session, recipe, made, places, limits, progress, began)
        check_conservation(facts.sides)
        check_evidence(facts, storage)
        for side in SIDES:
            native_files.demand_unchanged(inputs[side], storage)
    run = Run(url, made, facts, (datetime.now(UTC) - began).total_seconds())
    text = json.dumps(_metadata(run, recipe, began, marks), indent=2, ensure_ascii=False)
    storage.write_text(join(url, METADATA), text + "\n")
    with leftovers.left_to_the_sweeper(url):
        leftovers.sweep(url, storage)
    return run


def _match(
    session: SparkSession,
    recipe: Recipe,
    made: Plan,
    places: Places,
    limits: Limits,
    progress: Progress,
    began: datetime,
) -> Facts:
    """The match by Spark tasks: one, or one for each bucket."""
    storage, work = limits.storage, places.work
    resources = Resources(limits.memory, limits.threads, storage=storage)
    when = began.isoformat(timespec="seconds")
    count = 1 if made.statement is not None else _buckets(session, made, limits)
    mark, reached = join(work, "seen"), join(work, "reached")
    if not is_s3(work):
        storage.write_text(mark, "")
    if count > 1:
        tasks = _TaskProgress(
            session, progress, mark, partitioned_match.tasks_expected(made.rules, count)
        )
        # As many tasks as cores; on one machine they share its memory.
        memory = plan.share(limits.memory, limits.threads) if _is_local(session) else limits.memory
        narrow = dataclasses.replace(resources, threads=1, memory=memory)
        return partitioned_match.match(made, count, places, narrow, when, tasks)
    parts = sum(match_progress.STAGES.values())
    before, pairs = 0, None
    if made.statement is not None:
        before = parts
        progress(match_progress.SQL, 0, before + parts)
        pairs = match_sql.find_pairs(session, recipe, made, work, resources)
    progress("match", before, before + parts)

    def kernel_of(task: Plan) -> Facts:
        report = match_progress.progress_file(reached, storage)
        own = uuid4().hex[:12]  # a task may run twice, even at once
        return kernel.match(task, places.evidence, resources, when, pairs, report, task=own)

    def report_progress(done: float) -> None:
        progress("match", before + round(done), before + parts)

    with match_progress.follow_progress_file(reached, storage, report_progress):
        (facts,) = place(session, _on_shared_folder(mark, kernel_of), [made])
    return facts


def _buckets(session: SparkSession, made: Plan, limits: Limits) -> int:
    """Few on one machine, which has all its cores in one task."""
    if limits.buckets is not None:
        return limits.buckets
    inputs = {side: made.sides[side].input for side in SIDES}
    if plan.buckets(inputs, limits.memory, 2) == 1:
        return 1
    if _is_local(session):
        return plan.buckets_alone(inputs, limits.memory, limits.threads)
    # A partition a core, unless set otherwise: counted by the first row of each, unshuffled.
    rows = session.range(100_000).selectExpr("monotonically_increasing_id() AS place")
    cores = len(rows.where(f"place % {_PLACES} = 0").collect())
    return plan.buckets(inputs, limits.memory, cores)


def _is_local(session: SparkSession) -> bool:
    return (session.conf.get("spark.master") or "").startswith("local")


def _on_shared_folder(mark: str, kernel: Callable[[Task], Found]) -> Callable[[Task], Found]:
    """Wraps the kernel to check that its folder is this process's folder, not another of the same
    name: files written there would be lost.
    """

    def run(task: Task) -> Found:
        if not is_s3(mark) and not Path(mark).exists():
            raise Permanent(
                f"the Spark executor on {socket.gethostname()} does not see {Path(mark).parent}:"
                " let storage.evidence be on S3, or a folder that workers and executors share"
            )
        return kernel(task)

    return run


class _TaskProgress:
    """Runs kernels, and reports how many of the expected tasks are done."""

    def __init__(self, session: SparkSession, progress: Progress, mark: str, expected: int) -> None:
        self._session, self._progress, self._mark = session, progress, mark
        self._expected = expected
        self._done = 0

    def __call__(
        self, kernel: Callable[[Task], Found], tasks: Sequence[Task], /
    ) -> Sequence[Found]:
        self._expected = max(self._expected, self._done + len(tasks))
        self._progress("match", self._done, self._expected)
        found = place(self._session, _on_shared_folder(self._mark, kernel), tasks)
        self._done += len(tasks)
        self._progress("match", self._done, self._expected)
        return found


def read(
    session: SparkSession,
    recipe: Recipe,
    staging: str,
    limits: Limits,
    progress: Progress,
    resolve: Resolve | None = None,
) -> Mapping[Side, Input]:
    """The inputs of both sides: native files in place, or staged files, each at one moment."""
    found: dict[Side, Input] = {}
    hands: list[Sequence[Chunk]] = []
    notes: dict[Side, list[str]] = {}
    tables: dict[Side, PostgresConnector] = {}
    marks: dict[Side, Mark] = {}
    with ExitStack() as held:
        native = [side for side in SIDES if not source_planning.is_staged(recipe.sources[side])]
        looks = spread(
            lambda side: source_planning.inspect_files(
                recipe.sources[side], side, storage=limits.storage
            ),
            native,
            len(SIDES),
        )
        found |= zip(native, looks, strict=True)
        for side in SIDES:
            source = recipe.sources[side]
            if side in found or source.read == "direct":
                continue
            opened = source_planning.connector(
                source, side, recipe.time_zone, resolve=resolve, at_one_moment=True
            )
            tables[side] = connector = held.enter_context(opened)
            marks[side] = connector.mark()
            parts, notes[side] = source_planning.chunks(connector, recipe, side, staging, limits)
            # As many tasks as chunks may be read at once: each stages its own one by one.
            lanes = min(len(parts), source_planning.chunks_at_once(source, limits))
            hands += [parts[lane::lanes] for lane in range(lanes)]
        count = sum(map(len, hands))
        progress("stage", 0, count)
        written = place(session, _stager(limits.storage), hands)
        for side, table in tables.items():
            ends = [table.clock()] if table.snapshot is None else []
            marks[side] = source_planning.marked(marks[side], ends)
        progress("stage", count, count)
    for side in notes:
        files = [
            each.path
            for staged, hand in zip(written, hands, strict=True)
            for each, chunk in zip(staged, hand, strict=True)
            if chunk.side == side
        ]
        found[side] = source_planning.staged(
            recipe.sources[side], side, files, notes[side], [marks[side]], storage=limits.storage
        )
    return found


def _stager(storage: Storage) -> Callable[[Sequence[Chunk]], list[Staged]]:
    def stage(hand: Sequence[Chunk]) -> list[Staged]:
        return [
            stage_to(storage, each.connector, each.part, each.columns, each.url) for each in hand
        ]

    return stage


def check_conservation(sides: Mapping[Side, SideFacts]) -> None:
    """Every row of both sides is in exactly one place, in counts and in sums, or the run fails."""
    for side, facts in sides.items():
        rows = facts.loaded.rows + facts.loaded.filtered
        placed = sum(tally.rows for tally in facts.states.values())
        if rows != placed:
            raise Permanent(
                f"conservation failed: of {rows:,} {side} rows {placed:,} are accounted for,"
                f" a difference of {placed - rows:,}"
            )
        amount = total([facts.loaded.amount, facts.loaded.filtered_amount]) or Decimal(0)
        counted = total([tally.amount for tally in facts.states.values()]) or Decimal(0)
        if amount != counted:
            raise Permanent(
                f"conservation failed: the {side} rows sum up to {amount}, those accounted for"
                f" to {counted}, a difference of {counted - amount}"
            )


def check_evidence(facts: Facts, storage: Storage = LOCAL) -> None:
    """The files have as many rows of each side as the counts of each state, or the run fails."""
    footers = parquet_schemas.footers([each.url for each in facts.written], storage)
    for each, footer in zip(facts.written, footers, strict=True):
        if (rows := footer.num_rows) != each.rows:
            name = f"{each.dataset}/{each.name}"
            raise Permanent(f"conservation failed: {name} has {rows:,} rows of {each.rows:,}")
    for side in SIDES:
        states = facts.sides[side].states
        due = {
            "matched": states["matched"].rows + states["suggested"].rows,
            "ambiguous": states["ambiguous"].rows,
            f"unmatched_{side}": states["unmatched"].rows,
        }
        for dataset, rows in due.items():
            files = [each for each in facts.written if each.dataset == dataset]
            counted = sum(each.left if side == "left" else each.right for each in files)
            if counted != rows:
                raise Permanent(
                    f"conservation failed: {dataset} counts {counted:,} {side} rows instead of"
                    f" {rows:,}, a difference of {counted - rows:,}"
                )


def _metadata(
    run: Run, recipe: Recipe, began: datetime, marks: Mapping[Side, Marks]
) -> dict[str, Any]:
    facts, names = run.facts, source_names(recipe.sources)
    return {
        "format": EVIDENCE_FORMAT,
        "kalla": metadata.version("kalla"),
        "recipe": _described(recipe),
        "recipe_text": parsing.write(recipe),
        "recipe_hash": run.plan.recipe_hash,
        "started_at": began.isoformat(timespec="seconds"),
        "seconds": round(run.seconds, 3),
        "stages": facts.seconds,
        "sources": {
            side: {
                "name": names[side],
                "columns": shown_columns.described(run.plan.sides[side]),
                "format": run.plan.sides[side].input.format,
                "rows": facts.sides[side].loaded.rows,
                "rows_with_doubled_or_null_keys": facts.sides[side].loaded.doubled_keys,
                "unreadable": _unreadable(facts.sides[side].loaded),
                "rows_that_filters_could_not_read": facts.sides[side].loaded.filtered_unread,
                "filters": [each.model_dump(mode="json") for each in recipe.sources[side].filters],
                "notes": list(run.plan.sides[side].input.notes),
                "marks": [dict(each) for each in marks[side]],
                "states": {
                    state: _tally(tally) for state, tally in facts.sides[side].states.items()
                },
            }
            for side in SIDES
        },
        "rules": [
            dataclasses.asdict(rule) | {"left": _tally(rule.left), "right": _tally(rule.right)}
            for rule in facts.rules
        ],
        **({"match_sql": dataclasses.asdict(facts.statement)} if facts.statement else {}),
        "datasets": {
            name: {
                "rows": sum(each.rows for each in facts.written if each.dataset == name),
                "files": [each.name for each in facts.written if each.dataset == name],
                "sha256": {
                    each.name: each.sha256 for each in facts.written if each.dataset == name
                },
                "digest": combined([each.digest for each in facts.written if each.dataset == name]),
            }
            for name in DATASETS
        },
    }


def _described(recipe: Recipe) -> dict[str, Any]:
    """For programs; JSON has no dates and no exact numbers, so these are texts."""
    document = recipe.model_dump(mode="json", exclude_defaults=True)
    for rule, written in zip(recipe.rules, document.get("rules", ()), strict=True):
        for condition, fields in zip(rule.conditions, written["conditions"], strict=True):
            fields["op"] = condition.op  # a default of its class
    return document


def _unreadable(loaded: Loaded) -> list[dict[str, Any]]:
    """Unreadable values of rows that take part, then of rows that filters left out."""
    parts = (loaded.unreadable, False), (loaded.filtered_unreadable, True)
    return [
        {"column": name, "as": kind, "rows": rows, "examples": list(shown), "filtered": filtered}
        for part, filtered in parts
        for name, kind, rows, shown in part
    ]


def _tally(tally: Tally) -> dict[str, Any]:
    amount = None if tally.amount is None else str(tally.amount)
    sums = {name: str(each) for name, each in sorted(tally.currencies.items())}
    return {"rows": tally.rows, "amount": amount} | ({"currencies": sums} if sums else {})
