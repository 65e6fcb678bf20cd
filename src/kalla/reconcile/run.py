"""Carries a recipe out: stages what is not a file, matches, checks conservation, writes metadata.

Kernels run as Spark tasks; nothing here talks to Postgres for state.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kalla.errors import Permanent
from kalla.reconcile import kernel, plan, sources
from kalla.reconcile.evidence import DATASETS, combined
from kalla.reconcile.kernel import Facts, SideFacts, Tally
from kalla.reconcile.model import SIDES, Recipe, Side
from kalla.reconcile.plan import Input, Plan
from kalla.reconcile.sources import Chunk, Limits
from kalla.reconcile.workbench import Resources
from kalla.spark.placing import place
from kalla.spark.staging import Staged, stage

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, how many of its parts are done, and how many there are."""


@dataclass(frozen=True)
class Run:
    """What came of it. The evidence is in `folder`."""

    folder: Path
    plan: Plan
    facts: Facts
    seconds: float

    @property
    def has_exceptions(self) -> bool:
        """Whether any row is neither matched nor filtered."""
        accepted = {"matched", "filtered"} | (
            {"suggested"} if self.plan.accept_suggested else set()
        )
        return any(
            tally.rows
            for side in self.facts.sides.values()
            for state, tally in side.states.items()
            if state not in accepted
        )


def carry_out(
    session: SparkSession, recipe: Recipe, folder: Path, limits: Limits, progress: Progress
) -> Run:
    """One run from sources to evidence; raises if any row is unaccounted for."""
    sources.refuse_unbuilt(recipe)
    began = datetime.now(UTC)
    work = folder / ".work"
    try:
        inputs = read(session, recipe, work / "staged", limits, progress)
        made = plan.make(recipe, inputs)
        progress("match", 0, 1)
        resources = Resources(limits.memory, limits.threads, work / "temp")
        when = began.isoformat(timespec="seconds")

        def match(task: Plan) -> Facts:
            return kernel.match(task, work / "evidence", resources, when)

        (facts,) = place(session, match, [made])
        progress("match", 1, 1)
        check_conservation(facts.sides)
        for each in (work / "evidence").iterdir():
            each.rename(folder / each.name)
    finally:  # it holds the sources' rows, and evidence of which nobody knows whether it is whole
        shutil.rmtree(work, ignore_errors=True)
    run = Run(folder, made, facts, (datetime.now(UTC) - began).total_seconds())
    _write_metadata(run, recipe, began)
    return run


def read(
    session: SparkSession, recipe: Recipe, folder: Path, limits: Limits, progress: Progress
) -> Mapping[Side, Input]:
    """Both sides as files: native ones where they lie, the others staged, all slices at once."""
    found: dict[Side, Input] = {}
    cut: list[Chunk] = []
    notes: dict[Side, list[str]] = {}
    with ExitStack() as held:
        for side in SIDES:
            source = recipe.sources[side]
            if not sources.is_staged(source):
                found[side] = sources.look(source, side)
                continue
            connector = held.enter_context(sources.connector(source, side, recipe.time_zone))
            parts, notes[side] = sources.chunks(connector, source, side, folder, limits)
            cut += parts
        progress("stage", 0, len(cut))
        written = place(session, _stage, cut)
        progress("stage", len(cut), len(cut))
    for side in notes:
        files = [each.path for each, chunk in zip(written, cut, strict=True) if chunk.side == side]
        found[side] = sources.staged(recipe.sources[side], side, files, notes[side])
    return found


def _stage(chunk: Chunk) -> Staged:
    return stage(chunk.connector, chunk.part, None, Path(chunk.path))


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
        amount = _total([facts.loaded.amount, facts.loaded.filtered_amount])
        counted = _total([tally.amount for tally in facts.states.values()])
        if amount != counted:
            raise Permanent(
                f"conservation failed: the {side} rows sum up to {amount}, those accounted for"
                f" to {counted}, a difference of {counted - amount}"
            )


def _total(amounts: list[Decimal | None]) -> Decimal:
    """Exact: the everyday decimal context would round at 28 digits."""
    with localcontext(prec=100):
        return sum((each for each in amounts if each is not None), Decimal(0))


def _write_metadata(run: Run, recipe: Recipe, began: datetime) -> None:
    facts = run.facts
    document = {
        "kalla": metadata.version("kalla"),
        "recipe": recipe.model_dump(mode="json", exclude_defaults=True),
        "recipe_hash": run.plan.recipe_hash,
        "started_at": began.isoformat(timespec="seconds"),
        "seconds": round(run.seconds, 3),
        "stages": facts.seconds,
        "sources": {
            side: {
                "format": run.plan.sides[side].input.format,
                "rows": facts.sides[side].loaded.rows,
                "rows_with_doubled_or_null_keys": facts.sides[side].loaded.doubled_keys,
                "unreadable": [
                    {"column": column, "as": kind, "rows": rows, "examples": list(examples)}
                    for column, kind, rows, examples in facts.sides[side].loaded.unreadable
                ],
                "filters": [each.model_dump(mode="json") for each in recipe.sources[side].filters],
                "notes": list(run.plan.sides[side].input.notes),
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
        "datasets": {
            name: {
                "rows": sum(each.rows for each in facts.written if each.dataset == name),
                "files": [Path(each.path).name for each in facts.written if each.dataset == name],
                "digest": combined([each.digest for each in facts.written if each.dataset == name]),
            }
            for name in DATASETS
        },
    }
    text = json.dumps(document, indent=2, ensure_ascii=False)
    unfinished = run.folder / ".metadata.json"
    unfinished.write_text(text + "\n")
    unfinished.rename(run.folder / "metadata.json")


def _tally(tally: Tally) -> dict[str, Any]:
    return {"rows": tally.rows, "amount": None if tally.amount is None else str(tally.amount)}
