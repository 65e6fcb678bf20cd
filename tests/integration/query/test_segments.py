"""Segments in Parquet: what is written comes back to the bit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.query.evaluate.sample_source import STALE, STALE_BITS, SeriesBatch
from kalla.query.labels.label_sets import Labels, labels_of
from kalla.query.promql.matchers import Matcher
from kalla.query.store import segments, series_merge
from kalla.query.store.label_texts import LabelTexts
from kalla.query.store.segment_rows import BLOCK_MS, SampleColumns
from kalla.query.store.segments import SegmentBroken
from kalla.storage import LOCAL
from tests.integration.query.kept_segments import EVER, kept, source
from tests.metrics_kit import Points, batch_of, contents, listed, named
from tests.servers import S3Server

UNUSUAL = [
    *(0.0, -0.0, 1.5, 0.1, 1e-7, 123.456789, 5e-324, -2.2e-308, 1.7976931348623157e308),
    *(2.0**53, 2.0**53 + 2, 2.0**62, 2.0**63, -(2.0**63), 1e300, math.inf, -math.inf, math.nan),
    float(STALE),
]

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
names = st.one_of(st.sampled_from(["__name__", "a", "ab", "a!", "é", '"', "A"]), texts)
label_sets = st.dictionaries(names, texts, max_size=4).map(labels_of)
floats = st.one_of(
    st.sampled_from(UNUSUAL),
    st.floats(),
    st.integers(-1000, 1000).map(float),
    st.integers(-(10**6), 10**6).map(lambda whole: whole / 100),
)
points = st.dictionaries(
    st.one_of(st.integers(-(2**58), 2**58), st.integers(-3 * BLOCK_MS, 3 * BLOCK_MS)),
    floats,
    max_size=12,
).map(lambda given: sorted(given.items()))


def bits(series: Mapping[Labels, Points]) -> dict[Labels, list[tuple[int, bytes | str]]]:
    """Of a NaN only whether it is the marker: which of the others it is means nothing."""

    def meant(value: float) -> bytes | str:
        raw = np.array([value])
        if raw.view(np.uint64)[0] == STALE_BITS:
            return "stale"
        return "nan" if math.isnan(value) else raw.tobytes()

    return {
        labels: [(time, meant(value)) for time, value in found]
        for labels, found in series.items()
        if found
    }


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(label_sets, points, max_size=6))
def test_any_labels_times_and_values_come_back_to_the_bit(series: dict[Labels, Points]) -> None:
    with TemporaryDirectory() as folder:
        held = listed(segments.write(LOCAL, folder, 0, {0: batch_of(series)}))

        found = source(folder, held).select(0, [], *EVER)

    assert list(found.labels) == sorted(found.labels)
    assert bits(contents(found)) == bits(series)
    markers = found.values.view(np.uint64) == STALE_BITS
    assert np.array_equal(markers, np.zeros(len(markers)) if found.stale is None else found.stale)


def test_start_timestamps_come_back_and_are_none_where_none_were(tmp_path: Path) -> None:
    first, second = named("a"), named("b")
    batch = batch_of({first: [(1, 1.0), (2, 2.0)], second: [(1, 1.0)]})
    given_starts = SeriesBatch(
        batch.labels, batch.offsets, batch.times, batch.values, None, np.array([7, 8, 0])
    )
    held = listed(segments.write(LOCAL, str(tmp_path), 0, {0: given_starts}))

    found = source(tmp_path, held).select(0, [], *EVER)
    only_b = source(tmp_path, kept(tmp_path, {second: [(1, 1.0)]})).select(0, [], *EVER)

    assert found.starts is not None
    assert found.starts.tolist() == [7, 8, 0]
    assert only_b.starts is None


def test_labels_of_bytes_that_are_no_text_come_back(tmp_path: Path) -> None:
    odd = labels_of({"__name__": "m\udcff", "l": "\udc80"})

    found = source(tmp_path, kept(tmp_path, {odd: [(1, 1.0)]})).select(
        0, [Matcher("__name__", "=", "m\udcff")], *EVER
    )

    assert list(found.labels) == [odd]


def test_no_samples_make_no_segment(tmp_path: Path) -> None:
    assert segments.write(LOCAL, str(tmp_path), 0, {}) == []
    assert segments.write(LOCAL, str(tmp_path), 0, {0: batch_of({named("m"): []})}) == []
    assert list(tmp_path.iterdir()) == []
    assert len(source(tmp_path, []).select(0, [], *EVER)) == 0


def test_samples_out_of_order_are_refused_rather_than_kept_wrong(tmp_path: Path) -> None:
    wrong = SeriesBatch(
        [named("m")], np.array([0, 2]), np.array([2, 2], np.int64), np.array([1.0, 2.0])
    )

    with pytest.raises(ValueError, match="order of their times"):
        segments.write(LOCAL, str(tmp_path), 0, {0: wrong})


def test_the_file_says_what_it_holds_to_any_reader_of_parquet(tmp_path: Path) -> None:
    up, load = named("up", job="a"), named("load", job="é")
    [segment] = kept(
        tmp_path,
        {up: [(1000, 1.0), (BLOCK_MS, float(STALE))], load: [(1000, 0.25), (2000, math.nan)]},
    )

    rows = pq.read_table(tmp_path / segment.path).to_pylist()

    assert [(row["metric"], json.loads(row["labels"]), row["block"]) for row in rows] == [
        ("load", dict(load), 0),
        ("up", dict(up), 0),
        ("up", dict(up), BLOCK_MS),
    ]
    assert [row["times"] for row in rows] == [[1000, 2000], [1000], [BLOCK_MS]]
    assert [(row["decimals"], row["whole"], row["stale"]) for row in rows] == [
        (0, [], []),
        (0, [1], []),
        (0, [0], [0]),
    ]
    assert rows[0]["floats"][0] == 0.25
    assert (segment.min_time, segment.max_time) == (1000, BLOCK_MS)
    assert (segment.rows, segment.samples) == (3, 4)


def test_decimal_values_lie_as_whole_numbers(tmp_path: Path) -> None:
    [segment] = kept(tmp_path, {named("m"): [(1, 0.25), (2, 17.5), (3, float(STALE)), (4, -3.0)]})

    [row] = pq.read_table(tmp_path / segment.path).to_pylist()

    assert (row["decimals"], row["whole"], row["floats"]) == (2, [25, 1750, 1750, -300], [])


def test_of_two_equal_samples_the_one_acknowledged_first_counts(tmp_path: Path) -> None:
    m, n = named("m"), named("n")
    first, second, third = kept(
        tmp_path,
        {m: [(1000, 1.0), (3000, 3.0)]},
        {m: [(1000, -1.0), (2000, 2.0), (3000, float(STALE))], n: [(1000, 5.0)]},
        {m: [(500, 0.5), (2000, -2.0)], n: [(1000, 5.0)]},
    )
    expected = {m: [(500, 0.5), (1000, 1.0), (2000, 2.0), (3000, 3.0)], n: [(1000, 5.0)]}

    for held in ([first, second, third], [third, first, second]):
        assert contents(source(tmp_path, held).select(0, [], *EVER)) == expected


few_points = st.dictionaries(st.integers(0, 20), st.integers(0, 99).map(float), max_size=6)
few_series = st.dictionaries(st.sampled_from("abc"), few_points, max_size=3)


@settings(max_examples=200, deadline=None)
@given(st.lists(few_series, max_size=7), st.integers(-1, 20), st.integers(0, 21))
def test_rows_merge_as_a_dictionary_that_keeps_what_came_first(
    senior_first: list[dict[str, dict[int, float]]], after: int, until: int
) -> None:
    expected: dict[str, dict[int, float]] = {}
    pieces = []
    for series in senior_first:
        for name, found in series.items():
            for time, value in found.items():
                if after < time <= until:
                    expected.setdefault(name, {}).setdefault(time, value)
        batch = batch_of({named(name): sorted(found.items()) for name, found in series.items()})
        body = SampleColumns(batch.offsets, batch.times, batch.values, None, None)
        places = np.array(["abc".index(dict(labels)["__name__"]) for labels in batch.labels], int)
        pieces.append(series_merge.piece(body, places, np.arange(len(batch)), after, until))

    merged = series_merge.merge(pieces)

    selected = {
        "abc"[place]: dict(zip(times.tolist(), values.tolist(), strict=True))
        for place, times, values in zip(
            merged.series.tolist(),
            np.split(merged.times, merged.offsets[1:-1]),
            np.split(merged.values, merged.offsets[1:-1]),
            strict=False,
        )
    }
    assert selected == expected
    assert all(list(found) == sorted(found) for found in selected.values())
    assert len(merged.times) == sum(len(found) for found in expected.values())


def test_what_is_compacted_was_acknowledged_before_what_is_not(tmp_path: Path) -> None:
    m = named("m")
    [fresh] = kept(tmp_path, {m: [(1000, -1.0)]})
    [compacted] = listed(
        segments.write(LOCAL, str(tmp_path), 1, {0: batch_of({m: [(1000, 1.0)]})}), first=9
    )

    found = source(tmp_path, [fresh, compacted]).select(0, [], *EVER)

    assert contents(found) == {m: [(1000, 1.0)]}


def test_many_long_labels_in_a_row_group_come_back(tmp_path: Path) -> None:
    """More text than Parquet keeps in one dictionary."""
    rng = np.random.default_rng(0)
    order = [named("m", i=f"{i:06d}", long="x" * 100 + str(i)) for i in range(12_000)]
    batch = SeriesBatch(
        order,
        np.arange(len(order) + 1, dtype=np.int64) * 12,
        np.tile(np.arange(12, dtype=np.int64), len(order)),
        rng.random(12 * len(order)),
    )
    [segment] = listed(segments.write(LOCAL, str(tmp_path), 1, {0: batch}))

    found = source(tmp_path, [segment], memory=1 << 30).select(0, [], *EVER)

    assert segment.row_groups == 1
    assert list(found.labels) == order
    assert np.array_equal(found.values, batch.values)


@pytest.mark.parametrize("count", [3, 30_000], ids=["few", "many"])
def test_labels_that_come_spelled_are_written_as_they_are(tmp_path: Path, count: int) -> None:
    order = [named(name, i=i) for name in ("a", "b") for i in "123"]
    texts = pa.array([json.dumps(dict(labels), separators=(",", ":")) for labels in order])
    names = pa.array([dict(labels)["__name__"] for labels in order])
    offsets = np.arange(len(order) + 1, dtype=np.int64) * count
    times = np.tile(np.arange(count, dtype=np.int64), len(order))
    values = np.random.default_rng(0).random(len(times))

    for labels in (order, LabelTexts(names, texts)):
        batch = SeriesBatch(labels, offsets, times, values)
        parts = {0: batch, 1: batch}
        [held, _] = listed(segments.write(LOCAL, str(tmp_path), 0, parts))
        found = source(tmp_path, [held], memory=1 << 30).select(0, [], *EVER)
        assert list(found.labels) == order
        assert np.array_equal(found.values, values)
        assert held.row_groups == (1 if count == 3 else 2)  # a metric ends where it is large


def test_segments_on_s3_are_as_those_in_a_folder(s3_server: S3Server, bucket: str) -> None:
    series = {named("m"): [(1, 1.5), (2, math.inf)], named("n"): [(1, 2.0)]}
    storage, url = s3_server.storage, f"{bucket}/metrics"
    held = listed(segments.write(storage, url, 0, {0: batch_of(series)}))

    found = source(url, held, storage).select(0, [], *EVER)
    storage.remove(f"{url}/{held[0].path}")

    assert contents(found) == series
    with pytest.raises(SegmentBroken, match=held[0].path):
        source(url, held, storage).select(0, [], *EVER)
