"""What evidence shows of rows: amounts, dates and named columns of both sides, parts and sums of
groups, and hostile texts as they are."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kalla.reconcile.arrays import column_arrays
from kalla.reconcile.evidence.reading.evidence_export import export
from kalla.reconcile.evidence.reading.evidence_filters import Filter, Order
from kalla.reconcile.evidence.reading.evidence_pages import Query, page
from kalla.reconcile.evidence.reading.evidence_reader import reading
from kalla.reconcile.evidence.reading.exception_detail import open_exception
from kalla.reconcile.evidence.reading.pair_conditions import Cell, failing
from kalla.reconcile.evidence.verifying.verification import verify
from kalla.reconcile.plan.plan import recipe_hash
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import Csv, Recipe, Side
from kalla.storage import LOCAL
from tests.evidence_kit import match_here
from tests.integration.reconcile.test_evidence_export import read_sheet

BANK = (
    "id;Betrag;Tag;payer;note: a,b",
    'B1;100,00;01.03.2026;<script>alert(1)</script>;"=HYPERLINK(""http://x"")"',
    "B2;60,00;02.03.2026;@SUM(A1);second",
    "B3;40,00;03.03.2026;@SUM(A1);+1",
    'B4;77,50;04.03.2026;"Bob ""B""";-2+3',
    "B5;1,00;05.03.2026;nobody;",
)
LEDGER = """\
no,reference,amount,due,customer
L1,B1,100.00,2026-03-01,<img src=x onerror=alert(1)>
L2,AB,100.00,2026-03-02,@SUM(A1)
L4,B4,77.00,2026-03-01,Bob
"""
RECIPE = """\
name: bank and ledger
sources:
  left:
    uri: {bank}
    primary_key: [id]
    amount: Betrag
    csv: {{delimiter: ";", decimal: ",", date_format: "%d.%m.%Y"}}
    show: [payer, "note: a,b", id]
  right:
    uri: {ledger}
    alias: general ledger
    primary_key: [no]
    amount: amount
    show: [customer]
rules:
  - name: one to one
    conditions:
      - {{left: id, op: eq, right: reference}}
      - {{left: Betrag, op: tolerance, right: amount, absolute: 0.01}}
      - {{left: Tag, op: date_window, right: due, days: 2}}
  - name: in parts
    cardinality: "N:1"
    conditions:
      - {{left: payer, op: eq, right: customer}}
      - {{left: Betrag, op: tolerance, right: amount, absolute: 0}}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    folder = tmp_path_factory.mktemp("sources")
    (folder / "bank.csv").write_text("\n".join(BANK))
    (folder / "ledger.csv").write_text(LEDGER)
    places = {name: json.dumps(str(folder / f"{name}.csv")) for name in ("bank", "ledger")}
    text = RECIPE.format_map(places)
    return parsing.read(text)


@pytest.fixture(scope="module", params=["few rows", "many rows"])
def evidence(
    request: pytest.FixtureRequest, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Of few rows by a join, of many from arrays."""
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "many rows":
            patched.setattr(column_arrays, "MANY", 1)
        return match_here(recipe, tmp_path_factory.mktemp("run") / "evidence")


def rows(url: str, part: str) -> list[dict[str, Any]]:
    files = sorted(Path(url, part).glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def of(row: Mapping[str, Any], *names: str) -> list[str]:
    return [str(row[name]) for name in names]


def test_a_pair_has_amounts_dates_and_named_columns_of_both_sides(evidence: str) -> None:
    (pair,) = [row for row in rows(evidence, "matched") if row["rule"] == "one to one"]
    assert pair["left.payer"] == "<script>alert(1)</script>"
    assert pair["left.note: a,b"] == '=HYPERLINK("http://x")'
    assert pair["left.id"] == pair["left_key"] == "B1"
    assert pair["right.customer"] == "<img src=x onerror=alert(1)>"
    assert pair["left_amount"] == pair["right_amount"] == Decimal(100)
    assert of(pair, "left_date", "right_date") == ["2026-03-01", "2026-03-01"]
    assert pair["difference.tolerance(Betrag, amount)"] == 0
    assert pair["difference.date_window(Tag, due)"] == 0
    assert (pair["part"], pair["parts"], pair["left_sum"]) == (1, 1, None)


def test_a_group_has_its_parts_and_sums_and_is_one_item(evidence: str) -> None:
    parts = [row for row in rows(evidence, "matched") if row["cardinality"] == "N:1"]
    assert sorted(of(row, "left_key", "right_key", "part")[0] for row in parts) == ["B2", "B3"]
    for row in parts:
        assert (row["left_sum"], row["right_sum"], row["parts"]) == (100, 100, 2)
        assert row["difference.tolerance(Betrag, amount)"] == 0
        assert row["difference.date_window(Tag, due)"] is None
    found = page(evidence, "matched", Query(items=True), LOCAL)
    assert found.total == 2
    item = next(row for row in found.rows if row["parts"] == 2)
    assert (item["left_amount"], item["right_amount"]) == ("100.00", "100.00")
    assert [row["left_key"] for row in found.parts[item["match_id"]]] == ["B2", "B3"]


def test_an_item_is_found_by_any_of_its_parts_and_sorted_by_its_sum(evidence: str) -> None:
    wanted = Query((Filter.parse("left.note: a,b:eq:+1"),), items=True)
    (item,) = page(evidence, "matched", wanted, LOCAL).rows
    assert item["parts"] == 2
    orders = Order.parse_all('"-left.note: a,b",left_amount')
    found = page(evidence, "matched", Query(orders=orders, items=True, limit=1), LOCAL)
    after = Query(orders=orders, items=True, limit=1, after=found.next)
    assert [*found.rows, *page(evidence, "matched", after, LOCAL).rows] == [
        *page(evidence, "matched", Query(orders=orders, items=True), LOCAL).rows
    ]


def test_an_exception_stands_beside_its_closest_candidate(evidence: str) -> None:
    row = next(each for each in rows(evidence, "unmatched_left") if each["record_key"] == "B4")
    assert of(row, "closest_candidate", "candidate_amount", "candidate_date", "date") == [
        "L4", "77.000000000", "2026-03-01", "2026-03-04"
    ]  # fmt: skip
    assert (row["left.payer"], row["right.customer"]) == ('Bob "B"', "Bob")
    found = open_exception(evidence, "unmatched_left", "left", "B4", LOCAL)
    assert found.names == {"left": "bank", "right": "general ledger"}
    assert found.reason == (
        "closest is L4 (unmatched): Betrag and amount differ by 0.50: 77.50 and 77;"
        " the rule allows up to 0.01"
    )
    fields = {each.label: each for each in found.fields}
    assert fields["Betrag / amount"].fails
    assert fields["Betrag / amount"].differs == (True,)
    assert fields["Tag / due"].others == ("2026-03-01",)
    assert fields["Tag / due"].differs == (True,)
    assert fields["payer / customer"].differs == (False,)  # another rule's
    assert (fields["payer / customer"].own, fields["payer / customer"].others) == (
        'Bob "B"',
        ("Bob",),
    )


def test_only_what_the_rule_finds_different_is_marked(tmp_path: Path) -> None:
    """Not a turned sign, a reference inside a text, another spelling, a day that is the same in the
    recipe's time zone, nor what no rule compares."""
    (tmp_path / "bank.csv").write_text(
        "id;text;sum;who;at\n1;paid re-7 today;1281,00-;Bob;2026-03-01T23:30:00Z\n"
    )
    (tmp_path / "ledger.csv").write_text("no,ref,sum,who,due,day\nA,RE-7,1281,Rob,,2026-03-02\n")
    recipe = f"""\
name: turned
time_zone: Europe/Berlin
sources:
  left:
    uri: {json.dumps(str(tmp_path / "bank.csv"))}
    primary_key: [id]
    amount: sum
    csv: {{delimiter: ";", decimal: ","}}
    show: [text, who, at]
  right:
    uri: {json.dumps(str(tmp_path / "ledger.csv"))}
    primary_key: [no]
    amount: sum
    show: [ref, who, due, day]
rules:
  - name: turned
    conditions:
      - {{left: text, op: eq, right: ref, derive: [upper], derive_left: [{{regex: 'RE-\\d+'}}]}}
      - {{left: sum, op: tolerance, right: sum, absolute: 0.01, negate: left}}
      - {{left: at, op: date_window, right: day, days: 0}}
      - {{left: id, op: eq, right: due}}
"""
    url = match_here(parsing.read(recipe), tmp_path / "evidence")
    found = open_exception(url, "unmatched_left", "left", "1", LOCAL)
    assert {each.label: each.differs for each in found.fields} == {
        "sum": (False,), "at / day": (False,), "id / due": (True,), "text / ref": (False,),
        "who": (False,), "no": (False,),
    }  # fmt: skip
    assert {each.own for each in found.fields if each.label == "sum"} == {"-1,281.00"}


def test_a_condition_of_imported_evidence_that_cannot_be_checked_marks_nothing() -> None:
    equal = {"left": "a", "op": "eq", "right": "b"}
    csv: dict[Side, Csv] = {"left": Csv(), "right": Csv()}
    with reading(LOCAL) as reader:
        for regex in ("(", "(?=a)"):  # of no language; not of DuckDB's
            found = [{**equal, "derive": [{"regex": regex}]}]
            cells: dict[Side, dict[str, Cell]] = {
                "left": {"a": Cell("1", "VARCHAR")},
                "right": {"b": Cell("2", "VARCHAR")},
            }
            assert failing(reader, found, csv, "UTC", cells) == set()


def test_exports_call_sides_by_their_sources_and_carry_nothing_out(
    evidence: str, tmp_path: Path
) -> None:
    export(evidence, "matched", Query(), "csv", tmp_path / "rows.csv", LOCAL)
    with (tmp_path / "rows.csv").open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file, strict=True))
    assert {each["bank.note: a,b"] for each in found} == {
        "'=HYPERLINK(\"http://x\")", "second", "+1"
    }  # fmt: skip
    assert found[0]["general ledger_key"].startswith("L")
    assert "'@SUM(A1)" in {each["general ledger.customer"] for each in found}
    export(evidence, "matched", Query(), "xlsx", tmp_path / "rows.xlsx", LOCAL)
    head, *cells = read_sheet(tmp_path / "rows.xlsx")
    assert ("s", "bank payer") in head or ("inlineStr", "bank payer") in head
    texts = {text for row in cells for _, text in row}
    assert {"<script>alert(1)</script>", "@SUM(A1)", '=HYPERLINK("http://x")'} <= texts
    summary = [[text for _, text in row] for row in read_sheet(tmp_path / "rows.xlsx", 2)]
    assert ["Rows in this file", "3", "matched"] in summary
    assert ["Status", "bank rows", "bank sum", "general ledger rows", "general ledger sum"] in (
        summary
    )
    (figures,) = [row[1:] for row in summary if row[:1] == ["matched"]]
    assert list(map(Decimal, figures)) == [3, 200, 2, 200]


def test_evidence_verifies_and_a_changed_shown_value_is_found(evidence: str) -> None:
    assert verify(evidence, LOCAL).holds
    (file,) = Path(evidence, "matched").glob("rule-0*.parquet")
    kept = file.read_bytes()
    table = pq.read_table(file)
    place = table.schema.get_field_index("right.customer")
    changed = table.set_column(place, "right.customer", table["right.customer"].take([0]))
    changed = changed.set_column(place, "right.customer", [["somebody else"]])
    try:
        pq.write_table(changed, file)
        claims = {each.claim for each in verify(evidence, LOCAL).mismatches}
    finally:
        file.write_bytes(kept)
    assert claims == {f"datasets.matched.sha256.{file.name}"}


def test_what_is_shown_changes_neither_the_hash_of_a_recipe_nor_what_was_decided(
    recipe: Recipe, evidence: str, tmp_path: Path
) -> None:
    left = recipe.sources.left.model_copy(update={"show": None, "alias": "another"})
    other = recipe.model_copy(update={"sources": recipe.sources.model_copy(update={"left": left})})
    assert recipe_hash(other) == recipe_hash(recipe)
    again = match_here(other, tmp_path / "evidence")
    first, second = (
        json.loads(Path(url, "metadata.json").read_text())["datasets"] for url in (evidence, again)
    )
    assert {name: first[name]["digest"] for name in first} == {
        name: second[name]["digest"] for name in second
    }
    assert set(rows(again, "matched")[0]) & {"left.payer", "left.id"} == {"left.payer"}
