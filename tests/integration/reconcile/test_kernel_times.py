"""Dates and points in time at the ends of what there is: told sensibly, and never a failed run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.reconcile import kernel
from kalla.reconcile.arrays import column_arrays
from kalla.reconcile.plan import plan
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import Recipe, Side
from kalla.reconcile.session.duckdb_engine import Resources

FOREVER = {"DATE": 2**31 - 1, "TIMESTAMP WITH TIME ZONE": 2**63 - 1}
DAYS = {"DATE": 1, "TIMESTAMP WITH TIME ZONE": 86_400_000_000}
KINDS = list(FOREVER)
FAR = 106_000_000  # days from 1970, nearly as far as points in time go


def match(
    folder: Path, kind: str, rows: dict[Side, list[int]], *conditions: dict[str, Any]
) -> tuple[list[tuple[int, str]], list[str]]:
    """Rows by number, with a day or a microsecond each: what matched and by how much it differs,
    and the differences of what did not."""
    inputs: dict[Side, Input] = {}
    for side, given in rows.items():
        whole = pa.array(given, pa.int32() if kind == "DATE" else pa.int64())
        days = whole.cast(pa.date32() if kind == "DATE" else pa.timestamp("us", "UTC"))
        path = folder / f"{side}.parquet"
        pq.write_table(pa.table({"id": pa.array(range(len(given))), "at": days}), path)
        types = {"id": "BIGINT", "at": kind}
        inputs[side] = Input("parquet", (str(path),), types, rows=len(given))
    source = {"uri": "-", "primary_key": ["id"]}
    window = {"left": "at", "op": "date_window", "right": "at", "days": 36_500}
    recipe = Recipe.model_validate(
        {
            "name": "test",
            "sources": {"left": source, "right": source},
            "rules": [{"name": "only", "conditions": [*conditions, window]}],
        }
    )
    made = plan.make(recipe, inputs)
    kernel.match(made, folder / "evidence", Resources("500MB", 1, folder / "temp"), "2026-01-01")

    def column(dataset: str, name: str) -> list[Any]:
        files = sorted((folder / "evidence" / dataset).glob("*.parquet"))
        return [each for file in files for each in pq.read_table(file)[name].to_pylist()]

    more = "" if kind == "DATE" else " time"
    keys = column("matched", "left_key")
    told = column("matched", f"difference.date_window(at, at){more}")
    matched = sorted((int(key), str(said)) for key, said in zip(keys, told, strict=True))
    return matched, column("unmatched_left", "difference")


SAME = {"left": "id", "op": "eq", "right": "id"}


@pytest.mark.parametrize("many", [1, 100_000], ids=["in hand", "in SQL"])
@pytest.mark.parametrize("kind", KINDS)
def test_infinity_is_itself_and_further_than_any_window_from_all_else(
    tmp_path: Path, kind: str, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_arrays, "MANY", many)
    endless = FOREVER[kind]
    rows: dict[Side, list[int]] = {
        "left": [endless, -endless, endless, 5, endless],
        "right": [endless, -endless, 5, endless, -endless],
    }
    matched, differences = match(tmp_path, kind, rows, SAME)
    assert matched == [(0, "0"), (1, "0")]
    assert sorted(differences) == ["-infinity", "-infinity", "infinity"]


@pytest.mark.parametrize("conditions", [[SAME], []], ids=["with a key", "without"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_as_far_apart_as_there_is_fails_no_run(
    tmp_path: Path, kind: str, conditions: list[dict[str, Any]]
) -> None:
    far = FAR * DAYS[kind]
    rows: dict[Side, list[int]] = {"left": [far, 3, -far], "right": [-far, 3, far]}
    matched, differences = match(tmp_path, kind, rows, *conditions)
    if conditions:
        assert matched == [(1, "0")]
        days = f"{2 * FAR}" if kind == "DATE" else f"{2 * FAR}d"
        assert sorted(differences) == [f"-{days}", days]
    else:
        assert matched == [(0, "0"), (1, "0"), (2, "0")]


def test_a_window_reaches_no_further_than_there_are_dates(tmp_path: Path) -> None:
    last = 2**31 - 2
    matched, _ = match(tmp_path, "DATE", {"left": [last, 3], "right": [last - 1, 4]})
    assert matched == [(0, "-1"), (1, "1")]
