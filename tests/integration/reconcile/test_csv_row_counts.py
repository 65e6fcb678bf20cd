"""No row of a CSV is lost: every file is counted by Python's csv module too, or it is refused."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalla.errors import InvalidInput, Unavailable
from kalla.reconcile.recipe.model import Csv, Source
from kalla.reconcile.sources import source_planning
from kalla.reconcile.sources.formats import converted_files
from kalla.reconcile.sources.formats.csv_quotes import LONGEST_LINE
from kalla.reconcile.sources.scanning.duckdb_files import opened
from kalla.reconcile.sources.scanning.scan_sql import scan
from kalla.storage import LOCAL
from tests.work_kit import effort

HEADER = "id,ref,amount"
csv.field_size_limit(10 * LONGEST_LINE)
SHORT = ["1,a,10.00", "2,b,20.00"]


def counted(path: Path, encoding: str = "utf-8", **csv: int) -> int:
    """The rows as a match would load them."""
    fields: dict[str, Any] = {"uri": str(path), "primary_key": ["id"]}
    seen = source_planning.inspect_files(
        Source.model_validate(fields | {"csv": {"encoding": encoding, **csv}}), "left"
    )
    with opened(LOCAL) as connection:
        (row,) = connection.execute(f"SELECT count(*) FROM {scan(seen)}").fetchall()
    return int(row[0])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", ["", "end"])
@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_a_long_last_line_is_refused_and_not_left_out(
    tmp_path: Path, end: str, last: str, name: str
) -> None:
    """The match said that all is matched: the reader had dropped the row."""
    lines = [HEADER, *SHORT, f"3,{'x' * 40_000_000},5.00"]
    content = (end.join(lines) + (end if last else "")).encode()
    packed = gzip.compress(content, 1, mtime=0) if name.endswith("gz") else content
    (tmp_path / name).write_bytes(packed)
    with pytest.raises(InvalidInput, match=rf"has more than {LONGEST_LINE:,} bytes"):
        counted(tmp_path / name)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("over", [-9, 1])  # DuckDB counts the line's end, too
def test_a_line_may_be_as_long_as_is_said(tmp_path: Path, place: int, over: int) -> None:
    long = f"3,{'x' * (LONGEST_LINE - len('3,,5.00') + over)},5.00"
    rows = [*SHORT[:place], long, *SHORT[place:]]
    (tmp_path / "rows.csv").write_text("\n".join([HEADER, *rows]), encoding="utf-8")
    if over < 0:
        assert counted(tmp_path / "rows.csv") == 3
        return
    with pytest.raises(InvalidInput, match=f"line {place + 2} has more than"):
        counted(tmp_path / "rows.csv")


@pytest.mark.parametrize("place", [0, 3], ids=["above the header", "below it"])
def test_a_long_line_of_a_file_that_is_copied_is_not_held_in_memory(
    tmp_path: Path, place: int
) -> None:
    """A small compressed file may hold a line of many gigabytes."""
    lines = ["a bank", HEADER, *SHORT, "that is all"]
    lines[place] = "x" * (LONGEST_LINE + 1)
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode(), 1, mtime=0))
    with pytest.raises(InvalidInput, match=f"line {place + 1} has more than"):
        counted(tmp_path / "rows.csv.gz", skip=1, footer=1)


@pytest.mark.parametrize("option", ["skip", "footer"])
def test_lines_that_are_no_rows_are_not_held_without_a_bound(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converted_files, "_MOST_HELD", 1_000)
    content = "  \n" * 1_000 + HEADER if option == "skip" else HEADER + "\n" * 1_001
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(content.encode(), mtime=0))
    with pytest.raises(InvalidInput, match="characters in lines that are not rows"):
        counted(tmp_path / "rows.csv.gz", "utf-8", **{option: 1_000})


def test_a_file_that_unpacks_to_much_is_copied_no_longer_than_an_inspection_lasts(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.csv.gz"
    file.write_bytes(gzip.compress("\n".join(["a bank", HEADER, *SHORT]).encode(), mtime=0))
    source, csv_options = LOCAL.info(str(file)), Csv(skip=1)
    with pytest.raises(Unavailable, match="took too long to inspect"):
        converted_files.of_csv(source, csv_options, LOCAL, seconds=0)
    copied = converted_files.of_csv(source, csv_options, LOCAL, seconds=60)
    assert Path(copied.path).read_text() == "\n".join([HEADER, *SHORT])


VALUES = st.one_of(
    st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=12),
    st.integers(1, 6),  # a text of so many zeros in its length
    st.text(st.sampled_from('a", \n'), max_size=8),
)


@effort(40, 2_000)
@given(
    # Two of a million characters are a longer line than any reader takes.
    rows=st.lists(st.tuples(VALUES, VALUES).filter(lambda each: each != (6, 6)), max_size=12),
    end=st.sampled_from(["\n", "\r\n"]),
    closed=st.booleans(),
    encoding=st.sampled_from(["utf-8", "latin-1", "utf-16"]),
    packed=st.booleans(),
)
def test_as_many_rows_are_read_as_an_independent_reader_counts(
    tmp_path: Path,
    rows: list[tuple[str | int, str | int]],
    end: str,
    closed: bool,
    encoding: str,
    packed: bool,
) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=end)
    writer.writerow(["id", "ref", "memo"])
    for number, values in enumerate(rows):
        texts = [each if isinstance(each, str) else "y" * 10**each for each in values]
        writer.writerow([number, *texts])
    content = text.getvalue() if closed else text.getvalue().removesuffix(end)
    expected = sum(1 for _ in csv.reader(io.StringIO(content, newline=""))) - 1
    raw = content.encode("utf-16-le" if encoding == "utf-16" else encoding)
    path = tmp_path / ("rows.csv.gz" if packed else "rows.csv")
    path.write_bytes(gzip.compress(raw, 1, mtime=0) if packed else raw)
    assert expected == len(rows)
    assert counted(path, encoding) == expected
