"""The closest rows found in hand are those that SQL finds, and what is said of them is the same."""

from __future__ import annotations

import random
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.reconcile import kernel
from kalla.reconcile.arrays import column_arrays, nearest_in_arrays
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.plan import plan
from kalla.reconcile.recipe.model import SIDES, Recipe
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.sources import native_files
from kalla.storage.files import File

Rows = list[dict[str, Any]]

BY_KEY = {"left": "ref", "op": "eq", "right": "ref"}
BY_OTHER_KEY = {"left": "batch", "op": "eq", "right": "batch"}
AMOUNT = {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "0.01"}
NEGATED = {**AMOUNT, "negate": "right"}
UNEVEN = {"left": "amount", "op": "tolerance", "right": "amount", "below": "0", "above": "0.05"}
DAY = {"left": "day", "op": "date_window", "right": "day", "before": 1, "after": 3}

RULES: dict[str, list[dict[str, Any]]] = {
    "one rule": [{"conditions": [BY_KEY, AMOUNT, DAY]}],
    "the key last": [{"conditions": [DAY, AMOUNT, BY_KEY]}],
    "negated": [{"conditions": [BY_KEY, NEGATED]}],
    "two rules": [{"conditions": [BY_KEY, AMOUNT]}, {"conditions": [BY_OTHER_KEY, UNEVEN, DAY]}],
    "dates alone": [{"conditions": [BY_KEY, DAY]}],
    "one to many": [{"conditions": [BY_KEY, AMOUNT, DAY], "cardinality": "1:N"}],
}


@pytest.mark.parametrize("keys", [10, 60, 400], ids=["crowded keys", "some share", "few share"])
@pytest.mark.parametrize("named", RULES)
def test_the_evidence_is_that_of_sql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, keys: int
) -> None:
    monkeypatch.setattr(column_arrays, "MANY", 1)
    rows = {side: made_up(random.Random(f"{side} {keys}"), keys) for side in SIDES}
    seen: list[bool] = []

    def search(*given: Any, **options: Any) -> list[nearest_in_arrays.NearestCandidates] | None:
        found = in_hand(*given, **options)
        seen.append(found is not None)
        return found

    in_hand = nearest_in_arrays.search
    monkeypatch.setattr(nearest_in_arrays, "search", search)
    found = evidence(tmp_path / "hand", RULES[named], rows)
    assert all(seen) or keys == 10  # crowded keys are for SQL
    monkeypatch.setattr(nearest_in_arrays, "search", lambda *_, **__: None)
    by_sql = evidence(tmp_path / "sql", RULES[named], rows)
    assert len(by_sql["unmatched_left"]) > 20 or keys == 10
    assert found == by_sql


def test_what_lacks_a_value_or_has_a_filter_is_left_to_sql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_arrays, "MANY", 1)
    chance = random.Random(7)
    rows = {side: made_up(chance, 60) for side in SIDES}
    rows["right"][5]["amount"] = None
    left_out = {"column": "day", "op": "gt", "value": "2026-01-05"}
    filtered = [{"conditions": [BY_KEY, AMOUNT, DAY], "right_filters": [left_out]}]
    seen = []
    searched = nearest_in_arrays.search
    monkeypatch.setattr(
        nearest_in_arrays,
        "search",
        lambda *given, **options: seen.append(searched(*given, **options)),
    )
    evidence(tmp_path / "null", RULES["one rule"], rows)
    rows["right"][5]["amount"] = Decimal("1.00")
    evidence(tmp_path / "filter", filtered, rows)
    assert seen == [None, None]  # of the rule with a filter nobody asked


def test_rows_that_nobody_counted_do_not_take_the_room_of_others() -> None:
    batches = pa.table({"p0": range(1_000), "n": range(1_000)}).to_batches(max_chunksize=100)
    room = column_arrays.size(1_000, ["p0", "n"])
    assert column_arrays.gather(10, ["p0", "n"], batches, room - 1) is None
    read = column_arrays.gather(10, ["p0", "n"], batches, room)
    assert read is not None
    count, columns = read
    assert count == 1_000
    assert columns["n"].held.tolist() == list(range(1_000))


def made_up(chance: random.Random, keys: int) -> Rows:
    """Amounts and days that are often the same, and keys that some share."""
    return [
        {
            "id": number * 3 - 50,
            "ref": chance.randrange(keys),
            "batch": chance.randrange(300),
            "amount": Decimal(chance.randrange(-40, 200)) / 100 * chance.choice([1, 1, 7]),
            "day": date(2026, 1, 1) + timedelta(chance.randrange(12 if keys == 10 else 60)),
        }
        for number in range(120)
    ]


def evidence(folder: Path, rules: list[dict[str, Any]], rows: dict[Any, Rows]) -> dict[str, Any]:
    """Every row of every dataset, in an order that does not depend on files; their digest, and what
    types a file says they have."""
    side = {"uri": "-", "primary_key": ["id"], "amount": "amount"}
    named = [{"name": f"rule {number}", **rule} for number, rule in enumerate(rules)]
    document = {"name": "test", "sources": {"left": side, "right": side}, "rules": named}
    schema = pa.schema(
        {
            "id": pa.int64(),
            "ref": pa.int64(),
            "batch": pa.int32(),
            "amount": pa.decimal128(12, 2),
            "day": pa.date32(),
        }
    )
    inputs = {}
    folder.mkdir()
    for each in SIDES:
        path = folder / f"{each}.parquet"
        pq.write_table(pa.Table.from_pylist(rows[each], schema), path)
        inputs[each] = native_files.file_input("parquet", [File(str(path), path.stat().st_size)])
    made = plan.make(Recipe.model_validate(document), inputs)
    resources = Resources("500MB", 2, folder / "temp")
    facts = kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")
    found: dict[str, Any] = {}
    for file in facts.written:
        found[f"{file.dataset} digest"] = found.get(f"{file.dataset} digest", 0) + file.digest
        found[f"{file.dataset} types"] = str(pq.ParquetFile(file.url).schema).partition("\n")[2]
    return found | {
        name: sorted(pq.read_table(folder / "evidence" / name).to_pylist(), key=repr)
        for name in DATASETS
        if any((folder / "evidence" / name).glob("*.parquet"))
    }
