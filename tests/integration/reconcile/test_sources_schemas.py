"""Parquet files that are read as one: by types that hold all their values, or not at all."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.errors import InvalidInput
from kalla.reconcile.plan import plan
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe import validation
from kalla.reconcile.recipe.column_checks import Columns
from kalla.reconcile.recipe.model import SIDES, Recipe, Side, Source
from kalla.reconcile.sources import inspection, source_planning
from kalla.reconcile.sources.scanning.duckdb_files import opened
from kalla.reconcile.sources.scanning.scan_sql import reader
from kalla.reconcile.sources.source_columns import columns_of
from kalla.storage import LOCAL


def write(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def look(uri: Path) -> Input:
    return source_planning.inspect_files(Source(uri=str(uri), primary_key=("id",)), "left")


def amounts(seen: Input) -> list[Any]:
    with opened(LOCAL) as connection:
        found = connection.execute(f'SELECT "=amount" FROM {reader(seen)}').fetchall()
    return [each for (each,) in found]


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
# Of each type some values, at its ends where it has any.
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-(2**7), 2**7 - 1]),
    "uint8": (pa.uint8(), [0, 2**8 - 1]),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "uint32": (pa.uint32(), [0, 2**32 - 1]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "few digits": (pa.decimal128(10, 2), [Decimal("-99999999.99"), Decimal("0.01")]),
    "a place more": (pa.decimal128(10, 3), [Decimal("9999999.999"), Decimal("0.001")]),
    "no whole": (pa.decimal128(4, 4), [Decimal("0.9999")]),
    "all digits": (pa.decimal128(38, 2), [Decimal("9" * 36 + ".99")]),
    "all digits, more places": (pa.decimal128(38, 4), [Decimal("10.0051")]),
    "half of them places": (pa.decimal128(38, 19), [Decimal("9" * 19 + "." + "9" * 19)]),
    "float": (pa.float32(), [0.1]),
    "double": (pa.float64(), [0.1, 1e300]),
    "text": (pa.string(), ["a"]),
    "date": (pa.date32(), [date(2026, 1, 1)]),
    "milliseconds": (pa.timestamp("ms"), [NOON]),
    "microseconds": (pa.timestamp("us"), [NOON]),
    "nanoseconds": (pa.timestamp("ns"), [1_700_000_000_000_001_000]),
    "zoned": (pa.timestamp("us", "UTC"), [NOON]),
    "zoned nanoseconds": (pa.timestamp("ns", "UTC"), [1_700_000_000_000_001_000]),
    "truth": (pa.bool_(), [True]),
    "nothing": (pa.null(), [None]),
}  # fmt: skip
WHOLE = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")
AGREE = [
    *combinations(WHOLE, 2),
    *(("few digits", each) for each in ("a place more", "no whole", *WHOLE)),
    *(("all digits", each) for each in ("few digits", *WHOLE)),
    ("half of them places", "int64"),
    *(("double", each) for each in ("int8", "uint8", "int16", "int32", "uint32")),
    ("float", "int16"),
    ("milliseconds", "microseconds"), ("microseconds", "nanoseconds"),
    ("zoned", "zoned nanoseconds"),
    *(("nothing", each) for each in ("int64", "all digits", "double", "text", "date", "zoned")),
]  # fmt: skip
APART = [
    ("all digits", "all digits, more places"), ("all digits", "a place more"),
    ("half of them places", "uint64"), ("double", "int64"), ("double", "few digits"),
    ("double", "float"), ("float", "int32"), ("microseconds", "zoned"), ("nanoseconds", "zoned"),
    ("date", "microseconds"), ("date", "int32"), ("text", "few digits"), ("truth", "int8"),
]  # fmt: skip


@pytest.mark.parametrize("pair", AGREE, ids=" and ".join)
def test_types_that_one_type_holds_are_read_exactly(tmp_path: Path, pair: tuple[str, str]) -> None:
    for names in (pair, pair[::-1]):
        folder, wanted = tmp_path / names[0], []
        for place, name in enumerate(names):
            type_, values = TYPES[name]
            amount = pa.array(values, type_)
            write(folder / f"{place}.parquet", id=range(len(values)), amount=amount)
            wanted += amount.to_pylist()
        assert amounts(look(folder)) == wanted


@pytest.mark.parametrize("pair", APART, ids=" and ".join)
def test_types_that_no_type_holds_are_left_out(tmp_path: Path, pair: tuple[str, str]) -> None:
    for names in (pair, pair[::-1]):
        for place, name in enumerate(names):
            type_, values = TYPES[name]
            amount = pa.array(values, type_)
            write(tmp_path / f"{place}.parquet", id=range(len(values)), amount=amount)
        seen = look(tmp_path)
        assert list(seen.types) == ["id"]
        assert re.match(r"amount is .*0\.parquet and .*1\.parquet", seen.unread["amount"])
        assert seen.notes == (f"left out: {seen.unread['amount']}",)


def recipe(folder: Path, **more: str) -> Recipe:
    side = {"uri": str(folder), "primary_key": ["id"]}
    condition = {"left": "id", "op": "eq", "right": "id"}
    return Recipe.model_validate(
        {
            "name": "r",
            "sources": {"left": side | more, "right": side},
            "rules": [{"name": "one", "conditions": [condition]}],
        }
    )


def test_what_is_left_out_is_refused_where_it_is_needed_and_only_there(tmp_path: Path) -> None:
    for name, places in (("a", 2), ("b", 2), ("c", 4)):
        write(tmp_path / f"{name}.parquet", id=[1], amount=pa.array([1], pa.decimal128(38, places)))
    wrong = r"amount is decimal\(38,2\) in .*a\.parquet and decimal\(38,4\) in .*c\.parquet"
    unneeded, needed = recipe(tmp_path), recipe(tmp_path, amount="amount")
    inputs: dict[Side, Input] = {side: look(tmp_path) for side in SIDES}
    assert plan.make(unneeded, inputs).sides["left"].columns == ("id",)
    with pytest.raises(InvalidInput, match=rf"sources\.left: {wrong}"):
        plan.make(needed, inputs)
    columns: dict[Side, Columns] = {"left": columns_of(needed.sources.left)}
    assert not validation.check(unneeded, columns)
    (problem,) = validation.check(needed, columns)
    assert re.match(rf"sources\.left\.amount: is not read: {wrong}", str(problem))
    assert problem.suggestion == "or name another column"


def test_whole_numbers_beside_texts_are_their_texts(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", id=[1, 2], amount=[-7, 2**63 - 1])
    write(tmp_path / "b.parquet", id=[3], amount=["7a"])
    assert amounts(look(tmp_path)) == ["-7", "9223372036854775807", "7a"]


@pytest.mark.parametrize("beside", ["nothing", "zoned", "zoned nanoseconds"])
def test_an_old_kind_of_time_is_a_point_in_time_as_spark_writes_it(
    tmp_path: Path, beside: str
) -> None:
    old = pa.table({"id": [1], "amount": pa.array([NOON], pa.timestamp("us", "UTC"))})
    pq.write_table(old, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    assert amounts(look(tmp_path)) == [NOON]
    type_, values = TYPES[beside]
    amount = pa.array(values, type_)
    write(tmp_path / "b.parquet", id=[2], amount=amount)
    assert amounts(look(tmp_path)) == [NOON, *amount.to_pylist()]
    (first, _) = inspection.preview(Source(uri=str(tmp_path), primary_key=("id",))).rows
    assert first == (1, NOON.isoformat())


def test_an_old_kind_of_time_beside_what_clocks_show_is_left_out(tmp_path: Path) -> None:
    old = pa.table({"id": [1], "amount": pa.array([NOON], pa.timestamp("us"))})
    pq.write_table(old, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    write(tmp_path / "b.parquet", id=[2], amount=pa.array([NOON], pa.timestamp("us")))
    assert list(look(tmp_path).types) == ["id"]


def test_parts_of_a_column_agree_too(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", id=[1], of=[{"amount": [1]}])
    write(tmp_path / "b.parquet", id=[1], of=[{"amount": [1], "more": 1}])
    assert list(look(tmp_path).types) == ["id", "of"]
    write(tmp_path / "b.parquet", id=[1], of=[{"amount": [1.5]}])
    seen = look(tmp_path)
    assert list(seen.types) == ["id"]
    assert re.match(r"of\.amount\.list\.element is bigint .* double", seen.unread["of"])


def test_what_folders_alone_tell_is_left_out_and_refused_where_it_is_needed(
    tmp_path: Path,
) -> None:
    for day in (1, 2):
        write(tmp_path / f"day={day}" / "of=1" / "a.parquet", id=[day])
    (reason,) = look(tmp_path).unread.values()
    assert look(tmp_path).notes == (f"left out: {reason}",)
    columns: dict[Side, Columns] = {"left": columns_of(recipe(tmp_path).sources.left)}
    assert not validation.check(recipe(tmp_path), columns)
    (problem,) = validation.check(recipe(tmp_path, amount="day"), columns)
    assert "day is only in the names of folders (day=…)" in str(problem)
    assert not look(tmp_path / "day=1").notes
    for day in (1, 2):
        write(tmp_path / f"day={day}" / "of=1" / "a.parquet", id=[day], day=[day])
    assert not look(tmp_path).notes


def test_decimals_of_more_digits_than_can_be_held_are_left_out(tmp_path: Path) -> None:
    amount = pa.array([Decimal("12345678901234567890.12")], pa.decimal256(40, 2))
    write(tmp_path / "a.parquet", id=[1], amount=amount)
    (note,) = look(tmp_path / "a.parquet").notes
    assert re.match(r"left out: amount has decimals of 40 digits in .*a\.parquet", note)


@pytest.mark.parametrize(
    ("columns", "wrong"),
    [
        (["id", "ID"], "has several columns ID, id"),
        (["id", "id"], "has several columns id"),
        (["id", ""], "has a column without a name"),
    ],
)
def test_columns_that_nobody_can_tell_apart_are_refused(
    tmp_path: Path, columns: list[str], wrong: str
) -> None:
    table = pa.Table.from_arrays([pa.array([each]) for each in range(2)], columns)
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(InvalidInput, match=rf"rows\.parquet {wrong}"):
        look(tmp_path / "rows.parquet")


def test_files_that_write_a_column_differently_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", id=[1], amount=[1])
    write(tmp_path / "b.parquet", id=[2], Amount=[2])
    with pytest.raises(InvalidInput, match=r"a\.parquet, .*b\.parquet .* columns Amount, amount"):
        look(tmp_path)


def test_a_column_that_only_some_files_have_is_null_in_the_others(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", id=[1], amount=[1])
    write(tmp_path / "b.parquet", id=[2])
    assert amounts(look(tmp_path)) == [1, None]
