"""Turns DuckDB's errors into messages of bounded length."""

from __future__ import annotations

import re
from collections.abc import Sequence

import duckdb

from kalla.errors import KallaError, Permanent, Unavailable
from kalla.plurals import counted
from kalla.redaction import scrub
from kalla.storage.storage_failures import NO_ROOM

_LONGEST_LINE = 200
LINES = 3  # of an error in a CSV: where, the line itself, and what is wrong with it
_SHOWN = 3
_READING = (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.IOException)
_CSV_FAULT = re.compile(
    r"CSV Error on Line: (?P<number>\d+)\nOriginal Line: ?(?P<line>.*?)\s*\n(?P<fault>"
    r"Expected Number of Columns: (?P<expected>\d+) Found: (?P<found>\d+)"
    r"|Value with unterminated quote|Invalid unicode|(?:Maximum line|Error)[^\n]*)",
    re.DOTALL,
)
_DELIMITERS = (";", "\t", "|", ",")
_SQL = re.compile(r"^LINE \d+:", re.MULTILINE)
_TOO_LARGE = "Out of Range Error: "
_RAISED = re.compile(r"^(\w+): (.+)$", re.MULTILINE)
# Errors from DuckDB's threads are wrapped in JSON.
_WRAPPED = re.compile(r'"exception_message":"((?:[^"\\]|\\.)*)"')


def said(error: duckdb.Error, lines: int = 1, skipped: int = 0) -> str:
    """The useful lines of an error, or the Python error while it read from S3. `skipped` is how
    many lines of the file are above those that DuckDB counts.
    """
    if raised := _raised(error):
        return scrub(raised[1])
    if wrapped := _WRAPPED.search(str(error)):
        return scrub(wrapped[1].replace('\\"', '"'))
    text = _SQL.split(str(error))[0]  # our own marker
    parts = [line.strip() for line in text.splitlines() if line.strip()]
    if parts and parts[0].startswith(_TOO_LARGE):
        return f"an amount or a sum has more than 38 digits ({parts[0].removeprefix(_TOO_LARGE)})"
    if not parts:
        return "no reason is given"
    if "state machine reached an invalid state" in parts[0]:
        return "its lines do not all end alike (\\n and \\r\\n), or a quote is not closed"
    if "is not utf-16 encoded" in parts[0]:  # DuckDB also says this of valid UTF-16
        return (
            "it is not UTF-16, or holds a character of four bytes, such as an emoji, which is not"
            " read from UTF-16: convert it to UTF-8"
        )
    parts[0] = parts[0].removeprefix("Invalid Input Error: ").removeprefix("IO Error: ")
    if found := _CSV_FAULT.search(text):
        return _csv_fault(found, skipped)
    return " ".join(line[:_LONGEST_LINE] for line in parts[:lines])


def _csv_fault(found: re.Match[str], skipped: int) -> str:
    """What is wrong with a line of a CSV, and what to do, with the line itself at the end."""
    line, where = found["line"].strip(), f"line {int(found['number']) + skipped}"
    if found["expected"]:
        expected, number = int(found["expected"]), int(found["found"])
        reason = f"{where} has {counted(number, 'value')}, the header has {expected}"
        other = next((sign for sign in _DELIMITERS if sign in line), None)
        if expected == 1 and other:
            reason = f'its lines are separated by {other!r}: set csv.delimiter to "{other}"'
            reason = reason.replace("\t", "\\t")
    elif found["fault"].startswith("Value"):
        reason = f"a quote in {where} is not closed"
    elif found["fault"].startswith("Invalid"):
        reason = (
            f"{where} is not in the encoding that csv.encoding says: most files that are not UTF-8"
            " need csv.encoding: windows-1252"
        )
    else:
        reason = f"{where}: {found['fault']}"
    shown = line.partition("\n")[0]
    return f"{reason} ({shown[:_LONGEST_LINE]})" if shown else reason


def of_reading(
    error: duckdb.Error, whose: str, files: Sequence[str], skipped: int = 0
) -> Exception:
    """The error for files that cannot be read: permanent, unless their server was unreachable.

    Errors of another kind, such as too little memory, are unchanged.
    """
    if _raised(error) is None and not isinstance(error, _READING):
        return error
    return _lasting(error)(
        f"{whose} ({names(files)}) cannot be read: {said(error, LINES, skipped)}"
    )


def of_matching(error: duckdb.Error) -> KallaError:
    """The error for a failed match: permanent, unless a server was unreachable or there was no
    space.
    """
    return _lasting(error)(f"the match failed: {said(error, LINES)}")


def _lasting(error: duckdb.Error) -> type[KallaError]:
    if raised := _raised(error):
        return Unavailable if raised[0] == Unavailable.__name__ else Permanent
    is_full = isinstance(error, duckdb.IOException) and any(each in str(error) for each in NO_ROOM)
    return Unavailable if is_full else Permanent


def _raised(error: duckdb.Error) -> tuple[str, str] | None:
    """The class and the message of a Python error, which DuckDB passes on as text."""
    text = str(error)
    if not text.startswith("Traceback"):
        return None
    kind, words = _RAISED.findall(text)[-1] if _RAISED.search(text) else ("", text[-_LONGEST_LINE:])
    return kind, words


def names(files: Sequence[str]) -> str:
    """The first few names."""
    more = f" and {len(files) - _SHOWN:,} more" if len(files) > _SHOWN else ""
    return ", ".join(files[:_SHOWN]) + more
