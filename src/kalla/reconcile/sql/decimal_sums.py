"""Sums of amounts, exact however many digits they have on the way: one that no number holds is
null, and fits nothing.
"""

from __future__ import annotations

_HALF = f"{10**19}::HUGEINT"  # of 38 digits


def halves(units: str) -> str:
    """The sum of whole numbers, of which no half is too large to be added up."""
    return f"struct_pack(high := sum({units} // {_HALF}), low := sum({units} % {_HALF}))"


def whole(halves: str) -> str:
    return f"TRY({halves}.high * {_HALF} + {halves}.low)"


def scaled(units: str, scale: int) -> str:
    """A whole number of last places as the decimal it is; a power of ten as a decimal is exact."""
    exact = f"TRY_CAST({units} AS DECIMAL(38, 0))"
    if scale == 0:
        return exact
    return f"({exact} * 0.{'0' * (scale - 1)}1::DECIMAL(38, {scale}))::DECIMAL(38, {scale})"
