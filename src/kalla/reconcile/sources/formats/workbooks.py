"""XLSX files: the sheet and row that the rows begin at, and a sheet as Parquet with the cells'
types.

A workbook is a zip of XML: one that would unpack to too much is refused before it is unpacked.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import python_calamine
from python_calamine import CalamineSheet, CalamineWorkbook, SheetTypeEnum, SheetVisibleEnum

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.recipe.model import Workbook
from kalla.reconcile.sources.formats.table_shape import Shape, find_shape, numbered
from kalla.reconcile.sources.scanning.column_names import demand_names

LARGEST_UNPACKED = 1 << 30  # bytes of XML
MOST_COLUMNS = 2_000
_LARGEST_FILE = 512 << 20
_HEAD_ROWS = 200
_BATCH_ROWS = 20_000
_DIGITS = 38
_LARGEST_WHOLE = 2**63 - 1
_OLE = b"\xd0\xcf\x11\xe0"  # an older Excel file, or an encrypted newer one
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")


@dataclass(frozen=True)
class Sheet:
    """The detected sheet and rows of a workbook, and why."""

    name: str
    reason: str
    shape: Shape
    columns: tuple[str, ...]
    others: tuple[str, ...]  # visible sheets that hold something too

    @property
    def header_row(self) -> int:
        """As Excel numbers it."""
        return self.shape.header + 1


def find_sheet(content: bytes, file: str, options: Workbook) -> Sheet:
    """The sheet and header of a workbook, given or detected."""
    return _opened(content, file, options)[1]


def to_parquet(content: bytes, file: str, options: Workbook, target: Path) -> tuple[Sheet, int]:
    """Writes the rows of a workbook's sheet; returns which sheet it was and its number of rows."""
    calamine, sheet = _opened(content, file, options)
    width = sheet.shape.width
    kinds = [_Kind() for _ in range(width)]
    rows = 0
    for row in _records(calamine, sheet, options.footer):
        rows += 1
        for kind, value in zip(kinds, row, strict=False):
            kind.take(value)
    kept = [place for place, name in enumerate(sheet.columns) if name]
    schema = pa.schema([(sheet.columns[place], kinds[place].type) for place in kept])
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for batch in _batches(_records(calamine, sheet, options.footer)):
            columns = [
                pa.array(
                    [kinds[place].cast(row[place]) if place < len(row) else None for row in batch],
                    kinds[place].type,
                )
                for place in kept
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    return sheet, rows


def _opened(content: bytes, file: str, options: Workbook) -> tuple[CalamineSheet, Sheet]:
    _demand_harmless(content, file)
    try:
        book = CalamineWorkbook.from_filelike(io.BytesIO(content))
        return _chosen(book, file, options)
    except python_calamine.PasswordError:
        raise _encrypted(file) from None
    except (python_calamine.CalamineError, OSError, ValueError) as error:
        raise _wrong(f"{file} cannot be read as XLSX: {error}") from None


def _chosen(book: CalamineWorkbook, file: str, options: Workbook) -> tuple[CalamineSheet, Sheet]:
    names = [
        each.name
        for each in book.sheets_metadata
        if each.visible == SheetVisibleEnum.Visible and each.typ == SheetTypeEnum.WorkSheet
    ]
    if options.sheet is not None:
        if options.sheet not in book.sheet_names:
            raise _wrong(
                f"{file} has no sheet {options.sheet!r}; there are {', '.join(book.sheet_names)}"
            )
        names = [options.sheet]
    sheets = {name: book.get_sheet_by_name(name) for name in names}
    filled = {name: each for name, each in sheets.items() if each.height}
    if not filled:
        raise _wrong(f"{file} is empty: no sheet holds a value")
    name = max(filled, key=lambda each: (filled[each].height, -names.index(each)))
    calamine = filled[name]
    if calamine.width > MOST_COLUMNS:
        raise _wrong(
            f"{file} has {calamine.width:,} columns in {name!r}: at most {MOST_COLUMNS:,}"
            " can be read"
        )
    head = [_plain(row) for row in calamine.to_python(skip_empty_area=False, nrows=_HEAD_ROWS)]
    shape = find_shape(head, None if calamine.total_height < _HEAD_ROWS else [])
    if options.header_row is not None:
        if options.header_row > len(head):
            raise _wrong(f"{file}: row {options.header_row} of {name!r} is not a header")
        shape = Shape(options.header_row - 1, "as said", shape.width, shape.footer)
    reason = "as said" if options.sheet else "the only sheet with values"
    if len(filled) > 1:
        reason = f"the sheet with the most rows ({calamine.height:,})"
    width = max((len(row) for row in head), default=0)
    titles = [str(value).strip() for value in head[shape.header]] if head else []
    titles += [""] * (width - len(titles))
    below = head[shape.header + 1 :]
    used = [any(place < len(row) and row[place] != "" for row in below) for place in range(width)]
    columns = _named(titles, used)
    demand_names([each for each in columns if each], file)
    if not any(columns):
        raise _wrong(f"{file} has no header in {name!r}")
    shape = Shape(shape.header, shape.header_reason, width, shape.footer, shape.footer_reason)
    others = tuple(each for each in filled if each != name)
    return calamine, Sheet(name, reason, shape, tuple(columns), others)


def _named(titles: Sequence[str], used: Sequence[bool]) -> list[str]:
    """Columns without a title are numbered if they hold values, and left out if not."""
    given = iter(numbered([title for title in titles if title]))
    return [
        next(given) if title else f"column{place + 1}" if used[place] else ""
        for place, title in enumerate(titles)
    ]


def _records(calamine: CalamineSheet, sheet: Sheet, footer: int) -> Iterator[list[Any]]:
    """The rows below the header that hold a value, without so many at the end."""
    beside = [""] * (calamine.start[1] if calamine.start else 0)  # columns left of all values
    held: list[list[Any]] = []
    for number, row in enumerate(calamine.iter_rows()):
        if number <= sheet.shape.header:
            continue
        values = [*beside, *_plain(row)]
        if all(value == "" for value in values):
            continue
        held.append(values)
        if len(held) > footer:
            yield held.pop(0)


def _batches(rows: Iterator[list[Any]]) -> Iterator[list[list[Any]]]:
    batch: list[list[Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) >= _BATCH_ROWS:
            yield batch
            batch = []
    yield batch


def _plain(row: Sequence[Any]) -> list[Any]:
    return [
        value.strip() if isinstance(value, str) and not value.strip() else value for value in row
    ]


class _Kind:
    """The type of a column, by all values that it holds."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()
        self._places = self._whole = 0
        self._largest = 0

    def take(self, value: Any) -> None:
        if value == "" or value is None:
            return
        kind = _kind_of(value)
        self._kinds.add(kind)
        if kind == "number":
            number = _decimal(value)
            exponent = int(number.as_tuple().exponent)
            self._places = max(self._places, -exponent)
            self._whole = max(self._whole, number.adjusted() + 1)
            self._largest = max(self._largest, abs(int(number)))

    @property
    def type(self) -> pa.DataType:
        return self._found[0]

    def cast(self, value: Any) -> Any:
        return None if value == "" or value is None else self._found[1](value)

    @property
    def _found(self) -> tuple[pa.DataType, Callable[[Any], Any]]:
        if self._kinds == {"number"} and self._places + self._whole <= _DIGITS:
            if not self._places and self._largest <= _LARGEST_WHOLE:
                return pa.int64(), lambda value: int(_decimal(value))
            return pa.decimal128(_DIGITS, self._places), _decimal
        if self._kinds == {"date"}:
            return pa.date32(), _day
        if self._kinds and self._kinds <= {"date", "timestamp"}:
            return pa.timestamp("us"), _moment
        if self._kinds == {"boolean"}:
            return pa.bool_(), bool
        return pa.string(), _text


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, datetime):
        return "date" if value.time() == time() else "timestamp"
    return "date" if isinstance(value, date) else "text"


def _decimal(value: float) -> Decimal:
    """With the 15 digits that Excel keeps: what a cell shows, not what a float is off by."""
    found = Decimal(value) if isinstance(value, int) else Decimal(f"{value:.15g}")
    found = found.normalize()
    return found.quantize(Decimal(1)) if int(found.as_tuple().exponent) > 0 else found


def _day(value: date) -> date:
    return value.date() if isinstance(value, datetime) else value


def _moment(value: date) -> datetime:
    return value if isinstance(value, datetime) else datetime.combine(value, time())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return format(_decimal(value), "f")
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value)


def _demand_harmless(content: bytes, file: str) -> None:
    """Refuse an encrypted or older file, and one that unpacks to more than memory should hold."""
    if not content:
        raise _wrong(f"{file} is empty")
    if content.startswith(_OLE):
        if _ENCRYPTED in content:
            raise _encrypted(file)
        raise _wrong(f"{file} is an Excel file of before 2007: save it as .xlsx")
    if len(content) > _LARGEST_FILE:
        raise _wrong(f"{file} has {len(content):,} bytes: save it as CSV or Parquet")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            unpacked = sum(each.file_size for each in packed.infolist())
            names = set(packed.namelist())
    except (zipfile.BadZipFile, ValueError):
        raise _wrong(f"{file} is not an XLSX file, whatever its name says") from None
    if unpacked > LARGEST_UNPACKED:
        raise _wrong(
            f"{file} would unpack to {unpacked:,} bytes, more than {LARGEST_UNPACKED:,}: save it as"
            " CSV or Parquet"
        )
    if "[Content_Types].xml" not in names:
        raise _wrong(f"{file} is a zip archive, not an XLSX file")


def _encrypted(file: str) -> InvalidInput:
    return _wrong(f"{file} is protected by a password: save a copy without one")


def _wrong(message: str) -> InvalidInput:
    return InvalidInput(Problem("", message))
