"""The same question put to the kernel: tables written as Parquet, evidence read as a Result.

`digits` of a decimal are 38, or few enough for its amounts to be in hand.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kalla.reconcile import kernel
from kalla.reconcile.kernel import Facts
from kalla.reconcile.plan import plan
from kalla.reconcile.recipe.model import SIDES, Recipe, Side
from kalla.reconcile.session.duckdb_engine import Resources
from tests.reference.evidence import Ambiguous, Matched, Result, Table, Type, Unmatched

_PLACES = 6  # of a decimal
_ARROW: Mapping[Type, Any] = {
    "text": pa.string(),
    "integer": pa.int64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_DUCKDB: Mapping[Type, str] = {
    "text": "VARCHAR",
    "integer": "BIGINT",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
}


def reconcile(recipe: Recipe, left: Table, right: Table, digits: int = 38) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        run(recipe, {"left": left, "right": right}, Path(folder), digits)
        return read(Path(folder))


def run(recipe: Recipe, tables: Mapping[Side, Table], folder: Path, digits: int = 38) -> Facts:
    inputs = {side: write(tables[side], folder / f"{side}.parquet", digits) for side in SIDES}
    resources = Resources("500MB", 1, folder / "temp")
    made = plan.make(recipe, inputs)
    return kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")


def read(folder: Path) -> Result:
    """The evidence in a folder."""

    def rows(dataset: str) -> list[dict[str, Any]]:
        return [
            row
            for file in sorted((folder / "evidence" / dataset).glob("*.parquet"))
            for row in pq.read_table(file).to_pylist()
        ]

    matched = rows("matched")
    members: dict[str, set[tuple[Side, str]]] = {}
    for row in matched:
        keys: Mapping[Side, str | None] = {"left": row["left_key"], "right": row["right_key"]}
        members.setdefault(str(row["match_id"]), set()).update(
            (side, key) for side, key in keys.items() if key is not None
        )
    found: list[Matched | Ambiguous | Unmatched] = [
        Matched(
            row["left_key"],
            row["right_key"],
            frozenset(members[str(row["match_id"])]),
            row["rule"],
            row["status"],
            row["cardinality"],
            tuple(json.loads(row["differences"]).values()),
            row["interchangeable"],
            row["fifo"],
        )
        for row in matched
    ]
    found += [
        Ambiguous(
            row["record_key"],
            row["side"],
            row["rule"],
            tuple(row["candidates"]),
            row["candidate_count"],
            row["reason"],
        )
        for row in rows("ambiguous")
    ]
    for side in SIDES:
        for row in rows(f"unmatched_{side}"):
            del row["amount"], row["currency"]
            attempted = tuple(row.pop("attempted_rules"))
            found.append(Unmatched(side=side, attempted_rules=attempted, **row))
    return Result.of(*found)


def write(table: Table, path: Path, digits: int = 38) -> plan.Input:
    arrow = {**_ARROW, "decimal": pa.decimal128(digits, _PLACES)}
    duckdb = {**_DUCKDB, "decimal": f"DECIMAL({digits},{_PLACES})"}
    schema = pa.schema([(name, arrow[kind]) for name, kind in table.columns.items()])
    rows = [
        {name: _fitted(row[name], table.columns[name]) for name in table.columns}
        for row in table.rows
    ]
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), path)
    types = {name: duckdb[kind] for name, kind in table.columns.items()}
    return plan.Input("parquet", (str(path),), types, rows=len(rows))


def _fitted(value: object, kind: Type) -> object:
    return Decimal(str(value)) if kind == "decimal" and value is not None else value
