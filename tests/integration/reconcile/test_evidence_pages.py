"""Pages of real evidence: every row once whatever the order, filters exact, nothing injected."""

from __future__ import annotations

import base64
import json
import random
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kalla.errors import InvalidInput, NotFound, Unavailable
from kalla.reconcile.evidence.reading.evidence_filters import Filter, Order, condition
from kalla.reconcile.evidence.reading.evidence_pages import Page, Query, as_json, page
from kalla.reconcile.evidence.reading.evidence_reader import Column, Damaged, reading
from kalla.reconcile.evidence.reading.exception_figures import exception_figures
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.recipe.model import Recipe
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import LOCAL
from tests.evidence_kit import invoices_and_payments, make_evidence, match_here


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("browsing") / "odd [name]* of a folder"
    return make_evidence(folder, *invoices_and_payments(200))


def look(url: str, part: str, *filters: str, sort: str = "", **more: Any) -> Page:
    orders = Order.parse_all(sort)
    return page(url, part, Query(tuple(map(Filter.parse, filters)), orders, **more), LOCAL)


def keys(found: Page) -> list[str]:
    name = "left_key" if found.part == "matched" else "record_key"
    return [row[name] for row in found.rows]


def in_files(url: str, part: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        files = [str(file) for file in (Path(url) / part).iterdir()]
        return connection.execute("SELECT * FROM read_parquet(?)", [files]).fetchall()


def turned(url: str, part: str, sort: str, limit: int) -> list[Page]:
    pages = [look(url, part, sort=sort, limit=limit)]
    while (cursor := pages[-1].next) is not None:
        pages.append(look(url, part, sort=sort, limit=limit, after=cursor))
    return pages


def columns_of(url: str, part: str) -> Sequence[str]:
    return [each.name for each in look(url, part, limit=1).columns]


@pytest.mark.parametrize(
    ("part", "sort"),
    [
        ("matched", ""),
        ("matched", "-match_id"),
        ("matched", '"-difference.tolerance(amount, amount)"'),
        ("matched", "matched_at"),
        ("matched", "-interchangeable,confidence"),
        ("unmatched_left", "difference"),
        ("unmatched_left", "-difference"),
        ("unmatched_left", "-attempted_rules"),
        ("unmatched_left", "-amount"),
        ("unmatched_right", ""),
        ("ambiguous", "-record_key"),
        ("ambiguous", "candidate_count,-candidates"),
    ],
)
def test_every_row_is_on_exactly_one_page_whatever_the_order(
    evidence: str, part: str, sort: str
) -> None:
    """Also where a column is null in many rows, or a list, or the same in all."""
    wanted = len(in_files(evidence, part))
    limit = wanted // 3 + 1
    pages = turned(evidence, part, sort, limit)
    rows = [json.dumps(row, sort_keys=True) for each in pages for row in each.rows]
    assert len(rows) == len(set(rows)) == wanted
    assert {each.total for each in pages} == {wanted}
    assert [each.first for each in pages] == list(range(0, wanted, limit))


def test_pages_are_turned_back_as_they_were_turned_forth(evidence: str) -> None:
    for sort in ("-amount", "difference", "-closest_candidate,rule"):
        forth = turned(evidence, "unmatched_left", sort, 15)
        back = [forth[-1]]
        while (cursor := back[-1].previous) is not None:
            back.append(look(evidence, "unmatched_left", sort=sort, limit=15, before=cursor))
        assert [each.rows for each in reversed(back)] == [each.rows for each in forth]
        assert [each.first for each in reversed(back)] == [each.first for each in forth]


def test_an_order_is_the_one_asked_for_with_nulls_last(evidence: str) -> None:
    rows = look(evidence, "unmatched_left", sort="-amount", limit=1000).rows
    amounts = [Decimal(row["amount"]) for row in rows]
    assert amounts == sorted(amounts, reverse=True)
    rows = look(evidence, "unmatched_left", sort="-difference", limit=1000).rows
    differences = [row["difference"] for row in rows]
    given = [each for each in differences if each is not None]
    assert 0 < len(given) < len(differences)
    assert differences[: len(given)] == sorted(given, reverse=True)


def test_values_are_json_and_exact(evidence: str, tmp_path: Path) -> None:
    found = look(evidence, "matched", limit=1).rows[0]
    assert json.loads(json.dumps(found)) == found
    assert found["confidence"] == "1.00"
    assert found["matched_at"].endswith("Z")
    amount = "1234567890123456.78"
    url = make_evidence(tmp_path / "wide", [("a", "r", amount)], [])
    (row,) = look(url, "unmatched_left").rows
    assert row["amount"] == amount


@pytest.mark.parametrize(
    ("part", "filters", "expected"),
    [
        ("unmatched_left", ["record_key:eq:INV-00010"], ["INV-00010"]),
        ("unmatched_left", ["record_key:startswith:INV-0001"], ["INV-00010", "INV-00011"]),
        ("unmatched_left", ["record_key:contains:0010", "record_key:ne:INV-00101"],
         ["INV-00010", "INV-00100"]),
        ("unmatched_left", ["record_key:in:INV-00010,INV-00021,x"], ["INV-00010", "INV-00021"]),
        ("unmatched_left", ["amount:eq:170"], ["INV-00010"]),
        ("unmatched_left", ["amount:in:170,177.00,5"], ["INV-00010", "INV-00011"]),
        ("unmatched_left", ["amount:eq:1,010.00"], ["INV-00130"]),
        ("unmatched_left", ["amount:gt:169.999", "amount:lt:177.001"], ["INV-00010", "INV-00011"]),
        ("unmatched_left", ["amount:gte:170.001", "amount:lte:177"], ["INV-00011"]),
        ("unmatched_left", ["amount:gt:170", "amount:lte:177.009"], ["INV-00011"]),
        ("unmatched_left", ["amount:gte:170", "amount:lt:177"], ["INV-00010"]),
        ("unmatched_left", ["amount:eq:170.001"], []),
        ("unmatched_left", ["record_key:contains:%"], []),
        ("unmatched_left", ["difference:not_null", "amount:lt:110"], ["INV-00001"]),
        ("unmatched_left", ["difference:is_null", "record_key:startswith:INV-0000"], ["INV-00000"]),
        ("unmatched_left", ["difference:ne:-5", "record_key:startswith:INV-0000"], ["INV-00000"]),
        ("unmatched_left", ["attempted_rules:eq:paid in full", "record_key:eq:INV-00000"],
         ["INV-00000"]),
        ("unmatched_left", ["attempted_rules:ne:paid in full"], []),
        ("unmatched_left", ["attempted_rules:contains:in pa", "record_key:eq:INV-00000"],
         ["INV-00000"]),
        ("ambiguous", ["side:eq:left", "candidates:startswith:PAY-00003"], ["INV-00003"]),
        ("ambiguous", ["candidates:in:PAY-00003-0,PAY-00013-1", "side:eq:left"],
         ["INV-00003", "INV-00013"]),
        ("ambiguous", ["candidate_count:gt:2"], []),
        ("matched", ["right_key:eq:PAY-00002-1", "interchangeable:eq:false"], ["INV-00002"]),
        ("matched", ["right_key:eq:PAY-00002-1", "interchangeable:in:true,false"], ["INV-00002"]),
        ("matched", ["interchangeable:in:true"], []),
        ("matched", ["matched_at:lt:2020-01-01"], []),
        ("matched", ["matched_at:gte:2020-01-01T00:00Z", "left_key:eq:INV-00004"], ["INV-00004"]),
        ("matched", ["confidence:lt:1"], []),
    ],
)  # fmt: skip
def test_filters(evidence: str, part: str, filters: list[str], expected: list[str]) -> None:
    found = look(evidence, part, *filters)
    assert keys(found) == expected
    assert found.total == len(expected)


def test_a_folder_named_as_a_column_is_none(tmp_path: Path) -> None:
    rows = [("a", "r", "1"), ("b", "s", "2")]
    plain = make_evidence(tmp_path / "run", rows, rows[:1])
    url = make_evidence(tmp_path / "status=final" / "ordinal=9", rows, rows[:1])
    assert digests(url) == digests(plain)
    (row,) = look(url, "matched").rows
    assert row["status"] == "confirmed"
    assert row.keys() == look(plain, "matched").rows[0].keys()


def digests(url: str) -> dict[str, str]:
    datasets = json.loads((Path(url) / "metadata.json").read_text())["datasets"]
    return {name: each["digest"] for name, each in datasets.items()}


def test_a_value_with_a_comma_stands_in_quotes(tmp_path: Path) -> None:
    url = make_evidence(tmp_path / "run", [("a,b", "r", "1"), ("a", "s", "2"), ("b", "t", "3")], [])
    assert keys(look(url, "unmatched_left", 'record_key:in:"a,b",b')) == ["a,b", "b"]


HOSTILE = [
    "' OR true --",
    "\" OR true --",
    "'; DROP TABLE x; --",
    "') UNION SELECT * FROM read_text('/etc/passwd') --",
    "?",
    "\x00",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_values_and_names_are_never_sql(evidence: str, text: str) -> None:
    for op in ("contains", "in"):
        assert look(evidence, "unmatched_left", f"record_key:{op}:{text}").total == 0
        assert look(evidence, "unmatched_left", f"attempted_rules:{op}:{text}").total == 0
    assert look(evidence, "unmatched_left", f"record_key:ne:{text}").total == 40
    refused: list[tuple[list[str], dict[str, str]]] = [
        ([f"{text.replace(':', '')}:eq:x"], {}),
        ([f"amount:eq:{text}"], {}),
        ([], {"sort": text.replace(",", "")}),
        ([], {"after": text}),
    ]
    for filters, more in refused:
        with pytest.raises(InvalidInput):
            look(evidence, "unmatched_left", *filters, **more)
    with pytest.raises(InvalidInput):
        look(evidence, "matched", f"matched_at:eq:{text}")
    with pytest.raises(NotFound):
        look(evidence, text)


def test_a_keys_own_signs_are_found_as_they_are(tmp_path: Path) -> None:
    rows = [
        (f"{number} {text}", "r", "1") for number, text in enumerate(HOSTILE) if "\x00" not in text
    ]
    url = make_evidence(tmp_path / "run", rows, [])
    for key, *_ in rows:
        assert keys(look(url, "unmatched_left", f"record_key:eq:{key}")) == [key]
    assert len(turned(url, "unmatched_left", "-record_key", 2)[-1].rows) == 1


@pytest.mark.parametrize(
    ("filters", "sentence"),
    [
        (["amuont:eq:1"], "there is no column 'amuont'; there are record_key, amount"),
        (["amount:like:1"], "is not column:op:value with one of eq, ne"),
        (["amount"], "is not column:op:value"),
        (["amount:is_null:1"], "is not column:op:value"),
        (["amount:contains:1"], "contains does not fit amount, whose values are number"),
        (["record_key:gt:1"], "gt does not fit record_key, whose values are text"),
        (["amount:eq:1.234,56"], "'1.234,56' is not a number"),
        (["amount:eq:1,23"], "'1,23' is not a number"),
        (["amount:eq:NaN"], "'NaN' is not a number"),
        (["amount:gt:1e40"], "has too many digits"),
        (["amount:eq:1"] * 21, "there may be at most 20"),
    ],
)
def test_what_is_asked_amiss_is_told(evidence: str, filters: list[str], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence.replace("(", r"\(")):
        look(evidence, "unmatched_left", *filters)


def test_a_cursor_of_another_filter_order_or_part_is_refused(evidence: str) -> None:
    cursor = look(evidence, "unmatched_left", sort="-amount", limit=1).next
    assert cursor
    forged = json.loads(base64.urlsafe_b64decode(cursor + "=="))
    forged[2] = "no amount"
    wrong = base64.urlsafe_b64encode(json.dumps(forged).encode()).decode()
    refused: list[tuple[str, list[str], dict[str, str]]] = [
        ("unmatched_left", [], {"after": cursor}),
        ("unmatched_left", ["amount:gt:1"], {"sort": "-amount", "after": cursor}),
        ("unmatched_right", [], {"sort": "-amount", "after": cursor}),
        ("unmatched_left", [], {"sort": "-amount", "after": wrong}),
        ("unmatched_left", [], {"sort": "-amount", "after": cursor, "before": cursor}),
    ]
    for part, filters, more in refused:
        with pytest.raises(InvalidInput):
            look(evidence, part, *filters, **more)
    assert look(evidence, "unmatched_left", sort="-amount", after=cursor).first == 1


@pytest.mark.parametrize("limit", [0, 1001])
def test_a_page_has_1_to_1000_rows(evidence: str, limit: int) -> None:
    with pytest.raises(InvalidInput, match="from 1 to 1000"):
        look(evidence, "matched", limit=limit)


@pytest.mark.parametrize("part", DATASETS)
def test_a_part_without_files_is_an_empty_page_with_its_columns(
    evidence: str, tmp_path: Path, part: str
) -> None:
    (tmp_path / "metadata.json").write_text(json.dumps({"datasets": {part: {"files": []}}}))
    # Those that all evidence has: what a recipe shows or compares has a point in its name.
    there = [each for each in look(evidence, part, limit=1).columns if "." not in each.name]
    found = look(str(tmp_path), part, sort=there[-1].name)
    assert (found.rows, found.total, found.next) == ((), 0, None)
    assert {each.name for each in found.columns} == {each.name for each in there}
    # A recipe without currencies or dates has no other kind of value in them.
    kinds = {each.name: each.kind for each in found.columns}
    assert kinds == {each.name: each.kind for each in there}


def test_evidence_that_is_gone_is_not_taken_for_empty(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"it has no metadata\.json"):
        look(str(tmp_path), "matched")
    (tmp_path / "metadata.json").write_text('{"datasets": {"matched": {"files": ["a.parquet"]}}}')
    with pytest.raises(NotFound, match=r"is not whole: matched/a\.parquet is missing"):
        look(str(tmp_path), "matched")
    with pytest.raises(Damaged, match="does not name the files of ambiguous"):
        look(str(tmp_path), "ambiguous")


def test_files_that_the_metadata_do_not_name_are_not_of_the_run(tmp_path: Path) -> None:
    url = make_evidence(tmp_path / "run", *invoices_and_payments(20))
    before = [look(url, part) for part in DATASETS]
    for part in DATASETS:
        for file in list((Path(url) / part).iterdir()):
            shutil.copy(file, file.with_name("another.parquet"))
    assert [look(url, part) for part in DATASETS] == before


def test_a_reader_that_takes_too_long_is_ended(evidence: str) -> None:
    """With no time at all even the smallest evidence takes too long."""
    with pytest.raises(Unavailable, match="took longer than"):
        page(evidence, "matched", Query(), LOCAL, Bounds(seconds=0))


@pytest.mark.parametrize(
    ("held", "told"),
    [("20428.870000000", "20428.87"), ("0.000000001", "0.000000001"), ("7", "7"), ("5.0", "5.0")],
)
def test_amounts_are_told_without_the_places_they_are_held_with(held: str, told: str) -> None:
    assert as_json(Decimal(held)) == told


def test_only_amounts_are_read_as_money() -> None:
    names = ["amount", "left_amount", "right_sum", "difference.tolerance(a, b)", "left.customer"]
    assert [Column(name, "DECIMAL(18,2)").is_amount for name in names] == [*[True] * 4, False]


def test_differences_are_sorted_and_compared_as_numbers(tmp_path: Path) -> None:
    """They are texts, for some are days: 9 stood above 10."""
    left = [(f"L{number}", f"r{number}", "100") for number in range(4)]
    right = [
        (f"R{number}", f"r{number}", str(100 + more)) for number, more in enumerate((9, 10, 2, 30))
    ]
    url = make_evidence(tmp_path / "run", left, right)
    assert keys(look(url, "unmatched_left", sort="-difference")) == ["L3", "L1", "L0", "L2"]
    assert keys(look(url, "unmatched_left", "difference:gt:9", sort="difference")) == ["L1", "L3"]
    pages = turned(url, "unmatched_left", "-difference", 1)
    assert [keys(page)[0] for page in pages] == ["L3", "L1", "L0", "L2"]


def test_amounts_may_be_sorted_by_their_size_whichever_sign_they_have(tmp_path: Path) -> None:
    rows = [("a", "r", "5"), ("b", "r2", "-900"), ("c", "r3", "70")]
    url = make_evidence(tmp_path / "run", rows, [])
    assert keys(look(url, "unmatched_left", sort="-|amount|")) == ["b", "c", "a"]
    pages = turned(url, "unmatched_left", "-|amount|", 1)
    assert [keys(page)[0] for page in pages] == ["b", "c", "a"]
    with pytest.raises(InvalidInput, match="record_key is not a number"):
        look(url, "unmatched_left", sort="|record_key|")


def test_each_bar_of_the_exceptions_counts_the_rows_that_its_filters_show(tmp_path: Path) -> None:
    """Whatever amounts and dates there are: none, zero, credits, range ends, the future."""
    chance = random.Random(7)
    today = datetime.now(UTC).date()
    lines = {side: ["id,amount,day"] for side in ("left", "right")}
    for number in range(300):
        cents = chance.choice([0, 999, 1_000, 50_000, -100_000, chance.randrange(20_000_000)])
        days = chance.choice([-3, 0, 7, 8, 30, 31, 365, 366, chance.randrange(900)])
        amount = "" if chance.random() < 0.1 else f"{cents / 100:.2f}"
        day = "" if chance.random() < 0.1 else (today - timedelta(days=days)).isoformat()
        side = chance.choice(["left", "right"])
        lines[side].append(f"{side}-{number},{amount},{day}")
    sources = {}
    for side, each in lines.items():
        (tmp_path / f"{side}.csv").write_text("\n".join(each))
        place = str(tmp_path / f"{side}.csv")
        sources[side] = {"uri": place, "primary_key": ["id"], "amount": "amount", "date": "day"}
    conditions = [
        {"left": "id", "op": "eq", "right": "id"},
        {"left": "day", "op": "date_window", "right": "day", "days": 0},
    ]
    rules = [{"name": "r", "conditions": conditions}]
    recipe = Recipe.model_validate({"name": "x", "sources": sources, "rules": rules})
    url = match_here(recipe, tmp_path / "evidence")
    reasons, ages, amounts = exception_figures(url, LOCAL).charts
    with reading(LOCAL) as reader:
        for chart in (reasons, ages, amounts):
            for label, bars in chart.bars.items():
                for bar in bars.values():
                    dataset = reader.dataset(url, bar.part)
                    where = condition(dataset, list(map(Filter.parse, bar.filters)))
                    counted = f"SELECT count(*) FROM {dataset.relation} WHERE {where.sql}"
                    found = reader.rows(counted, where.values)
                    assert found == [(bar.rows,)], (chart.title, label)
    assert sum(bar.rows for bars in reasons.bars.values() for bar in bars.values()) == 300
    assert len(ages.bars) == 5
    assert len(amounts.bars) == 6
