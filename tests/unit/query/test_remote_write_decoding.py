"""Bytes of remote write against Google's protobuf; whatever the bytes, columns or a refusal."""

from __future__ import annotations

import ctypes
import mmap
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kalla.query.evaluate.sample_source import shard_of
from kalla.query.labels.label_sets import Labels, labels_of
from kalla.query.store.catalogue import Metadata
from kalla.query.store.ingest import remote_write, remote_write_kernels
from kalla.query.store.ingest.remote_write import WriteRequest
from kalla.query.store.ingest.series_index import (
    REFUSED,
    MalformedWrite,
    Refusals,
    SeriesIndex,
    WriteTooLarge,
    label_pairs,
)
from tests.remote_write_kit import MESSAGES, Pairs, body, packed, request_1, request_2, symbol

MOST = 1 << 20
MAKE = {1: request_1, 2: request_2}

names = st.text("abc_é", min_size=1, max_size=5)
label_sets = st.dictionaries(names, st.text("xyz\0é", max_size=300), max_size=5).map(
    lambda pairs: [("__name__", "m"), *pairs.items()]
)
times = st.integers(-(1 << 63), (1 << 63) - 1)
sample_lists = st.lists(st.tuples(times, st.floats(width=64)), max_size=5)
requests = st.lists(st.tuples(label_sets, sample_lists), max_size=6)


class Guarded:
    """Memory behind which there is none: reading on would end the process."""

    def __init__(self) -> None:
        self._size = 1 << 16
        self._memory = mmap.mmap(-1, self._size + mmap.PAGESIZE)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        behind = ctypes.c_void_p(self._bytes.ctypes.data + self._size)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(behind, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0

    def at_the_end(self, content: bytes) -> NDArray[np.uint8]:
        held = self._bytes[self._size - len(content) : self._size]
        held[:] = np.frombuffer(content, np.uint8)
        return held


@pytest.fixture(scope="module")
def guarded() -> Guarded:
    return Guarded()


def decoded(
    request: WriteRequest, known: SeriesIndex | None = None
) -> list[tuple[Labels | None, list[tuple[int, int]]]]:
    """Each series' labels, None if they are refused, and its times and the bits of its values."""
    known = known or SeriesIndex(4, 1 << 30)
    numbers = known.numbers(request.text, request.spans, request.split, Refusals())
    bits = request.values.view(np.int64)
    return [
        (
            None if number == REFUSED else known.labels(number),
            list(zip(request.times[low:high].tolist(), bits[low:high].tolist(), strict=True)),
        )
        for number, low, high in zip(
            numbers.tolist(), request.offsets.tolist(), request.offsets[1:].tolist(), strict=False
        )
    ]


@settings(deadline=None)
@given(requests, st.sampled_from([1, 2]))
def test_both_versions_come_out_as_protobuf_put_them_in(
    series: list[tuple[Pairs, list[tuple[int, float]]]], version: int
) -> None:
    found = decoded(remote_write.decode(body(MAKE[version](series)), version, MOST))
    expected = [
        (
            labels_of(dict(labels)),
            [(moment, int(np.float64(value).view(np.int64))) for moment, value in samples],
        )
        for labels, samples in series
    ]
    assert found == expected


@pytest.mark.parametrize("version", [1, 2])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_bytes_make_it_crash_hang_or_read_elsewhere(version: int, data: st.DataObject) -> None:
    request = MAKE[version](data.draw(requests))
    for one in request.timeseries:
        one.histograms.add(count_int=1)
        one.exemplars.add(value=1.0)
    if version == 2:
        for one in request.timeseries:
            one.metadata.type = 1
    message = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(0, 4))):
        kind = data.draw(st.sampled_from(["set", "cut", "insert", "remove"]))
        place = data.draw(st.integers(0, max(len(message) - 1, 0)))
        if kind == "insert" or not message:
            message[place:place] = data.draw(st.binary(max_size=12))
        elif kind == "set":
            message[place] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del message[place:]
        else:
            del message[place]
    # Nothing but the message is in this memory: what lies behind it must not matter.
    one = _outcome(packed(bytes(message)), version)
    assert one == _outcome(packed(bytes(message)), version)
    try:
        parsed = MESSAGES[f"v{version}.Request"].FromString(bytes(message))
    except Exception:
        return
    if isinstance(one, list) and not _has_groups(bytes(message)):
        samples = [len(each.samples) for each in parsed.timeseries]
        assert [len(found) for _, found in one] == samples


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([1, 2]))
def test_any_body_at_all_is_columns_or_a_refusal(content: bytes, version: int) -> None:
    for each in (content, packed(content)):
        assert _outcome(each, version) == _outcome(each, version)  # and nothing else is raised


def _outcome(content: bytes, version: int) -> object:
    try:
        return decoded(remote_write.decode(content, version, MOST))
    except (MalformedWrite, WriteTooLarge) as error:
        return str(error)


def _has_groups(message: bytes) -> bool:
    """Groups are refused here, and kept as unknown fields by protobuf."""
    return any(byte & 7 in (3, 4) for byte in message)


@pytest.mark.parametrize("version", [1, 2])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_walk_reads_nothing_behind_the_message_and_writes_nothing_behind_its_columns(
    guarded: Guarded, version: int, data: st.DataObject
) -> None:
    message = bytearray(MAKE[version](data.draw(requests)).SerializeToString())
    if message and data.draw(st.booleans()):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    del message[data.draw(st.integers(0, len(message))) :]
    held = guarded.at_the_end(bytes(message))
    rooms = data.draw(st.tuples(*[st.integers(0, 5)] * 3))
    series = np.full((rooms[0] + 1, remote_write_kernels.SERIES_COLUMNS), -7)
    samples = np.full((4, rooms[1]), -7)
    third = np.full((rooms[2] + 1, 2), -7)
    counts = np.zeros(remote_write_kernels.COUNTS, np.int64)
    if version == 1:
        remote_write_kernels.walk_1(held, series[:-1], samples[:3], third[:-1], counts)
    else:
        refs = np.full(len(held) + 1, -7)
        remote_write_kernels.walk_2(held, series[:-1], samples[:3], third[:-1], refs[:-1], counts)
        assert refs[-1] == -7
    assert (series[-1] == -7).all()
    assert (samples[3] == -7).all()
    assert (third[-1] == -7).all()


def test_a_bomb_is_refused_by_the_size_it_declares() -> None:
    bomb = b"\xff\xff\xff\xff\x0f" + b"\0" * 10
    with pytest.raises(WriteTooLarge, match="4294967295 bytes"):
        remote_write.decode(bomb, 1, MOST)


def test_a_body_that_is_shorter_or_longer_than_it_says_is_refused() -> None:
    content = body(request_1([([("__name__", "m")], [(1, 1.0)])]))
    for wrong in (content[:-1], content + b"\0", bytes([content[0] + 1]) + content[1:]):
        with pytest.raises(MalformedWrite):
            remote_write.decode(wrong, 1, MOST)


def test_labels_with_something_between_them_are_still_one_series() -> None:
    request = MESSAGES["v1.Request"]()
    for name, value in (("__name__", "m"), ("a", "b")):
        one = request.timeseries.add()
        one.labels.add(name=name.encode(), value=value.encode())
        one.samples.add(timestamp=1, value=2.0)
    # Protobuf joins messages that are written one after another.
    inner = b"".join(one.SerializeToString() for one in request.timeseries)
    found = remote_write.decode(packed(b"\x0a" + bytes([len(inner)]) + inner), 1, MOST)
    known = SeriesIndex(4, 1 << 30)
    assert [labels for labels, _ in decoded(found, known)] == [(("__name__", "m"), ("a", "b"))]
    assert found.split.tolist() == [True]
    assert len(decoded(found, known)[0][1]) == 2


def test_references_need_not_be_packed_nor_symbols_come_first() -> None:
    symbols = b"".join(b"\x22" + bytes([len(text)]) + text for text in (b"", b"__name__", b"m"))
    series = b"\x08\x01\x08\x02" + b"\x12\x02\x10\x07"
    message = b"\x2a" + bytes([len(series)]) + series + symbols
    assert decoded(remote_write.decode(packed(message), 2, MOST)) == [
        ((("__name__", "m"),), [(7, 0)])
    ]


def test_start_timestamps_of_version_2_are_read() -> None:
    request = request_2([([("__name__", "m")], [(5, 1.0), (6, 2.0)])])
    assert remote_write.decode(body(request), 2, MOST).starts is None
    request.timeseries[0].samples[1].start_timestamp = 3
    starts = remote_write.decode(body(request), 2, MOST).starts
    assert starts is not None
    assert starts.tolist() == [0, 3]


def test_histograms_and_exemplars_are_counted_beside_the_samples() -> None:
    for version, make in MAKE.items():
        request = make([([("__name__", "m")], [(1, 1.0)]), ([("__name__", "n")], [])])
        for one in request.timeseries:
            one.histograms.add(count_int=5, timestamp=1)
        request.timeseries[0].exemplars.add(value=1.0)
        found = remote_write.decode(body(request), version, MOST)
        assert (found.histograms.tolist(), found.exemplars) == ([1, 1], 1)
        assert len(found.times) == 1


def test_metadata_of_version_2_goes_to_the_family() -> None:
    request = request_2([])
    told = [
        ("took_bucket", 3, "took"),
        ("took_sum", 3, "took"),
        ("asked_total", 1, "asked_total"),
        ("size_count", 5, "size"),
        ("_sum", 3, "_sum"),
    ]
    for name, kind, _ in told:
        one = request.timeseries.add()
        one.labels_refs.extend([symbol(request, "__name__"), symbol(request, name)])
        one.metadata.type = kind
    found = remote_write.decode(body(request), 2, MOST).metadata
    assert set(found) == {family for _, _, family in told}
    assert found["took"] == Metadata("histogram", "", "")


@given(st.lists(label_sets, min_size=1, max_size=400), st.lists(st.integers(1, 300), max_size=6))
@settings(max_examples=30, deadline=None)
def test_series_stand_in_the_order_of_rows_however_they_come(
    sets: list[Pairs], cuts: list[int]
) -> None:
    known = SeriesIndex(3, 1 << 30)
    for first, last in pairwise([0, *sorted(cuts), len(sets)]):
        added = [
            (labels_of(dict(pairs)), known.add(labels_of(dict(pairs))))
            for pairs in sets[first:last]
        ]
        order = np.argsort(known.places())
        rows = known.label_texts(order)
        keys = list(
            zip(
                known.shards(order).tolist(),
                rows.metrics.to_pylist(),
                rows.texts.to_pylist(),
                strict=True,
            )
        )
        assert keys == sorted(set(keys))
        assert list(rows) == [known.labels(int(number)) for number in order]
        for labels, number in added:
            assert known.labels(number) == labels
            assert known.shards(np.array([number])) == [shard_of(labels, 3)]
    assert len(known) == len({labels_of(dict(pairs)) for pairs in sets})


near_plain = st.text('ab~ "\\\x1f\x7fé,:{}', max_size=130)


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.one_of(st.just("__name__"), near_plain), near_plain), max_size=4),
        max_size=5,
    ),
    st.booleans(),
)
@example([[("__name__", "m"), ("a", ","), ("b", ":"), ("c", "d")]], True)
def test_labels_get_the_text_and_shard_of_their_set_however_they_are_read(
    sets: list[list[tuple[str, str]]], in_order: bool
) -> None:
    known = SeriesIndex(7, 1 << 30)
    given_sets = [sorted(pairs) if in_order else pairs for pairs in sets]
    request = remote_write.decode(body(request_1([(pairs, []) for pairs in given_sets])), 1, MOST)
    for _ in range(2):  # as new ones, then as known ones
        numbers = known.numbers(request.text, request.spans, request.split, Refusals())
        known.places()
        for pairs, number in zip(given_sets, numbers.tolist(), strict=True):
            kept = tuple(sorted(pair for pair in pairs if pair[1]))
            names = [name for name, _ in pairs]
            right = len(set(names)) == len(names) and "" not in names
            if not right or "__name__" not in dict(kept):
                assert number == REFUSED
                continue
            assert known.labels(number) == kept
            assert number == known.add(kept)
            assert known.shards(np.array([number])) == [shard_of(kept, 7)]
            (spelled,) = known.label_texts(np.array([number])).metrics.to_pylist()
            assert spelled == dict(kept)["__name__"]


def test_a_full_table_of_series_says_so() -> None:
    known = SeriesIndex(1, 10_000)
    for place in range(1000):
        known.add((("__name__", f"m{place}"),))
        if known.is_full:
            break
    assert 5 < place < 20


@settings(deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=200)), max_size=6))
def test_labels_are_read_alike_whatever_their_length(pairs: list[tuple[bytes, bytes]]) -> None:
    request = MESSAGES["v1.TimeSeries"]()
    for name, value in pairs:
        request.labels.add(name=name, value=value)
    assert label_pairs(request.SerializeToString()) == pairs


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_labels_of_any_bytes_are_pairs_or_a_refusal(text: bytes) -> None:
    try:
        found = label_pairs(text)
    except MalformedWrite:
        return
    assert all(len(name) + len(value) <= len(text) for name, value in found)
