"""Numerics as Postgres sends them are the decimals that they were, or refused."""

from __future__ import annotations

import struct
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.spark.connectors.postgres_numeric import Unfit, decimals

SIGNS = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}


def sent(value: Decimal | None) -> bytes | None:
    """As numeric_send has it, worked out by way of the decimal text."""
    if value is None:
        return None
    if not value.is_finite():
        return struct.pack(">hhHh", 0, 0, SIGNS[str(value)], 0)
    whole, _, fraction = format(abs(value), "f").partition(".")
    scale = len(fraction)
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    digits = [int(text) for text in map("".join, zip(*[iter(whole + fraction)] * 4, strict=True))]
    weight = len(whole) // 4 - 1
    while digits and digits[0] == 0:
        digits, weight = digits[1:], weight - 1
    while digits and digits[-1] == 0:
        digits = digits[:-1]
    sign = 0x4000 if value < 0 else 0
    head = (len(digits), weight if digits else 0, sign, scale)
    return struct.pack(f">hhHh{len(digits)}h", *head, *digits)


@st.composite
def columns(draw: st.DrawFn) -> tuple[int, int, list[Decimal | None]]:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    least = draw(st.sampled_from([1, 3, precision]))  # columns of small values take a shorter way
    digits = st.integers(0, min(least, precision)).flatmap(
        lambda count: st.integers(-(10**count) + 1, 10**count - 1)
    )
    whole = st.builds(lambda unscaled: Decimal(unscaled).scaleb(-scale), digits)
    return precision, scale, draw(st.lists(whole | st.none(), max_size=8))


@settings(deadline=None)
@given(columns(), st.integers(0, 3))
def test_every_decimal_comes_back_as_it_was(
    column: tuple[int, int, list[Decimal | None]], skipped: int
) -> None:
    precision, scale, values = column
    read_as = pa.decimal128(precision, scale)
    array = pa.array([sent(each) for each in values], pa.binary()).slice(skipped)
    found = decimals(array, read_as)
    assert found.type == read_as
    found.validate(full=True)
    assert found.to_pylist() == values[skipped:]


@pytest.mark.parametrize(
    ("precision", "scale", "value", "why"),
    [
        (5, 2, "1000", "before the point"),
        (5, 2, "-10000", "before the point"),
        (8, 4, "10000", "before the point"),
        (38, 9, "1e29", "before the point"),
        (38, 9, "1e60", "before the point"),
        (5, 2, "0.001", "behind the point"),
        (5, 4, "0.00001", "behind the point"),
        (38, 0, "0.5", "behind the point"),
        (38, 9, "0.0000000001", "behind the point"),
        (9, 3, "NaN", "'nan'"),
        (9, 3, "Infinity", "'infinity'"),
        (9, 3, "-Infinity", "'-infinity'"),
    ],
)
def test_what_does_not_fit_is_refused_wherever_it_stands(
    precision: int, scale: int, value: str, why: str
) -> None:
    given = [None, Decimal(0), Decimal(value), Decimal(0)]
    with pytest.raises(Unfit, match=why):
        decimals(pa.array(map(sent, given), pa.binary()), pa.decimal128(precision, scale))
