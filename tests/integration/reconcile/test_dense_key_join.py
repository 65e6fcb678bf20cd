"""Rows that are found by address, with no table hashed, are the ones a join finds."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.reconcile import kernel
from kalla.reconcile.arrays import column_arrays, dense_key_join
from kalla.reconcile.evidence.writing import differences
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.evidence.writing.digests import combined
from kalla.reconcile.kernel import Facts
from kalla.reconcile.plan import plan
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import SIDES, Recipe, Side
from kalla.reconcile.session.duckdb_engine import Resources

TOLERANCES: dict[str, dict[str, Any]] = {
    "absolute": {"absolute": "0.1"},
    "uneven": {"below": "0.255", "above": "0"},
    "only above": {"above": "0.2"},
    "left negated": {"absolute": "0.1", "negate": "left"},
    "right negated": {"absolute": "0.1", "negate": "right"},
}


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_arrays, "MANY", 1)


@pytest.mark.parametrize("kinds", [("BIGINT", "BIGINT"), ("SMALLINT", "UBIGINT")])
@pytest.mark.parametrize("named", TOLERANCES)
def test_rows_found_by_address_or_by_a_join_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, kinds: tuple[str, str]
) -> None:
    """With keys below zero, numbers left out, payments of nobody and several of one invoice."""
    joined = []

    def join(*given: Any) -> pa.Table | None:
        joined.append(by_address(*given))
        return joined[-1]

    by_address = dense_key_join.join
    monkeypatch.setattr(dense_key_join, "join", join)
    for primary in SIDES:
        found = match_by_id(tmp_path / primary, TOLERANCES[named], kinds, primary)
        assert joined.pop() is not None
        with monkeypatch.context() as patched:
            patched.setattr(dense_key_join, "PLACES", 0)
            again = match_by_id(tmp_path / f"{primary}-again", TOLERANCES[named], kinds, primary)
        assert joined.pop() is None
        assert found.sides["left"].states["matched"].rows > 20
        assert found.sides["left"].states["ambiguous"].rows > 0
        assert digests(found) == digests(again)


def test_what_was_found_by_address_can_be_spelled_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without payments of equal amounts: no key is crowded, and nothing is solved anew."""
    kinds = ("BIGINT", "BIGINT")
    once = match_by_id(tmp_path / "once", TOLERANCES["absolute"], kinds, "left", crowded=False)
    assert once.sides["left"].states["ambiguous"].rows == 0
    monkeypatch.setattr(differences, "FEW", 1)
    by_row = match_by_id(tmp_path / "rows", TOLERANCES["absolute"], kinds, "left", crowded=False)
    assert digests(by_row) == digests(once)


def test_keys_of_few_bits_are_found_from_the_lowest_to_the_highest(tmp_path: Path) -> None:
    keys = range(-128, 128)
    side = {"uri": "-", "primary_key": ["id"]}
    rule = {"name": "by id", "conditions": [{"left": "id", "op": "eq", "right": "of"}]}
    document = {"name": "test", "sources": {"left": side, "right": side}, "rules": [rule]}
    columns = {
        "left": {"id": pa.array(keys, pa.int8())},
        "right": {"id": pa.array(range(1000, 1256)), "of": pa.array(keys)},
    }
    inputs = {}
    for name in SIDES:
        pq.write_table(pa.table(columns[name]), tmp_path / f"{name}.parquet")
        types = {"id": "BIGINT", "of": "BIGINT"} if name == "right" else {"id": "TINYINT"}
        inputs[name] = Input("parquet", (str(tmp_path / f"{name}.parquet"),), types)
    made = plan.make(Recipe.model_validate(document), inputs)
    resources = Resources("500MB", 2, tmp_path / "temp")
    kernel.match(made, tmp_path / "evidence", resources, "2026-01-01 00:00:00Z")
    found = pq.read_table(tmp_path / "evidence" / "matched").to_pylist()
    assert {(row["left_key"], row["right_key"]) for row in found} == {
        (str(key), str(key + 1128)) for key in keys
    }


def test_differences_by_many_checks_are_those_of_a_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More ways to differ than a whole number of 64 bits counts."""
    kinds, wide = ("BIGINT", "BIGINT"), {"absolute": "5"}
    found = match_by_id(tmp_path / "address", wide, kinds, "left", crowded=False, checks=8)
    monkeypatch.setattr(dense_key_join, "PLACES", 0)
    joined = match_by_id(tmp_path / "join", wide, kinds, "left", crowded=False, checks=8)
    assert digests(found) == digests(joined)


def match_by_id(
    folder: Path,
    tolerance: dict[str, Any],
    kinds: tuple[str, str],
    primary: Side,
    *,
    crowded: bool = True,
    checks: int = 1,
) -> Facts:
    """Invoices against payments that name them, whichever side the invoices are."""
    chance = random.Random(3)
    sign = -1 if "negate" in tolerance else 1
    invoices = [
        {"id": number * 2 - 100, "cents": chance.randrange(100, 160), "day": chance.randrange(40)}
        for number in range(400)
    ]
    for invoice in invoices:
        invoice["id"] += 200 * ("UBIGINT" in kinds)
    payments = [
        {
            "id": number,
            "of": chance.choice(invoices)["id"] + (number % 9 == 0),
            "cents": sign * chance.randrange(100, 160),
            "day": chance.randrange(40),
        }
        for number in range(400)
    ]
    if crowded:
        payments += [payment | {"id": payment["id"] + 1000} for payment in payments[::5]]
    else:
        payments = list({payment["of"]: payment for payment in payments}.values())
    other: Side = "right" if primary == "left" else "left"
    names = {primary: "id", other: "of"}
    side = {"uri": "-", "primary_key": ["id"]}
    wanted = Recipe.model_validate(
        {
            "name": "test",
            "sources": {"left": side, "right": side},
            "rules": [
                {
                    "name": "by number",
                    "conditions": [
                        {"left": names["left"], "op": "eq", "right": names["right"]},
                        *[{"left": "amount", "op": "tolerance", "right": "amount", **tolerance}]
                        * checks,
                        {"left": "day", "op": "date_window", "right": "day", "days": 30},
                    ],
                }
            ],
        }
    )
    inputs = {}
    folder.mkdir()
    for name, rows, kind in ((primary, invoices, kinds[0]), (other, payments, kinds[1])):
        path = folder / f"{name}.parquet"
        key = names[name]
        whole = {"BIGINT": pa.int64(), "SMALLINT": pa.int16(), "UBIGINT": pa.uint64()}
        columns = {each: pa.array([row[each] for row in rows]) for each in rows[0]}
        columns[key] = columns[key].cast(whole[kind])
        columns["amount"] = pa.array(
            [Decimal(cents) / 100 for cents in columns.pop("cents").to_pylist()],
            pa.decimal128(12, 2),
        )
        columns["day"] = columns["day"].cast(pa.int32()).cast(pa.date32())
        pq.write_table(pa.table(columns), path)
        types = {"id": "BIGINT", "of": "BIGINT", "amount": "DECIMAL(12,2)", "day": "DATE"}
        kinds_of = {each: types[each] for each in columns} | {key: kind}
        inputs[name] = Input("parquet", (str(path),), kinds_of, rows=len(rows))
    made = plan.make(wanted, inputs)
    resources = Resources("500MB", 1, folder / "temp")
    return kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")


def digests(facts: Facts) -> dict[str, str]:
    return {
        name: combined([each.digest for each in facts.written if each.dataset == name])
        for name in DATASETS
    }
