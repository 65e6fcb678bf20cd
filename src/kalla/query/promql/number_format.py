"""Numbers as Go writes and reads them; users must not see which language is underneath."""

from __future__ import annotations

import math
import re
from decimal import Decimal


def plain(value: float) -> str:
    """Shortest digits, never an exponent: the values of count_values and of printed literals."""
    if special := _special(value):
        return special
    text = format(Decimal(repr(value)), "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text


def general(value: float) -> str:
    """Shortest digits, an exponent below 1e-4 and from 1e+06 on, as Go's %g and %v have it."""
    if special := _special(value):
        return special
    digits, exponent = _digits(value)
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    if -4 <= exponent < 6:
        return plain(value)
    return _scientific(value, digits, exponent)


def two_digits(value: float) -> str:
    """Go's %.2g."""
    if special := _special(value):
        return special
    if value == 0:
        return "0"
    mantissa, _, power = f"{value:.1e}".partition("e")
    exponent = int(power)
    if -4 <= exponent < 2:
        return plain(float(f"{mantissa}e{power}"))
    mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{exponent:+03d}"


def open_metrics(value: float) -> str:
    """A label value such as a quantile's: always recognisable as a float."""
    if special := _special(value):
        return special
    text = general(value)
    return text if "e" in text or "." in text else text + ".0"


def parsed_float(text: str) -> float | None:
    """What Go's ParseFloat reads, and nothing where it refuses: a number too large is refused."""
    if not _FLOAT.fullmatch(text):
        return None
    digits = text.replace("_", "")
    try:
        value = float.fromhex(digits) if "x" in digits.lower() else float(digits)
    except OverflowError:
        return None
    return None if math.isinf(value) and "n" not in digits.lower() else value


_FLOAT = re.compile(
    r"""
    nan | [+-]?inf(?:inity)?
    | [+-]? (?: D (?:\.D?)? | \.D ) (?:e[+-]?D)?
    | [+-]? 0x_? (?: H (?:\.H?)? | \.H ) p[+-]?D
    """.replace("D", "(?:[0-9](?:_?[0-9])*)").replace("H", "(?:[0-9a-f](?:_?[0-9a-f])*)"),
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)


def _special(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return ""


def _digits(value: float) -> tuple[str, int]:
    _, digits, power = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    return text, len(text) - 1 + int(power)


def _scientific(value: float, digits: str, exponent: int) -> str:
    sign = "-" if value < 0 else ""
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{exponent:+03d}"
