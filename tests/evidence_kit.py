"""Evidence for tests of what reads it: real runs of invoices against payments, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from kalla.reconcile.recipe.model import SIDES, Recipe
from kalla.reconcile.runs import execute
from kalla.reconcile.sources import source_planning
from kalla.reconcile.sources.source_planning import Limits

Row = tuple[str, str, str]  # key, reference, amount

SCHEMA = pa.schema([("id", pa.string()), ("ref", pa.string()), ("amount", pa.decimal128(18, 2))])


def invoices_and_payments(count: int) -> tuple[list[Row], list[Row]]:
    """Of each ten invoices one is unpaid, one is paid short, one in parts, one twice."""
    left: list[Row] = []
    right: list[Row] = []
    for number in range(count):
        ref, amount = f"R-{number:05}", Decimal(100 + number * 7)
        left.append((f"INV-{number:05}", ref, str(amount)))
        paid: list[Decimal] = {
            0: [],
            1: [amount - 5],
            2: [amount - 30, Decimal(30)],
            3: [amount, amount],
        }.get(number % 10, [amount])
        right += [(f"PAY-{number:05}-{n}", ref, str(each)) for n, each in enumerate(paid)]
    return left, right


def recipe(left: Path, right: Path, **more: Any) -> Recipe:
    conditions = [
        {"left": "ref", "op": "eq", "right": "ref"},
        {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "0.01"},
    ]
    document = {
        "name": "invoices and payments",
        "sources": {
            side: {"uri": str(path), "primary_key": ["id"], "amount": "amount"}
            for side, path in zip(SIDES, (left, right), strict=True)
        },
        "rules": [
            {"name": "paid in full", "conditions": conditions},
            {"name": "paid in parts", "cardinality": "1:N", "conditions": conditions},
        ],
    }
    return Recipe.model_validate(document | more)


def make_evidence(
    folder: Path,
    left: Sequence[Row],
    right: Sequence[Row],
    read: Callable[[Path, Path], Recipe] | None = None,
    **more: Any,
) -> str:
    """One run of this recipe, or another one of the two files; returns where its evidence is."""
    folder.mkdir(parents=True)
    given = zip(SIDES, (left, right), strict=True)
    files = [_write(rows, folder / f"{side}.parquet") for side, rows in given]
    return match_here(read(*files) if read else recipe(*files, **more), folder / "evidence")


_SMALL = Limits(memory="500MB", threads=1)


def match_here(wanted: Recipe, evidence: Path, limits: Limits = _SMALL) -> str:
    """A run of a recipe over files, without Spark."""
    inputs = {side: source_planning.inspect_files(wanted.sources[side], side) for side in SIDES}
    evidence.mkdir()
    session: Any = None
    with patch.object(execute, "place", _place_here):
        execute.match(
            session,
            wanted,
            inputs,
            evidence,
            limits,
            lambda *_: None,
            datetime.now(UTC),
        )
    return str(evidence)


def _place_here(_: object, kernel: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
    return [kernel(task) for task in tasks]


def _write(rows: Sequence[Row], path: Path) -> Path:
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    amounts = [Decimal(each) for each in columns[2]]
    values = [columns[0], columns[1], amounts]
    arrays = [pa.array(given, each.type) for given, each in zip(values, SCHEMA, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), path)
    return path
