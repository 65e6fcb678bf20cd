"""XLSX files are read with their cells' types, bank exports without lines that are not rows."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
import xlsxwriter
from typer.testing import CliRunner

from kalla.cli.main import application
from kalla.errors import InvalidInput
from kalla.reconcile.propose.side_tables import sniffed
from kalla.reconcile.recipe.model import Source
from kalla.reconcile.sources import native_files
from kalla.reconcile.sources.formats import workbook_process
from kalla.reconcile.sources.scanning.scan_sql import scan
from kalla.storage import LOCAL

EXAMPLES = Path(__file__).parents[3] / "examples" / "bank"


def source(path: Path, **options: Any) -> Source:
    return Source.model_validate({"uri": str(path), "primary_key": ["id"], **options})


def rows_of(given: Source) -> tuple[dict[str, str], list[tuple[Any, ...]]]:
    seen = native_files.inspect_files(given)
    return dict(seen.types), duckdb.execute(f"SELECT * FROM {scan(seen)}").fetchall()


def book(path: Path, fill: Callable[[Any, Any], None], **options: Any) -> Path:
    with xlsxwriter.Workbook(str(path), options) as made:
        fill(made, made.add_worksheet("Rows"))
    return path


@pytest.mark.parametrize("epoch_of_1904", [False, True])
def test_cells_keep_their_types(tmp_path: Path, epoch_of_1904: bool) -> None:
    def fill(made: Any, sheet: Any) -> None:
        day = made.add_format({"num_format": "dd.mm.yyyy"})
        minute = made.add_format({"num_format": "dd.mm.yyyy hh:mm"})
        sheet.write_row(0, 0, ["id", "amount", "day", "at", "code", "paid"])
        sheet.write_row(1, 0, [1, 0.1 + 0.2])
        sheet.write(1, 2, date(2026, 5, 1), day)
        sheet.write(1, 3, datetime(2026, 5, 1, 12, 30), minute)  # noqa: DTZ001 -- cells have no zone
        sheet.write(1, 4, 7)
        sheet.write(1, 5, True)
        sheet.write_row(2, 0, [2, -1234.5])
        sheet.write(2, 4, "007")

    path = book(tmp_path / "rows.xlsx", fill, date_1904=epoch_of_1904)
    types, rows = rows_of(source(path))
    assert types == {
        "id": "BIGINT", "amount": "DECIMAL(38,1)", "day": "DATE", "at": "TIMESTAMP",
        "code": "VARCHAR", "paid": "BOOLEAN",
    }  # fmt: skip
    moment = datetime(2026, 5, 1, 12, 30)  # noqa: DTZ001
    assert rows == [
        (1, Decimal("0.3"), date(2026, 5, 1), moment, "7", True),
        (2, Decimal("-1234.5"), None, None, "007", None),
    ]


def test_sheet_and_header_are_found_below_titles_and_beside_empty_columns(tmp_path: Path) -> None:
    def fill(made: Any, sheet: Any) -> None:
        sheet.write(0, 1, "Ledger of May")
        sheet.write_row(3, 1, ["id", "amount", "amount"])
        sheet.write_row(4, 1, ["A", 1, 2])
        sheet.write_row(6, 1, ["B", 3, 4])
        made.add_worksheet("Cover").write(0, 0, "nothing here")

    types, rows = rows_of(source(book(tmp_path / "rows.xlsx", fill)))
    assert list(types) == ["id", "amount", "amount_2"]
    assert rows == [("A", 1, 2), ("B", 3, 4)]


def test_options_say_another_sheet_header_and_footer(tmp_path: Path) -> None:
    def fill(made: Any, sheet: Any) -> None:
        sheet.write_row(0, 0, ["id", "amount"])
        sheet.write_row(1, 0, ["A", 1])
        sheet.write_row(2, 0, ["B", 1])
        other = made.add_worksheet("Other")
        other.write_row(0, 0, ["x", "y"])
        other.write_row(1, 0, ["id", "amount"])
        other.write_row(2, 0, ["C", 5])
        other.write_row(3, 0, ["Total", 5])

    path = book(tmp_path / "rows.xlsx", fill)
    options = {"sheet": "Other", "header_row": 2, "footer": 1}
    assert rows_of(source(path, xlsx=options))[1] == [("C", 5)]
    with pytest.raises(InvalidInput, match="has no sheet 'Third'; there are Rows, Other"):
        rows_of(source(path, xlsx={"sheet": "Third"}))


def test_sums_below_the_rows_are_left_out_and_reported(tmp_path: Path) -> None:
    records = 300

    def fill(_: Any, sheet: Any) -> None:
        sheet.write_row(0, 0, ["id", "payee", "amount"])
        for number in range(1, records + 1):
            sheet.write_row(number, 0, [f"R-{number}", "Total Energies SE", number / 4])
        sheet.write(records + 1, 0, "Summe")
        sheet.write(records + 1, 2, 480.5)

    path = book(tmp_path / "rows.xlsx", fill)
    seen = native_files.inspect_files(source(path))
    assert seen.rows == records
    assert "left out: 1 row of rows.xlsx below the rows: Summe 480.5" in seen.notes
    assert native_files.inspect_files(source(path, xlsx={"footer": 0})).rows == records + 1
    decisions = sniffed(source(path), LOCAL)[1]
    assert {each.option: each.value for each in decisions} == {"sheet": "Rows", "footer": 1}


@pytest.mark.parametrize("last", [["Total of May", "", 7], ["seen on 1 June"], ["Total", "x"]])
def test_a_last_row_that_may_be_a_record_is_kept(tmp_path: Path, last: list[Any]) -> None:
    def fill(_: Any, sheet: Any) -> None:
        for number, row in enumerate((["id", "payee", "amount"], ["A", "x", 3], ["B", "x", 4])):
            sheet.write_row(number, 0, row)
        sheet.write_row(3, 0, last)

    found = source(book(tmp_path / "rows.xlsx", fill))
    assert native_files.inspect_files(found).rows == 3
    (unsure,) = [each for each in sniffed(found, LOCAL)[1] if not each.is_sure]
    assert (unsure.option, unsure.value) == ("footer", 0)
    assert unsure.reason.endswith("; set xlsx.footer: 1 if it is not a row")


def bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("[Content_Types].xml", b"0" * (1 << 20))


def locked(path: Path) -> None:
    path.write_bytes(b"\xd0\xcf\x11\xe0" + "EncryptedPackage".encode("utf-16-le"))


def wide(path: Path) -> None:
    book(path, lambda _, sheet: sheet.write_row(0, 0, [f"c{n}" for n in range(3000)]))


def far_apart(path: Path) -> None:
    def fill(_: Any, sheet: Any) -> None:
        sheet.write(0, 0, "id")
        sheet.write(1_048_575, 16_383, "stray")

    book(path, fill)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (far_apart, "cells so far apart that it would need too much memory: delete the empty"),
        (bomb, "would unpack to 1,048,576 bytes"),
        (locked, "is protected by a password: save a copy without one"),
        (wide, "has 3,000 columns"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(b"id,amount\n1,2\n"), "is not an XLSX file"),
        (lambda path: path.write_bytes(b"\xd0\xcf\x11\xe0"), "is an Excel file of before 2007"),
        (lambda path: book(path, lambda *_: None), "no sheet holds a value"),
    ],
)
def test_files_that_are_no_workbook_are_refused_in_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], None],
    message: str,
) -> None:
    monkeypatch.setattr(workbook_process, "LARGEST_UNPACKED", 1 << 19)
    make(tmp_path / "rows.xlsx")
    with pytest.raises(InvalidInput, match=message):
        native_files.inspect_files(source(tmp_path / "rows.xlsx"))


def test_a_bank_export_is_read_without_its_preamble_and_its_sum() -> None:
    csv = {"delimiter": ";", "encoding": "windows-1252", "skip": 3, "footer": 1}
    seen = native_files.inspect_files(source(EXAMPLES / "bank-export.csv", csv=csv))
    assert list(seen.types)[-3:] == ["Währung", "Saldo", "Währung_2"]
    assert any("3 lines of bank-export.csv above the header" in note for note in seen.notes)
    assert any("Summe;;126 Umsätze" in note for note in seen.notes)
    negative = "any_value(Betrag) FILTER (Betrag LIKE '%-')"
    found = duckdb.execute(f"SELECT count(*), {negative} FROM {scan(seen)}")
    assert found.fetchall() == [(126, "23,55-")]
    assert seen.marks[0]["file"] == str(EXAMPLES / "bank-export.csv")


def test_a_profile_says_how_a_workbook_is_read_as_a_recipe_would() -> None:
    profile = ["sources", "profile", str(EXAMPLES / "ledger.xlsx")]
    output = CliRunner().invoke(application(["sources"]), profile).output
    assert "xlsx.sheet: 'Open items': the sheet with the most rows (123)" in output
    assert "xlsx.header_row: 3: the first line with 5 names" in output


def test_a_workbook_that_changes_is_converted_anew(tmp_path: Path) -> None:
    path = tmp_path / "rows.xlsx"
    for number in (1, 2):
        book(path, lambda _, sheet: sheet.write_column(0, 0, ["id", number]))  # noqa: B023
        assert rows_of(source(path))[1] == [(number,)]
