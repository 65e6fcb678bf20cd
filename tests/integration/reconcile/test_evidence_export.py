"""Exports read back by other programs: the rows of the filter, in its order, and no formula."""

from __future__ import annotations

import csv
import gc
import json
import resource
import subprocess
import sys
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.errors import InvalidInput, Unavailable
from kalla.reconcile.evidence.reading import evidence_export
from kalla.reconcile.evidence.reading.evidence_export import FORMATS, Format, export
from kalla.reconcile.evidence.reading.evidence_filters import Filter, Order
from kalla.reconcile.evidence.reading.evidence_pages import Query, page
from kalla.reconcile.evidence.reading.evidence_reader import reading
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.storage import LOCAL
from tests import evidence_kit
from tests.evidence_kit import SCHEMA, invoices_and_payments, make_evidence

NINE_PLACES = pa.decimal128(18, 9)  # as amounts of a text are held

DANGEROUS = [
    "=1+1",
    "+SUM(A1)",
    "-2+3",
    "@cmd",
    "\tx",
    "＝1",
]


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_evidence(tmp_path_factory.mktemp("run") / "run", *invoices_and_payments(60))


def exported(url: str, part: str, style: Format, folder: Path, **more: Any) -> Path:
    path = folder / f"out.{style}"
    filters = tuple(map(Filter.parse, more.pop("filters", ())))
    orders = tuple(map(Order.parse, more.pop("sort", ())))
    export(url, part, Query(filters, orders), style, path, LOCAL, **more)
    return path


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file, strict=True))


def read_sheet(path: Path, number: int = 1) -> list[list[tuple[str, str]]]:
    """The cells of a sheet: type and value. Says more than a reader that interprets them."""
    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    with zipfile.ZipFile(path) as book:
        root = ElementTree.fromstring(book.read(f"xl/worksheets/sheet{number}.xml"))  # noqa: S314
    assert root.find(f".//{space}f") is None  # no formula anywhere
    return [
        [
            (cell.get("t", "n"), "".join(cell.itertext()))
            for cell in row.iter(f"{space}c")
        ]
        for row in root.iter(f"{space}row")
    ]  # fmt: skip


@pytest.mark.parametrize("part", DATASETS)
def test_every_format_has_the_rows_of_the_pages_in_their_order(
    evidence: str, tmp_path: Path, part: str
) -> None:
    shown = page(evidence, part, Query(limit=1000), LOCAL)
    names = [each.name for each in shown.columns]
    tables = pq.read_table(exported(evidence, part, "parquet", tmp_path))
    assert tables.column_names == names
    assert tables.num_rows == shown.total == len(shown.rows)
    key = "left_key" if part == "matched" else "record_key"
    assert tables.column(key).to_pylist() == [row[key] for row in shown.rows]

    rows = read_csv(exported(evidence, part, "csv", tmp_path))
    assert list(rows[0]) == names
    for row, wanted in zip(rows, shown.rows, strict=True):
        for name, value in wanted.items():
            if isinstance(value, list):
                assert json.loads(row[name]) == value
            elif name != "matched_at":
                assert row[name] == ("" if value is None else str(value).replace("False", "false"))

    head, *cells = read_sheet(exported(evidence, part, "xlsx", tmp_path))
    words = list(shown.labels.texts(part, names).values())
    assert [name.removesuffix(" (UTC)") for _, name in head] == words
    assert len(cells) == shown.total


@pytest.mark.parametrize("style", FORMATS)
def test_filter_and_sort_are_those_of_the_pages(style: Format, tmp_path: Path) -> None:
    """Numbers are in order as numbers, and texts as they are, not as they are written."""
    given = [("=a", "r", "7.00"), ("0", "s", "500.00"), ("b", "t", "20428.87"), ("c", "u", "1")]
    url = make_evidence(tmp_path / "run", given, [])

    def keys(sort: str) -> list[str]:
        path = exported(
            url, "unmatched_left", style, tmp_path, filters=["amount:gt:1"], sort=[sort]
        )
        if style == "csv":
            return [row["record_key"].lstrip("'") for row in read_csv(path)]
        if style == "parquet":
            return [row["record_key"] for row in pq.read_table(path).to_pylist()]
        return [row[0][1] for row in read_sheet(path)[1:]]

    assert keys("-amount") == ["b", "0", "=a"]
    assert keys("amount") == ["=a", "0", "b"]
    assert keys("record_key") == ["0", "=a", "b"]


@pytest.mark.parametrize(
    ("part", "name"), [("matched", "confidence"), ("unmatched_left", "attempted_rules")]
)
def test_csv_is_in_the_order_of_the_pages_by_columns_that_it_writes_otherwise(
    evidence: str, tmp_path: Path, part: str, name: str
) -> None:
    key = "left_key" if part == "matched" else "record_key"
    shown = page(evidence, part, Query(orders=(Order.parse(f"-{name}"),), limit=1000), LOCAL)
    found = read_csv(exported(evidence, part, "csv", tmp_path, sort=[f"-{name}"]))
    assert [row[key] for row in found] == [row[key] for row in shown.rows]


def test_csv_is_rfc_4180_with_a_mark_of_utf_8_where_asked(tmp_path: Path) -> None:
    rows = [('a"b', "r", "1"), ("c,d", "s", "2"), ("e\nf", "t", "3"), ("g ü ∅", "u", "4")]
    url = make_evidence(tmp_path / "run", rows, [])
    plain = exported(url, "unmatched_left", "csv", tmp_path).read_bytes()
    assert plain.startswith(b"record_key,amount,")
    assert plain.count(b"\r\n") == 5
    assert b'\r\n"a""b",1.00,' in plain
    assert b'\r\n"c,d",2.00,' in plain
    assert b'\r\n"e\nf",3.00,' in plain
    marked = exported(url, "unmatched_left", "csv", tmp_path, bom=True).read_bytes()
    assert marked == b"\xef\xbb\xbf" + plain
    assert [row["record_key"] for row in read_csv(tmp_path / "out.csv")] == [row[0] for row in rows]


def test_amounts_are_told_without_the_zeros_that_fill_nine_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_kit, "SCHEMA", SCHEMA.set(2, pa.field("amount", NINE_PLACES)))
    amounts = {"50": "50.00", "-1.2345": "-1.2345", "0.000000001": "0.000000001", "100.1": "100.10"}
    url = make_evidence(tmp_path / "run", [(key, "r", key) for key in amounts], [])
    found = read_csv(exported(url, "unmatched_left", "csv", tmp_path))
    assert {row["record_key"]: row["amount"] for row in found} == amounts
    shown = page(url, "unmatched_left", Query(limit=10), LOCAL)
    assert {row["record_key"]: row["amount"] for row in shown.rows} == amounts


def test_text_that_looks_like_a_formula_is_shown_and_not_carried_out(tmp_path: Path) -> None:
    plain = ["-12", "+3.50", "a=b", "INV-1"]
    rows = [(key, "r", "-5") for key in (*DANGEROUS, *plain)]
    url = make_evidence(tmp_path / "run", rows, [])
    found = read_csv(exported(url, "unmatched_left", "csv", tmp_path))
    assert {row["record_key"] for row in found} == {f"'{key}" for key in DANGEROUS} | set(plain)
    assert {row["amount"] for row in found} == {"-5.00"}
    sheet = read_sheet(exported(url, "unmatched_left", "xlsx", tmp_path))
    texts = {row[0] for row in sheet[1:]}
    assert texts == {("inlineStr", key) for key in (*DANGEROUS, *plain)}


def test_a_sheet_has_numbers_where_they_are_exact_and_text_where_not(tmp_path: Path) -> None:
    amounts = {"a": "1234567890123.45", "b": "1234567890123456.78", "c": "-0.10", "d": "5"}
    rows = [(key, "r", amount) for key, amount in amounts.items()]
    url = make_evidence(tmp_path / "run", rows, [])
    sheet = read_sheet(exported(url, "unmatched_left", "xlsx", tmp_path))
    found = {row[0][1]: row[1] for row in sheet[1:]}
    assert found["a"] == ("n", "1234567890123.45")
    assert found["b"] == ("inlineStr", "1234567890123456.78")
    assert found["c"][0] == "n"
    assert Decimal(found["c"][1]) == Decimal("-0.1")


@pytest.mark.parametrize(
    ("value", "fits"),
    [("1E+19", True), ("10000000000000000000.000000001", False), ("123456789012345", True)],
)
def test_a_number_fits_a_cell_if_none_of_its_digits_is_lost(value: str, fits: bool) -> None:
    assert evidence_export._fits(Decimal(value)) is fits


@pytest.mark.parametrize("key", ["x" * 40_000, "x" + "\N{GRINNING FACE}" * 20_000])
def test_a_text_longer_than_a_cell_says_that_it_is_cut(tmp_path: Path, key: str) -> None:
    """A spreadsheet, which refuses the book otherwise, counts some characters twice."""
    url = make_evidence(tmp_path / "run", [(key, "r", "1")], [])
    sheet = read_sheet(exported(url, "unmatched_left", "xlsx", tmp_path))
    kind, text = sheet[1][0]
    assert kind == "inlineStr"
    assert 32_766 <= len(text.encode("utf-16-le")) // 2 <= 32_767
    assert text.endswith("(cut: a cell holds no more)")


def test_more_rows_than_a_sheet_holds_are_refused_with_a_way_out(
    evidence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_export, "SHEET_ROWS", 5)
    with pytest.raises(InvalidInput, match=r"these are 12: filter them, or export CSV or Parquet"):
        exported(evidence, "unmatched_left", "xlsx", tmp_path)
    few = exported(evidence, "unmatched_left", "xlsx", tmp_path, filters=["amount:lt:200"])
    assert len(read_sheet(few)) == 5


@pytest.mark.parametrize("style", ["csv", "parquet", "xlsx"])
def test_a_part_without_files_is_a_file_with_a_header(
    evidence: str, tmp_path: Path, style: Format
) -> None:
    document = json.loads(Path(evidence, "metadata.json").read_text())
    document["datasets"]["ambiguous"]["files"] = []
    (tmp_path / "metadata.json").write_text(json.dumps(document))
    path = exported(str(tmp_path), "ambiguous", style, tmp_path)
    columns = ["record_key", "side", "amount", "currency"]
    columns += ["rule", "candidates", "candidate_count", "reason", "date"]
    if style == "parquet":
        found = pq.read_table(path)
        assert (found.column_names, found.num_rows) == (columns, 0)
    elif style == "csv":
        assert path.read_bytes() == ",".join(columns).encode() + b"\r\n"
    else:
        words = [each.replace("_", " ") for each in columns]
        assert [[text for _, text in row] for row in read_sheet(path)] == [words]


@pytest.mark.parametrize("style", FORMATS)
def test_a_disk_that_is_full_is_no_fault_of_the_evidence(
    evidence: str, tmp_path: Path, style: Format
) -> None:
    """As `ulimit -f 1` has it; in a process of its own, for it holds for all files."""
    (tmp_path / "temp").mkdir()
    code = (
        "import sys; from kalla.cli.main import main;"
        f"sys.argv[1:] = ['runs', 'export', {evidence!r}, 'matched', '--output', 'out.{style}'];"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={
            "TMPDIR": str(tmp_path / "temp"),
            "PYTHONPATH": ":".join(sys.path),
            "PYTHONDONTWRITEBYTECODE": "1",  # it would be cut short as well, unnoticed
        },
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("the export cannot be written: ")
    assert line.endswith(": File too large")
    assert not list((tmp_path / "temp").iterdir())


@pytest.mark.parametrize("style", FORMATS)
def test_a_file_that_finds_no_room_is_told_once_and_by_nobody_else(
    evidence: str, tmp_path: Path, style: Format
) -> None:
    """What a library says of it as it is dropped is a warning here, and so an error."""
    (tmp_path / f"out.{style}").symlink_to("/dev/full")
    with pytest.raises(Unavailable, match=r"^the export cannot be written: .*No space left"):
        exported(evidence, "matched", style, tmp_path)
    gc.collect()


def test_rows_that_find_no_room_to_be_put_aside_are_no_fault_of_the_evidence() -> None:
    def fail() -> None:
        with reading(LOCAL) as reader:
            reader.execute("COPY (SELECT 1 FROM range(100000)) TO '/dev/full' (FORMAT csv)")

    with pytest.raises(
        Unavailable, match=r"^no disk space is left to read the evidence with: Could not"
    ):
        fail()
