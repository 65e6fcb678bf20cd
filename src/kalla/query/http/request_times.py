"""Times, durations and limits of a request, read as Prometheus reads them; milliseconds here."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from kalla.query.promql.durations import LONGEST_SECONDS, milliseconds
from kalla.query.promql.lexer import go_quote
from kalla.query.promql.query_errors import BadRequest

EARLIEST, LATEST = -(2**63), 2**63 - 1

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
# How Prometheus prints its first and last time, and reads them back.
_ENDS_OF_TIME = {
    "-292273086-05-16T16:47:06Z": EARLIEST,
    "292277025-08-18T07:12:54.999999999Z": LATEST,
}


def time_of(text: str, parameter: str, context: str = "") -> int:
    """Seconds since 1970, or RFC 3339; a refusal begins with `context`."""
    if text in _ENDS_OF_TIME:
        return _ENDS_OF_TIME[text]
    found = _moment(text)
    if found is None:
        problem = f"{context}cannot parse {go_quote(text)} to a valid timestamp"
        raise BadRequest(problem, parameter)
    return found


def duration_of(text: str, parameter: str) -> float:
    """Seconds as a number, or `1m30s`; in milliseconds, which may have a fraction."""
    try:
        return _duration(text)
    except ValueError as problem:
        raise BadRequest(str(problem), parameter) from None


def lookback_of(text: str) -> int:
    try:
        return int(_duration(text))
    except ValueError as problem:
        raise BadRequest(f"error parsing lookback delta duration: {problem}") from None


def limit_of(text: str) -> int:
    """How many series or names to answer; 0 is all of them."""
    if not text:
        return 0
    if not _WHOLE.fullmatch(text):
        raise BadRequest(f"strconv.Atoi: parsing {go_quote(text)}: invalid syntax", "limit")
    if int(text) < 0:
        raise BadRequest("limit must be non-negative", "limit")
    return int(text)


def count_of(text: str, parameter: str) -> int:
    """A limit of /metadata: below 0 is all of them."""
    if not text:
        return -1
    if not _WHOLE.fullmatch(text):
        raise BadRequest(f"{parameter} must be a number")
    return int(text)


def within(time_ms: int) -> int:
    """The nearest time that the catalogue can be queried for."""
    return max(EARLIEST, min(LATEST, time_ms))


def usual_step(start: int, end: int) -> int:
    """What Prometheus' own page asks for: some 250 points, at least a second apart."""
    return max(1000, (end - start) // 250)


def _moment(text: str) -> int | None:
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        if math.isinf(seconds):
            return None
        fraction, whole = math.modf(seconds)
        # Half a millisecond goes away from zero, as Go rounds.
        return int(whole) * 1000 + int(
            math.copysign(math.floor(abs(fraction) * 1000 + 0.5), seconds)
        )
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    written, fraction_digits, sign, hours, minutes = match.groups()
    try:
        local = datetime.strptime(written, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    passed = local - datetime(1970, 1, 1, tzinfo=UTC)
    if sign:
        away = timedelta(hours=int(hours), minutes=int(minutes))
        passed -= away if sign == "+" else -away
    return int(passed.total_seconds()) * 1000 + int((fraction_digits or "0").ljust(3, "0")[:3])


def _duration(text: str) -> float:
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        if not -LONGEST_SECONDS <= seconds <= LONGEST_SECONDS:
            raise ValueError(
                f"cannot parse {go_quote(text)} to a valid duration. It overflows int64"
            )
        return seconds * 1000
    try:
        return milliseconds(text)
    except ValueError:
        raise ValueError(f"cannot parse {go_quote(text)} to a valid duration") from None
