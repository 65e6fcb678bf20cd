"""OpenMetrics text: what it says is read exactly, and what is wrong is named by its line."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.errors import InvalidInput
from kalla.query.labels.label_sets import Labels, labels_of
from kalla.query.store.catalogue import Metadata
from kalla.query.store.ingest import openmetrics
from tests.metrics_kit import named

Points = list[tuple[int, float]]


def read(text: str | bytes, most: int = 1000) -> tuple[dict[Labels, Points], dict[str, Metadata]]:
    content = text.encode() if isinstance(text, str) else text
    series: dict[Labels, Points] = {}
    metadata: dict[str, Metadata] = {}
    for part in openmetrics.read(io.BytesIO(content), most):
        assert sum(len(times) for _, times, _ in part.series) <= most
        metadata |= part.metadata
        for labels, times, values in part.series:
            points = zip(times.tolist(), values.tolist(), strict=True)
            series.setdefault(labels, []).extend(points)
    return series, metadata


def test_a_family_with_all_it_can_say() -> None:
    series, metadata = read(
        """# TYPE took_seconds histogram
# UNIT took_seconds seconds
# HELP took_seconds How long it \\"took\\"\\nin all.
took_seconds_bucket{le="1.0"} 3 1605301325.123 # {trace_id="a } 1 # "} 0.5 1605301325
took_seconds_bucket{le="+Inf"} 4 1605301325.123
took_seconds_count 4 1605301325.123
took_seconds_sum 2.5e0 1605301325.123
# EOF
"""
    )
    time = 1605301325123
    assert series == {
        named("took_seconds_bucket", le="1.0"): [(time, 3.0)],
        named("took_seconds_bucket", le="+Inf"): [(time, 4.0)],
        named("took_seconds_count"): [(time, 4.0)],
        named("took_seconds_sum"): [(time, 2.5)],
    }
    assert metadata == {
        "took_seconds": Metadata("histogram", 'How long it "took"\nin all.', "seconds")
    }


def test_odd_but_sound_lines() -> None:
    series, metadata = read(
        r"""# TYPE "odd.name" gauge
{"odd.name"} 1 1
{"odd.name",a="b"} 1 2
{ "odd.name" , "x y"="}" , } 1 3
m{} 1 4
m{a="} 1 5 # no exemplar",b="",c="\\\"\n\t"} NaN -5
a:b{_="é"} +Inf 1e3
# EOF""".replace("\r", "")
    )
    nan = series.pop(named("m", a="} 1 5 # no exemplar", c='\\"\n\\t'))
    assert [(time, math.isnan(value)) for time, value in nan] == [(-5000, True)]
    assert series == {
        named("odd.name"): [(1000, 1.0)],
        named("odd.name", a="b"): [(2000, 1.0)],
        labels_of({"__name__": "odd.name", "x y": "}"}): [(3000, 1.0)],
        named("m"): [(4000, 1.0)],
        named("a:b", _="é"): [(1_000_000, math.inf)],
    }
    assert metadata == {"odd.name": Metadata("gauge", "", "")}


def test_a_series_spelled_in_two_ways_is_one() -> None:
    series, _ = read('m{a="1",b="2"} 1 1\nm{b="2", a="1"} 2 2\n# EOF\n')
    assert series == {named("m", a="1", b="2"): [(1000, 1.0), (2000, 2.0)]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("m 1 1\n", "does not end with # EOF"),
        ("", "does not end with # EOF"),
        ("m 1 1\n# EOF\nm 1 2\n", "line 3: comes after # EOF"),
        ("m 1\n# EOF\n", "line 1: has no timestamp"),
        ("m 1 1\nm{a} 1 1\n# EOF\n", "line 2: has invalid labels"),
        ('m{a="1" b="2"} 1 1\n# EOF\n', "line 1: has invalid labels"),
        ('m{a="1",a="2"} 1 1\n# EOF\n', "line 1: has the label 'a' twice"),
        ('{a="1"} 1 1\n# EOF\n', "line 1: has no name"),
        ('{""} 1 1\n# EOF\n', "line 1: has an empty name"),
        ("1m 1 1\n# EOF\n", "line 1: has no name"),
        ("m-n 1 1\n# EOF\n", "line 1: has an invalid metric name"),
        ("m one 1\n# EOF\n", "line 1: has no value and timestamp"),
        ("m 1_000 1\n# EOF\n", "line 1: has no value and timestamp"),
        ("m 1 1 1\n# EOF\n", "line 1: has no value and timestamp"),
        ("m ٣ 1\n# EOF\n", "line 1: has no value and timestamp"),
        ("m 1 NaN\n# EOF\n", "line 1: has an invalid timestamp"),
        ("m 1 1e300\n# EOF\n", "line 1: has an invalid timestamp"),
        ("# TYPE m strange\n# EOF\n", "line 1: has an unknown type"),
        (b'm{a="\xff"} 1 1\n# EOF\n', "line 1: is not UTF-8"),
    ],
)
def test_what_is_wrong_is_named_by_its_line(text: str | bytes, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(text)
    assert words in str(refused.value)


label_names = st.text("ab_9", min_size=1, max_size=3).filter(lambda name: not name[0].isdigit())
points = st.lists(
    st.tuples(
        st.integers(-(10**13), 10**13),
        st.floats(allow_nan=False),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda point: point[0],
)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.dictionaries(label_names, st.text(), max_size=3).map(lambda pairs: named("m", **pairs)),
        points,
        max_size=5,
    ),
    st.integers(1, 7),
)
def test_whatever_is_written_is_read_again_in_parts_of_any_size(
    series: dict[Labels, Points], most: int
) -> None:
    lines = [
        f"m{{{_spelled(labels)}}} {value!r} {time // 1000}.{time % 1000:03d}"
        if time >= 0
        else f"m{{{_spelled(labels)}}} {value!r} -{-time // 1000}.{-time % 1000:03d}"
        for labels, found in series.items()
        for time, value in found
    ]
    found, _ = read("\n".join([*lines, "# EOF\n"]), most)
    assert found == series


def _spelled(labels: Labels) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
    return ",".join(
        f'{name}="{"".join(escapes.get(sign, sign) for sign in value)}"'
        for name, value in labels
        if name != "__name__"
    )
