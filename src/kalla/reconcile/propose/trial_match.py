"""Tries a recipe on a sample: the real match, on rows whose key hash is in a few buckets."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import pyarrow as pa

from kalla.reconcile import kernel
from kalla.reconcile.plan import plan
from kalla.reconcile.propose import row_results
from kalla.reconcile.propose.key_candidates import Form, with_derived
from kalla.reconcile.propose.side_tables import SideTable
from kalla.reconcile.recipe.model import SIDES, Equal, Recipe, Side
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.sources import native_files
from kalla.reconcile.sql.column_values import held, quote
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage.files import File

TRIED_ROWS = 100_000  # of a side
_WHEN = "1970-01-01T00:00:00+00:00"  # of temporary evidence


@dataclass(frozen=True)
class TriedRule:
    name: str
    matches: int
    left: int
    right: int


@dataclass(frozen=True)
class Trial:
    """The result of a recipe on a sample."""

    left_rows: int
    right_rows: int
    left_matched: int
    right_matched: int
    ambiguous: int
    rules: tuple[TriedRule, ...]
    is_sample: bool

    @property
    def match_rate(self) -> float:
        rows = self.left_rows + self.right_rows
        return (self.left_matched + self.right_matched) / rows if rows else 0.0


@dataclass(frozen=True)
class Sample:
    """The rows of both sides that recipes are tried on, as Parquet files in a folder."""

    folder: Path
    is_sample: bool

    def file(self, side: Side) -> Path:
        return self.folder / f"{side}.parquet"


@dataclass(frozen=True)
class Tried:
    trial: Trial
    results: pa.Table  # of row_results


def try_recipe(
    connection: duckdb.DuckDBPyConnection,
    recipe: Recipe,
    tables: tuple[SideTable, SideTable],
    bounds: Bounds,
) -> Trial:
    """Match the rows of both tables, or of a sample of keys, and count."""
    with tempfile.TemporaryDirectory(prefix="kalla-trial-") as place:
        drawn = draw_sample(connection, recipe, tables, Path(place))
        return try_on_sample(recipe, drawn, bounds).trial


def draw_sample(
    connection: duckdb.DuckDBPyConnection,
    recipe: Recipe,
    tables: tuple[SideTable, SideTable],
    folder: Path,
) -> Sample:
    share = max(1, max(table.rows for table in tables) // TRIED_ROWS)
    drawn = Sample(folder, share > 1)
    for side, table in zip(SIDES, tables, strict=True):
        _write(connection, recipe, side, table, share, drawn.file(side))
    return drawn


def try_on_sample(recipe: Recipe, drawn: Sample, bounds: Bounds) -> Tried:
    """Runs the real match on a sample; returns the result of each row."""
    inputs: dict[Side, plan.Input] = {}
    for side in SIDES:
        file = drawn.file(side)
        found = File(str(file), file.stat().st_size)
        inputs[side] = replace(native_files.file_input("parquet", [found]), marks=())
    made = plan.make(recipe, inputs)
    with tempfile.TemporaryDirectory(prefix="kalla-trial-") as place:
        folder = Path(place)
        resources = Resources(bounds.memory, bounds.threads, folder / "temp")
        facts = kernel.match(made, folder / "evidence", resources, _WHEN)
        results = row_results.read(folder / "evidence")
    states = {side: facts.sides[side].states for side in SIDES}
    rows = {
        side: sum(tally.rows for name, tally in states[side].items() if name != "filtered")
        for side in SIDES
    }
    matched = {
        side: states[side]["matched"].rows + states[side]["suggested"].rows for side in SIDES
    }
    trial = Trial(
        rows["left"],
        rows["right"],
        matched["left"],
        matched["right"],
        sum(states[side]["ambiguous"].rows for side in SIDES),
        tuple(
            TriedRule(each.name, each.matches, each.left.rows, each.right.rows)
            for each in facts.rules
        ),
        drawn.is_sample,
    )
    return Tried(trial, results)


def sample_key(recipe: Recipe) -> Equal | None:
    """The condition whose value selects sample rows: the first equality of the first rule."""
    conditions = recipe.rules[0].conditions if recipe.rules else ()
    return next((each for each in conditions if isinstance(each, Equal)), None)


def _write(
    connection: duckdb.DuckDBPyConnection,
    recipe: Recipe,
    side: Side,
    table: SideTable,
    share: int,
    file: Path,
) -> None:
    """The rows of a side as Parquet: all, or those whose key is in the sample; rows without a key
    by their number."""
    columns = ", ".join(f"{held(name)} AS {quote(name)}" for name in table.names)
    rows = table.name
    if share > 1:
        value, keyed = "NULL", table.name
        if key := sample_key(recipe):
            form = Form(key.column(side), "", key.derivations(side), 0)
            keyed, (value,) = with_derived(table.name, table, [form])
        # In two steps: a filter over the keys would compute each of them several times.
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE keys AS SELECT rid, hash({value}) AS k,"
            f" {value} IS NULL AS has_none FROM {keyed}"
        )
        drawn = f"FROM keys WHERE CASE WHEN has_none THEN rid ELSE k END % {share} = 0"
        rows = f"({drawn}) JOIN {table.name} USING (rid)"
    connection.execute(
        f"COPY (SELECT {columns} FROM {rows} ORDER BY rid) TO '{file}' (FORMAT parquet)"
    )


def as_facts(trial: Trial) -> Mapping[str, object]:
    return {
        "match_rate": trial.match_rate,
        "left": {"rows": trial.left_rows, "matched": trial.left_matched},
        "right": {"rows": trial.right_rows, "matched": trial.right_matched},
        "ambiguous": trial.ambiguous,
        "rules": [vars(each) for each in trial.rules],
        "is_sample": trial.is_sample,
    }
