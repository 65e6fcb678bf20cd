"""How answers are written and parameters are read: Go's notation, Prometheus' shapes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kalla.query.array_types import Floats
from kalla.query.engine import Answer
from kalla.query.evaluate.frames import Frame, Steps
from kalla.query.evaluate.result_series import Series, lines
from kalla.query.http import request_times, response_json
from kalla.query.http.label_name_escapes import unescaped
from kalla.query.http.response_json import number, numbers, pieces, stamp, stamps
from kalla.query.labels.label_sets import Labels, labels_of
from kalla.query.promql.query_errors import BadRequest

GO = {
    0.0: "0",
    1.0: "1",
    -2.5: "-2.5",
    0.1: "0.1",
    1e-6: "0.000001",
    1.5e-6: "0.0000015",
    9.99e-7: "9.99e-07",
    -1e-7: "-1e-07",
    5e-324: "5e-324",
    1e15: "1000000000000000",
    1e16: "10000000000000000",
    123456789012345680.0: "123456789012345680",
    999999999999999900000.0: "999999999999999900000",
    1e21: "1e+21",
    -1.5e300: "-1.5e+300",
    math.inf: "+Inf",
    -math.inf: "-Inf",
    math.nan: "NaN",
}
# Arrow loads what it needs while the first examples run.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
any_float = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize(("value", "written"), [*GO.items(), (-0.0, "-0")], ids=str)
def test_a_value_is_written_as_go_writes_it(value: float, written: str) -> None:
    assert number(value) == written


@unhurried
@given(st.lists(any_float | st.integers(-(10**18), 10**18).map(float), min_size=1))
def test_many_values_are_written_as_each_alone(values: list[float]) -> None:
    assert numbers(np.array(values)).to_pylist() == [number(value) for value in values]


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 5000).view(np.float64),
        np.random.default_rng(2).integers(0, 2**52, 500).view(np.float64),  # too small to be whole
        np.random.default_rng(3).integers(0, 10**7, 2000) / 1000,
        np.random.default_rng(4).integers(0, 40_000, 2000) / 299.97,
        np.floor(10.0 ** (np.random.default_rng(5).random(1000) * 22)),
        2.0 ** np.arange(-1074, 1024),  # the float below is nearer than that above
        np.array([f"1e{power}" for power in range(-323, 309)], float),
        np.array([9007199254740991, 9007199254740992, 9007199254740993, 2.0**53 + 2, 1e22, 1e23]),
    ],
    ids=["any", "small", "decimal", "rate", "large", "twos", "tens", "border"],
)
def test_floats_of_every_kind_are_written_as_each_alone(values: Floats) -> None:
    assert numbers(values).to_pylist() == [number(value) for value in values.tolist()]


@unhurried
@given(any_float)
def test_what_is_written_is_read_as_the_same_value(value: float) -> None:
    text = number(value)
    again = float(text)
    assert again == value or (math.isnan(again) and math.isnan(value))
    assert math.copysign(1, again) == math.copysign(1, value) or math.isnan(value)
    assert ("e" in text) == (1e21 <= abs(value) < math.inf or 0 < abs(value) < 1e-6)


@unhurried
@given(st.lists(st.integers(-(10**15), 10**15), min_size=1))
def test_times_are_seconds_with_three_decimals_or_none(given_times: list[int]) -> None:
    written = stamps(np.array(given_times)).to_pylist()
    assert written == [stamp(time) for time in given_times]
    for text, time in zip(written, given_times, strict=True):
        assert round(float(text) * 1000) == time
        assert len(text.partition(".")[2]) in (0, 3)


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
label_sets = st.dictionaries(names, names, max_size=3).map(labels_of)


@st.composite
def matrices(draw: st.DrawFn) -> list[Series]:
    """Series with all steps, which share their times, and series with gaps."""
    grid = np.arange(draw(st.integers(1, 6)), dtype=np.int64) * draw(st.integers(1, 5000))
    found = []
    for labels in draw(st.lists(label_sets, unique=True, max_size=5)):
        chosen = draw(st.lists(st.booleans(), min_size=len(grid), max_size=len(grid)))
        there = grid if all(chosen) or not any(chosen) else grid[np.array(chosen)]
        held = st.lists(any_float, min_size=len(there), max_size=len(there))
        found.append(Series(labels, there, np.array(draw(held))))
    return found


@unhurried
@given(matrices(), st.integers(1, 7), st.integers(0, 4))
def test_an_answer_in_pieces_is_the_plain_document(
    series: list[Series], piece: int, limit: int
) -> None:
    answer = Answer("matrix", tuple(series), warnings=("w",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(response_json, "_PIECE", piece)
        document = json.loads(b"".join(pieces(answer, 0, limit, {"explain": {"a": 1}})))
    shown = series[:limit] if limit else series
    truncated = ["results truncated due to limit"] if len(shown) < len(series) else []
    assert document == {
        "status": "success",
        "data": {
            "resultType": "matrix",
            "result": [
                {
                    "metric": dict(one.labels),
                    "values": [
                        [float(stamp(int(time))), number(value)]
                        for time, value in zip(one.times, one.values.tolist(), strict=True)
                    ],
                }
                for one in shown
            ],
            "explain": {"a": 1},
        },
        "warnings": ["w", *truncated],
    }


@unhurried
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 30), st.integers(0, 2**24 - 1))
def test_rows_of_a_frame_are_written_as_each_line_alone(
    rows: int, columns: int, piece: int, gaps: int
) -> None:
    present = (gaps >> np.arange(rows * columns)) & 1 == 0
    values = np.arange(rows * columns) / 3
    labels = tuple(labels_of({"i": str(row)}) for row in range(rows))
    frame = Frame.of(labels, values.reshape(rows, -1), present.reshape(rows, -1))
    found = lines(frame, Steps(1500, 1500 + 500 * (columns - 1), 500))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(response_json, "_PIECE", piece)
        written = b"".join(pieces(Answer("matrix", found), 0, 0))
    assert written == b"".join(pieces(Answer("matrix", tuple(found)), 0, 0))
    assert len(json.loads(written)["data"]["result"]) == frame.present.any(axis=1).sum()


def test_a_vector_in_pieces_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_json, "_PIECE", 3)
    series = tuple(
        Series(labels_of({"i": str(at)}), np.array([1500]), np.array([at / 2])) for at in range(10)
    )
    document = json.loads(b"".join(pieces(Answer("vector", series), 1500, 0)))
    assert document["data"]["result"] == [
        {"metric": {"i": str(at)}, "value": [1.5, number(at / 2)]} for at in range(10)
    ]
    known: list[Labels] = [one.labels for one in series]
    listed = json.loads(b"".join(response_json.label_sets(known)))
    assert listed == {"status": "success", "data": [{"i": str(at)} for at in range(10)]}


def test_bytes_that_are_no_text_do_not_break_the_answer() -> None:
    series = (Series((("a", "\udcff"),), np.array([0]), np.array([1.0])),)
    [one] = json.loads(b"".join(pieces(Answer("vector", series), 0, 0)))["data"]["result"]
    assert one["metric"] == {"a": "\ufffd"}


@pytest.mark.parametrize(
    ("escaped", "name"),
    [
        ("plain", "plain"),
        ("U__a_2e_b", "a.b"),
        ("U__a__b_20_c", "a_b c"),
        ("U___1f600_", "\U0001f600"),
        ("U__", ""),
        ("U__a_b", "U__a_b"),  # no closing underscore
        ("U__a_xyz_b", "U__a_xyz_b"),
        ("U__a_d800_b", "U__a_d800_b"),
        ("U__a_", "U__a_"),
    ],
)
def test_an_escaped_name_is_read(escaped: str, name: str) -> None:
    assert unescaped(escaped) == name


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("1.5", 1500),
        ("-1.5", -1500),
        (".5", 500),
        ("1e3", 1_000_000),
        ("1435781451.781", 1_435_781_451_781),
        ("0.0004", 0),
        ("0.0005", 1),
        ("2015-07-01T20:11:00.781Z", 1_435_781_460_781),
        ("2015-07-01T20:11:00.7819Z", 1_435_781_460_781),
        ("2015-07-01T22:11:00+02:00", 1_435_781_460_000),
        ("1969-12-31T23:59:59.5Z", -500),
        ("292277025-08-18T07:12:54.999999999Z", 2**63 - 1),
    ],
)
def test_a_time_is_read(text: str, milliseconds: int) -> None:
    assert request_times.time_of(text, "time") == milliseconds


@pytest.mark.parametrize(
    "text",
    ["", "now", "1_000", " 1", "1e999", "NaN", "Inf", "0x10", "٣", "2015-07-01",
     "2015-13-01T00:00:00Z", "2015-07-01T20:11:00"],
)  # fmt: skip
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="to a valid timestamp") as refused:
        request_times.time_of(text, "start")
    assert refused.value.parameter == "start"


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("15", 15_000), ("0.5", 500), ("1m30s", 90_000), ("1d", 86_400_000)]
)
def test_a_duration_is_read(text: str, milliseconds: float) -> None:
    assert request_times.duration_of(text, "step") == milliseconds


def test_the_usual_step_gives_some_250_points() -> None:
    assert request_times.usual_step(0, 3_600_000) == 14_400
    assert request_times.usual_step(0, 1000) == 1000
