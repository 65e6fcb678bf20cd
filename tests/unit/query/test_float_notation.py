"""Floats as Go's ParseFloat reads them; a bound that Prometheus refuses is refused."""

from __future__ import annotations

import math

import pytest

from kalla.query.promql.number_format import parsed_float


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x1p-1", 0.5), ("0X1P+3", 8.0), ("0x.8p1", 1.0), ("-0x1.8P0", -1.5), ("0x1p-2000", 0.0),
        ("0x0p99999999999999999999", 0.0), (".5", 0.5), ("5.", 5.0), ("+1e-3", 0.001),
        ("1e-999", 0.0), ("inf", math.inf), ("+Inf", math.inf), ("-Infinity", -math.inf),
        ("1_000", 1000.0), ("1_0e1_0", 1e11), ("0x_1_0p1", 32.0),
    ],
)  # fmt: skip
def test_what_go_reads_is_read(text: str, value: float) -> None:
    assert parsed_float(text) == value


def test_nan_is_a_float_without_a_sign() -> None:
    assert math.isnan(parsed_float("nAn") or 0.0)
    assert parsed_float("+nan") is None


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "1e", "1e+", "0x1", "0x.p1", "0x1p", "0b1", "infinit", " 1", "1 ", "1\n", "１",
        "1e999", "-1e999", "0x1p1024", "0x1p99999999999999999999", "_1", "1_", "1__0", "1_.0",
        "0x1_p1", "0x1p_1", "0x1__0p1", "1e_1",
    ],
)  # fmt: skip
def test_what_go_refuses_is_no_float(text: str) -> None:
    assert parsed_float(text) is None
