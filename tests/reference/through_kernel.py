"""The same question put to the kernel: tables written as Parquet, evidence read as a Result.

`digits` of a decimal are 38, or few enough for its amounts to be in hand.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kalla.reconcile import kernel
from kalla.reconcile.kernel import Facts
from kalla.reconcile.plan import plan
from kalla.reconcile.recipe.model import (
    SIDES,
    DateWindow,
    Fuzzy,
    Recipe,
    Rule,
    Side,
    Tolerance,
)
from kalla.reconcile.session.duckdb_engine import Resources
from tests.reference.evidence import Ambiguous, Matched, Result, Table, Type, Unmatched

_TOLD = {each.name for each in fields(Unmatched)} - {"side", "attempted_rules"}
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
        return read(Path(folder), recipe)


def run(recipe: Recipe, tables: Mapping[Side, Table], folder: Path, digits: int = 38) -> Facts:
    inputs = {side: write(tables[side], folder / f"{side}.parquet", digits) for side in SIDES}
    resources = Resources("500MB", 1, folder / "temp")
    made = plan.make(recipe, inputs)
    return kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")


def read(folder: Path, recipe: Recipe) -> Result:
    """The evidence in a folder."""
    rules = {rule.name: rule for rule in recipe.rules}

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
            differences(row, rules[row["rule"]]),
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
            attempted = tuple(row.pop("attempted_rules"))
            told = {name: value for name, value in row.items() if name in _TOLD}
            found.append(Unmatched(side=side, attempted_rules=attempted, **told))
    return Result.of(*found)


def differences(row: Mapping[str, Any], rule: Rule) -> tuple[str, ...]:
    """By how much each check of its rule was missed, in their order; of a check that holds or does
    not, nothing."""
    seen: Counter[str] = Counter()
    texts = []
    for check in rule.checks:
        label = f"difference.{getattr(check, 'op', '')}({check.left}, {check.right})"
        if not isinstance(check, Tolerance | DateWindow | Fuzzy):
            texts += ["0"] if row["cardinality"] == "1:1" else []
            continue
        seen[label] += 1
        more = f" #{seen[label]}" if seen[label] > 1 else ""
        found = [row.get(f"{label}{kind}{more}") for kind in ("", " time")]
        texts += [_text(value) for value in found if value is not None]
    return tuple(texts)


def _text(value: object) -> str:
    if isinstance(value, Decimal):
        text = f"{value:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return str(value)


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
