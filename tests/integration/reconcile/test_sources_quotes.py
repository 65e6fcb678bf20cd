"""Quotes that are part of a value, as in `5" pipe`: a CSV that has some is read like any other."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalla.errors import InvalidInput
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import Csv
from kalla.reconcile.sources import source_planning
from kalla.reconcile.sources.formats import csv_quotes
from kalla.reconcile.sources.scanning.scan_sql import scan
from tests.integration.reconcile.test_sources import read, source

VALUES = ("", "a", '5"', '5" pipe', 'a""b', '"a"', '"b, c"', '"x\n y"', '"say ""x"""', ' "a"',
          '  "a"', ' "x\n"', '"a" ', '"a" "b"', '"', '"a', ' "', '  "x\n"', '"a"b')  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_lines_in_quotes_are_no_rows_beside_a_quote_in_a_value(
    tmp_path: Path, encoding: str
) -> None:
    """Several readers of one file, some of which begin in a value that looks like rows."""
    lines = "1,2,3\n" * 2_000
    file = tmp_path / "rows.csv"
    file.write_text('id,note,amount\n0,5" pipe,3\n' + f'1,"{lines}",5\n' * 750, encoding)
    found = read(source_planning.inspect_files(source(file, csv={"encoding": encoding}), "left"))
    assert found == [("0", '5" pipe', "3")] + [("1", lines, "5")] * 750


@given(rows=st.lists(st.tuples(*[st.sampled_from(VALUES)] * 2)), ends=st.booleans(), data=st.data())
def test_what_a_quote_means_is_what_duckdb_takes_it_for(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    ends: bool,
    data: st.DataObject,
) -> None:
    """By its threads it sees whether the last quote is open; in one place it does not."""
    content = "".join(f"\n{','.join(row)}" for row in [("id", "note"), *rows])[1:]
    written = (content + ("\n" if ends else "")).encode()
    cut = data.draw(st.integers(0, len(written)))
    file = tmp_path_factory.getbasetemp() / "quotes.csv"
    file.write_bytes(written)
    by_threads, in_one_place = (_read(file, in_one_place=each) for each in (False, True))
    if closed := _is_closed(written):
        assert in_one_place == by_threads
    else:
        assert by_threads is None
    assert _is_closed(written[:cut], written[cut:]) == closed


def _is_closed(*content: bytes) -> bool:
    try:
        csv_quotes._in(Csv(), content, "rows.csv")
    except InvalidInput:
        return False
    return True


def _read(file: Path, *, in_one_place: bool) -> list[tuple[str, ...]] | None:
    """Its rows, or None where it cannot be read."""
    types = {"id": "VARCHAR", "note": "VARCHAR"}
    seen = Input("csv", (str(file),), types, in_one_place=in_one_place)
    try:
        return duckdb.execute(f"FROM {scan(seen)}").fetchall()
    except duckdb.Error:
        return None
