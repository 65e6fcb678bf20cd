"""Durations: how they are written, and the arithmetic over them inside brackets and offsets."""

from __future__ import annotations

import math
import re

from kalla.query.promql.query_errors import BadRequest
from kalla.query.promql.syntax_tree import Duration

_UNITS = {
    "y": 365 * 86_400_000,
    "w": 7 * 86_400_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
    "ms": 1,
}
_WRITTEN = re.compile(
    r"(?:([0-9]+)y)?(?:([0-9]+)w)?(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?"
    r"(?:([0-9]+)ms)?"
)
# What an int64 of nanoseconds holds.
LONGEST_SECONDS = 2.0**63 / 1e9


def milliseconds(text: str) -> int:
    """`1h30m` and the like; a bare 0 is allowed."""
    if text == "0":
        return 0
    match = _WRITTEN.fullmatch(text)
    if not text or match is None:
        raise ValueError(f'not a valid duration string: "{text}"')
    total = sum(
        int(amount) * unit
        for amount, unit in zip(match.groups(), _UNITS.values(), strict=True)
        if amount
    )
    if total >= 2**63 / 1e6:
        raise ValueError("duration out of range")
    return total


def written(total: int) -> str:
    """Milliseconds as Prometheus writes them: weeks and years only where they come out even."""
    if total == 0:
        return "0s"
    parts, left = [], total
    for unit, size in _UNITS.items():
        if unit in ("y", "w") and left % size:
            continue
        amount, left = divmod(left, size)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts)


def evaluated(duration: Duration, step_ms: int, range_ms: int, *, negative: bool) -> int:
    """Milliseconds of a duration expression; `step()` and `range()` are those of the query."""
    seconds = _seconds(duration, step_ms, range_ms)
    place = f"{duration.span.start}:{duration.span.end}"
    if seconds <= 0 and not negative:
        raise BadRequest(f"{place}: duration must be greater than 0", "query")
    if not -LONGEST_SECONDS <= seconds <= LONGEST_SECONDS:
        raise BadRequest(f"{place}: duration is out of range", "query")
    return int(math.copysign(math.floor(abs(seconds) * 1000 + 0.5), seconds))


def _seconds(duration: Duration, step_ms: int, range_ms: int) -> float:
    operator = duration.operator
    if operator == "":
        return duration.seconds
    if operator == "step":
        return step_ms / 1000
    if operator == "range":
        return range_ms / 1000
    if duration.right is None:
        raise AssertionError("a duration operator without its right side")
    right = _seconds(duration.right, step_ms, range_ms)
    if duration.left is None:
        return -right if operator == "-" else right
    left = _seconds(duration.left, step_ms, range_ms)
    place = f"{duration.span.start}:{duration.span.end}"
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            if right == 0:
                raise BadRequest(f"{place}: division by zero", "query")
            return left / right
        case "%":
            if right == 0:
                raise BadRequest(f"{place}: modulo by zero", "query")
            return math.fmod(left, right)
        case "^":
            return _power(left, right)
        case "min_of":
            return min(left, right)
        case "max_of":
            return max(left, right)
        case _:
            raise AssertionError(f"an unknown duration operator {operator}")


def _power(base: float, exponent: float) -> float:
    try:
        power = math.pow(base, exponent)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.nan
    return power
