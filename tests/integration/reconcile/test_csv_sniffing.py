"""How a CSV is written is found with the reason, and what is not CSV is refused in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kalla.errors import InvalidInput
from kalla.reconcile.propose import side_tables
from kalla.reconcile.propose.profile import profile
from kalla.reconcile.recipe.model import Csv, Source
from kalla.reconcile.sources import native_files
from kalla.reconcile.sources.formats.csv_sniffing import sniff
from kalla.storage import LOCAL


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (b"id,amount,day\n1,2.50,2026-01-31\n", {}),
        (b"id;betrag;tag\n1;1.234,50;31.01.2026\n",
         {"delimiter": ";", "decimal": ",", "thousands": ".", "date_format": "%d.%m.%Y"}),
        (b"id\tmontant\n1\t1 234,50\n2\t7,00\n",
         {"delimiter": "\t", "decimal": ",", "thousands": " "}),
        (b"id|chf\n1|1'234.50\n2|1'000'000.00\n", {"delimiter": "|", "thousands": "'"}),
        (b"id,usd,on\n1,\"1,234.50\",12/31/2026\n", {"thousands": ",", "date_format": "%m/%d/%Y"}),
        ("Konto: Müller\n\nid;wert\n1;2,5\n2;3,5\nSumme;6,0\n".encode("cp1252"),
         {"delimiter": ";", "decimal": ",", "skip": 2, "footer": 1, "encoding": "windows-1252"}),
        (b"payee;ref;paid\nMeier;R-1;2026-05-08\nTotal Energies SE;R-2;2026-05-09\n",
         {"delimiter": ";"}),
        (b"id,at\n1,2026-03-01 06:04:00 +0100\n", {"date_format": "%Y-%m-%d %H:%M:%S %z"}),
        (b"id,at,on\n1,2026-03-01 06:04:00 +0100,2026-03-02\n", {}),
        (b"id,at\n1,2026-03-01T06:04:00+01:00\n", {}),
        ("id,straße\n1,ä\n".encode("utf-8-sig"), {}),
        ("id,ort\n1,ä\n".encode("utf-16"), {"encoding": "utf-16"}),
    ],
)  # fmt: skip
def test_options_are_found_by_the_content(
    tmp_path: Path, content: bytes, options: dict[str, Any]
) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(content)
    found = sniff(str(file), LOCAL)
    assert found.csv.model_dump(exclude_defaults=True) == options
    assert all(each.reason for each in found.decisions)


def test_what_is_said_is_taken_and_a_date_of_two_meanings_is_not_sure(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id,on\n1,01/02/2026\n2,03/04/2026\n")
    (unsure,) = [each for each in sniff(str(file), LOCAL).decisions if not each.is_sure]
    assert (unsure.option, unsure.value) == ("date_format", "%d/%m/%Y")
    assert "%m/%d/%Y would read all dates too" in unsure.reason
    said = sniff(str(file), LOCAL, Csv(date_format="%m/%d/%Y"))
    assert said.csv.date_format == "%m/%d/%Y"
    assert all(each.is_sure for each in said.decisions)


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (b"id;Betrag\n1;1.234\n2;2.500\n", {"decimal": ",", "thousands": "."}),
        (b'id,amount\n1,"1,234"\n2,"12,500"\n', {"decimal": ".", "thousands": ","}),
        (b"payee,ref,amount\nA,R-1,1.5\nTotal of May,,1.5\n", {"footer": 1}),
        (b"payee,amount\nA,1.5\nB,1.5\nTotal,3.0\n", {"footer": 1}),
    ],
)
def test_what_can_be_read_in_two_ways_is_not_sure(
    tmp_path: Path, content: bytes, options: dict[str, Any]
) -> None:
    (tmp_path / "rows.csv").write_bytes(content)
    unsure = {
        each.option: each.value
        for each in sniff(str(tmp_path / "rows.csv"), LOCAL).decisions
        if not each.is_sure
    }
    assert unsure == options


def test_an_umlaut_late_in_a_file_tells_its_encoding(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    rows = b"".join(b"%06d;1,5;Meyer\n" % number for number in range(30_000))
    file.write_bytes(b"id;betrag;name\n" + rows + "X;1,5;Müller\n".encode("cp1252"))
    assert profile(source(file)).rows == 30_001
    (reason,) = [
        each.reason for each in sniff(str(file), LOCAL).decisions if each.option == "encoding"
    ]
    assert reason == "not UTF-8: byte fc in line 30002 is 'ü' in Windows-1252"
    with pytest.raises(InvalidInput, match=r"csv\.encoding: windows-1252"):
        profile(Source(uri=str(file), primary_key=("?",), csv=Csv(encoding="utf-8")))


def source(path: Path) -> Source:
    return Source(uri=str(path), primary_key=("?",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x7fELF\x00\x00\x01\x02", "is binary, not text"),
        (",".join(f"c{number}" for number in range(3000)).encode() + b"\n", "has 3,000 columns"),
    ],
)
def test_files_that_are_no_csv_are_refused_in_a_sentence(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "rows.csv").write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        profile(source(tmp_path / "rows.csv"))


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"id\n\x81\n", {"encoding": "windows-1252"}, "it looks like Latin-1: set csv.encoding"),
        (b"id\n1\n", {"skip": 2}, "has no lines left after csv.skip and csv.footer"),
    ],
)
def test_files_that_do_not_fit_their_options_are_refused_in_a_sentence(
    tmp_path: Path, content: bytes, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "rows.csv").write_bytes(content)
    given = source(tmp_path / "rows.csv").model_copy(update={"csv": Csv.model_validate(options)})
    with pytest.raises(InvalidInput, match=message):
        native_files.inspect_files(given)


def test_a_folder_of_other_columns_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,amount\n1,2\n")
    (tmp_path / "b.csv").write_text("id,value\n1,2\n")
    with pytest.raises(InvalidInput, match=r"b.csv has other columns than .*a.csv"):
        profile(source(tmp_path))


def test_a_profile_of_very_many_rows_is_of_the_first_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kalla.reconcile.propose.profile.MOST_ROWS", 50)
    (tmp_path / "rows.csv").write_text("id\n" + "".join(f"K{n:03}\n" for n in range(100)))
    found = profile(source(tmp_path / "rows.csv"))
    assert (found.rows, found.total) == (50, 100)
    assert "only the first 50 rows were read" in found.notes
    monkeypatch.setattr("kalla.reconcile.propose.profile.MOST_ROWS", 100)
    assert profile(source(tmp_path / "rows.csv")).total is None


def test_a_profile_tells_roles_keys_and_distributions(tmp_path: Path) -> None:
    rows = "".join(f"K{n:03},{n % 3}.50,2026-01-{n % 28 + 1:02},EUR,\n" for n in range(100))
    (tmp_path / "rows.csv").write_text(f"ref,amount,day,currency,note\n{rows}")
    found = profile(source(tmp_path / "rows.csv"))
    columns = {each.name: each for each in found.columns}
    assert {name: each.role for name, each in columns.items()} == {
        "ref": "code", "amount": "amount", "day": "date", "currency": "currency", "note": "empty",
    }  # fmt: skip
    assert found.primary_key == ("ref",)
    assert columns["note"].nulls == 100
    assert sum(each.rows for each in columns["amount"].histogram) == 100
    assert (columns["amount"].smallest, columns["amount"].largest) == ("0.5", "2.5")
    assert columns["currency"].examples == ("EUR",)


def test_figures_of_a_large_source_are_estimated_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_tables, "EXACT_ROWS", 500)
    monkeypatch.setattr(side_tables, "SAMPLED_ROWS", 250)
    rows = "".join(f"K{n:04},{n % 1000}.50,{'EUR' if n % 4 else ''}\n" for n in range(3000))
    (tmp_path / "rows.csv").write_text(f"ref,amount,currency\n{rows}")
    found, again = (profile(source(tmp_path / "rows.csv")) for _ in range(2))
    assert found == again
    columns = {each.name: each for each in found.columns}
    assert {name: each.role for name, each in columns.items()} == {
        "ref": "code", "amount": "amount", "currency": "currency",
    }  # fmt: skip
    # These are counted all the same.
    assert (found.rows, columns["currency"].nulls) == (3000, 750)
    assert (columns["amount"].distinct, columns["currency"].distinct) == (1000, 1)
    assert found.primary_key == ("ref",)
    assert found.primary_key_note == "unique and never empty in all 3,000 rows"
    estimated = sum(each.rows for each in columns["amount"].histogram)
    assert 2000 < estimated < 4000
    assert any(note.endswith("are of one row in 12") for note in found.notes)


def test_columns_that_identify_the_rows_of_a_large_source_together_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_tables, "EXACT_ROWS", 500)
    rows = [(f"C{n % 60}", f"T{n // 60}", n % 7) for n in range(3000)]
    for last in (rows[-1], rows[61]):
        written = "".join(f"{a},{b},{c}\n" for a, b, c in [*rows[:-1], last])
        (tmp_path / "rows.csv").write_text(f"customer,text,seven\n{written}")
        found = profile(source(tmp_path / "rows.csv"))
        assert found.primary_key[:2] == ("customer", "text")
        if last == rows[-1]:
            assert found.primary_key_note == "together unique in all 3,000 rows"
        else:
            assert found.primary_key_note.startswith("no columns identify all rows")
