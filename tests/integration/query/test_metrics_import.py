"""Files of samples become remote writes that hold the same samples: text, Parquet, segments."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.errors import InvalidInput
from kalla.query.evaluate.sample_source import STALE, STALE_BITS
from kalla.query.labels.label_sets import Labels
from kalla.query.store import segments
from kalla.query.store.catalogue import Metadata
from kalla.query.store.ingest import file_import, remote_write
from kalla.query.store.ingest.file_import import bodies
from kalla.query.store.ingest.series_index import REFUSED, Refusals, SeriesIndex
from kalla.storage import Storage
from tests.metrics_kit import batch_of, named

MOST = 64 << 20
NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()) * 1000


def imported(path: Path) -> tuple[dict[Labels, list[tuple[int, float]]], dict[str, Metadata]]:
    """What the API would find in the bodies made of a file."""
    found: dict[Labels, list[tuple[int, float]]] = {}
    metadata: dict[str, Metadata] = {}
    known = SeriesIndex(4, 1 << 30)
    for body in bodies(path):
        request = remote_write.decode(body.content, 1, MOST)
        assert len(request.times) == body.samples
        assert 0 <= body.position <= path.stat().st_size
        metadata |= request.metadata
        refusals = Refusals()
        numbers = known.numbers(request.text, request.spans, request.split, refusals)
        assert (REFUSED in numbers, refusals.count) == (False, 0)
        for place, number in enumerate(numbers.tolist()):
            chosen = slice(request.offsets[place], request.offsets[place + 1])
            points = zip(
                request.times[chosen].tolist(), request.values[chosen].tolist(), strict=True
            )
            found.setdefault(known.labels(number), []).extend(points)
    return found, metadata


def a_table(folder: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), folder / "samples.parquet", row_group_size=3)
    return folder / "samples.parquet"


def test_text_keeps_its_samples_and_what_it_tells_of_them(tmp_path: Path) -> None:
    file = tmp_path / "samples.txt"
    file.write_text(
        "# TYPE m counter\n# HELP m Help.\n# UNIT m seconds\n"
        'm_total{a="1"} 1 1600000000\nm_total{a="1"} 2 1600000001.5\nn NaN -1\n# EOF\n'
    )
    found, metadata = imported(file)
    assert np.isnan(found.pop(named("n"))[0][1])
    assert found == {named("m_total", a="1"): [(1600000000000, 1.0), (1600000001500, 2.0)]}
    assert metadata == {"m": Metadata("counter", "Help.", "seconds")}


def test_a_body_stays_small_however_many_samples_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_import, "BODY_BYTES", 2000)
    count = 1000
    file = a_table(
        tmp_path,
        timestamp=np.arange(count),
        value=np.arange(count) * 0.5,
        metric=["m"] * count,
        a=[str(place % 3) for place in range(count)],
    )
    sizes = [len(remote_write.unpacked(body.content, MOST)) for body in bodies(file)]
    assert max(sizes) <= 2500
    assert len(sizes) >= 10
    found, _ = imported(file)
    assert {labels: len(points) for labels, points in found.items()} == {
        named("m", a=str(place)): (count + 2 - place) // 3 for place in range(3)
    }


@pytest.mark.parametrize(
    "times",
    [
        pa.array([NOON, NOON + 1500], pa.int64()),
        pa.array([NOON / 1000, NOON / 1000 + 1.5], pa.float64()),
        pa.array([NOON * 1000, NOON * 1000 + 1_500_000], pa.timestamp("us", "UTC")),
        pa.array([NOON, NOON + 1500], pa.timestamp("ms", "Europe/Berlin")),
        pa.array([NOON * 10**6, NOON * 10**6 + 1_500_000_999], pa.timestamp("ns")),
    ],
)
def test_times_of_every_kind_are_the_same_milliseconds(tmp_path: Path, times: pa.Array) -> None:
    file = a_table(tmp_path, timestamp=times, value=[1, 2], __name__=["m", "m"])
    assert imported(file)[0] == {named("m"): [(NOON, 1.0), (NOON + 1500, 2.0)]}


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1.5, None, 2.5], pa.float64()),
        pa.array([1.5, None, 2.5], pa.float32()),
        pa.array([Decimal("1.5"), None, Decimal("2.5")], pa.decimal128(10, 1)),
    ],
)
def test_values_of_every_kind_are_floats_and_none_is_no_sample(
    tmp_path: Path, values: pa.Array
) -> None:
    file = a_table(tmp_path, timestamp=[1, 2, 3], value=values, metric=["m"] * 3)
    assert imported(file)[0] == {named("m"): [(1, 1.5), (3, 2.5)]}


def test_labels_lie_in_columns_or_in_a_map_or_in_both(tmp_path: Path) -> None:
    maps = pa.array(
        [
            [("__name__", "m"), ("a", "1")],
            [("a", "1"), ("__name__", "m")],
            [("__name__", "n")],
            None,
        ],
        pa.map_(pa.string(), pa.string()),
    )
    file = a_table(
        tmp_path,
        timestamp=[4, 3, 2, 1],
        value=[1.0, 2.0, 3.0, 4.0],
        zone=pa.array(["x", "x", None, ""]).dictionary_encode(),
        labels=maps,
        metric=[None, None, None, "o"],
    )
    assert imported(file)[0] == {
        named("m", a="1", zone="x"): [(3, 2.0), (4, 1.0)],
        named("n"): [(2, 3.0)],
        named("o"): [(1, 4.0)],
    }


def test_our_own_segments_are_imported_with_their_markers(tmp_path: Path) -> None:
    series = {
        named("m", a="1"): [(NOON, 1.25), (NOON + 9_000_000, float(STALE))],
        named("n"): [(NOON, 1e300)],
    }
    (segment,) = segments.write(Storage(), str(tmp_path), 0, {0: batch_of(series)})
    file = tmp_path / segment.path
    found, _ = imported(file)
    points = found.pop(named("m", a="1"))
    assert points[0] == (NOON, 1.25)
    assert np.float64(points[1][1]).view(np.uint64) == STALE_BITS
    assert found == {named("n"): [(NOON, 1e300)]}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"time": [1], "value": [1.0]}, "has no column timestamp"),
        ({"timestamp": [1], "metric": ["m"]}, "has no column value"),
        ({"timestamp": ["now"], "value": [1.0]}, "in the column timestamp, not a timestamp"),
        ({"timestamp": [1], "value": ["1"]}, "in the column value, not a number"),
        ({"timestamp": [1], "value": [1.0], "code": [200]}, "in the column code, not text"),
        ({"timestamp": [None, 1], "value": [1.0, 1.0], "metric": ["m"] * 2}, "without a timestamp"),
        ({"timestamp": [1], "value": [1.0], "job": ["m"]}, "rows without a name"),
        (
            {"timestamp": [float("nan")], "value": [1.0], "metric": ["m"]},
            "an invalid timestamp",
        ),
    ],
)
def test_a_table_that_has_no_samples_is_told_what_it_lacks(
    tmp_path: Path, columns: dict[str, Any], words: str
) -> None:
    file = a_table(tmp_path, **columns)
    with pytest.raises(InvalidInput) as refused:
        list(bodies(file))
    assert words in str(refused.value)
    assert "samples.parquet" in str(refused.value)


def test_files_that_are_damaged_or_of_no_kind_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for content in (b"", b"PAR1", b"PAR1" + b"\0" * 100 + b"PAR1", b"\x1f\x8b\x08", b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(InvalidInput, match=r"file"):
            list(bodies(file))
