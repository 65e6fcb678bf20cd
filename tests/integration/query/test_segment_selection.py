"""Which samples of segments are selected, what is not read for it, and when nothing is answered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from kalla.query.evaluate.sample_source import SeriesBatch
from kalla.query.promql.matchers import Matcher
from kalla.query.promql.query_errors import LimitReached, Stopped
from kalla.query.store import segments
from kalla.query.store.segment_cache import SegmentCache
from kalla.query.store.segment_rows import BLOCK_MS
from kalla.query.store.segment_source import SegmentSource
from kalla.query.store.segments import Segment, SegmentBroken
from kalla.storage import LOCAL
from tests.integration.query.kept_segments import EVER, kept, source
from tests.metrics_kit import contents, listed, named


def test_only_samples_after_the_beginning_and_until_the_end_are_selected(tmp_path: Path) -> None:
    m = named("m")
    held = kept(tmp_path, {m: [(time, float(time)) for time in range(0, 3 * BLOCK_MS, 60_000)]})

    found = source(tmp_path, held).select(0, [], BLOCK_MS - 60_000, BLOCK_MS + 60_000)

    assert contents(found)[m] == [(BLOCK_MS, BLOCK_MS), (BLOCK_MS + 60_000, BLOCK_MS + 60_000)]


def test_a_series_without_samples_in_the_time_is_not_selected(tmp_path: Path) -> None:
    held = kept(tmp_path, {named("m"): [(1000, 1.0), (9000, 1.0)], named("n"): [(5000, 1.0)]})

    found = source(tmp_path, held).select(0, [], 2000, 8000)

    assert list(found.labels) == [named("n")]


@pytest.mark.parametrize(
    ("matcher", "expected"),
    [
        (Matcher("zone", "=", "eu"), ["a", "b"]),
        (Matcher("zone", "!=", "eu"), ["c", "d"]),
        (Matcher("zone", "=", ""), ["d"]),
        (Matcher("zone", "=~", "eu|us"), ["a", "b", "c"]),
        (Matcher("zone", "=~", ".*u.*"), ["a", "b", "c"]),
        (Matcher("zone", "=~", "(eu)?"), ["a", "b", "d"]),
        (Matcher("zone", "!~", "e.*"), ["c", "d"]),
        (Matcher("other", "=", ""), ["a", "b", "c", "d"]),
        (Matcher("other", "!=", ""), []),
    ],
    ids=str,
)
def test_matchers_choose_series(tmp_path: Path, matcher: Matcher, expected: list[str]) -> None:
    zones = {"a": "eu", "b": "eu", "c": "us", "d": ""}
    held = kept(tmp_path, {named("m", i=i, zone=zone): [(1, 1.0)] for i, zone in zones.items()})
    whole = source(tmp_path, held)

    found = whole.select(0, [Matcher("__name__", "=", "m"), matcher], *EVER)

    assert [dict(labels)["i"] for labels in found.labels] == expected
    assert whole.labels([[matcher]], *EVER) == set(found.labels)


def large(tmp_path: Path) -> Segment:
    """Several row groups: three metrics, random values that do not compress."""
    rng = np.random.default_rng(0)
    count = 3 * BLOCK_MS // 2000
    order = [named(name, i=str(i)) for name in ("a", "b", "c") for i in range(10)]
    batch = SeriesBatch(
        order,
        np.arange(len(order) + 1, dtype=np.int64) * count,
        np.tile(np.arange(count, dtype=np.int64) * 2000, len(order)),
        rng.random(len(order) * count),
    )
    [segment] = listed(segments.write(LOCAL, str(tmp_path), 1, {0: batch}))
    return segment


def test_segments_and_row_groups_that_cannot_match_are_not_read(tmp_path: Path) -> None:
    segment = large(tmp_path)
    assert segment.row_groups > 2
    other = kept(tmp_path, {named("b"): [(10 * BLOCK_MS, 1.0)]})
    whole = source(tmp_path, [segment, *other])

    found = whole.select(0, [Matcher("__name__", "=", "b")], 0, BLOCK_MS)
    none = whole.select(0, [Matcher("__name__", "=", "nothing")], 0, BLOCK_MS)
    one = whole.select(0, [Matcher("__name__", "=", "b"), Matcher("i", "=", "3")], 0, 2000)

    assert len(found) == 10
    assert found.read["segments"] == 1
    assert found.read["segments_pruned"] == 1
    assert 0 < found.read["row_groups"] < segment.row_groups
    assert found.read["row_groups"] + found.read["row_groups_pruned"] == segment.row_groups
    assert 0 < found.read["bytes"] < segment.bytes
    assert found.read["rows"] == 20  # blocks that begin at 0 and at BLOCK_MS
    assert none.read["segments_pruned"] == 2
    assert none.read["row_groups"] == none.read["bytes"] == 0
    assert (one.read["row_groups"], one.read["rows"]) == (1, 1)
    by_label = whole.select(0, [Matcher("i", "=", "none")], 0, BLOCK_MS)
    assert (by_label.read["row_groups"], by_label.read["segments"]) == (0, 0)
    assert contents(one)[named("b", i="3")] == contents(found)[named("b", i="3")][:1]


def test_statistics_spare_reading_even_the_labels(tmp_path: Path) -> None:
    segment = large(tmp_path)
    segment_cache = SegmentCache(LOCAL, str(tmp_path), 1 << 30)
    whole = SegmentSource(segment_cache, [segment], 1)

    whole.select(0, [Matcher("__name__", "=", "nothing")], *EVER)
    none_met = segment_cache.series
    whole.select(0, [Matcher("__name__", "=", "b")], *EVER)

    assert (none_met, segment_cache.series) == (0, 10)


def test_memory_for_segments_is_bounded_and_answers_do_not_depend_on_it(tmp_path: Path) -> None:
    segment = large(tmp_path)
    roomy = source(tmp_path, [segment], memory=1 << 30).select(0, [], *EVER)
    segment_cache = SegmentCache(LOCAL, str(tmp_path), 0)

    tight = SegmentSource(segment_cache, [segment], 1).select(0, [], *EVER)

    assert segment_cache.nbytes == 0
    assert np.array_equal(roomy.values, tight.values)
    assert np.array_equal(roomy.times, tight.times)


def test_threads_that_read_the_same_segments_find_the_same(tmp_path: Path) -> None:
    segment = large(tmp_path)
    fresh = kept(tmp_path, *({named("a", i="0"): [(time, 1.0)]} for time in range(1, 30)))
    segment_cache = SegmentCache(LOCAL, str(tmp_path), segment.bytes)  # too little for all of them
    expected = source(tmp_path, [segment, *fresh], memory=1 << 30).select(0, [], *EVER)

    def read(place: int) -> bool:
        matchers = [] if place % 2 else [Matcher("__name__", "=~", "a|b|c")]
        found = SegmentSource(segment_cache, [segment, *fresh], 1).select(0, matchers, *EVER)
        return list(found.labels) == list(expected.labels) and np.array_equal(
            found.values, expected.values
        )

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(read, range(12)))
    assert segment_cache.nbytes <= segment.bytes


def test_a_select_that_would_hold_too_much_is_refused(tmp_path: Path) -> None:
    segment = large(tmp_path)
    segment_cache = SegmentCache(LOCAL, str(tmp_path), 1 << 30)
    bounded = SegmentSource(segment_cache, [segment], 1, most_bytes=1 << 20)

    few = bounded.select(0, [Matcher("i", "=", "3")], 0, 60_000)
    with pytest.raises(LimitReached, match="more than 1048576 bytes of memory"):
        bounded.select(0, [], *EVER)

    assert len(few) == 3


def test_a_select_that_nobody_waits_for_ends(tmp_path: Path) -> None:
    def check() -> None:
        raise Stopped("nobody waits")

    held = kept(tmp_path, {named("m"): [(1, 1.0)]})
    with pytest.raises(Stopped):
        SegmentSource(SegmentCache(LOCAL, str(tmp_path), 0), held, 1, check=check).select(
            0, [], *EVER
        )


def test_a_segment_that_is_gone_is_named_and_nothing_is_answered(tmp_path: Path) -> None:
    first, second = kept(tmp_path, {named("m"): [(1, 1.0)]}, {named("m"): [(2, 1.0)]})
    (tmp_path / second.path).unlink()

    with pytest.raises(SegmentBroken, match=second.path):
        source(tmp_path, [first, second]).select(0, [], *EVER)


@pytest.mark.parametrize("place", [10, -10])
def test_a_damaged_segment_is_named_and_nothing_is_answered(tmp_path: Path, place: int) -> None:
    [segment] = kept(tmp_path, {named("m"): [(1, 1.0)]})
    file = tmp_path / segment.path
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)

    with pytest.raises(SegmentBroken, match=f"{segment.path} is damaged"):
        source(tmp_path, [segment]).select(0, [], *EVER)
