"""XLSX files: the sheet and row that the rows begin at, and a sheet as Parquet with the cells'
types. `workbook_process` runs it in a process of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import python_calamine
from python_calamine import CalamineSheet, CalamineWorkbook, SheetTypeEnum, SheetVisibleEnum

from kalla.errors import InvalidInput, Problem
from kalla.plurals import counted
from kalla.reconcile.recipe.model import Workbook
from kalla.reconcile.sources.formats.csv_sniffing import Decided
from kalla.reconcile.sources.formats.table_shape import Footer, Shape, find_shape, numbered
from kalla.reconcile.sources.scanning.column_names import demand_names

MOST_COLUMNS = 2_000
_HEAD_ROWS = 200
_TAIL_ROWS = 20  # among which sums are looked for
_BATCH_ROWS = 20_000
_DIGITS = 38
_LARGEST_WHOLE = 2**63 - 1
_SHOWN = 60
_CLEARLY = 2  # times the rows of the next sheet


@dataclass(frozen=True)
class Sheet:
    """The detected sheet and rows of a workbook, and why."""

    name: str
    reason: str
    is_sure: bool
    shape: Shape
    columns: tuple[str, ...]

    @property
    def header_row(self) -> int:
        """As Excel numbers it."""
        return self.shape.header + 1


@dataclass(frozen=True)
class ConvertedSheet:
    """The chosen options of a written sheet, and what a report says of them."""

    decisions: tuple[Decided, ...]
    notes: tuple[str, ...]


def to_parquet(book: Path, file: str, options: Workbook, target: Path) -> ConvertedSheet:
    """Writes the rows of a workbook's sheet; `file` is its name in messages."""
    calamine, sheet = _opened(book, file, options)
    kinds = [_Kind() for _ in range(sheet.shape.width)]

    def take(row: list[Any]) -> None:
        for kind, value in zip(kinds, row, strict=False):
            kind.take(value)

    rows = 0
    last: deque[list[Any]] = deque()
    for row in _records(calamine, sheet):
        rows += 1
        last.append(row)
        if len(last) > max(_TAIL_ROWS, options.footer or 0):
            take(last.popleft())
    footer = sheet.shape.footer_of(last)
    if options.footer is not None:
        footer = Footer(min(options.footer, len(last)), "as said")
    elif not footer.is_sure:  # a row that is not reconciled is worse than a sum that is
        said = f"{footer.reason}; set xlsx.footer: {footer.rows} if it is not a row"
        footer = Footer(0, said, is_sure=False)
    left_out = [last.pop() for _ in range(footer.rows)][::-1]
    rows -= len(left_out)
    for row in last:
        take(row)
    kept = [place for place, name in enumerate(sheet.columns) if name]
    schema = pa.schema([(sheet.columns[place], kinds[place].type) for place in kept])
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for batch in _batches(islice(_records(calamine, sheet), rows)):
            columns = [
                pa.array(
                    [kinds[place].cast(row[place]) if place < len(row) else None for row in batch],
                    kinds[place].type,
                )
                for place in kept
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    return _described(sheet, footer, left_out, file.rpartition("/")[2])


def _described(
    sheet: Sheet, footer: Footer, left_out: Sequence[Sequence[Any]], name: str
) -> ConvertedSheet:
    decisions = [Decided("sheet", sheet.name, sheet.reason, sheet.is_sure)]
    notes = [f"{name}: sheet {sheet.name!r}, {sheet.reason}; header in row {sheet.header_row}"]
    if sheet.shape.header:
        decisions.append(Decided("header_row", sheet.header_row, sheet.shape.header_reason))
    if left_out or not footer.is_sure:
        decisions.append(Decided("footer", footer.rows, footer.reason, footer.is_sure))
    if left_out:
        words = " / ".join(
            " ".join(_text(value) for value in row if value != "") for row in left_out
        )
        shown = words if len(words) <= _SHOWN else f"{words[:_SHOWN]}…"
        notes.append(f"left out: {counted(len(left_out), 'row')} of {name} below the rows: {shown}")
    return ConvertedSheet(tuple(decisions), tuple(notes))


def _opened(book: Path, file: str, options: Workbook) -> tuple[CalamineSheet, Sheet]:
    try:
        return _chosen(CalamineWorkbook.from_path(str(book)), file, options)
    except python_calamine.PasswordError:
        raise _wrong(f"{file} is protected by a password: save a copy without one") from None
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
    heights = {name: book.get_sheet_by_name(name).height for name in names}
    if not any(heights.values()):
        raise _wrong(f"{file} is empty: no sheet holds a value")
    name = max(heights, key=lambda each: (heights[each], -names.index(each)))
    calamine = book.get_sheet_by_name(name)
    if calamine.width > MOST_COLUMNS:
        raise _wrong(
            f"{file} has {calamine.width:,} columns in {name!r}: at most {MOST_COLUMNS:,}"
            " can be read"
        )
    head = [_plain(row) for row in calamine.to_python(skip_empty_area=False, nrows=_HEAD_ROWS)]
    shape = find_shape(head)
    if options.header_row is not None:
        if options.header_row > len(head):
            raise _wrong(f"{file}: row {options.header_row} of {name!r} is not a header")
        shape = replace(shape, header=options.header_row - 1, header_reason="as said")
    reason = "as said" if options.sheet else "the only sheet with values"
    others = [height for each, height in heights.items() if each != name and height]
    if others:
        reason = f"the sheet with the most rows ({calamine.height:,})"
    is_sure = all(height * _CLEARLY <= calamine.height for height in others)
    width = max((len(row) for row in head), default=0)
    titles = [str(value).strip() for value in head[shape.header]] if head else []
    titles += [""] * (width - len(titles))
    below = head[shape.header + 1 :]
    used = [any(place < len(row) and row[place] != "" for row in below) for place in range(width)]
    columns = _named(titles, used)
    demand_names([each for each in columns if each], file)
    if not any(columns):
        raise _wrong(f"{file} has no header in {name!r}")
    return calamine, Sheet(name, reason, is_sure, replace(shape, width=width), tuple(columns))


def _named(titles: Sequence[str], used: Sequence[bool]) -> list[str]:
    """Columns without a title are numbered if they hold values, and left out if not."""
    given = iter(numbered([title for title in titles if title]))
    return [
        next(given) if title else f"column{place + 1}" if used[place] else ""
        for place, title in enumerate(titles)
    ]


def _records(calamine: CalamineSheet, sheet: Sheet) -> Iterator[list[Any]]:
    """The rows below the header that hold a value."""
    beside = [""] * (calamine.start[1] if calamine.start else 0)  # columns left of all values
    for number, row in enumerate(calamine.iter_rows()):
        if number <= sheet.shape.header:
            continue
        values = [*beside, *_plain(row)]
        if any(value != "" for value in values):
            yield values


def _batches(rows: Iterable[list[Any]]) -> Iterator[list[list[Any]]]:
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


def _wrong(message: str) -> InvalidInput:
    return InvalidInput(Problem("", message))
