"""Native sources: which files, which columns, what is left out, and what is refused and why."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.errors import InvalidInput, KallaError, Permanent, Unavailable
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import Source
from kalla.reconcile.sources import source_columns, source_planning
from kalla.reconcile.sources.scanning.duckdb_files import opened
from kalla.reconcile.sources.scanning.scan_sql import scan
from kalla.reconcile.sql.duckdb_errors import of_reading
from kalla.storage import LOCAL, Storage
from tests.integration.reconcile.test_sources_compressed import zstd

ROWS = b"id,ref\n1,a\n2,b\n"
READ = [("1", "a"), ("2", "b")]


def source(uri: Path | str, **fields: Any) -> Source:
    return Source.model_validate({"uri": str(uri), "primary_key": ["id"]} | fields)


def parquet(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def read(seen: Input, storage: Storage = LOCAL) -> list[tuple[Any, ...]]:
    """The rows as a match would load them."""
    with opened(storage) as connection:
        found = connection.execute(f"SELECT * FROM {scan(seen)}").fetchall()
    return sorted(found, key=str)


def test_compressed_files_are_read_by_their_endings(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(ROWS)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(ROWS))
    (tmp_path / "c.CSV.ZST").write_bytes(zstd(ROWS))
    seen = source_planning.inspect_files(source(tmp_path), "left")
    assert seen.format == "csv"
    assert seen.types == {"id": "VARCHAR", "ref": "VARCHAR"}
    assert read(seen) == sorted(READ * 3)
    assert source_columns.columns_of(source(tmp_path / "b.csv.gz")) == {"id": "text", "ref": "text"}
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(b'{"id": 1}\n{"id": 2}\n'))
    assert read(source_planning.inspect_files(source(tmp_path / "rows.jsonl.gz"), "left")) == [
        ("1",),
        ("2",),
    ]


@pytest.mark.parametrize("packed", [False, True])
def test_lines_in_quotes_are_no_rows_wherever_a_reader_begins(tmp_path: Path, packed: bool) -> None:
    """Several readers of one file, some of which begin in a value that looks like rows."""
    lines = "1,2,3\n" * 2_000
    content = ("id,note,amount\n" + f'1,"{lines}",5\n' * 750).encode()
    file = tmp_path / ("rows.csv.gz" if packed else "rows.csv")
    file.write_bytes(gzip.compress(content, 1) if packed else content)
    seen = source_planning.inspect_files(source(file), "left")
    assert seen.in_one_place
    assert read(seen) == [("1", lines, "5")] * 750


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("id,note\n1,x\n", False),
        ("id,note\n1,x y's\n", False),
        ('id,note\n1,"x, y"\n', True),
        ('\ufeff"id","note"\r\n"1","say ""x"""\r\n', True),
        ('id,note\n1,6"\n', True),
    ],
    ids=["no quotes", "others", "quotes", "marked", "in a value"],
)
def test_only_where_there_are_quotes_is_a_file_read_in_one_place(
    tmp_path: Path, content: str, expected: bool
) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(content.encode())
    assert source_planning.inspect_files(source(file), "left").in_one_place is expected


def test_a_tsv_is_separated_by_tabs_unless_the_recipe_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("id\tref\n1\ta\n2\tb\n")
    assert read(source_planning.inspect_files(source(tmp_path / "a.tsv"), "left")) == READ
    (tmp_path / "b.tsv").write_bytes(ROWS)
    commas = source(tmp_path / "b.tsv", csv={"delimiter": ","})
    assert read(source_planning.inspect_files(commas, "left")) == READ


def test_every_file_has_a_mark(tmp_path: Path) -> None:
    for name in ("a.csv", "deep/b.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(ROWS)
    seen = source_planning.inspect_files(source(tmp_path), "left")
    assert [mark["file"] for mark in seen.marks] == list(seen.files)
    assert [mark["bytes"] for mark in seen.marks] == [len(ROWS)] * 2
    os.utime(tmp_path / "a.csv", (1, 1))
    assert source_planning.inspect_files(source(tmp_path), "left").marks != seen.marks


def test_a_file_that_has_several_names_is_read_once_and_the_others_are_noted(
    tmp_path: Path,
) -> None:
    (tmp_path / "b.csv").write_bytes(ROWS)
    (tmp_path / "a-latest.csv").symlink_to("b.csv")
    (tmp_path / "c.csv").hardlink_to(tmp_path / "b.csv")
    (tmp_path / "d.csv").write_bytes(ROWS)
    for pattern in ("", "*.csv", "**/*.csv"):
        seen = source_planning.inspect_files(source(tmp_path / pattern), "left")
        assert [Path(each).name for each in seen.files] == ["b.csv", "d.csv"]
        (note,) = seen.notes
        assert note.endswith("other names of files that are read: a-latest.csv, c.csv")
    alone = source_planning.inspect_files(source(tmp_path / "*latest.csv"), "left")
    assert (read(alone), alone.notes) == (READ, ())


def test_a_folder_of_several_formats_is_refused_unless_the_recipe_chooses(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(ROWS)
    parquet(tmp_path / "b.parquet", id=[7])
    (tmp_path / "README.txt").write_text("about")
    with pytest.raises(InvalidInput, match=r"several formats .*a\.csv.*b\.parquet"):
        source_planning.inspect_files(source(tmp_path), "left")
    seen = source_planning.inspect_files(source(tmp_path, format="parquet"), "left")
    assert read(seen) == [(7,)]
    (note,) = seen.notes
    assert "left out" in note
    assert "a.csv" in note
    assert "README.txt" in note


def test_files_without_an_ending_are_what_the_recipe_says(tmp_path: Path) -> None:
    for name in ("part-0", "part-1"):
        (tmp_path / name).write_bytes(ROWS)
    told = r"Cannot tell the format of .*part-0.*\. Supported: CSV, .*\. Set format"
    with pytest.raises(InvalidInput, match=told):
        source_planning.inspect_files(source(tmp_path), "left")
    assert read(source_planning.inspect_files(source(tmp_path, format="csv"), "left")) == sorted(
        READ * 2
    )


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("rows.csv", b"", "is empty"),
        ("rows.csv", b"\n1,a\n", "begins with an empty line"),
        ("rows.csv", b"id,r\0f\n1,a\n", "null bytes"),
        ("rows.csv", b"\0" * 1000, "null bytes"),
        ("rows.csv", b'id,"ref\n1,a\n2,b\n', "a quote in its first line is never closed"),
        ("rows.csv", b'id, "ref\n1,a\n2,b\n', "a quote in line 1 is never closed"),
        ("rows.csv", b'id,ref\n1,"a"\n2,"b\n3,c\n', "a quote in line 3 is never closed"),
        ("rows.csv", b'id,ref\n1,6"\n2,"x', "a quote in line 3 is never closed"),
        ("rows.csv", "id,ref\n1,ä\n".encode("utf-16"), "is not UTF-8"),
        ("rows.csv", b"id,caf\xe9\n", "is not UTF-8"),
        ("rows.csv", gzip.compress(ROWS, mtime=0), "is compressed by gzip"),
        ("rows.csv.gz", ROWS, "cannot be read as CSV"),
        ("rows.csv.gz", gzip.compress(ROWS * 1000, mtime=0)[:40], "cannot be read as CSV"),
        ("rows.csv.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("rows.parquet", b"", "too small to be a Parquet file"),
        ("rows.parquet", b"PAR1 and more that is none", "cannot be read"),
        ("rows.json", b"", "has no rows"),
        ("rows.json", b'[{"id": 1}]', "is not JSON lines"),
        ("rows.json", b'{"id": 1}\n5\n', "is not JSON lines"),
        ("rows.json", b'{\n"id": 1\n}\n', "Malformed JSON"),
        ("rows.json", b'{"id": "caf\xe9"}\n', "UTF-8"),
        ("rows.json", b'\xef\xbb\xbf{"id": 1}\n', "byte order mark"),
        ("rows.json", b'{"id": 1}\n{"ID": 2}\n', "several columns ID, id"),
        ("rows.json", b'{"id": 1, "": 2}\n', "without a name"),
        ("rows.json", b'{"id": 12345678901234567.891}\n', "would round"),
        ("rows.json", b'{"id": 123456789012345678901234567890e-20}\n', "would round"),
        ("rows.json", b'{"id": "a\\"", "b": [{"c":-1234567890.12345678E+3}]}\n', "would round"),
        ("rows.json", b'{"id": 0.1000000000000000000001}\n', "would round"),
        ("rows.json", b'{"id": 1e-400}\n', "would round"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_what_is_wrong(
    tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=rf"sources\.left\.uri.*{name}.*{why}"):
        source_planning.inspect_files(source(tmp_path / name), "left")


def test_numbers_in_json_keep_every_digit(tmp_path: Path) -> None:
    lines = b'{"id": 0.30000000000000004}\n{"id": 123456789012345678901234567890}\n{"id": "1.10"}\n'
    (tmp_path / "rows.jsonl").write_bytes(lines)
    found = read(source_planning.inspect_files(source(tmp_path / "rows.jsonl"), "left"))
    assert found == [("0.30000000000000004",), ("1.10",), ("123456789012345678901234567890",)]


@pytest.mark.parametrize(
    ("line", "read_as"),
    [
        (b'{"id": "see: 1.12345678901234567890, [2.12345678901234567890]"}',
         "see: 1.12345678901234567890, [2.12345678901234567890]"),
        (b'{"id": "\\": 1.12345678901234567890"}', '": 1.12345678901234567890'),
        (b'{"id": "1e-400"}', "1e-400"),
        (b'{"id": 0.10000000000000000000}', "0.1"),
        (b'{"id": 1200000000000.5000000e-1}', "120000000000.05"),
        (b'{"id": 1.5e22}', "15000000000000000000000.0"),
        (b'{"id": 0.00001}', "0.00001"),
        (b'{"id": -0.000000125}', "-0.000000125"),
        (b'{"id": -1.25e-7}', "-0.000000125"),
        (b'{"id": 1E-9}', "0.000000001"),
        (b'{"id": 10000000000000000.0}', "10000000000000000.0"),
        (b'{"id": 1e16}', "10000000000000000.0"),
        (b'{"id": -1.2345e25}', "-12345000000000000000000000.0"),
        (b'{"id": "1e-05"}', "1e-05"),
        (b'{"id": 0.0000000000000000000}', "0.0"),
        (b'{"id": 0e-999}', "0.0"),
    ],
)  # fmt: skip
def test_digits_in_a_text_and_numbers_that_a_float_keeps_are_no_fault(
    tmp_path: Path, line: bytes, read_as: str
) -> None:
    (tmp_path / "rows.jsonl").write_bytes(line + b"\n")
    assert read(source_planning.inspect_files(source(tmp_path / "rows.jsonl"), "left")) == [
        (read_as,)
    ]


def test_beside_a_number_that_needs_many_zeros_other_values_are_what_they_were(
    tmp_path: Path,
) -> None:
    values = (b'"1e-05"', b'"a \\"b\\" \\u00e4\\n"', b'""', b"null", b"true", b"12", b"-1.10",
              b'{"a": [1, "x"]}', b"123456789012345678901234567890")  # fmt: skip
    lines = b"".join(b'{"id": %d, "a": %s}\n' % each for each in enumerate(values))
    (tmp_path / "plain.jsonl").write_bytes(lines)
    wanted = read(source_planning.inspect_files(source(tmp_path / "plain.jsonl"), "left"))
    (tmp_path / "rows.jsonl").write_bytes(lines + b'{"id": 99, "a": 0.00001}\n{"id": 999}\n')
    found = read(source_planning.inspect_files(source(tmp_path / "rows.jsonl"), "left"))
    assert found == sorted([*wanted, ("99", "0.00001"), ("999", None)], key=str)


@pytest.mark.parametrize("mark", [b"\xff\xfe", b""], ids=["with mark", "without"])
def test_utf_16_is_read(tmp_path: Path, mark: bytes) -> None:
    (tmp_path / "rows.csv").write_bytes(mark + '"id",ref\n1,ä\n'.encode("utf-16-le"))
    seen = source_planning.inspect_files(
        source(tmp_path / "rows.csv", csv={"encoding": "utf-16"}), "left"
    )
    assert list(seen.types) == ["id", "ref"]
    assert read(seen) == [("1", "ä")]


def test_utf_16_of_the_other_order_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"\xfe\xff" + "id,ref\n1,ä\n".encode("utf-16-be"))
    with pytest.raises(InvalidInput, match="big-endian"):
        source_planning.inspect_files(
            source(tmp_path / "rows.csv", csv={"encoding": "utf-16"}), "left"
        )


@pytest.mark.parametrize("header", [True, False])
def test_a_byte_order_mark_is_no_part_of_a_value(tmp_path: Path, header: bool) -> None:
    (tmp_path / "rows.csv").write_bytes(b"\xef\xbb\xbf" + (ROWS if header else b"1,a\n2,b\n"))
    seen = source_planning.inspect_files(
        source(tmp_path / "rows.csv", csv={"header": header}), "left"
    )
    assert read(seen) == READ


def test_a_null_byte_in_a_value_is_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"id,ref\n1,a\0b\n2,b\n")
    seen = source_planning.inspect_files(source(tmp_path / "rows.csv"), "left")
    assert read(seen) == [("1", "a\0b"), ("2", "b")]


def test_other_columns_in_one_of_many_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(ROWS)
    (tmp_path / "b.csv").write_text("id,reference\n")
    with pytest.raises(InvalidInput, match=r"b\.csv has other columns than .*a\.csv"):
        source_planning.inspect_files(source(tmp_path), "left")


def test_places_that_cannot_be_read_are_refused_with_their_field() -> None:
    for uri, why in (
        ("s3://bucket/rows.csv", "not set up"),
        ("gs://bucket/rows.csv", "gs:// is not a place for files"),
        ("/no/such/rows.csv", "does not exist"),
        ("/no/such/*.csv", "holds no file"),
    ):
        with pytest.raises(InvalidInput, match=rf"sources\.right\.uri: .*{why}"):
            source_planning.inspect_files(source(uri), "right")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"id,ref\n1,a\r\n2,b\n", "do not all end alike"),
        (b"id,ref\n" + b"1,a\n" * 50_000 + b"2,caf\xe9\n", "line 50002 is not in the encoding"),
    ],
    ids=["line ends", "encoding"],
)
def test_a_line_that_cannot_be_read_is_told_in_a_few_words(
    tmp_path: Path, content: bytes, why: str
) -> None:
    (tmp_path / "rows.csv").write_bytes(content)
    seen = source_planning.inspect_files(source(tmp_path / "rows.csv"), "left")
    with opened(LOCAL) as connection, pytest.raises(duckdb.Error) as raised:
        connection.execute(f"SELECT count(*), max(ref) FROM {scan(seen)}").fetchall()
    told = of_reading(raised.value, "the left source", seen.files)
    assert isinstance(told, Permanent)
    assert why in str(told)
    assert len(str(told)) < 1000


def test_a_secret_comes_from_who_resolves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KALLA_SECRET_BANK", raising=False)
    bank = source(
        "postgresql://reader@127.0.0.1:9/bank", table="payments", password="secret://bank"
    )
    with (
        pytest.raises(InvalidInput, match=r"sources\.left\.password: .*KALLA_SECRET_BANK"),
        source_planning.connector(bank, "left", "UTC"),
    ):
        pass

    def away(name: str) -> Any:
        raise Unavailable(f"the store of {name} is away")

    with (
        pytest.raises(KallaError, match="the store of bank is away"),
        source_planning.connector(bank, "left", "UTC", resolve=away),
    ):
        pass
