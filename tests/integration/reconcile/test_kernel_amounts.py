"""Amounts of very many digits: compared exactly, or counted and named, and never a failed run."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.errors import Permanent
from kalla.reconcile import kernel
from kalla.reconcile.kernel import Facts
from kalla.reconcile.matching import one_to_one
from kalla.reconcile.plan import plan
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import SIDES, Recipe, Side
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.sql import column_values, duckdb_errors
from kalla.reconcile.sql.column_values import Columns


def match(folder: Path, types: dict[Side, str], rows: dict[Side, list[str]], **how: Any) -> Facts:
    """One row of each side for each amount, which a number of its own brings together, or it is
    the key itself where nothing is said of how it is compared."""
    inputs: dict[Side, Input] = {}
    for side in SIDES:
        kind: pa.DataType = pa.float64() if types[side] == "DOUBLE" else pa.string()
        if types[side].startswith("DECIMAL"):
            digits, scale = types[side].removeprefix("DECIMAL(").rstrip(")").split(",")
            kind = pa.decimal128(int(digits), int(scale))
        value = {"DOUBLE": float, "VARCHAR": str}.get(types[side], Decimal)
        amounts: list[Any] = [value(each) for each in rows[side]]
        table = {"id": pa.array(range(len(amounts))), "amount": pa.array(amounts, kind)}
        path = folder / f"{side}.parquet"
        pq.write_table(pa.table(table), path)
        columns = {"id": "BIGINT", "amount": types[side]}
        inputs[side] = Input("parquet", (str(path),), columns, rows=len(amounts))
    source = {"uri": "-", "primary_key": ["id"]}
    conditions = [
        {"left": "id", "op": "eq", "right": "id"},
        {"left": "amount", "op": "tolerance", "right": "amount"} | how,
    ]
    if not how:
        conditions = [{"left": "amount", "op": "eq", "right": "amount"}]
    recipe = Recipe.model_validate(
        {
            "name": "test",
            "sources": {"left": source, "right": source},
            "rules": [{"name": "only", "conditions": conditions}],
        }
    )
    resources = Resources("500MB", 1, folder / "temp")
    made = plan.make(recipe, inputs)
    return kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")


NINES = "9" * 28


@pytest.mark.parametrize(
    ("types", "left", "right", "how", "matched", "unreadable"),
    [
        # Read from text: the difference of two has a place, and longer ones are not read.
        (("VARCHAR", "VARCHAR"), [NINES, "5"], [f"-{NINES}", "5"], {"absolute": 1}, 1, 0),
        (("VARCHAR", "VARCHAR"), [f"{NINES}.5"], [f"{NINES}.4"], {"absolute": "0.1"}, 1, 0),
        (("VARCHAR", "VARCHAR"), [f"9{NINES}", "5"], ["1", "5"], {"absolute": 1}, 1, 1),
        # A difference that no number holds is beyond every bound.
        (("DECIMAL(38,9)", "DECIMAL(38,9)"), [f"9{NINES}"], [f"-9{NINES}"], {"absolute": 1}, 0, 0),
        (("DECIMAL(38,9)", "DECIMAL(38,9)"), [f"9{NINES}"], [f"9{NINES}"], {"absolute": 1}, 1, 0),
        (("DECIMAL(38,2)", "DECIMAL(38,2)"), ["9" * 36], ["1"], {"absolute": "0.000000001"}, 0, 0),
        (("DECIMAL(36,2)", "DECIMAL(36,2)"), ["9" * 31], ["1"], {"absolute": "0.000000001"}, 0, 0),
        (
            ("DECIMAL(12,2)", "DECIMAL(12,2)"),
            ["1", "1"],
            ["1.01", "1.02"],
            {"absolute": "0.019"},
            1,
            0,
        ),
        # White around text does not count, nor do zeros that say nothing.
        (("VARCHAR", "VARCHAR"), ["5\t", "1.0000000000"], ["5", "1"], {"absolute": 0}, 2, 0),
        (("VARCHAR", "VARCHAR"), ["\u00a07", "0" * 40 + "3"], ["7", "3"], {"absolute": 0}, 2, 0),
        (("VARCHAR", "VARCHAR"), ["1.0000000001"], ["1"], {"absolute": 0}, 0, 1),
        # What has no place among the other side's decimals is not read.
        (("DECIMAL(38,2)", "DECIMAL(38,38)"), ["0.5", "5"], ["0.5", "0"], {"absolute": 0}, 1, 1),
        (("DECIMAL(5,0)", "DECIMAL(38,38)"), ["0", "5"], ["0", "0.5"], {"absolute": 0}, 1, 1),
        (("DECIMAL(38,0)", "DECIMAL(38,9)"), ["9" * 35, "5"], ["1", "5"], {"absolute": 1}, 1, 1),
        # A percentage needs room to multiply in.
        (("VARCHAR", "VARCHAR"), ["9" * 24, "100"], ["9" * 24, "90"], {"percent": 1000000}, 1, 1),
        (("DECIMAL(38,18)", "DECIMAL(38,18)"), ["9" * 14], ["9" * 14], {"percent": "0.5"}, 1, 0),
        (("DECIMAL(18,2)", "DECIMAL(18,2)"), ["9" * 16], ["9" * 16], {"percent": "0.5"}, 1, 0),
    ],
)
def test_an_amount_is_compared_exactly_or_counted_and_named(
    tmp_path: Path,
    types: tuple[str, str],
    left: list[str],
    right: list[str],
    how: dict[str, Any],
    matched: int,
    unreadable: int,
) -> None:
    kinds: dict[Side, str] = {"left": types[0], "right": types[1]}
    facts = match(tmp_path, kinds, {"left": left, "right": right}, **how)
    assert facts.sides["left"].states["matched"].rows == matched
    found = facts.sides["left"].loaded.unreadable
    assert [(column, count) for column, _, count, _ in found] == [("amount", 1)] * unreadable


def test_a_float_of_more_places_than_amounts_have_is_counted_and_not_rounded(
    tmp_path: Path,
) -> None:
    kept = ["0.1", "123456789.12", "1e-9", "98765432109876.5", "1e20", "0", "-2.5e-7"]
    left = [*kept, "0.1234567891", "1e-10", "1.0000000000000002"]
    right = [*kept, "0.1234567892", "2e-10", "1.0"]
    types: dict[Side, str] = {"left": "DOUBLE", "right": "DOUBLE"}
    facts = match(tmp_path, types, {"left": left, "right": right}, absolute=0)
    assert facts.sides["left"].states["matched"].rows == len(kept)
    ((column, kind, rows, examples),) = facts.sides["left"].loaded.unreadable
    assert (column, kind, rows) == ("amount", "number", 3)
    assert examples == ("0.1234567891", "1.0000000000000002", "1e-10")


@pytest.mark.parametrize(
    ("left", "right"),
    [("DECIMAL(20,0)", "VARCHAR"), ("DECIMAL(38,2)", "DECIMAL(38,5)"), ("VARCHAR", "VARCHAR")],
)
def test_keys_of_many_digits_are_found_whatever_places_each_side_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str, right: str
) -> None:
    """Also where they share a bucket with keys that are not joined row by row."""
    monkeypatch.setattr(one_to_one, "_BUCKET_PAIRS", 0)
    chance = random.Random(1)
    keys = [str(chance.randrange(10**19, 10**20)) for _ in range(3_000)]
    facts = match(tmp_path, {"left": left, "right": right}, {"left": keys, "right": keys})
    assert facts.sides["left"].states["matched"].rows == len(keys)


def test_a_sum_of_too_many_digits_is_told_in_one_sentence(tmp_path: Path) -> None:
    kinds: dict[Side, str] = dict.fromkeys(SIDES, "DECIMAL(38,18)")
    amounts: dict[Side, list[str]] = dict.fromkeys(SIDES, ["9" * 20] * 2)
    with pytest.raises(Permanent, match="has more than 38 digits") as failed:
        match(tmp_path, kinds, amounts, absolute=0)
    assert "\n" not in str(failed.value)


def test_what_duckdb_says_is_told_without_its_sql() -> None:
    with duckdb.connect() as connection, pytest.raises(duckdb.Error, match="LINE 1") as failed:
        connection.execute("SELECT a_name_of_ours FROM range(1)")
    told = str(duckdb_errors.of_matching(failed.value))
    assert "LINE" not in told
    assert "SELECT" not in told


@pytest.mark.parametrize("cardinality", ["1:N", "M:N"])
def test_a_group_whose_sum_no_number_holds_is_no_match(tmp_path: Path, cardinality: str) -> None:
    """Nor does it matter in which order amounts are added up whose sum is one."""
    huge, kind = Decimal("9e35"), pa.decimal128(38, 2)
    rows: dict[Side, tuple[str, list[Decimal]]] = {
        "left": ("ab", [huge, huge]),
        "right": ("aabbbb", [huge, huge, huge, huge, -huge, Decimal(0)]),
    }
    inputs: dict[Side, Input] = {}
    for side, (refs, amounts) in rows.items():
        path = tmp_path / f"{side}.parquet"
        pq.write_table(
            pa.table(
                {
                    "id": pa.array(range(len(refs))),
                    "ref": list(refs),
                    "amount": pa.array(amounts, kind),
                    "fee": [1] * len(refs),
                }
            ),
            path,
        )
        types = {"id": "BIGINT", "ref": "VARCHAR", "amount": "DECIMAL(38,2)", "fee": "BIGINT"}
        inputs[side] = Input("parquet", (str(path),), types, rows=len(refs))
    source = {"uri": "-", "primary_key": ["id"], "amount": "fee"}
    conditions = [
        {"left": "ref", "op": "eq", "right": "ref"},
        {"left": "amount", "op": "tolerance", "right": "amount", "absolute": 0},
    ]
    recipe = Recipe.model_validate(
        {
            "name": "test",
            "sources": {"left": source, "right": source},
            "rules": [{"name": "only", "cardinality": cardinality, "conditions": conditions}],
        }
    )
    made = plan.make(recipe, inputs)
    resources = Resources("500MB", 1, tmp_path / "temp")
    kernel.match(made, tmp_path / "evidence", resources, "2026-01-01 00:00:00Z")
    found = [
        key
        for file in (tmp_path / "evidence" / "matched").glob("*.parquet")
        for row in pq.read_table(file).to_pylist()
        if row["status"] == "confirmed"
        for key in (row["left_key"], row["right_key"])
    ]
    assert set(found) - {None} == {"1", "2", "3", "4", "5"}


@pytest.mark.parametrize(
    ("number", "shown"), [("0", "0"), ("0.5", "0.5"), ("-0.05", "-0.05"), ("-0.5", "-0.5")]
)
@pytest.mark.parametrize("kind", ["DECIMAL(38,38)", "DECIMAL(5,5)", "DECIMAL(9,5)"])
def test_a_number_has_a_digit_before_its_point(kind: str, number: str, shown: str) -> None:
    column = column_values.value(Columns({"x": kind}), "x")
    given = f"SELECT {number}::{kind} AS {column_values.held('x')}"
    with duckdb.connect() as connection:
        found = connection.execute(
            f"SELECT {column_values.shown(column)} FROM ({given})"
        ).fetchall()
    assert found == [(shown,)]
