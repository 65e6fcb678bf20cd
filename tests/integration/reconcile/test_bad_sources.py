"""Sources that are not as they should be: a clear error, or a counted and named exception."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kalla.errors import InvalidInput, KallaError
from kalla.reconcile import kernel, plan, sources
from kalla.reconcile.kernel import Facts
from kalla.reconcile.model import SIDES, Recipe, Source
from kalla.reconcile.run import check_conservation
from kalla.reconcile.workbench import Resources

GOOD = "id,ref,amount\nR1,a,10.00\nR2,b,20.00\n"


def recipe(folder: Path, left: dict[str, Any] | None = None) -> Recipe:
    side = {"primary_key": ["id"], "amount": "amount"}
    return Recipe.model_validate(
        {
            "name": "test",
            "sources": {
                "left": {"uri": str(folder / "left.csv")} | side | (left or {}),
                "right": {"uri": str(folder / "right.csv")} | side,
            },
            "rules": [
                {
                    "name": "r",
                    "conditions": [
                        {"left": "ref", "op": "eq", "right": "ref"},
                        {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "0"},
                    ],
                }
            ],
        }
    )


def match(folder: Path, left: str | bytes, **options: Any) -> Facts:
    (folder / "left.csv").write_bytes(left.encode() if isinstance(left, str) else left)
    (folder / "right.csv").write_text(GOOD)
    wanted = recipe(folder, options)
    made = plan.make(wanted, {side: sources.look(wanted.sources[side], side) for side in SIDES})
    resources = Resources("500MB", 1, folder / "temp")
    facts = kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")
    check_conservation(facts.sides)
    return facts


def test_a_header_without_rows_leaves_the_other_side_unmatched(tmp_path: Path) -> None:
    facts = match(tmp_path, "id,ref,amount\n")
    assert facts.sides["left"].loaded.rows == 0
    assert facts.sides["right"].states["unmatched"].rows == 2


def test_an_empty_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"left"):
        match(tmp_path, "")


@pytest.mark.parametrize("line", ["L2,b", "L2,b,20.00,more"], ids=["too short", "too long"])
def test_a_ragged_line_is_an_error_that_names_the_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(KallaError, match=r"left\.csv.*[Ll]ine"):
        match(tmp_path, f"id,ref,amount\nL1,a,10.00\n{line}\n")


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    facts = match(tmp_path, b"\xef\xbb\xbfid,ref,amount\nL1,a,10.00\n")
    assert facts.sides["left"].states["matched"].rows == 1


def test_the_wrong_encoding_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KallaError, match="left"):
        match(tmp_path, "id,ref,amount\nL1,caf\u00e9,10.00\n".encode("latin-1"))


def test_the_named_encoding_is_read(tmp_path: Path) -> None:
    text = "id,ref,amount\nL1,a,10.00\nL2,caf\u00e9,1.00\n"
    facts = match(tmp_path, text.encode("latin-1"), csv={"encoding": "latin-1"})
    assert facts.sides["left"].loaded.rows == 2


def test_doubled_and_null_keys_are_counted_and_take_part(tmp_path: Path) -> None:
    facts = match(tmp_path, "id,ref,amount\nL1,a,10.00\nL1,b,20.00\n,c,1.00\n")
    assert facts.sides["left"].loaded.doubled_keys == 3
    assert facts.sides["left"].states["matched"].rows == 2


def test_an_amount_that_is_none_is_counted_and_named(tmp_path: Path) -> None:
    facts = match(tmp_path, 'id,ref,amount\nL1,a,"1.234,56"\nL2,b,20.00\n')
    assert facts.sides["left"].loaded.unreadable == (("amount", "number", 1, ("1.234,56",)),)
    assert facts.sides["left"].states["matched"].rows == 1
    assert facts.sides["left"].states["unmatched"].rows == 1


def test_a_decimal_comma_is_read_where_the_recipe_says_so(tmp_path: Path) -> None:
    facts = match(tmp_path, 'id,ref,amount\nL1,a,"10,00"\n', csv={"decimal": ","})
    assert facts.sides["left"].states["matched"].amount == Decimal(10)


def test_a_source_nobody_can_read_yet_says_so() -> None:
    source = Source(uri="s3://bucket/key.parquet", primary_key=("id",))
    with pytest.raises(InvalidInput, match="cannot be read yet"):
        sources.look(source, "left")
