"""Decides whether one thread must read a CSV, from its beginning to its end.

DuckDB's threads each begin in the middle of a file, where a line may be a row or a part of a quoted
value: it guesses, and reports sound files as damaged. With one thread, and in a header, it does not
notice that the last quote is never closed, and drops what follows: so this module checks that. It
also checks for lines that are too long: DuckDB silently drops a last line of 40 MB.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8, getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.recipe.model import Csv
from kalla.reconcile.sources.formats.compressed_files import pieces
from kalla.storage import Storage

LONGEST_LINE = 2_000_000  # bytes; DuckDB reads no longer one either

_LINE_ENDS = b"\r\n"
_LINE_END = re.compile(rb"[\r\n]")
_SPACE = ord(" ")
_ANY = 0  # a sign that means nothing


def are_there(csv: Csv, files: Sequence[str], storage: Storage) -> bool:
    """Whether files have quotes; refuses a line that is too long, and a last value in quotes that
    does not end.

    Reads every byte, and so detects damaged compressed files.
    """
    found = [_in(csv, _content(csv, file, storage), file) for file in files]
    return any(found)


def _content(csv: Csv, file: str, storage: Storage) -> Iterator[bytes]:
    """Content with one byte per character; reading the rows reports invalid bytes."""
    held = pieces(file, storage)
    if csv.encoding != "utf-16":
        return held
    decoder = getincrementaldecoder("utf-16-le")("replace")
    return (decoder.decode(piece).encode() for piece in held)


def _in(csv: Csv, content: Iterable[bytes], file: str) -> bool:
    sign = csv.quote.encode()  # one byte, or nothing is read
    before = csv.delimiter.encode()[-1:] + _LINE_ENDS
    last, opened, found = _LINE_ENDS[-1:], False, False
    lines, opened_in, unended = 0, 0, 0
    for number, piece in enumerate(content):
        seen = last + (piece if number else piece.removeprefix(BOM_UTF8))
        if sign in piece:
            found = True
            seen, opened = _walked(seen, len(last), sign, before, opened)
            opened_in = lines + seen.count(b"\n", len(last), seen.rfind(sign))
        unended = _unended(unended, piece, lines, file)
        lines += piece.count(b"\n")
        last = _ending(seen)
    if opened:
        wrong = f"{file} cannot be read: a quote in line {opened_in + 1} is never closed"
        raise InvalidInput(Problem("", wrong))
    return found


def _unended(before: int, piece: bytes, lines: int, file: str) -> int:
    """The bytes of the line that goes on behind a piece, of which so many were before it.

    A piece is shorter than the longest line, so that a longer one does not fit between its ends.
    """
    first = _LINE_END.search(piece)
    if before + (len(piece) if first is None else first.start()) > LONGEST_LINE:
        wrong = f"{file} cannot be read: line {lines + 1} has more than {LONGEST_LINE:,} bytes"
        raise InvalidInput(Problem("", wrong))
    if first is None:
        return before + len(piece)
    return len(piece) - 1 - max(piece.rfind(b"\n"), piece.rfind(b"\r"))


def _walked(
    content: bytes, start: int, sign: bytes, before: bytes, opened: bool
) -> tuple[bytes, bool]:
    """The content without the quotes that are part of a value, as in `5" pipe`, and whether its
    last value is open."""
    signs = np.frombuffer(content, np.uint8)
    quotes = np.flatnonzero(signs[start:] == sign[0]) + start
    # By turns they open a value and close one; two in a value do both.
    openers = signs[quotes[int(opened) :: 2] - 1]
    if np.isin(openers, np.frombuffer(sign + before, np.uint8)).all():
        return content, opened ^ bool(len(quotes) % 2)
    kept = bytearray(content)
    for place, last in zip(quotes.tolist(), signs[quotes - 1].tolist(), strict=True):
        if opened or last in before or _opens(kept, place, sign, before):
            opened = not opened
        else:
            kept[place] = _ANY
    return bytes(kept), opened


def _opens(content: bytearray, place: int, sign: bytes, before: bytes) -> bool:
    """Whether DuckDB takes a quote for the first of a value, or of more of it: one space may be
    before the first, and any number after the last."""
    last = place - 1
    while content[last] == _SPACE and last > 0:
        last -= 1
    return content[last] in (sign + before if last >= place - 2 else sign)


def _ending(content: bytes) -> bytes:
    """The last sign; behind it a space, or two, if there were some."""
    plain = content.rstrip(b" ")
    return plain[-1:] + content[len(plain) : len(plain) + 2]
