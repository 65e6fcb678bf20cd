"""Recipes with SQL of their own, on a real Spark: pairs of keys become matches of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import SecretStr

from kalla.errors import InvalidInput, Permanent
from kalla.reconcile.recipe.model import Recipe
from kalla.reconcile.runs.execute import execute_recipe
from kalla.reconcile.sources.source_planning import Limits
from kalla.reconcile.user_sql import match_sql
from kalla.settings import Spark as SparkSettings
from kalla.spark.session import connect
from tests.servers import SparkServer

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

pytestmark = pytest.mark.spark

BY_REFERENCE = """
SELECT l.id AS left_id, r.id AS right_id FROM left_src l JOIN right_src r
ON l.ref = r.ref AND tolerance_match(l.amount, r.amount, 0.01)
"""
Rows = list[tuple[str | None, str | None, str]]


@pytest.fixture(scope="module")
def session(spark_server: SparkServer) -> Iterator[SparkSession]:
    found = connect(SparkSettings(remote=spark_server.remote, token=SecretStr(spark_server.token)))
    yield found
    found.stop()


class Desk:
    """Two small sources, and runs of SQL over them."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self.session, self.folder = session, folder
        self.runs = 0

    def csv(self, name: str, rows: Rows, header: str = "id,ref,amount") -> dict[str, Any]:
        lines = [",".join(each or "" for each in row) for row in rows]
        path = self.folder / f"{name}.csv"
        path.write_text("\n".join([header, *lines]) + "\n")
        return {"uri": str(path), "amount": "amount", "primary_key": ["id"]}

    def parquet(self, name: str, rows: Rows) -> dict[str, Any]:
        path = self.folder / f"{name}.parquet"
        columns = [list(each) for each in zip(*rows, strict=True)]
        amounts = pa.array([Decimal(each or 0) for each in columns[2]], pa.decimal128(12, 2))
        pq.write_table(pa.table({"id": columns[0], "ref": columns[1], "amount": amounts}), path)
        return {"uri": str(path), "amount": "amount", "primary_key": ["id"]}

    def run(self, left: dict[str, Any], right: dict[str, Any], sql: str) -> Evidence:
        recipe = Recipe.model_validate(
            {"name": "test", "sources": {"left": left, "right": right}, "match_sql": sql}
        )
        self.runs += 1
        out = self.folder / f"out-{self.runs}"
        out.mkdir()
        limits = Limits(memory="500MB", threads=1)
        execute_recipe(self.session, recipe, out, limits, lambda *_: None)
        return Evidence(out)


class Evidence:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata = json.loads((folder / "metadata.json").read_text())

    def rows(self, dataset: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = pq.read_table(self.folder / dataset).to_pylist()
        return found

    def matched(self) -> set[tuple[str | None, str | None, str]]:
        return {
            (row["left_key"], row["right_key"], row["cardinality"]) for row in self.rows("matched")
        }

    def digests(self) -> dict[str, str]:
        return {name: part["digest"] for name, part in self.metadata["datasets"].items()}


@pytest.fixture
def desk(session: SparkSession, tmp_path: Path) -> Desk:
    return Desk(session, tmp_path)


LEFT: Rows = [
    ("L1", "a", "10.00"),
    ("L2", "b", "20.00"),
    ("L3", "c", "30.00"),
    ("L4", "d", "40.00"),
    ("L5", "d", "40.01"),
    ("L6", "e", "50.00"),
    ("L7", "f", "60.00"),
]
RIGHT: Rows = [
    ("R1", "a", "10.01"),
    ("R2", "b", "20.00"),
    ("R3", "b", "20.01"),
    ("R4", "c", "30.02"),
    ("R5", "d", "40.00"),
    ("R6", "d", "40.01"),
    ("R7", "e", "50.00"),
    ("R8", "g", "1.00"),
]


def test_pairs_of_keys_become_the_cardinality_they_form(desk: Desk) -> None:
    found = desk.run(desk.csv("left", LEFT), desk.parquet("right", RIGHT), BY_REFERENCE)
    assert found.matched() == {
        ("L1", "R1", "1:1"),
        ("L2", "R2", "1:N"),
        ("L2", "R3", "1:N"),
        ("L4", None, "M:N"),
        ("L5", None, "M:N"),
        (None, "R5", "M:N"),
        (None, "R6", "M:N"),
        ("L6", "R7", "1:1"),
    }
    unmatched = {row["record_key"]: row for row in found.rows("unmatched_left")}
    assert set(unmatched) == {"L3", "L7"}
    assert unmatched["L3"]["attempted_rules"] == ["match_sql"]
    assert unmatched["L3"]["rejection_reason"] == "no_pair"
    assert unmatched["L3"]["amount"] == 30
    assert {row["record_key"] for row in found.rows("unmatched_right")} == {"R4", "R8"}
    sides = found.metadata["sources"]
    assert Decimal(sides["left"]["states"]["matched"]["amount"]) == Decimal("160.01")
    assert sides["right"]["states"]["unmatched"]["rows"] == 2
    assert found.metadata["match_sql"] == {"pairs": 8, "repeats": 0, "unpaired": 0}
    assert found.metadata["rules"][0]["matches"] == 4


def test_the_format_and_the_order_of_rows_change_nothing(desk: Desk) -> None:
    """Nor does a name that to Spark is hidden, and a pattern."""
    first = desk.run(desk.csv("left", LEFT), desk.parquet("right", RIGHT), BY_REFERENCE)
    again = desk.run(
        desk.parquet("_left [1]", LEFT[::-1]), desk.csv("right", RIGHT[::-1]), BY_REFERENCE
    )
    assert again.matched() == first.matched()
    assert again.digests()["matched"] == first.digests()["matched"]


def test_repeats_and_the_rows_of_an_outer_join_are_counted(desk: Desk) -> None:
    sql = """
    SELECT l.id AS left_id, r.id AS right_id FROM left_src l FULL JOIN right_src r ON l.ref = r.ref
    UNION ALL SELECT l.id, r.id FROM left_src l JOIN right_src r ON l.ref = r.ref
    """
    found = desk.run(
        desk.parquet("left", [("L1", "a", "1"), ("L2", "x", "2")]),
        desk.parquet("right", [("R1", "a", "1"), ("R2", "y", "2")]),
        sql,
    )
    assert found.matched() == {("L1", "R1", "1:1")}
    assert found.metadata["match_sql"] == {"pairs": 1, "repeats": 1, "unpaired": 2}


def test_a_key_that_several_rows_have_is_ambiguous_and_no_row_is_lost(desk: Desk) -> None:
    left: Rows = [("K", "a", "1"), ("K", "b", "2"), ("L", "c", "3"), (None, "d", "4")]
    right: Rows = [("R", "a", "1"), ("S", "c", "3"), ("T", "d", "4")]
    found = desk.run(
        desk.csv("left", left),
        desk.csv("right", right),
        "SELECT l.id AS left_id, r.id AS right_id FROM left_src l JOIN right_src r USING (ref)",
    )
    assert found.matched() == {("L", "S", "1:1")}
    doubts = {row["record_key"]: row for row in found.rows("ambiguous")}
    assert set(doubts) == {"K#1", "K#2", "R"}
    assert doubts["R"]["candidates"] == ["K#1", "K#2"]
    assert doubts["R"]["candidate_count"] == 2
    assert {row["reason"] for row in doubts.values()} == {"doubled_key"}
    assert [row["record_key"] for row in found.rows("unmatched_left")] == ["∅#1"]
    assert [row["record_key"] for row in found.rows("unmatched_right")] == ["T"]


def test_filters_hold_before_the_sql_sees_a_row(desk: Desk) -> None:
    left = desk.parquet("left", LEFT) | {"filters": [{"column": "amount", "op": "lt", "value": 25}]}
    found = desk.run(left, desk.parquet("right", RIGHT), BY_REFERENCE)
    assert {left for left, *_ in found.matched()} == {"L1", "L2"}
    states = found.metadata["sources"]["left"]["states"]
    assert (states["filtered"]["rows"], states["unmatched"]["rows"]) == (5, 0)


def test_keys_may_be_numbers_of_several_parts_and_come_back_as_text(desk: Desk) -> None:
    path = desk.folder / "numbers.parquet"
    pq.write_table(pa.table({"a": [1, 1, 2], "b": [10, 20, 10], "ref": ["x", "y", "z"]}), path)
    other = desk.csv("right", [("R1", "x", "1"), ("R2", "z", "2")])
    found = desk.run(
        {"uri": str(path), "primary_key": ["a", "b"]},
        other,
        "SELECT CAST(l.a AS STRING) AS a, l.b, r.id FROM left_src l JOIN right_src r"
        " ON l.ref = r.ref",
    )
    assert found.matched() == {("1|10", "R1", "1:1"), ("2|10", "R2", "1:1")}


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("SELECT l.id AS left_id FROM left_src l", "the right primary key id is missing"),
        ("SELECT l.*, r.* FROM left_src l JOIN right_src r USING (ref)", "AS left_id"),
        ("SELECT upper(l.id) AS left_id, r.id AS right_id FROM left_src l, right_src r", "no row"),
        ("SELECT * FROM parquet.`/etc`", "match_sql: "),
        ("SELECT l.nope AS left_id, r.id AS right_id FROM left_src l, right_src r", "nope"),
        ("SELECT sum(l.id) AS left_id, r.id AS right_id FROM left_src l, right_src r", "match_sql"),
    ],
)
def test_sql_that_cannot_be_used_is_refused_with_what_to_do(
    desk: Desk, sql: str, sentence: str
) -> None:
    left = desk.csv("left", [("l1", "a", "1")])
    with pytest.raises(InvalidInput, match=sentence):
        desk.run(left, desk.csv("right", [("R1", "a", "1")]), sql)
    assert not list(desk.folder.glob("out-*/metadata.json"))
    assert not list(desk.folder.glob("out-*/.work"))


def test_a_value_that_the_sql_cannot_use_fails_the_run_with_a_sentence(desk: Desk) -> None:
    sql = "SELECT l.id AS left_id, r.id AS right_id FROM left_src l JOIN right_src r"
    sql += " ON CAST(l.ref AS INT) = CAST(r.ref AS INT)"
    with pytest.raises(Permanent, match=r"match_sql failed: .*CAST_INVALID_INPUT"):
        desk.run(desk.csv("left", [("L1", "a", "1")]), desk.csv("right", [("R1", "1", "1")]), sql)


def test_spark_sees_the_amounts_of_a_text_that_the_evidence_sees(desk: Desk) -> None:
    texts = ["1e3", "10.50", "1.0000000001", " 7 ", "ten"]
    path = desk.folder / "texts.parquet"
    pq.write_table(pa.table({"id": list("abcde"), "ref": list("abcde"), "amount": texts}), path)
    left = {"uri": str(path), "amount": "amount", "primary_key": ["id"]}
    amounts = ("1000", "10.5", "1", "7", "10")
    right = desk.csv("right", list(zip("abcde", "abcde", amounts, strict=True)))
    found = desk.run(left, right, BY_REFERENCE)
    (unreadable,) = found.metadata["sources"]["left"]["unreadable"]
    assert unreadable["examples"] == ["1.0000000001", "1e3", "ten"]
    assert {key for key, *_ in found.matched()} == {"b", "d"}


def test_files_that_do_not_agree_on_a_column_are_read_as_the_evidence_reads_them(
    desk: Desk,
) -> None:
    folder = desk.folder / "mixed"
    folder.mkdir()
    narrow = pa.table({"id": pa.array([1, 2], pa.int32()), "ref": ["a", "b"]})
    pq.write_table(narrow, folder / "1.parquet")
    wide = pa.table({"id": pa.array([2**40], pa.int64()), "ref": ["c"], "more": ["x"]})
    pq.write_table(wide, folder / "2.parquet")
    side = {"uri": str(folder), "primary_key": ["id"]}
    found = desk.run(
        side,
        side,
        "SELECT l.id AS left_id, r.id AS right_id FROM left_src l JOIN right_src r USING (ref)",
    )
    assert {left for left, *_ in found.matched()} == {"1", "2", str(2**40)}


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("date_format(CAST('2024-01-01' AS DATE), l.ref) = r.ref", "Fail to recognize '{' pattern"),
        ("regexp_like(l.ref, 'a{3,2}')", "Illegal repetition range"),
    ],
)
def test_what_spark_cannot_do_with_the_sql_fails_the_run_with_a_sentence(
    desk: Desk, condition: str, said: str
) -> None:
    sql = "SELECT l.id AS left_id, r.id AS right_id FROM left_src l JOIN right_src r"
    sql += f" ON l.ref = r.ref AND {condition}"
    with pytest.raises(Permanent, match="match_sql failed: ") as failed:
        desk.run(desk.csv("left", [("L1", "{", "1")]), desk.csv("right", [("R1", "{", "1")]), sql)
    assert said in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_hot_key_that_makes_too_many_pairs_ends_the_run_and_says_so(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot = desk.parquet("hot", [(str(number), "HOT", "1") for number in range(40)])
    assert len(desk.run(hot, hot, BY_REFERENCE).matched()) == 80  # as one group, each of its keys
    monkeypatch.setattr(match_sql, "_MOST_PAIRS", 1_000)
    with pytest.raises(Permanent, match=r"more than 1,000 pairs .* more selective condition"):
        desk.run(hot, hot, BY_REFERENCE)


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ODD = {
    "a time to the nanosecond": pa.array([NOON.time()], pa.time64("ns")),
    "an instant to the nanosecond": pa.array([NOON], pa.timestamp("ns", "UTC")),
    "nothing but nulls": pa.nulls(1),
    "times": pa.array([[NOON.time()]], pa.list_(pa.time64("ns"))),
    "times in a record": pa.array([{"at": NOON.time()}], pa.struct([("at", pa.time64("ns"))])),
}


def test_an_amount_is_a_decimal_to_sql_however_its_digits_are_grouped(desk: Desk) -> None:
    path = desk.folder / "grouped.csv"
    path.write_text("id;ref;amount\nL1;a;1.234,56\nL2;b;12.34,5\n")
    side: dict[str, Any] = {"uri": str(path), "amount": "amount", "primary_key": ["id"]}
    side["csv"] = {"delimiter": ";", "decimal": ",", "thousands": "."}
    right = desk.parquet("right", [("R1", "a", "1234.56"), ("R2", "b", "1234.5")])
    found = desk.run(side, right, BY_REFERENCE)
    assert found.matched() == {("L1", "R1", "1:1")}
    matched = found.metadata["sources"]["left"]["states"]["matched"]
    assert Decimal(matched["amount"]) == Decimal("1234.56")


def test_a_column_of_a_type_that_spark_lacks_keeps_no_row_from_it(desk: Desk) -> None:
    path = desk.folder / "odd.parquet"
    pq.write_table(pa.table({"id": ["L1"], "ref": ["a"], **ODD}), path)
    side: dict[str, Any] = {"uri": str(path), "primary_key": ["id"]}
    by_reference = BY_REFERENCE.partition(" AND ")[0]
    assert desk.run(side, desk.csv("right", RIGHT), by_reference).matched() == {("L1", "R1", "1:1")}
    half = desk.folder / "half.parquet"
    pq.write_table(pa.table({"id": ["L1"], "ref": ["a"], "f": pa.array([1.5], pa.float16())}), half)
    side["uri"] = str(half)
    assert desk.run(side, desk.csv("right", RIGHT), by_reference).matched() == {("L1", "R1", "1:1")}


@pytest.mark.timeout(180)
def test_columns_under_many_names_do_not_hold_spark_up(desk: Desk) -> None:
    """It would work out what holds of these in any combination, for hours, whoever cancels it."""
    names = ["id", "ref", "a", "b", "c"]
    many = [f"{name}{number}" for name in names for number in range(8)]
    sql = f"""
    SELECT l.id0 AS left_id, r.id AS right_id
    FROM (SELECT {", ".join(f"{name[:-1]} AS {name}" for name in many)}
          FROM (SELECT id, ref, CAST(amount AS STRING) AS a, upper(ref) AS b, lower(ref) AS c
                FROM left_src) x
          WHERE coalesce({", ".join(names)}) > 'A' AND concat({", ".join(names)}) <> 'b') l
    JOIN right_src r ON l.ref0 = r.ref AND concat({", ".join(many)}) <> r.ref
    """
    evidence = desk.run(desk.parquet("left", LEFT), desk.parquet("right", RIGHT), sql)
    assert ("L1", "R1", "1:1") in evidence.matched()
