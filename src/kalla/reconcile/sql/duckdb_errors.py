"""Turns DuckDB's errors into messages of bounded length."""

from __future__ import annotations

import re
from collections.abc import Sequence

import duckdb

from kalla.errors import KallaError, Permanent, Unavailable
from kalla.redaction import scrub
from kalla.storage.storage_failures import NO_ROOM

_LONGEST_LINE = 200
LINES = 3  # of an error in a CSV: where, the line itself, and what is wrong with it
_SHOWN = 3
_READING = (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.IOException)
_CSV_FAULT = re.compile(
    r"Expected Number|Value with|Invalid unicode|Maximum line|Unterminated|Error"
)
_SQL = re.compile(r"^LINE \d+:", re.MULTILINE)
_TOO_LARGE = "Out of Range Error: "
_RAISED = re.compile(r"^(\w+): (.+)$", re.MULTILINE)
# Errors from DuckDB's threads are wrapped in JSON.
_WRAPPED = re.compile(r'"exception_message":"((?:[^"\\]|\\.)*)"')


def said(error: duckdb.Error, lines: int = 1) -> str:
    """The useful lines of an error, or the Python error while it read from S3."""
    if raised := _raised(error):
        return scrub(raised[1])
    if wrapped := _WRAPPED.search(str(error)):
        return scrub(wrapped[1].replace('\\"', '"'))
    text = _SQL.split(str(error))[0]  # our own marker
    told = [line.strip() for line in text.splitlines() if line.strip()]
    if told and told[0].startswith(_TOO_LARGE):
        return f"an amount or a sum has more than 38 digits ({told[0].removeprefix(_TOO_LARGE)})"
    if not told:
        return "no reason is given"
    if "state machine reached an invalid state" in told[0]:
        return "its lines do not all end alike (\\n and \\r\\n), or a quote is not closed"
    if "is not utf-16 encoded" in told[0]:  # DuckDB also says this of valid UTF-16
        return (
            "it is not UTF-16, or holds a character of four bytes, such as an emoji, which is not"
            " read from UTF-16: convert it to UTF-8"
        )
    told[0] = told[0].removeprefix("Invalid Input Error: ").removeprefix("IO Error: ")
    if told[0].startswith("CSV Error") and len(told) > lines:  # the line itself may be several
        told[2] = next((line for line in told[2:] if _CSV_FAULT.match(line)), told[2])
    return " ".join(line[:_LONGEST_LINE] for line in told[:lines])


def of_reading(error: duckdb.Error, whose: str, files: Sequence[str]) -> Exception:
    """The error for files that cannot be read: permanent, unless their server was unreachable.

    Errors of another kind, such as too little memory, are unchanged.
    """
    if _raised(error) is None and not isinstance(error, _READING):
        return error
    return _lasting(error)(f"{whose} ({names(files)}) cannot be read: {said(error, LINES)}")


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
