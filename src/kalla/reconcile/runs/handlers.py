"""The job types of a run: plan a side's staging, stage a chunk, match.

`run` moves rows. A payload holds the recipe as it was submitted (of a chunk: its source), so that
`run` needs no database; passwords are in it by name only, and are resolved at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, SecretStr

from kalla.database import Connection
from kalla.errors import InvalidInput, NotFound, Permanent, Problem
from kalla.reconcile.evidence.reading import run_report
from kalla.reconcile.evidence.reading.run_report import Report
from kalla.reconcile.evidence.writing import leftovers
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import SIDES, Recipe, Side
from kalla.reconcile.registry import uri_coverage
from kalla.reconcile.registry.uri_coverage import Refused
from kalla.reconcile.runs import execute, store
from kalla.reconcile.session.match_progress import Account
from kalla.reconcile.sources import direct_reads, inspection, native_files, source_planning
from kalla.reconcile.sources.formats import converted_files
from kalla.reconcile.sources.source_planning import Limits
from kalla.settings import Settings
from kalla.spark.connectors.connector import Connector, Slice
from kalla.spark.placing import place
from kalla.spark.session import SparkSessions
from kalla.spark.staging import Staged, stage_to
from kalla.storage import Storage, join
from kalla.work.handler import Context, Stateless
from kalla.work.job import Job, NewJob, Outcome

STAGED = "staged"  # the gate before the match


class Asked(BaseModel):
    """The payload of a run's job: the recipe as YAML, its parameters and sources filled in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: str


class AskedSide(Asked):
    side: Side


class AskedChunk(BaseModel):
    """A range of one source: there may be thousands of them, so that none holds the recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    side: Side
    source: str  # as YAML
    time_zone: str
    part: dict[str, Any]
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True)
class HandlerDependencies:
    """What the handlers need: settings, Spark and secrets."""

    settings: Settings
    spark: SparkSessions
    secret: Callable[[str], SecretStr]

    @property
    def limits(self) -> Limits:
        return Limits.of(self.settings)

    @property
    def storage(self) -> Storage:
        return Storage.of(self.settings.storage)


def attempt_of(job: Job) -> tuple[str, str]:
    """The folder of this attempt: it is not read before the attempt is settled."""
    return f"run-{job.run_id}", f"{job.job_id}-{job.fence}-{uuid4().hex[:12]}"


def first_jobs(recipe: Recipe, priority: int = 0) -> tuple[list[NewJob], dict[str, list[NewJob]]]:
    """The first jobs of a run, and those behind its gate."""
    text = parsing.write(recipe.model_copy(update={"parameters": {}}))
    match = NewJob("exec", {"recipe": text}, priority=priority)
    plans = [
        NewJob("stage_plan", {"recipe": text, "side": side}, priority=priority, gate=STAGED)
        for side in SIDES
        if source_planning.is_staged(recipe.sources[side]) and recipe.sources[side].read == "staged"
    ]
    return (plans, {STAGED: [match]}) if plans else ([match], {})


class StagePlan(Stateless):
    """Cuts a table into key ranges, a job each; under a snapshot it stages them itself."""

    def __init__(self, dependencies: HandlerDependencies) -> None:
        self._dependencies = dependencies

    def run(self, job: Job, context: Context) -> Outcome:
        asked = AskedSide.model_validate(job.payload)
        recipe = parsing.read(asked.recipe)
        source = recipe.sources[asked.side]
        dependencies = self._dependencies
        with source_planning.connector(
            source, asked.side, recipe.time_zone, resolve=dependencies.secret
        ) as connector:
            with native_files.problems_at(f"sources.{asked.side}", "table"):
                mark = connector.mark()
                estimate = connector.estimate()
                parts = connector.split(
                    source_planning.chunks_wanted(source, estimate.rows, dependencies.limits)
                )
            columns = source_planning.columns_to_read(connector, recipe, asked.side)
            at_once = source_planning.chunks_at_once(source, dependencies.limits)
            result = {
                "side": asked.side,
                "rows_expected": estimate.rows,
                "notes": list(estimate.notes),
                "chunks": len(parts),
                "mark": mark,
            }
            if source.consistency != "snapshot":
                asks = {
                    "side": asked.side,
                    "source": parsing.write_source(source),
                    "time_zone": recipe.time_zone,
                    "columns": columns,
                }
                jobs = (_chunk_job(job, asks, each, at_once) for each in parts)
                return Outcome(result, tuple(jobs))
            kernel = _stager(dependencies, job, connector, asked.side, columns)
            return self._stage_all(job, context, kernel, parts, at_once, result)

    def _stage_all(
        self,
        job: Job,
        context: Context,
        kernel: Callable[[Slice], Staged],
        parts: Sequence[Slice],
        at_once: int,
        result: dict[str, Any],
    ) -> Outcome:
        """Stages all slices while the caller holds the snapshot. Each slice is a task of its own,
        so that none waits for another and progress is reported.
        """
        rows = 0
        with (
            self._dependencies.spark.session(job, context) as session,
            ThreadPoolExecutor(min(at_once, len(parts))) as lanes,
        ):
            tags = set(session.getTags())

            def stage(part: Slice) -> Staged:
                context.check()
                for tag in tags:  # of the job; a thread has tags of its own
                    session.addTag(tag)
                (staged,) = place(session, kernel, [part])
                return staged

            asked = [lanes.submit(stage, part) for part in parts]
            try:
                for done, each in enumerate(as_completed(asked), 1):
                    rows += each.result().rows
                    context.progress(**result, chunks_done=done, rows=rows)
            finally:
                for each in asked:
                    each.cancel()
        facts = {"chunks_done": len(asked), "files": [each.result().path for each in asked]}
        return Outcome(result | facts | {"rows": rows}, rows=rows)


class StageChunk(Stateless):
    """One key range of a table to one Parquet file."""

    def __init__(self, dependencies: HandlerDependencies) -> None:
        self._dependencies = dependencies

    def run(self, job: Job, context: Context) -> Outcome:
        asked = AskedChunk.model_validate(job.payload)
        source = parsing.read_source(asked.source)
        part = Slice.from_json(asked.part)
        with source_planning.connector(
            source, asked.side, asked.time_zone, resolve=self._dependencies.secret
        ) as connector:
            kernel = _stager(self._dependencies, job, connector, asked.side, asked.columns)
            with self._dependencies.spark.session(job, context) as session:
                (staged,) = place(session, kernel, [part])
            read_to = connector.clock()
        result = {
            "side": asked.side,
            "files": [staged.path],
            "rows": staged.rows,
            "bytes": staged.bytes,
            "checksum": staged.checksum,
            "read_to": read_to,
        }
        return Outcome(result, rows=staged.rows)


class Exec:
    """The match, and its evidence."""

    def __init__(self, dependencies: HandlerDependencies) -> None:
        self._dependencies = dependencies

    def run(self, job: Job, context: Context) -> Outcome:
        recipe = parsing.read(Asked.model_validate(job.payload).recipe)
        began = datetime.now(UTC)
        dependencies = self._dependencies
        url = dependencies.storage.plain(join(dependencies.settings.evidence_url, *attempt_of(job)))
        with leftovers.none_if_it_fails(url, dependencies.storage), ExitStack() as held:
            inputs = {side: self._input(recipe, side, context, held) for side in SIDES}
            account = Account(context.progress, rows=rows_expected(inputs, dependencies.storage))

            def report_progress(stage: str, done: int, of: int) -> None:
                context.check()
                account.reach(stage, done, of)

            session = held.enter_context(dependencies.spark.session(job, context, account.tasks))
            found = execute.match(
                session, recipe, inputs, url, dependencies.limits, report_progress, began
            )
            for side in SIDES:  # a file that was opened meanwhile may have been a link
                if not source_planning.is_staged(recipe.sources[side]):
                    _demand_inside(recipe, side, converted_files.originals(inputs[side]))
        made = run_report.of_evidence(url, dependencies.storage)
        rows = sum(side.loaded.rows for side in found.facts.sides.values())
        return Outcome({"evidence": url, "match_rate": made.match_rate}, rows=rows, facts=made)

    async def settle(self, connection: Connection, job: Job, outcome: Outcome) -> None:
        if job.run_id is None or not isinstance(outcome.facts, Report):
            raise Permanent(
                "this job type runs only as part of a run: submit one with `kalla runs submit`"
            )
        await store.settle(connection, job.run_id, outcome.facts)

    def _input(self, recipe: Recipe, side: Side, context: Context, held: ExitStack) -> Input:
        source, dependencies = recipe.sources[side], self._dependencies
        if not source_planning.is_staged(source):
            if uri_coverage.kind_of(source.uri) == "file":
                # Before they are read: an error would quote what is behind a link.
                with (
                    native_files.problems_at(f"sources.{side}", "uri"),
                    suppress(NotFound),  # such as a Delta table without rows: reading says more
                ):
                    found = dependencies.storage.files(source.uri)
                    _demand_inside(recipe, side, [file.url for file in found])
            looked_at = source_planning.inspect_files(source, side, storage=dependencies.storage)
            _demand_inside(recipe, side, converted_files.originals(looked_at))
            return looked_at
        if source.read == "direct":
            connector = held.enter_context(
                source_planning.connector(
                    source, side, recipe.time_zone, resolve=dependencies.secret
                )
            )
            with native_files.problems_at(f"sources.{side}", "table"):
                return held.enter_context(
                    direct_reads.open_input(connector, recipe, side, dependencies.limits)
                )
        facts = [each for each in context.inputs if each["side"] == side]
        files = [file for each in facts for file in each.get("files", ())]
        notes = [note for each in facts for note in each.get("notes", ())]
        ends = [each["read_to"] for each in facts if "read_to" in each]
        marks = [source_planning.marked(each["mark"], ends) for each in facts if "mark" in each]
        try:
            return source_planning.staged(
                source, side, files, notes, marks, storage=dependencies.storage
            )
        except InvalidInput as error:
            raise Permanent(
                f"the staged rows are missing ({error}): submit the run again"
            ) from None


def _demand_inside(recipe: Recipe, side: Side, files: Sequence[str]) -> None:
    """Checks that files on this machine are still those that the run was admitted for."""
    try:
        uri_coverage.demand_inside(recipe.sources[side].uri, files)
    except Refused as refusal:
        raise InvalidInput(Problem(f"sources.{side}.uri", str(refusal))) from None


def rows_expected(inputs: Mapping[Side, Input], storage: Storage) -> int:
    """About how many rows a match has on both sides; 0 if that is not known of one of them, for a
    rate that counts the other alone would be wrong."""
    known = [inspection.estimate(each, storage) for each in inputs.values()]
    return sum(each or 0 for each in known) if None not in known else 0


def _chunk_job(plan: Job, asks: Mapping[str, Any], part: Slice, at_once: int) -> NewJob:
    payload = {**asks, "part": part.as_json()}
    # Chunks of one lane never run at the same time, so that no more do than there are lanes.
    lane = f"{plan.run_id}-{plan.job_id}-{part.number % at_once}" if part.of > at_once else None
    return NewJob("stage_chunk", payload, priority=plan.priority, gate=STAGED, running_key=lane)


def _stager(
    dependencies: HandlerDependencies,
    job: Job,
    connector: Connector,
    side: Side,
    columns: Sequence[str] | None,
) -> Callable[[Slice], Staged]:
    """The kernel that stages a slice, with the settings of this machine."""
    storage = dependencies.storage
    folder = join(dependencies.settings.staging_url, *attempt_of(job))

    def kernel(part: Slice) -> Staged:
        # Spark may run a task twice, and at once.
        name = f"{side}-{part.number:05}-{uuid4().hex[:8]}.parquet"
        return stage_to(storage, connector, part, columns, join(folder, name))

    return kernel
