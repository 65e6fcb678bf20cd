"""Detects the options of a CSV file by its beginning and its end: each option with the reason.

The results are the `csv` options of a source, so that a person can correct each of them.
"""

from __future__ import annotations

import csv as csv_lines
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.recipe.model import COMPRESSIONS, Csv
from kalla.reconcile.sources.formats.compressed_files import pieces, plain
from kalla.reconcile.sources.formats.table_shape import find_shape
from kalla.storage import Storage

MOST_COLUMNS = 2_000
_HEAD_BYTES = 256 * 1024
_TAIL_BYTES = 16 * 1024
_ZIP = b"PK\x03\x04"  # a workbook is a ZIP archive
_GZIP = b"\x1f\x8b"
_DELIMITERS = ((";", "semicolon"), (",", "comma"), ("\t", "tab"), ("|", "bar"))
_READ_ROWS = 2_000
_IN_DOUBT = re.compile(r"[1-9]\d{0,2}[.,]\d{3}")
_LEAST_IN_DOUBT = 2
_LINE_END = re.compile(r"\r\n|\n|\r")  # a form feed or U+2028 is part of a value
_MOSTLY = 0.9  # of a column's values

_PLAIN_DATE = (
    "%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d",
    "%Y%m%d", "%d/%m/%y", "%m/%d/%y", "%d-%b-%Y", "%d %b %Y", "%b %d, %Y",
)  # fmt: skip
_WITH_TIME = ("", " %H:%M:%S", " %H:%M", "T%H:%M:%S")
# The engine reads ISO dates by themselves, but no zone behind a blank, as in `10:30:00 +0100`.
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(?!.* [+-]\d).*)?")
_ZONED = "%Y-%m-%d %H:%M:%S %z"
_AMOUNT = re.compile(
    r"[-+(]?\s?[€$£¥]?\s?(?P<digits>[0-9][0-9.,' \u00a0\u202f\u2019]*)[-)]?\s?[€$£¥]?"
)


@dataclass(frozen=True)
class Decided:
    """An option of a source, its detected value, and the reason."""

    option: str
    value: Any
    reason: str
    is_sure: bool = True


@dataclass(frozen=True)
class Sniffed:
    csv: Csv
    decisions: tuple[Decided, ...]


def sniff(url: str, storage: Storage, given: Csv = Csv()) -> Sniffed:  # noqa: B008 -- frozen
    """The options of a CSV file. Given options are kept."""
    said = {name: getattr(given, name) for name in given.model_fields_set}
    head, tail, is_whole = _ends(url, storage)
    decided: list[Decided] = []

    def decide(option: str, value: Any, reason: str, is_sure: bool = True) -> Any:
        if option in said:
            value, reason, is_sure = said[option], "as said", True
        if reason:
            decided.append(Decided(option, value, reason, is_sure))
        return value

    encoding = decide("encoding", *_encoding(head, url, storage))
    lines = _lines(head, encoding, is_whole)
    quote = decide("quote", '"', "")
    delimiter = decide("delimiter", *_delimiter(lines, quote))
    rows = _parsed(lines, delimiter, quote)
    shape = find_shape(rows)
    if shape.width > MOST_COLUMNS:
        raise _wrong(f"{url} has {shape.width:,} columns: at most {MOST_COLUMNS:,} can be read")
    skip = decide("skip", shape.header, shape.header_reason if shape.header else "")
    records = rows[skip + 1 :]
    last = records if is_whole else _parsed(_lines(tail, encoding, True)[1:], delimiter, quote)
    below = shape.footer_of(last)
    footer = decide("footer", below.rows, below.reason, below.is_sure)
    if footer and is_whole:
        records = [row for row in records if any(row)][:-footer]
    columns = list(zip(*(_padded(row, shape.width) for row in records[:_READ_ROWS]), strict=True))
    decimal, thousands, reason, sure = _number_signs(columns, delimiter)
    decide("decimal", decimal, reason, sure)
    decide("thousands", thousands, reason if thousands else "", sure)
    written, reason, sure = _date_format(columns)
    decide("date_format", written, reason if written else "", sure)
    options = {each.option: each.value for each in decided if each.value is not None}
    return Sniffed(Csv.model_validate(said | options), tuple(decided))


def not_in_encoding(file: str, csv: Csv, storage: Storage) -> str:
    """The message for a file that is not in the encoding its source names."""
    with storage.open(file) as raw:
        head = raw.read(4096)
    if head.startswith(_ZIP):
        return f"{file} is not CSV; it looks like a workbook: set format: xlsx"
    if head.startswith(_GZIP):
        return f"{file} is compressed by gzip, but its name does not end in .gz: rename it"
    if head.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        likely = "UTF-16"
    elif b"\0" in head:
        return f"{file} is binary, not text, whatever its name says"
    else:  # some bytes are not characters of Windows-1252; each is one of Latin-1
        likely = "Latin-1" if csv.encoding == "windows-1252" else "Windows-1252"
    return f"{file} is not {csv.encoding.upper()}; it looks like {likely}: set csv.encoding"


def _ends(url: str, storage: Storage) -> tuple[bytes, bytes, bool]:
    """The first and the last bytes of a file, and whether the first are all."""
    size = storage.size(url)
    with storage.open(url) as raw:
        head = plain(raw, url).read(_HEAD_BYTES)
        packed = url.lower().endswith(tuple(COMPRESSIONS))
        is_whole = len(head) < _HEAD_BYTES if packed else size <= len(head)
        tail = b""
        if not is_whole and not packed:
            raw.seek(size - _TAIL_BYTES)
            tail = raw.read(_TAIL_BYTES)
    if not head.strip():
        raise _wrong(f"{url} is empty")
    return head, tail, is_whole


def _encoding(head: bytes, url: str, storage: Storage) -> tuple[str, str]:
    if head.startswith(BOM_UTF16_LE) or (head[1:200:2].count(0) > 80 and not head[:200:2].count(0)):
        return "utf-16", "every second byte is zero, or the file begins with its mark"
    if b"\0" in head:
        raise _wrong(f"{url} is binary, not text, whatever its name says")
    if head.startswith(BOM_UTF8):
        return "utf-8", "the file begins with its mark"
    decoder = getincrementaldecoder("utf-8")()
    lines, is_ascii = 1, True
    for piece in chain(pieces(url, storage), [b""]):  # the first umlaut may be in the last line
        try:
            decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            line = lines + piece.count(
                b"\n", 0, max(0, len(piece) - len(error.object) + error.start)
            )
            return _one_byte(error.object, error.start, line)
        lines += piece.count(b"\n")
        is_ascii = is_ascii and piece.isascii()
    return "utf-8", "" if is_ascii else "all of it is valid UTF-8"


def _one_byte(content: bytes, place: int, line: int) -> tuple[str, str]:
    odd = content[place : place + 1]
    with suppress(UnicodeDecodeError):
        content.decode("cp1252")
        sign = odd.decode("cp1252")
        return (
            "windows-1252",
            f"not UTF-8: byte {odd.hex()} in line {line} is {sign!r} in Windows-1252",
        )
    return "latin-1", f"neither UTF-8 nor Windows-1252: byte {odd.hex()} in line {line}"


def _lines(content: bytes, encoding: str, is_whole: bool) -> list[str]:
    codec = {"windows-1252": "cp1252", "utf-8": "utf-8-sig"}.get(encoding, encoding)
    text = content.decode(codec, "replace")
    lines = _LINE_END.split(text.removesuffix("\n").removesuffix("\r"))
    return lines if is_whole else lines[:-1]


def _delimiter(lines: Sequence[str], quote: str) -> tuple[str, str, bool]:
    """The character that splits most lines into the same number of values."""
    scores = []
    for sign, name in _DELIMITERS:
        widths = Counter(len(row) for row in _parsed(lines[:500], sign, quote) if len(row) > 1)
        if widths:
            width, count = max(widths.items(), key=lambda each: (each[1], each[0]))
            scores.append((count / max(1, len(lines[:500])), width, sign, name))
    if not scores:
        return ",", "there is one column", False
    share, width, sign, name = max(scores, key=lambda each: (round(each[0], 2), each[1]))
    return sign, f"{share:.0%} of the lines have {width} values between {name}s", share > 0.5


def _parsed(lines: Sequence[str], delimiter: str, quote: str) -> list[list[str]]:
    try:
        return list(csv_lines.reader(lines, delimiter=delimiter, quotechar=quote))
    except csv_lines.Error:  # a line longer than a value may be, or a null byte
        return [line.split(delimiter) for line in lines]


def _padded(row: Sequence[str], width: int) -> list[str]:
    return [*row[:width], *[""] * (width - len(row))]


def _number_signs(
    columns: Sequence[Sequence[str]], delimiter: str
) -> tuple[str, str | None, str, bool]:
    """The decimal and thousands signs that all amounts can be read by."""
    votes: Counter[tuple[str, str | None]] = Counter()
    example: dict[tuple[str, str | None], str] = {}
    in_doubt: Counter[str] = Counter()  # signs before exactly three digits
    for column in columns:
        values = [value.strip() for value in column if value.strip()]
        found = [_AMOUNT.fullmatch(value) for value in values]
        if not values or sum(map(bool, found)) < _MOSTLY * len(values):
            continue
        if _formats_of(values):
            continue
        for value, match in zip(values, found, strict=True):
            digits = match["digits"].strip() if match else ""
            if signs := _signs_of(digits):
                votes[signs] += 1
                example.setdefault(signs, value)
            elif _IN_DOUBT.fullmatch(digits):
                sign = digits[-4]
                in_doubt[sign] += 1
                example.setdefault((sign, sign), value)
    if not votes:
        return _signs_in_doubt(in_doubt, example, delimiter)
    decimals = Counter[str]()
    for (decimal, _), count in votes.items():
        decimals[decimal] += count
    decimal = max(decimals, key=lambda sign: (decimals[sign], sign == "."))
    thousands = Counter(
        {sign: count for (own, sign), count in votes.items() if own == decimal and sign}
    )
    grouped = max(thousands, key=lambda sign: (thousands[sign], sign)) if thousands else None
    if grouped is None and (others := set(in_doubt) - {decimal}):
        grouped = min(others)
        example.setdefault((decimal, grouped), example[grouped, grouped])
    shown = example.get((decimal, grouped)) or next(iter(example.values()))
    against = sum(count for (own, _), count in votes.items() if own != decimal)
    reason = f"as in {shown}"
    if against:
        reason += f"; {against} of {sum(votes.values())} amounts look otherwise"
    return decimal, grouped, reason if decimal == "," or grouped else "", not against


def _signs_in_doubt(
    in_doubt: Counter[str], example: dict[tuple[str, str | None], str], delimiter: str
) -> tuple[str, str | None, str, bool]:
    """The signs where amounts have thousands or three decimals, as 1.234: hardly any money has
    three, but a point among commas is a decimal one."""
    if sum(in_doubt.values()) < _LEAST_IN_DOUBT or len(in_doubt) > 1:
        return ".", None, "", True
    (sign,) = in_doubt
    shown = example[sign, sign]
    if sign == "." and delimiter == ",":
        reason = f"{shown} is read with three decimals: set csv.thousands if it is over a thousand"
        return ".", None, reason, False
    reason = f"{shown} is read as over a thousand: set csv.decimal if it has three decimals"
    return "," if sign == "." else ".", sign, reason, False


def _signs_of(digits: str) -> tuple[str, str | None] | None:
    """The separators of an amount; None if it has none, or could be read in two ways."""
    groups = {".": ",", ",": ".", "'": ".", "\u2019": ".", " ": ",", "\u00a0": ",", "\u202f": ","}
    names = {"\u2019": "'", "\u00a0": " ", "\u202f": " "}
    for sign, decimal in groups.items():
        between = re.escape(sign)
        for point in {decimal, "," if sign in " \u00a0\u202f'\u2019" else decimal, "."} - {sign}:
            if re.fullmatch(rf"\d{{1,3}}({between}\d{{3}})+{re.escape(point)}\d*", digits):
                return point, names.get(sign, sign)
            if re.fullmatch(rf"\d{{1,3}}({between}\d{{3}}){{2,}}", digits):
                return decimal, names.get(sign, sign)
    if re.fullmatch(r"\d+,(\d{1,2}|\d{4,})|0\d*,\d+|\d{4,},\d+", digits):
        return ",", None
    if re.fullmatch(r"\d+\.(\d{1,2}|\d{4,})|0\d*\.\d+|\d{4,}\.\d+", digits):
        return ".", None
    return None


def _date_format(columns: Sequence[Sequence[str]]) -> tuple[str | None, str, bool]:
    """The format that every date of every column with dates is written in."""
    kept: set[str] | None = None
    example = ""
    has_iso = False  # such dates are not read where a format is given
    for column in columns:
        values = list(dict.fromkeys(value.strip() for value in column if value.strip()))
        has_iso = has_iso or _are_iso(values)
        if (formats := _formats_of(values)) and (kept is None or kept & formats):
            kept = formats if kept is None else kept & formats
            example = example or max(values)
    if not kept or (has_iso and kept == {_ZONED}):
        return None, "", True
    order = [*(plain + timed for timed in _WITH_TIME for plain in _PLAIN_DATE), _ZONED]
    found = sorted(kept, key=order.index)
    if len(found) == 1:
        return found[0], f"as in {example}", True
    return found[0], f"as in {example}; {' or '.join(found[1:])} would read all dates too", False


def _formats_of(values: Sequence[str]) -> set[str]:
    """The formats that read nearly all of these values; none for ISO dates, which need none."""
    if not values or _are_iso(values):
        return set()
    shape = re.compile(
        r"(\d{1,4}[-./]\d{1,2}[-./]\d{1,4}|\d{8}|\d{1,2}[- ]\w{3}[- ]\d{4}|\w{3} .*)([ T].*)?"
    )
    if sum(bool(shape.fullmatch(value)) for value in values) < _MOSTLY * len(values):
        return set()
    found = set()
    for plain_format in _PLAIN_DATE:
        for timed in _WITH_TIME:
            read = sum(_reads(value, plain_format + timed) for value in values)
            if read >= _MOSTLY * len(values) and read > len(values) - 2:
                found.add(plain_format + timed)
    if all(_reads(value, _ZONED) for value in values):
        found.add(_ZONED)
    return found


def _are_iso(values: Sequence[str]) -> bool:
    return bool(values) and all(_ISO.fullmatch(value) for value in values)


def _reads(value: str, written: str) -> bool:
    try:
        found = datetime.strptime(value, written)  # noqa: DTZ007 -- only whether it can be read
    except ValueError:
        return False
    return 1900 <= found.year <= 2200 and not ("%Y%m%d" in written and len(value) < 8)


def _wrong(message: str) -> InvalidInput:
    return InvalidInput(Problem("uri", message))
