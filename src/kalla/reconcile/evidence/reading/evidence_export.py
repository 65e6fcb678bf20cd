"""A part of the evidence as one file for other programs: CSV, Parquet or XLSX, filtered and sorted.

Written to disk in passing: millions of rows take no more memory than thousands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, get_args

import duckdb

from kalla.errors import InvalidInput, Problem, Unavailable
from kalla.reconcile.evidence.reading import export_summary
from kalla.reconcile.evidence.reading.column_labels import Labels
from kalla.reconcile.evidence.reading.evidence_filters import Term, condition, sortable, total_order
from kalla.reconcile.evidence.reading.evidence_pages import Query, as_json
from kalla.reconcile.evidence.reading.evidence_reader import (
    Dataset,
    Reader,
    column,
    reading,
    understood,
    unwrapped,
)
from kalla.reconcile.evidence.reading.export_summary import Facts
from kalla.reconcile.sql.column_values import literal, quote
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import Storage

if TYPE_CHECKING:
    from xlsxwriter.workbook import Workbook
    from xlsxwriter.worksheet import Worksheet

Format = Literal["csv", "parquet", "xlsx"]
FORMATS: tuple[Format, ...] = get_args(Format)
MEDIA_TYPES: dict[Format, str] = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}

SHEET_ROWS = 1_048_575  # below the header
_SHEET_TEXT = 32_767
_FIRST_YEAR = 1900  # that a spreadsheet has dates of
_EXACT_DIGITS = 15  # of a spreadsheet's numbers
_BATCH = 5_000
_BOM = "\ufeff"
EXPORT = Bounds(seconds=600)
# Text that a spreadsheet would execute as a formula, unless it is a number.
_FORMULA = r"^[=+\-@\t\r\n＝＋－＠]"
_NUMBER = r"[+-]?[0-9]+(\.[0-9]+)?"
# Behind two places: amounts of a text are held with nine, and shown without those that fill them.
_ZEROS = r"(\.[0-9]{2}[0-9]*?)0+$"


def export(
    url: str,
    part: str,
    query: Query,
    style: Format,
    path: Path,
    storage: Storage,
    *,
    bom: bool = False,
    bounds: Bounds = EXPORT,
) -> None:
    """Write all rows of the filter to the path, in the order of the query's pages."""
    with reading(storage, bounds) as reader:
        dataset = reader.dataset(url, part)
        where = condition(dataset, query.filters)
        # By the table's columns: a name alone would be what is written under it, a text.
        order = ", ".join(
            f"{sortable(column(dataset.columns, each.column, 'sort'), each, 'kept')}"
            f" {'DESC' if each.descending else 'ASC'} NULLS LAST"
            for each in total_order(dataset, query.orders)
        )
        kept = f"{dataset.relation} AS kept"
        rest = Term(f"FROM {kept} WHERE {where.sql} ORDER BY {order}", where.values)
        with writing(path):
            if style == "csv":
                _csv(reader, dataset, reader.labels(url), rest, path, bom)
            elif style == "parquet":
                reader.execute(
                    f"COPY (SELECT * {rest.sql}) TO {literal(str(path))}"
                    " (FORMAT parquet, COMPRESSION zstd)",
                    rest.values,
                )
            else:
                book = _Book(
                    dataset,
                    reader.labels(url),
                    understood(url, Facts, reader.metadata(url)),
                    tuple(map(str, query.filters)),
                )
                _xlsx(reader, book, where, rest, path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of the output file are not errors of the evidence."""
    try:
        yield
    except (OSError, duckdb.IOException) as error:
        if isinstance(error, OSError):
            reason = f"{path}: {error.strerror or error}"
        elif str(path) in str(error):
            reason = unwrapped(error)
        else:
            raise
        raise Unavailable(f"the export cannot be written: {reason}") from error


@dataclass(frozen=True)
class _Book:
    """The contents of a workbook."""

    dataset: Dataset
    labels: Labels
    facts: Facts
    filters: tuple[str, ...]


def _csv(
    reader: Reader, dataset: Dataset, labels: Labels, rest: Term, path: Path, bom: bool
) -> None:
    """RFC 4180. Text that a spreadsheet would take for a formula gets an apostrophe in front."""
    columns = []
    names: set[str] = set()
    for number, each in enumerate(dataset.columns):
        value = each.sql
        if each.kind == "list":
            value = f"to_json({each.sql})"
        elif each.type == "VARCHAR":
            value = (
                f"CASE WHEN regexp_matches({each.sql}, {literal(_FORMULA)})"
                f" AND NOT regexp_full_match({each.sql}, {literal(_NUMBER)})"
                f" THEN '''' || {each.sql} ELSE {each.sql} END"
            )
        elif each.type.startswith("DECIMAL"):
            value = f"regexp_replace(CAST({each.sql} AS VARCHAR), {literal(_ZEROS)}, '\\1')"
        head = labels.heading(each.name)
        head = each.name if head.casefold() in names else head
        names.add(head.casefold())
        head = f"'{head}" if re.match(_FORMULA, head) else head
        columns.append(f"{value} AS {quote((_BOM if bom and not number else '') + head)}")
    reader.execute(
        f"COPY (SELECT {', '.join(columns)} {rest.sql}) TO {literal(str(path))}"
        " (FORMAT csv, HEADER true, NEW_LINE '\\r\\n')",
        rest.values,
    )


def _xlsx(reader: Reader, book: _Book, where: Term, rest: Term, path: Path) -> None:
    ((rows,),) = reader.rows(
        f"SELECT count(*) FROM {book.dataset.relation} WHERE {where.sql}", where.values
    )
    if rows > SHEET_ROWS:
        raise InvalidInput(
            Problem(
                "format",
                f"a sheet holds {SHEET_ROWS:,} rows and these are {rows:,}:"
                " filter them, or export CSV or Parquet",
            )
        )
    # The parts of a workbook are in a folder that is always removed.
    with TemporaryDirectory(prefix="kalla-sheet-") as parts:
        _make_book(reader, book, rows, rest, path, parts)


def _make_book(reader: Reader, book: _Book, rows: int, rest: Term, path: Path, parts: str) -> None:
    import xlsxwriter  # here: the API would start later for it

    with _Target(path, "w") as target:
        made = xlsxwriter.Workbook(target, {"constant_memory": True, "tmpdir": parts})
        _fill(made, reader, book, rows, rest)
        if target.failure is not None:
            raise target.failure


class _Target(FileIO):
    """Stores the first error and ignores later writes, also on close: a discarded zip file tries to
    finish itself, and its error would be printed as a traceback.
    """

    failure: OSError | None = None

    def write(self, content: Any, /) -> int:
        rest = memoryview(content).cast("B")
        size = len(rest)
        try:
            while rest and self.failure is None and not self.closed:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.failure = error
        return size

    def seek(self, place: int, whence: int = 0, /) -> int:
        return 0 if self.closed else super().seek(place, whence)

    def tell(self) -> int:
        return 0 if self.closed else super().tell()

    def flush(self) -> None:
        """Nothing is buffered."""


def _fill(book: Workbook, reader: Reader, of: _Book, rows: int, rest: Term) -> None:
    from xlsxwriter.exceptions import FileCreateError

    dataset = of.dataset
    texts = of.labels.texts(dataset.part, [each.name for each in dataset.columns])
    try:
        bold = book.add_format({"bold": True})
        formats = _Formats(
            book.add_format({"num_format": "yyyy-mm-dd hh:mm:ss"}),
            book.add_format({"num_format": "yyyy-mm-dd"}),
        )
        sheet = book.add_worksheet(dataset.part)
        sheet.freeze_panes(1, 0)
        sheet.set_column(0, len(dataset.columns) - 1, 18)
        for place, each in enumerate(dataset.columns):
            zone = " (UTC)" if each.type.startswith("TIMESTAMP") else ""
            sheet.write_string(0, place, _text(texts[each.name] + zone), bold)
        found = reader.execute(f"SELECT * {rest.sql}", rest.values)
        number = 0
        while batch := found.fetchmany(_BATCH):
            reader.check()
            for row in batch:
                number += 1
                _write(sheet, number, row, formats)
        # After the rows, which programs expect on the first sheet.
        summary = book.add_worksheet("Summary")
        summary.set_column(0, 6, 22)
        lines = export_summary.lines(of.facts, of.labels, dataset.part, of.filters, rows)
        for number, line in enumerate(lines):
            _write(summary, number, line, formats)
    finally:
        try:
            book.close()
        except FileCreateError as error:
            raise OSError(*error.args[0].args) from error


@dataclass(frozen=True)
class _Formats:
    time: Any
    day: Any


def _write(sheet: Worksheet, number: int, row: Sequence[Any], formats: _Formats) -> None:
    for place, value in enumerate(row):
        if value is None:
            continue
        if isinstance(value, bool):
            sheet.write_boolean(number, place, value)
        elif isinstance(value, Decimal | int):
            if _fits(value):
                sheet.write_number(number, place, value)
            else:
                sheet.write_string(number, place, str(as_json(value)))
        elif isinstance(value, datetime):
            moment = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
            sheet.write_datetime(number, place, moment, formats.time)
        elif isinstance(value, date) and value.year >= _FIRST_YEAR:
            sheet.write_datetime(number, place, value, formats.day)
        else:
            sheet.write_string(number, place, _text(as_json(value)))


def _fits(value: Decimal | int) -> bool:
    """Whether a double shows it exactly. The default context would round it at 28 digits."""
    with localcontext(prec=100):
        return len(Decimal(value).normalize().as_tuple().digits) <= _EXACT_DIGITS


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    cut = " … (cut: a cell holds no more)"
    # As a spreadsheet counts: an emoji is two.
    units = text.encode("utf-16-le")
    if len(units) <= 2 * _SHEET_TEXT:
        return text
    return units[: 2 * (_SHEET_TEXT - len(cut))].decode("utf-16-le", "ignore") + cut
